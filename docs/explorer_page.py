"""The explorer as a page of the documentation.

The page is that of `sgdynamics explore`, with the curves of a coarse grid instead of a server.
"""

import json
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src/sgdynamics"
EXPLORER = PACKAGE / "cli/explorer"
BORDER = "<!-- the documentation shows what stands between these two lines -->"


def write_files(app):
    """Add script, style sheet and curves to the static files.

    The curves are computed again if a file of the package is newer.
    """
    if app.builder.format != "html":
        return
    folder = Path(app.doctreedir) / "explorer"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("page.js", "page.css"):
        text = (EXPLORER / name).read_text(encoding="utf-8")
        (folder / f"explorer_{name}").write_text(text, encoding="utf-8")
    curves = folder / "explorer_curves.js"
    newest_source = max(path.stat().st_mtime for path in PACKAGE.rglob("*.py"))
    if not curves.exists() or curves.stat().st_mtime < newest_source:
        from sgdynamics.cli.explorer.curves import grid

        # The data are a script, because a page opened from a folder cannot read other files.
        data = json.dumps(grid(), allow_nan=False)
        curves.write_text(f"window.SGDYNAMICS_EXPLORER = {data};\n", encoding="utf-8")
    app.config.html_static_path.append(str(folder))


def insert_page(app, docname, source):
    if docname == "explorer":
        fragment = (EXPLORER / "page.html").read_text(encoding="utf-8").split(BORDER)[1].strip()
        source[0] = source[0].replace("<!-- explorer -->", fragment)


def add_files(app, pagename, templatename, context, doctree):
    if pagename == "explorer":
        app.add_css_file("explorer_page.css")
        app.add_js_file("explorer_curves.js", loading_method="defer")
        app.add_js_file("explorer_page.js", loading_method="defer")


def setup(app):
    app.connect("builder-inited", write_files)
    app.connect("source-read", insert_page)
    app.connect("html-page-context", add_files)
    return {"parallel_read_safe": True}
