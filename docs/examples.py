"""The Python blocks of the pages, and the pictures that they draw. `make docs` runs them once: what they print is compared with what the
page shows, and where a page has

    ```{picture} What is seen there.
    ```

right behind a block (or behind what it prints), the figure that the block calls `fig` is kept in output/pictures, for `picture.py` to put
there. Its name has a digest of the page's code up to that block, so that a picture of other code is not found, and the build fails.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "output/pictures"
DPI, SHOWN = 160, 100  # pixels of the file and of the page for each inch: sharp on fine screens
BLOCK = re.compile(
    r"```python\n(?P<code>.*?)```(?:\n+```text\n(?P<shown>.*?)```)?(?P<picture>\n+```\{picture\} [^\n`]+\n```)?",
    flags=re.DOTALL,
)


class Block(NamedTuple):
    """A block of code, what the page says that it prints, and the name of the picture behind it, if there is one."""

    code: str
    shown: str
    picture: str | None


def blocks(page: str, text: str) -> Iterator[Block]:
    """The Python blocks of a page, in order; `page` is its name, as in howto/figure."""
    digest = hashlib.sha256()
    for found in BLOCK.finditer(text):
        digest.update(found["code"].encode())
        name = (
            f"{page.replace('/', '-')}-{digest.hexdigest()[:12]}.png" if found["picture"] else None
        )
        yield Block(found["code"], found["shown"] or "", name)


def keep(figure: Any, name: str) -> None:
    """Save a figure for a page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / name, dpi=DPI)
