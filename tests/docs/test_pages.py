"""The built pages as a reader sees them, in a wide and in a narrow window of headless Chromium.

`make docs` builds the pages and runs these tests, with the folder of the pages in the environment
variable PAGES. They are skipped without it, or without a browser. Formulas come with their fonts,
so parts of pages set in these fonts look the same on all machines. A few of them are compared with
pictures in `tests/docs/pictures`; `PAGES=output/docs python -m tests.docs.test_pages` renews these.
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
SOURCES = "_modules"  # pages of source code, where long lines may scroll

PICTURES = Path(__file__).parent / "pictures"
# Formulas that were cut off, or had brackets and roots of the wrong size, without these fonts.
FORMULAS = {
    "split": "div.equation",
    "brackets": "#equation-eq3",
    "fractions": "#equation-eq5",
    "root": "#equation-eq33",
}
# Tables that lost stars, showed raw markup, or were cut off at the right.
TABLES = {
    "units": ("units.html", "#definitions table"),
    "critical_points": (
        "api/generated/sgdynamics.papers.escaping_mediocrity.html",
        "[id='sgdynamics.papers.escaping_mediocrity.critical_points'] + dd pre",
    ),
    "errata": ("errata.html", "table"),
}
DETAILS = {
    name: ("theory.html", f"{selector} .katex-html") for name, selector in FORMULAS.items()
} | TABLES
# Set all text in the fonts of the formulas, because machines have different fonts.
SAME_FONTS = """
(() => {
  const style = document.createElement("style");
  const text = "body, body *:not(.katex, .katex *, pre *, code, code *)";
  const code = "body pre, body pre *, body code, body code *";
  style.textContent = `${text} { font-family: KaTeX_Main !important }
    ${code} { font-family: KaTeX_Typewriter !important }`;
  document.head.append(style);
  document.body.offsetHeight;
  return document.fonts.ready.then(() => true);
})()
"""

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="PAGES, the folder of the built pages, is not set. Run `make docs`."
)


@pytest.fixture(scope="module")
def browser():
    if find_browser() is None:
        names = ", ".join(NAMES)
        pytest.skip(f"none of {names} is installed (Debian: apt-get install chromium)")
    with Browser() as running:
        yield running


def faults(browser: Browser, url: str, wide_scrolls: bool = False) -> list[str]:
    """The faults of a page in both windows, and the errors that it logs."""
    browser.size(WIDE)
    browser.open(url)
    messages = []
    for width in (WIDE, NARROW):
        browser.size(width)
        wide = width == WIDE and not wide_scrolls
        arguments = f"{str(wide).lower()}, {str(width == WIDE).lower()}"
        page_faults = browser.run(f"({FAULTS})({arguments})")
        messages += [f"at {width} px: {fault}" for fault in page_faults]
    return messages + browser.complaints


def test_every_page_is_complete_and_its_links_are_valid(browser):
    root = Path(FOLDER or "").resolve()
    pages = sorted(root.rglob("*.html"))
    assert len(pages) > 30, f"PAGES={FOLDER}: this folder has no pages"
    messages, anchors, links = [], {}, []
    for page in pages:
        name = page.relative_to(root).as_posix()
        page_faults = faults(browser, page.as_uri(), name.startswith(SOURCES))
        messages += [f"{name} {fault}" for fault in page_faults]
        ids = browser.run("[...document.querySelectorAll('[id]')].map((element) => element.id)")
        anchors[page] = set(ids)
        urls = browser.run("[...document.querySelectorAll('a[href]')].map((link) => link.href)")
        links += [(page, url) for url in set(urls)]
    for page, link in links:
        url, anchor = urldefrag(link)
        if urlparse(url).scheme != "file":
            continue
        target = Path(unquote(urlparse(url).path))
        if not target.is_file():
            messages.append(f"{page.relative_to(root)}: broken link to {target}")
            continue
        # An anchor with = is a state of the explorer.
        is_anchor = anchor and "=" not in anchor and target in anchors
        if is_anchor and unquote(anchor) not in anchors[target]:
            messages.append(
                f"{page.relative_to(root)}: broken link to {target.relative_to(root)}#{anchor}"
            )
    assert len(links) > 1000  # the links of all pages were collected
    assert not messages, f"{len(messages)} faults\n" + "\n".join(messages)


WITHOUT_FAULTS = (
    "<p>No fault: $ 3, λ* and x ← y.</p><pre>short</pre>"
    "<div class='equation'><div class='formula'>x</div><span>(1)</span></div>"
)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (WITHOUT_FAULTS, None),
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
            "<div class='equation' style='display: flex; width: 60px'>"
            "<b>x + y + z</b><i style='margin-left: -40px'>(1)</i></div>",
            "overprinted",
        ),
        ("<img src='none.png'>", "no picture"),
        ("<p>a glyph that no font has: \u0379</p>", "no glyph for"),
        ("<p>| a | b | | --- | --- |</p>", "raw markup"),
        ("<p>W W<em>T and W</em> x</p>", "stars taken for emphasis"),
        ("<script>nothing()</script>", "nothing is not defined"),
        ("<script>console.error('message')</script>", "message"),
    ],
)
def test_faults_are_detected(browser, body, fault, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><body><div role=main>{body}</div>", encoding="utf-8"
    )
    messages = faults(browser, page.as_uri())
    if fault is None:
        assert messages == []
    else:
        assert any(fault in message for message in messages), messages


def save_detail(browser: Browser, name: str, path: Path) -> None:
    """Save the picture of a formula of the theory page, without its number, or of a table."""
    page, selector = DETAILS[name]
    browser.size(WIDE)
    browser.open((Path(FOLDER or "").resolve() / page).as_uri())
    browser.run(SAME_FONTS)
    browser.picture(path, selector)


def ink(path: Path) -> np.ndarray:
    """The darkness of a picture, from 0 to 1, cropped to its content with a margin for shifts."""
    darkness = 1 - matplotlib.image.imread(path)[..., :3].mean(-1)
    rows, columns = (np.flatnonzero((darkness > 0.5).any(axis)) for axis in (1, 0))
    return np.pad(darkness[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1], 3)


def difference(picture: np.ndarray, reference: np.ndarray) -> float:
    """The difference of two pictures, relative to the ink of the reference.

    Pictures are averaged over squares of 3 x 3 pixels and compared at the best shift by at most one
    pixel, so that shifts by fractions of a pixel and the smoothing of edges hardly count.
    """
    shapes = zip(picture.shape, reference.shape, strict=True)
    height, width = (3 * (min(sizes) // 3) for sizes in shapes)

    def squares(image: np.ndarray) -> np.ndarray:
        return image[:height, :width].reshape(height // 3, 3, width // 3, 3).mean((1, 3))

    expected = squares(reference)
    shifts = [(down, across) for down in (-1, 0, 1) for across in (-1, 0, 1)]
    return min(
        float(abs(squares(np.roll(picture, shift, (0, 1))) - expected).sum() / expected.sum())
        for shift in shifts
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_agree_with_their_pictures(browser, name, tmp_path):
    picture, reference = pictures(browser, name, tmp_path)
    assert difference(picture, reference) < 0.4
    assert difference(np.roll(picture, 6, axis=1), reference) > 0.8  # a shift is detected


def pictures(browser: Browser, name: str, folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """A detail of a built page, and its stored picture."""
    save_detail(browser, name, folder / "detail.png")
    picture, reference = ink(folder / "detail.png"), ink(PICTURES / f"{name}.png")
    assert np.allclose(picture.shape, reference.shape, atol=2), (
        f"{name}: {picture.shape} pixels, expected {reference.shape}"
    )
    return picture, reference


TILE = 24  # pixels: about the size of a word


def tile_differences(picture: np.ndarray, reference: np.ndarray) -> list[float]:
    """The differences of two pictures in the tiles with ink.

    A lost star would be negligible in the difference of a whole table.
    """
    height, width = (min(sizes) for sizes in zip(picture.shape, reference.shape, strict=True))
    tiles = [
        np.s_[y : y + TILE, x : x + TILE]
        for y in range(0, height - TILE, TILE)
        for x in range(0, width - TILE, TILE)
    ]
    return [
        difference(picture[tile], reference[tile]) for tile in tiles if reference[tile].sum() > TILE
    ]


@pytest.mark.parametrize("name", TABLES)
def test_tables_agree_with_their_pictures(browser, name, tmp_path):
    picture, reference = pictures(browser, name, tmp_path)
    assert max(tile_differences(picture, reference)) < 0.5
    picture[:TILE, : 2 * TILE] = 0.0  # remove a word
    assert max(tile_differences(picture, reference)) > 0.8  # the missing word is detected


if __name__ == "__main__":
    PICTURES.mkdir(exist_ok=True)
    with Browser() as running_browser:
        for name in DETAILS:
            save_detail(running_browser, name, PICTURES / f"{name}.png")
