"""Write the formulas of `problem.equations` into the pages: python docs/shown_equations.py.

Where a page has the two marks below after a Python block, the block's variable `equations` is shown
between them. tests/docs/test_equations.py compares the pages with the code.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parent
START, END = "<!-- equations of the block above -->", "<!-- end of the equations -->"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```", flags=re.DOTALL)


def pages() -> list[Path]:
    """The pages that show equations."""
    return [page for page in sorted(PAGES.rglob("*.md")) if START in page.read_text("utf-8")]


def with_equations(text: str) -> str:
    """The text of a page with the formulas of its code."""
    texts = text.split(START)
    namespace: dict[str, Any] = {}
    shown = texts[0]
    for before, section in pairwise(texts):
        for block in BLOCK.finditer(before):
            exec(compile(block["code"], "page", "exec"), namespace)
        _, end, after = section.partition(END)
        assert end, f"{START} without {END}"
        formulas = namespace["equations"]._repr_markdown_()
        shown += f"{START}\n\n{formulas}\n\n{END}{after}"
    return shown


if __name__ == "__main__":
    for page in pages():
        page.write_text(with_equations(page.read_text("utf-8")), encoding="utf-8")
