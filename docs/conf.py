"""Sphinx settings. `make docs` builds the pages into output/docs, with warnings as errors.

Docstrings have the sections of numpydoc. `sections.py` checks those of public names, and the build
fails if one is missing. `formulas.py` typesets formulas, with fonts that are part of the pages, so
that the built pages can be read without a network.
"""

import json
import re
import sys
from pathlib import Path

from sphinx.util import logging

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]

import formulas  # noqa: E402
import sections  # noqa: E402

import sgdynamics  # noqa: E402

logger = logging.getLogger(__name__)

project = "sgdynamics"
author = "The sgdynamics authors"
project_copyright = author
version = release = sgdynamics.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "numpydoc",
    "formulas",
    "picture",
    "explorer_page",
    "api_pages",
]
exclude_patterns = ["pictures/*.py", "gallery/*.py"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # run_notebooks.py runs them before the build
html_theme = "furo"
html_title = f"sgdynamics {release}"
html_show_sphinx = False
html_static_path = ["style", str(formulas.KATEX / "katex.min.css")]
html_css_files = ["katex.min.css", "pages.css"]
html_extra_path = ["llms.txt"]
highlight_language = "none"  # literal blocks are formulas; Python is marked

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
math_number_all = False
html_math_renderer = "katex"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
numpydoc_show_class_members = False  # the pages list the members
autosummary_generate = False  # numpydoc loads autosummary
nitpicky = True

# --- checks of docstrings


def check_sections(app):
    """Warn of public docstrings that lack a section or differ from the signature.

    `make docs` treats warnings as errors.
    """
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        for kind, name, target in sections.documented_objects(page):
            for fault in sections.faults(kind, target):
                logger.warning("docstring of %s: %s", name, fault)


# --- references


def short_reference(app, env, node, contnode):
    """Resolve a type in a signature to its public name.

    Types of other libraries and internal types become plain text.
    """
    target = node.get("reftarget", "")
    # A reference sgdynamics.NAME that a page writes itself must exist: None makes it a warning.
    if node.get("refdomain") != "py" or re.fullmatch(r"sgdynamics\.\w+", target):
        return None
    last = target.rpartition(".")[2]
    if last in sgdynamics.__all__:
        reference = env.get_domain("py").resolve_xref(
            env, node["refdoc"], app.builder, "obj", f"sgdynamics.{last}", node, contnode
        )
        if reference is not None:
            return reference
    return contnode


def back_links(app, pagename, templatename, context, doctree):
    """Repair the links from source pages to the documentation.

    For a source that is documented under two modules, viewcode links only to the first one.
    """
    if not pagename.startswith("_modules/"):
        return
    objects = app.env.get_domain("py").objects

    def repair(link):
        page, name = link["page"], link["name"]
        suffix = "." + name.rpartition(".")[2]
        on_page = [
            full_name
            for full_name, entry in objects.items()
            if page.endswith(f"{entry.docname}.html") and full_name.endswith(suffix)
        ]
        anchor = name if name in on_page or not on_page else on_page[0]
        return f'{link["prefix"]}{page}#{anchor}"'

    link = r'(?P<prefix>class="viewcode-back" href=")(?P<page>[^"#]+)#(?P<name>[^"]+)"'
    context["body"] = re.sub(link, repair, context.get("body", ""))


def breakable_names(app, pagename, templatename, context, doctree):
    """Allow line breaks in names of code after an underscore, a dot or a bracket."""
    if "body" in context:
        name = re.compile(r'(?<=<span class="pre">)[^<]+(?=</span>)')
        context["body"] = name.sub(
            lambda match: re.sub(r"(?<=[_.,(/=])(?=\w)", "<wbr>", match[0]), context["body"]
        )


# --- the list of figures, from the entries of the gallery


def figure_cards(app, docname, source):
    """Write a card for each figure, with its thumbnail, into the page of the gallery."""
    if docname != "gallery/index":
        return
    from sgdynamics_reproductions import gallery

    rows = []
    for document, title in gallery.DOCUMENTS.items():
        entries = [entry for entry in gallery.ENTRIES if entry.document == document]
        rows += [f"\n### {title}\n", "::::{container} figure-cards"]
        for entry in entries:
            call = f"{document}.{entry.name}"
            link = f"{{py:obj}}`{entry.number} <sgdynamics_reproductions.{call}>`"
            rows += [
                ":::{container} figure-card",
                thumbnail(entry, docname),
                f"\n{link} {entry.line}\n",
                f"*Claim*: {entry.claim}",
                ":::",
            ]
        rows.append("::::")
        full_size = {
            entry.number: gallery.full_size().get(f"{document}-{entry.number}") for entry in entries
        }
        if any(full_size.values()):
            rows += [
                "\nAt full size, on a GPU:\n",
                "| figure | verdict | time |",
                "| --- | --- | --- |",
            ]
            for number, outcome in full_size.items():
                if outcome:
                    verdict = gallery.verdict_with_remark(outcome).replace("|", "\\|")
                    time = f"{outcome['seconds']:.0f} s, {outcome['device']}"
                    rows.append(f"| {number} | {verdict} | {time} |")
    rows = [row.replace("$", "\\$") for row in rows]
    source[0] = source[0].replace("<!-- figures -->", "\n".join(rows))


def thumbnail(entry, docname):
    """The small picture of a figure, if `make thumbnails` has stored one."""
    name = f"{entry.document}-{entry.number}.png"
    if not (ROOT / "docs" / docname).parent.joinpath("thumbnails", name).is_file():
        return ""
    return f"![{entry.line}](thumbnails/{name})"


# --- links from the errata to their tests


def links_to_tests(app, docname, source):
    """Link the names of tests on the page of the errata to their files."""
    if docname != "errata":
        return
    files = {}
    for folder in ("tests", "reproductions/tests"):
        for file in sorted((ROOT / folder).rglob("test_*.py")):
            for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.M):
                files.setdefault(name, file.relative_to(ROOT).as_posix())

    def link(match):
        file = files.get(match[1])
        return f"{{download}}`{match[1]} <../{file}>`" if file else match[0]

    source[0] = re.sub(r"`(test_\w+)`", link, source[0])


# --- notebooks


def notebooks_of_this_run(app, docname, source):
    """Build the page of a notebook from the run that `make docs` makes before the build."""
    is_notebook = docname.startswith("notebooks/") and docname != "notebooks/index"
    if not is_notebook or not app.config.pictures:
        return
    file = ROOT / f"output/{docname}.ipynb"
    stored = [cell["source"] for cell in json.loads(source[0])["cells"]]
    run = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.is_file() else []
    if [cell["source"] for cell in run] != stored:
        logger.warning(
            "%s: the run differs from the stored notebook. Run `make docs`, which runs the"
            " notebooks before it builds the pages.",
            docname,
        )
        return
    app.env.note_dependency(str(file))
    source[0] = file.read_text(encoding="utf-8")


def setup(app):
    # The check comes first, because autodoc replaces defaults in signatures by their texts.
    app.connect("builder-inited", check_sections)
    app.connect("missing-reference", short_reference)
    app.connect("html-page-context", back_links)
    app.connect("html-page-context", breakable_names)
    app.connect("source-read", figure_cards)
    app.connect("source-read", links_to_tests)
    app.connect("source-read", notebooks_of_this_run)
