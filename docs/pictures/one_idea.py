"""The picture of the theory page: the compressed form [T | L] of the rows.

It shows the rows split along the signals, the rotation, and a fresh input in these coordinates.
`python docs/pictures/one_idea.py` writes docs/pictures/one_idea.svg.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyArrowPatch, Rectangle

plt.switch_backend("svg")
plt.rcParams["svg.hashsalt"] = "sgdynamics"  # a reproducible file
plt.rcParams["mathtext.fontset"] = "cm"

BLUE, ORANGE, GREY, GREEN = "#4477aa", "#ee8866", "#dddddd", "#99bb66"


def box(ax, x, y, width, height, colour, text="", size=15, **style):
    ax.add_patch(Rectangle((x, y), width, height, fc=colour, ec="black", lw=1, **style))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def brace(ax, x, y, width, text):
    """A line with a label that measures the width of a box."""
    ax.annotate(
        "",
        (x, y),
        (x + width, y),
        arrowprops={
            "arrowstyle": "|-|, widthA=.25, widthB=.25",
            "lw": 1,
            "shrinkA": 0,
            "shrinkB": 0,
        },
    )
    ax.text(x + width / 2, y + 0.12, text, ha="center", va="bottom", fontsize=12)


def arrow(ax, start, end):
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=16, lw=1.4, color="0.25")
    )


def main(file: Path) -> None:
    fig, ax = plt.subplots(figsize=(11, 4.6))
    ax.set(xlim=(0, 22), ylim=(0, 9.2), aspect="equal")
    ax.axis("off")

    ax.text(0.2, 8.6, "1.  split the rows", fontsize=13, weight="bold")
    brace(ax, 0.9, 7.0, 1.4, "$K$")
    brace(ax, 2.3, 7.0, 6.2, "$d-K$")
    box(ax, 0.9, 5.0, 1.4, 1.8, BLUE, "$T$")
    box(ax, 2.3, 5.0, 6.2, 1.8, GREY, "orthogonal components", 12)
    ax.text(0.5, 5.9, "$p$", ha="center", va="center", fontsize=13)
    ax.text(0.9, 4.5, "$W$: along the signals, and orthogonal to them", fontsize=11, va="center")

    ax.text(12.4, 8.6, "2.  rotate the others into $p$ coordinates", fontsize=13, weight="bold")
    arrow(ax, (8.9, 5.9), (12.3, 5.9))
    ax.text(10.6, 6.25, "rotation", ha="center", fontsize=11)
    brace(ax, 12.9, 7.0, 1.4, "$K$")
    brace(ax, 14.3, 7.0, 1.8, "$p$")
    brace(ax, 16.1, 7.0, 5.0, "$d-K-p$")
    box(ax, 12.9, 5.0, 1.4, 1.8, BLUE, "$T$")
    box(ax, 14.3, 5.0, 1.8, 1.8, ORANGE, "$L$")
    box(ax, 16.1, 5.0, 5.0, 1.8, "white", "$0$", ls=":")
    ax.text(
        12.9,
        4.5,
        "$W\\,W^T = T\\,T^T + L\\,L^T$:  the overlaps are exact",
        fontsize=11,
        va="center",
    )

    ax.text(12.4, 3.5, "3.  a fresh input in these coordinates", fontsize=13, weight="bold")
    box(ax, 12.9, 2.2, 1.4, 0.8, BLUE, "$N(0, I)$", 10)
    box(ax, 14.3, 2.2, 1.8, 0.8, ORANGE, "$N(0, I)$", 10)
    box(ax, 16.1, 2.2, 5.0, 0.8, GREEN, "length only: $\\chi_{d-K-p}$", 11)
    ax.text(12.5, 2.6, "$x$", ha="center", va="center", fontsize=13)
    ax.text(
        12.9,
        1.2,
        "$K+p$ standard normals determine all fields;\n"
        "one $\\chi$ variable replaces the other coordinates",
        fontsize=11,
        va="center",
    )

    ax.text(0.2, 3.5, "4.  step, and compress", fontsize=13, weight="bold")
    arrow(ax, (12.0, 2.6), (7.2, 2.6))
    ax.text(9.6, 2.95, "one SGD step", ha="center", fontsize=11)
    box(ax, 0.9, 1.7, 1.4, 1.4, BLUE, "$T'$")
    box(ax, 2.3, 1.7, 1.8, 1.4, ORANGE, "$L$")
    box(ax, 4.1, 1.7, 0.5, 1.4, GREEN)
    ax.text(4.85, 2.4, "$\\to\\;L'$", va="center", fontsize=14)
    ax.text(
        0.9,
        0.9,
        "the input adds one column; a QR decomposition\n"
        "removes it: the size is $p\\times(K+p)$ at any $d$",
        fontsize=11,
        va="center",
    )

    fig.savefig(file, bbox_inches="tight", metadata={"Date": None})
    plt.close(fig)


if __name__ == "__main__":
    main(Path(__file__).with_suffix(".svg"))
