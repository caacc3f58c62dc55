"""Two phase diagrams, each one call of `sgd.sweep`: where SGD leaves its plateau, and where a network learns XOR at all.

Left, 100 x 100 exit times by the ODE: phase retrieval by one unit on the sphere, over learning rate and label noise. The noise of SGD
shrinks the overlap m, which grows at the rate (1 - m^2) (4 - 24 lr) - 2 lr noise: beyond lr (6 + noise/2) = 1 nothing is ever learned, and
before that, beyond lr (6 + noise/1.6) = 1, it stops short of m^2 = 1/5, a fifth of the excess risk 2 (1 - m^2).
Right, 60 x 60 values of a closed formula: the rate at which a unit leaves the state 0 in the XOR Gaussian mixture, over snr and weight
decay; below zero nothing is learned from small weights.

Writes output/phase_diagram.png and output/phase_diagram.nc. Stopped in the middle, it goes on where it was.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np

import sgdynamics as sgd
from sgdynamics.papers.effective_dynamics import escape_rate
from sgdynamics.sweeps import sweep

SIDE, SMALL_SIDE = 100, 60
START = 0.05  # overlap with the signal
LONGEST = 40.0


def exit_times(folder: Path, side: int):
    """Samples over d until a fifth of the excess risk is gone, NaN where it stays."""
    found = sweep(
        "exit_time",
        problem=sgd.TeacherStudent(width=1, activation="square", constraint="sphere"),
        algorithm=sgd.OnePassSGD(),
        start={"M": [[START]], "Q": [[1.0]]},
        over={"lr": np.geomspace(1e-3, 0.3, side), "noise": np.geomspace(0.1, 300.0, side)},
        threshold=0.2,
        max_time=LONGEST,
        store=folder / "phase_diagram_store",
        progress=True,
    )
    found["samples"] = found["mean"] / found.lr
    found["samples"].attrs["long_name"] = "samples / $d$ to leave the plateau"
    return found


def rate(snr, weight_decay):
    return {"rate": escape_rate(weight_decay, snr)}


def main(folder: Path, side: int = SIDE) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    plateau = exit_times(folder, side)
    print(f"{plateau.attrs['points']} exit times in {time.perf_counter() - began:.0f} s")
    small = min(side, SMALL_SIDE)
    mixture = sweep(
        rate,
        over={
            "snr": np.geomspace(1.0, 1000.0, small),
            "weight_decay": np.linspace(0.005, 0.2, small),
        },
    )
    mixture["rate"].attrs["long_name"] = "rate of leaving 0"

    fig, (left, right) = plt.subplots(1, 2, figsize=(11.5, 4.6), layout="constrained")
    sgd.plot.phase_diagram(plateau, "lr", "noise", value="samples", ax=left, log=True)
    noise = np.asarray(plateau.noise)
    left.plot(1 / (6 + noise / 2), noise, color="crimson", lw=1.8, label="beyond: nothing grows")
    left.plot(
        1 / (6 + noise / 1.6),
        noise,
        color="crimson",
        lw=1.4,
        ls="--",
        label="beyond: stops short of a fifth",
    )
    left.legend(loc="lower left", frameon=True)
    left.text(0.97, 0.95, "never leaves", transform=left.transAxes, ha="right", va="top")
    left.set_title("phase retrieval: time on the plateau", fontsize=11)
    sgd.plot.phase_diagram(mixture, "snr", "weight_decay", value="rate", ax=right)
    right.contour(
        mixture.snr,
        mixture.weight_decay,
        mixture.rate.T,
        levels=[0.0],
        colors="crimson",
        linewidths=1.8,
    )
    right.set_title("XOR mixture: above the line nothing is learned", fontsize=11)
    picture = folder / "phase_diagram.png"
    unfinished = folder / ".phase_diagram.part.png"
    fig.savefig(unfinished, dpi=130)
    unfinished.replace(picture)
    data = sgd.save({"plateau": plateau, "mixture": mixture}, folder / "phase_diagram.nc")
    print(f"wrote {picture} and {data} ({time.perf_counter() - began:.0f} s in all)")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"),
        int(sys.argv[2]) if len(sys.argv) > 2 else SIDE,
    )
