"""Write the thumbnails of the gallery page: python docs/gallery/thumbnails.py output/gallery.

The argument is the folder of `make gallery`. Where stored data exist at full size, their picture is
used. Thumbnails of figures that the folder lacks stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image

FOLDER = Path(__file__).parent / "thumbnails"
FULL_SIZE = "-full_size"
SIZE = (360, 240)  # pixels, at most
COLOURS = (64, 32, 16)  # as many as the limit of the file allows
MAX_BYTES = 25_000


def write_thumbnail(picture: Path) -> Path:
    """Write the thumbnail of a picture of the gallery."""
    target = FOLDER / f"{picture.stem.removesuffix(FULL_SIZE)}.png"
    with Image.open(picture) as figure:
        small = figure.convert("RGB")
        small.thumbnail(SIZE, Image.Resampling.LANCZOS)
        for colours in COLOURS:
            small.quantize(colours, dither=Image.Dither.NONE).save(target, optimize=True)
            if target.stat().st_size <= MAX_BYTES:
                break
    return target


def main(folder: Path) -> None:
    """Write the thumbnails of all pictures in a folder, those at full size last."""
    FOLDER.mkdir(exist_ok=True)
    pictures = sorted(folder.glob("*.png"), key=lambda path: path.stem.endswith(FULL_SIZE))
    for picture in pictures:
        write_thumbnail(picture)
    print(f"{len(list(FOLDER.glob('*.png')))} thumbnails in {FOLDER}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
