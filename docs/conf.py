"""Sphinx settings. `make docs` builds the pages into output/docs, with warnings as errors.

Docstrings have the sections of numpydoc; `sections.py` says which ones a public name needs, and the build fails where one is missing.
Formulas are written by `formulas.py`, with fonts that come along: the built pages can be read without a network.
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
]
exclude_patterns = ["pictures/*.py"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}
nb_execution_mode = "off"  # they are run before, see run_notebooks.py
html_theme = "furo"
html_title = f"sgdynamics {release}"
html_show_sphinx = False
html_static_path = ["style", str(formulas.KATEX / "katex.min.css")]
html_css_files = ["katex.min.css", "pages.css"]
highlight_language = "none"  # blocks of docstrings are formulas; Python says that it is

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
numpydoc_show_class_members = False  # the pages say which
autosummary_generate = False  # numpydoc brings it along
nitpicky = True

# --- docstrings say what they must


def check_sections(app):
    """A public docstring that lacks a section, or says something else than the signature, is a warning: `make docs` fails on it."""
    for page in sorted((ROOT / "docs/api").glob("*.md")):
        for kind, name, one in sections.shown(page):
            for fault in sections.faults(kind, one):
                logger.warning("docstring of %s: %s", name, fault)


def short_reference(app, env, node, contnode):
    """A type in a signature: the public name where there is one; plain text for other libraries and for what is internal."""
    target = node.get("reftarget", "")
    # what a page itself names, sgdynamics.something, must exist
    if node.get("refdomain") != "py" or re.fullmatch(r"sgdynamics\.\w+", target):
        return None
    last = target.rpartition(".")[2]
    if last in sgdynamics.__all__:
        found = env.get_domain("py").resolve_xref(
            env, node["refdoc"], app.builder, "obj", f"sgdynamics.{last}", node, contnode
        )
        if found is not None:
            return found
    return contnode


def back_links(app, pagename, templatename, context, doctree):
    """A source that is documented under two modules has links back under the first alone: the others are looked up."""
    if not pagename.startswith("_modules/"):
        return
    shown = app.env.get_domain("py").objects

    def repaired(link):
        page, name = link["page"], link["name"]
        there = [
            full
            for full, one in shown.items()
            if page.endswith(f"{one.docname}.html") and full.endswith("." + name.rpartition(".")[2])
        ]
        return f'{link["begin"]}{page}#{name if name in there or not there else there[0]}"'

    link = r'(?P<begin>class="viewcode-back" href=")(?P<page>[^"#]+)#(?P<name>[^"]+)"'
    context["body"] = re.sub(link, repaired, context.get("body", ""))


def breakable_names(app, pagename, templatename, context, doctree):
    """Names of code may go on in the next line after an underscore, a dot or a bracket."""
    if "body" in context:
        name = re.compile(r'(?<=<span class="pre">)[^<]+(?=</span>)')
        context["body"] = name.sub(
            lambda found: re.sub(r"(?<=[_.,(/=])(?=\w)", "<wbr>", found[0]), context["body"]
        )


# --- the table of figures, from the list that makes them


def figures_table(app, docname, source):
    if docname != "gallery/index":
        return
    from sgdynamics_reproductions import gallery

    def said(one):
        return gallery.verdict_with_remark(one).replace("|", "\\|")

    rows = []
    for document, title in gallery.DOCUMENTS.items():
        here = [one for one in gallery.ENTRIES if one.document == document]
        rows += [
            f"\n### {title}\n",
            "| figure | what it shows | what the document claims |",
            "| --- | --- | --- |",
        ]
        rows += [f"| {one.number} | {one.line} | {one.claim} |" for one in here]
        found = {one.number: gallery.full_size().get(f"{document}-{one.number}") for one in here}
        if any(found.values()):
            rows += [
                "\nAt full size, on a GPU:\n",
                "| figure | verdict | time |",
                "| --- | --- | --- |",
            ]
            rows += [
                f"| {name} | {said(one)} | {one['seconds']:.0f} s, {one['device']} |"
                for name, one in found.items()
                if one
            ]
    rows = [row.replace("$", "\\$") for row in rows]
    source[0] = source[0].replace("<!-- figures -->", "\n".join(rows))


# --- notebooks


def notebooks_of_this_run(app, docname, source):
    """The page of a notebook is made of the run that `make docs` has made before the build, not of what is stored."""
    if (
        not docname.startswith("notebooks/")
        or docname == "notebooks/index"
        or not app.config.pictures
    ):
        return
    file = ROOT / f"output/{docname}.ipynb"
    stored = [cell["source"] for cell in json.loads(source[0])["cells"]]
    run = json.loads(file.read_text(encoding="utf-8"))["cells"] if file.is_file() else []
    if [cell["source"] for cell in run] != stored:
        logger.warning(
            "%s has not been run as it is stored: `make docs` runs the notebooks before it builds the pages",
            docname,
        )
        return
    app.env.note_dependency(str(file))
    source[0] = file.read_text(encoding="utf-8")


def setup(app):
    app.connect(
        "builder-inited", check_sections
    )  # autodoc writes defaults into signatures as texts
    app.connect("missing-reference", short_reference)
    app.connect("html-page-context", back_links)
    app.connect("html-page-context", breakable_names)
    app.connect("source-read", figures_table)
    app.connect("source-read", notebooks_of_this_run)
