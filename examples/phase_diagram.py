"""Draw two phase diagrams, each computed by one call of ``sgd.sweep``.

Left panel: 100 x 100 exit times of phase retrieval by one unit on the sphere, over the learning
rate lr and the label noise, from the ODE. The overlap m with the teacher obeys

    dm/dt = m [(1 - m^2) (4 - 24 lr) - 2 lr noise].

The two red lines follow from the bracket. It is negative at m = 0 if lr (6 + noise/2) > 1: SGD
never leaves the plateau. It vanishes before m^2 = 1/5 if lr (6 + noise/1.6) > 1: SGD leaves the
initial condition but does not remove a fifth of the excess risk 2 (1 - m^2), which is the criterion
for the exit time.

Right panel: 60 x 60 values of a closed formula, the rate at which a ReLU unit with small weights
grows on the XOR Gaussian mixture, over the signal-to-noise ratio and the weight decay. Where the
rate is negative, nothing is learned from small weights.

Run it with

    python examples/phase_diagram.py [FOLDER] [SIDE]

It writes ``phase_diagram.png`` and ``phase_diagram.nc`` to FOLDER, which defaults to ``output``.
SIDE is the number of points per axis. An interrupted sweep continues when the example is run again,
because the computed points are in the folder ``phase_diagram_store``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr

import sgdynamics as sgd
from sgdynamics.papers.effective_dynamics import escape_rate

SIDE = 100  # points per axis of the left panel
LARGEST_MIXTURE_SIDE = 60  # points per axis of the right panel, at most
INITIAL_OVERLAP = 0.05
MAX_TIME = 40.0


def compute_exit_times(folder: Path, side: int) -> xr.Dataset:
    """Compute the samples per dimension until a fifth of the excess risk is gone (NaN: never)."""
    result = sgd.sweep(
        "exit_time",
        problem=sgd.TeacherStudent(width=1, activation="square", constraint="sphere"),
        algorithm=sgd.OnePassSGD(),
        start={"M": [[INITIAL_OVERLAP]], "Q": [[1.0]]},
        over={"lr": np.geomspace(1e-3, 0.3, side), "noise": np.geomspace(0.1, 300.0, side)},
        threshold=0.2,
        max_time=MAX_TIME,
        store=folder / "phase_diagram_store",
        progress=True,
    )
    # The time of the ODE is lr times the number of samples per dimension.
    result["samples"] = result["mean"] / result.lr
    result["samples"].attrs["long_name"] = "samples / $d$ to leave the plateau"
    return result


def compute_escape_rates(side: int) -> xr.Dataset:
    """Compute the growth rate of small weights on the XOR mixture.

    A sweep accepts any function of the parameters that returns named values.
    """

    def rate(snr, weight_decay):
        return {"rate": escape_rate(weight_decay, snr)}

    result = sgd.sweep(
        rate,
        over={
            "snr": np.geomspace(1.0, 1000.0, side),
            "weight_decay": np.linspace(0.005, 0.2, side),
        },
    )
    result["rate"].attrs["long_name"] = "growth rate at 0"
    return result


def draw(plateau: xr.Dataset, mixture: xr.Dataset, picture: Path) -> None:
    """Draw both diagrams with the boundaries known from theory."""
    mpl.use("Agg")  # draws into a file, without a display
    import matplotlib.pyplot as plt

    fig, (plateau_ax, mixture_ax) = plt.subplots(1, 2, figsize=(11.5, 4.6), layout="constrained")

    sgd.plot.phase_diagram(plateau, "lr", "noise", value="samples", ax=plateau_ax, log=True)
    noise = plateau.noise.values
    boundary = {"color": "crimson", "lw": 1.8}
    plateau_ax.plot(1 / (6 + noise / 2), noise, label="beyond: nothing grows", **boundary)
    plateau_ax.plot(
        1 / (6 + noise / 1.6),
        noise,
        label="beyond: stops short of a fifth",
        ls="--",
        **boundary | {"lw": 1.4},
    )
    plateau_ax.legend(loc="lower left", frameon=True)
    plateau_ax.text(
        0.97, 0.95, "never leaves", transform=plateau_ax.transAxes, ha="right", va="top"
    )
    plateau_ax.set_title("phase retrieval: time on the plateau", fontsize=11)

    sgd.plot.phase_diagram(mixture, "snr", "weight_decay", value="rate", ax=mixture_ax)
    mixture_ax.contour(
        mixture.snr,
        mixture.weight_decay,
        mixture.rate.T,
        levels=[0.0],
        colors="crimson",
        linewidths=1.8,
    )
    mixture_ax.set_title("XOR mixture: above the line nothing is learned", fontsize=11)
    fig.savefig(picture, dpi=130)


def main(folder: Path, side: int = SIDE) -> None:
    """Compute both diagrams and write the figure and the results."""
    folder.mkdir(parents=True, exist_ok=True)
    start_time = time.perf_counter()
    plateau = compute_exit_times(folder, side)
    print(f"{plateau.attrs['points']} exit times in {time.perf_counter() - start_time:.0f} s")
    mixture = compute_escape_rates(min(side, LARGEST_MIXTURE_SIDE))

    picture = folder / "phase_diagram.png"
    draw(plateau, mixture, picture)
    results = sgd.save({"plateau": plateau, "mixture": mixture}, folder / "phase_diagram.nc")
    print(f"wrote {picture} and {results} ({time.perf_counter() - start_time:.0f} s in total)")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"),
        int(sys.argv[2]) if len(sys.argv) > 2 else SIDE,
    )
