"""The Python blocks of the pages, and the figures that they draw.

`make docs` runs the blocks once and compares what they print with the output on the page. Where a
page has

    ```{picture} Caption of the figure.
    ```

directly after a block (or after its output), the figure that the block calls `fig` is saved in
output/pictures, and `picture.py` inserts it into the page. The file name contains a digest of the
code of the page up to that block: after a change of the code the build fails until the examples
have been run again.

A page that starts with its picture has the directive `{opening}` there, and the sentence `DRAWN`
after the block that draws it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "output/pictures"
# Pixels per inch of the file and of the page. The ratio keeps figures sharp on fine screens.
DPI, PAGE_DPI = 160, 100
DRAWN = "This draws the figure at the top of the page."
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```"
    r"(?:\n+```text\n(?P<output>.*?)```)?"
    r"(?:(?P<picture>\n+```\{picture\} [^\n`]+\n```)"
    rf"|(?P<opening>\n+{re.escape(DRAWN)}))?",
    flags=re.DOTALL,
)


class Block(NamedTuple):
    """A block of code, its output on the page, and the file name of its figure, if any.

    `opening` is True if the figure is shown at the top of the page.
    """

    code: str
    output: str
    picture: str | None
    opening: bool = False


def blocks(page: str, text: str) -> Iterator[Block]:
    """The Python blocks of a page in order; `page` is its name, for example howto/figure."""
    digest = hashlib.sha256()
    prefix = page.replace("/", "-")
    for match in BLOCK.finditer(text):
        digest.update(match["code"].encode())
        opening = bool(match["opening"])
        drawn = bool(match["picture"]) or opening
        name = f"{prefix}-{digest.hexdigest()[:12]}.png" if drawn else None
        yield Block(match["code"], match["output"] or "", name, opening)


def save_figure(figure: Any, name: str) -> None:
    """Save the figure of a page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / name, dpi=DPI)
