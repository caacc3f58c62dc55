"""Sphinx settings. `make docs` builds the pages into output/docs, with warnings as errors.

Docstrings are plain text with backticks and indented equations, not reStructuredText: `plain_docstring` translates them, so that a
star (W*), a norm (|W|) or an underscore in a formula stays what it is. Formulas of the pages become MathML, which browsers draw without
any script, so that the built pages can be read without a network.
"""

import re
import sys
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import sgdynamics  # noqa: E402

project = "sgdynamics"
author = "The sgdynamics authors"
project_copyright = author
version = release = sgdynamics.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["pictures/*.py"]
source_suffix = {".md": "markdown"}
html_theme = "furo"
html_title = f"sgdynamics {release}"
html_show_sphinx = False

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
math_number_all = False
html_math_renderer = "mathml"

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
nitpicky = True

# --- formulas as MathML


def _inline_math(self, node):
    self.body.append(str(tex2mathml(node.astext())))
    raise nodes.SkipNode


def _display_math(self, node):
    tex = node.astext().strip()
    number = f'<span class="eqno">({node["number"]})<a class="headerlink" href="#{node["ids"][0]}">¶</a></span>' if node["number"] else ""
    anchor = f' id="{node["ids"][0]}"' if node["ids"] else ""
    self.body.append(f'<div class="math"{anchor}>{number}{tex2mathml(tex, as_block=True)}</div>\n')
    raise nodes.SkipNode


# --- docstrings as they are written

LIST_ITEM = re.compile(r"^\s*- ")


def _escaped(text):
    """Code in backticks as a literal, everything else letter by letter."""
    result = ""
    for part in re.split(r"(`[^`]+`)", text):
        if part.startswith("`") and part.endswith("`") and len(part) > 2:
            result += f"``{part[1:-1]}``"
            continue
        # a literal must not touch a word, or it is none
        touching = result.endswith("``") and part[:1].isalnum()
        result += ("\\ " if touching else "") + re.sub(r"([\\*|_`])", r"\\\1", part)
    return result


def plain_docstring(app, what, name, obj, options, lines):
    """Paragraphs and lists stay; an indented paragraph (an equation, an example) is shown as it stands."""
    result, block, item, session = [], False, False, False
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        # an interpreter session lasts until the next empty line
        session = bool(line.strip()) and (session or line.startswith(">>>"))
        if not line.strip():
            result.append("")
            continue
        if session:
            result.append(line)
            continue
        indented = line.startswith("    ")
        if indented and not item and (block or not before.strip() or before.rstrip().endswith(":")):
            if not block:
                result.extend(["", "::", ""])
                block = True
            result.append(line)
            continue
        if block:
            result.append("")
            block = False
        if LIST_ITEM.match(line):
            if not item and before.strip():
                result.append("")
            item = True
        elif item and not line.startswith(" "):
            if before.strip():
                result.append("")
            item = False
        indent = line[: len(line) - len(line.lstrip())]
        # a continuation of a list item keeps its indentation, any other stray one is dropped
        result.append((indent if item else "") + _escaped(line.strip()))
    lines[:] = [*result, ""]


def short_reference(app, env, node, contnode):
    """A type in a signature: the public name where there is one; plain text for other libraries and for what is internal."""
    target = node.get("reftarget", "")
    # what a page itself names, sgdynamics.something, must exist
    if node.get("refdomain") != "py" or re.fullmatch(r"sgdynamics\.\w+", target):
        return None
    last = target.rpartition(".")[2]
    if last in sgdynamics.__all__:
        found = env.get_domain("py").resolve_xref(env, node["refdoc"], app.builder, "obj", f"sgdynamics.{last}", node, contnode)
        if found is not None:
            return found
    return contnode


# --- the table of figures, from the list that makes them


def figures_table(app, docname, source):
    if docname != "gallery/index":
        return
    from sgdynamics import gallery

    def said(one):
        return gallery.remarked(one).replace("|", "\\|")

    rows = []
    for document, title in gallery.DOCUMENTS.items():
        here = [one for one in gallery.ENTRIES if one.document == document]
        rows += [f"\n## {title}\n", "| figure | what it shows | what the document claims |", "| --- | --- | --- |"]
        rows += [f"| {one.number} | {one.line} | {one.claim} |" for one in here]
        found = {one.number: gallery.full_size().get(f"{document}-{one.number}") for one in here}
        if any(found.values()):
            rows += ["\nAt the document's own size, on a GPU:\n", "| figure | verdict | time |", "| --- | --- | --- |"]
            rows += [f"| {name} | {said(one)} | {one['seconds']:.0f} s, {one['device']} |" for name, one in found.items() if one]
    rows = [row.replace("$", "\\$") for row in rows]
    source[0] = source[0].replace("<!-- figures -->", "\n".join(rows))


def setup(app):
    app.add_html_math_renderer("mathml", (_inline_math, None), (_display_math, None))
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("missing-reference", short_reference)
    app.connect("source-read", figures_table)
