"""The picture of the README: two units that learn two others leave a plateau.

On the plateau both units are the same, and it is longer by log d. Runs of SGD at d = 1e3 and 1e4
leave it at random times around the curve of the ODE; at d = 1e9 paths of the SDE replace the runs.

`python docs/pictures/plateau.py` writes docs/pictures/plateau.png and stores the data in the file.
A test computes the data again and compares.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

ENDS = {10**3: 130.0, 10**4: 150.0, 10**9: 250.0}  # largest alpha, some time after the plateau
LARGEST_SIMULATED, RUNS = 10**4, 8
FILE = Path(__file__).with_suffix(".png")


def compute_curves() -> dict:
    """The risk as a function of samples/d, of the ODE and of runs from the same start."""
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf")
    algorithm = sgd.OnePassSGD(lr=4.0)
    curves = {}
    for d, end in ENDS.items():
        start = sgd.random_start(problem, dimension=d, seed=3)
        alpha = np.linspace(0, end, 61)
        theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha).risk.values[0]
        solver = sgd.simulate if d <= LARGEST_SIMULATED else sgd.solve_sde
        runs = solver(
            problem, algorithm, start, alpha=alpha, dimension=d, runs=RUNS, seed=3
        ).risk.values
        curves[str(d)] = {"alpha": alpha, "theory": theory, "runs": runs}
    return json.loads(json.dumps(curves, default=lambda array: array.round(7).tolist()))


def draw(curves: dict, file: Path) -> None:
    """Draw the curves, and store them as metadata of the file."""
    fig, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for color, (d, curve) in zip(("#4477aa", "#228833", "#cc6677"), curves.items(), strict=True):
        power = f"$d = 10^{{{np.log10(int(d)):.0f}}}$"
        label = "runs of SGD" if int(d) <= LARGEST_SIMULATED else "paths of the SDE"
        for index, row in enumerate(curve["runs"]):
            ax.semilogy(
                curve["alpha"],
                row,
                color=color,
                lw=0.9,
                alpha=0.5,
                label=f"{power}, {RUNS} {label}" if index == 0 else None,
            )
        ax.semilogy(curve["alpha"], curve["theory"], color=color, lw=2.6, label=f"{power}, ODE")
    ax.set(xlabel=r"samples / $d$", ylabel="risk", xlim=(0, max(ENDS.values())), ylim=(1e-4, 0.2))
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    fig.savefig(file, dpi=130, metadata={"data": json.dumps(curves)})
    plt.close(fig)


if __name__ == "__main__":
    draw(compute_curves(), FILE)
