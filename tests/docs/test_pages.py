"""The built pages as a reader sees them: a headless Chromium opens every one, in a wide and in a narrow window.

`make docs` builds the pages and runs this, with their folder in the environment variable PAGES; without it, or without a browser, it is
skipped. Formulas bring their fonts along, and in them pieces of pages look the same on every machine: a few are held against their pictures
in `tests/pictures`, which `PAGES=output/docs python -m tests.docs.test_pages` takes anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import matplotlib.image
import numpy as np
import pytest

from tests.docs.browser import NAMES, Browser, find_browser

FOLDER = os.environ.get("PAGES")
FAULTS = (Path(__file__).parent / "page_faults.js").read_text(encoding="utf-8")
WIDE, NARROW = 1280, 400
SOURCES = "_modules"  # the code itself has lines of 140 characters, which scroll

PICTURES = Path(__file__).parent / "pictures"
# what was cut off, or had brackets and roots of one size, before formulas had their own fonts
FORMULAS = {
    "split": "div.equation",
    "brackets": "#equation-eq3",
    "fractions": "#equation-eq5",
    "root": "#equation-eq33",
}
# tables that lost stars, came out as raw pipes, or were cut at the right
TABLES = {
    "units": ("units.html", "#definitions table"),
    "critical_points": (
        "api/papers.html",
        "[id='sgdynamics.papers.escaping_mediocrity.critical_points'] + dd pre",
    ),
    "errata": ("errata.html", "table"),
}
PIECES = {
    name: ("theory.html", f"{selector} .katex-html") for name, selector in FORMULAS.items()
} | TABLES
# the text in the fonts of the formulas, whatever fonts the machine has
SAME_FONTS = """
(() => {
  const style = document.createElement("style");
  style.textContent = `body, body *:not(.katex, .katex *, pre *, code, code *) { font-family: KaTeX_Main !important }
    body pre, body pre *, body code, body code * { font-family: KaTeX_Typewriter !important }`;
  document.head.append(style);
  document.body.offsetHeight;
  return document.fonts.ready.then(() => true);
})()
"""

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="PAGES does not name the folder of the built pages: `make docs` does"
)


@pytest.fixture(scope="module")
def browser():
    if find_browser() is None:
        told = f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)"
        pytest.skip(told)
    with Browser() as one:
        yield one


def faults(browser: Browser, url: str, wide_scrolls: bool = False) -> list[str]:
    """What is wrong with a page in either window."""
    browser.size(WIDE)
    browser.open(url)
    found = []
    for width in (WIDE, NARROW):
        browser.size(width)
        wide = width == WIDE and not wide_scrolls
        given = f"{str(wide).lower()}, {str(width == WIDE).lower()}"
        found += [f"at {width} px: {fault}" for fault in browser.run(f"({FAULTS})({given})")]
    return found + browser.complaints


def test_every_page_is_drawn_whole_and_links_lead_somewhere(browser):
    root = Path(FOLDER or "").resolve()
    pages = sorted(root.rglob("*.html"))
    assert len(pages) > 30, f"PAGES={FOLDER}: no pages there"
    wrong, anchors, links = [], {}, []
    for page in pages:
        name = page.relative_to(root).as_posix()
        wrong += [
            f"{name} {fault}" for fault in faults(browser, page.as_uri(), name.startswith(SOURCES))
        ]
        anchors[page] = set(
            browser.run("[...document.querySelectorAll('[id]')].map((one) => one.id)")
        )
        links += [
            (page, link)
            for link in set(
                browser.run("[...document.querySelectorAll('a[href]')].map((one) => one.href)")
            )
        ]
    for page, link in links:
        place, anchor = urldefrag(link)
        if urlparse(place).scheme != "file":
            continue
        target = Path(unquote(urlparse(place).path))
        if not target.is_file():
            wrong.append(f"{page.relative_to(root)} links to {target}, which is not there")
        elif (
            anchor
            and "=" not in anchor
            and target in anchors
            and unquote(anchor) not in anchors[target]
        ):  # a state of the explorer has =
            wrong.append(
                f"{page.relative_to(root)} links to {target.relative_to(root)}#{anchor}, which is not there"
            )
    assert len(links) > 1000  # it sees them
    assert not wrong, f"{len(wrong)} faults\n" + "\n".join(wrong)


SOUND = "<p>All is well: $ 3, λ* and x ← y.</p><pre>short</pre><div class='equation'><div class='formula'>x</div><span>(1)</span></div>"


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (SOUND, None),
        ("<div style='width: 2000px'>wide</div>", "the page is 20"),
        ("<pre style='overflow: auto; width: 300px'>" + "x" * 100 + "</pre>", "at 1280 px: cut by"),
        (
            "<p style='overflow: hidden; width: 300px; white-space: nowrap'>" + "x" * 100 + "</p>",
            "at 400 px: cut by",
        ),
        (
            "<div class='formula' style='overflow: hidden; height: 10px'>x<br>y</div>",
            "cut below by",
        ),
        ("<p>first</p><p style='margin-top: -30px'>second</p>", "overprinted"),
        (
            "<div class='equation' style='display: flex; width: 60px'><b>x + y + z</b><i style='margin-left: -40px'>(1)</i></div>",
            "overprinted",
        ),
        ("<img src='none.png'>", "no picture"),
        ("<p>a glyph that no font has: \u0379</p>", "no glyph for"),
        ("<p>| a | b | | --- | --- |</p>", "raw markup"),
        ("<p>W W<em>T and W</em> x</p>", "stars taken for emphasis"),
        ("<script>nothing()</script>", "nothing is not defined"),
        ("<script>console.error('told')</script>", "told"),
    ],
)
def test_faults_are_seen(browser, body, fault, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><body><div role=main>{body}</div>", encoding="utf-8"
    )
    found = faults(browser, page.as_uri())
    assert any(fault in one for one in found) if fault else found == [], found


def piece(browser: Browser, name: str, path: Path) -> None:
    """The picture of a formula of the theory, without its number, or of a table."""
    page, selector = PIECES[name]
    browser.size(WIDE)
    browser.open((Path(FOLDER or "").resolve() / page).as_uri())
    browser.run(SAME_FONTS)
    browser.picture(path, selector)


def ink(path: Path) -> np.ndarray:
    """What is drawn, 0 to 1, without the white around it but for a few pixels, so that it can be shifted."""
    drawn = 1 - matplotlib.image.imread(path)[..., :3].mean(-1)
    rows, columns = (np.flatnonzero((drawn > 0.5).any(axis)) for axis in (1, 0))
    return np.pad(drawn[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], 3)


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """The difference of two pictures as a share of the ink, in squares of 3 x 3 pixels, at the best shift by a pixel or none: fractions of
    a pixel by which a formula is moved on its page, and how a browser smooths edges, hardly count."""
    height, width = (3 * (min(sizes) // 3) for sizes in zip(one.shape, other.shape, strict=True))

    def squares(image: np.ndarray) -> np.ndarray:
        return image[:height, :width].reshape(height // 3, 3, width // 3, 3).mean((1, 3))

    shifts = [(down, across) for down in (-1, 0, 1) for across in (-1, 0, 1)]
    return min(
        float(abs(squares(np.roll(one, by, (0, 1))) - squares(other)).sum() / squares(other).sum())
        for by in shifts
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_look_as_they_did(browser, name, tmp_path):
    now, before = pictures(browser, name, tmp_path)
    assert difference(now, before) < 0.4
    assert difference(np.roll(now, 6, axis=1), before) > 0.8  # it would see it


def pictures(browser: Browser, name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """A piece of a page as it is now, and as it was."""
    piece(browser, name, folder / "now.png")
    now, before = ink(folder / "now.png"), ink(PICTURES / f"{name}.png")
    assert np.allclose(now.shape, before.shape, atol=2), (
        f"{name}: {now.shape} pixels for {before.shape}"
    )
    return now, before


TILE = 24  # pixels: a word or less


def tiles(one: np.ndarray, other: np.ndarray) -> list[float]:
    """The difference of two pictures in every tile that has ink; on a whole table one lost star would be nothing."""
    height, width = (min(sizes) for sizes in zip(one.shape, other.shape, strict=True))
    places = [
        np.s_[y : y + TILE, x : x + TILE]
        for y in range(0, height - TILE, TILE)
        for x in range(0, width - TILE, TILE)
    ]
    return [difference(one[place], other[place]) for place in places if other[place].sum() > TILE]


@pytest.mark.parametrize("name", TABLES)
def test_tables_look_as_they_did(browser, name, tmp_path):
    now, before = pictures(browser, name, tmp_path)
    assert max(tiles(now, before)) < 0.5
    now[:TILE, : 2 * TILE] = 0.0  # a word less
    assert max(tiles(now, before)) > 0.8  # it would see it


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with Browser() as one:
        for name in PIECES:
            piece(one, name, PICTURES / f"{name}.png")
