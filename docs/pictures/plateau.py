"""The picture of the README: two units that learn two others sit on a plateau, where both are the same, and then leave it; it is longer by
log d. Runs of SGD at d = 1e3 and 1e4 leave sooner or later by chance, around the ODE's line; at 1e9 paths of the SDE stand for them.

python docs/pictures/plateau.py writes docs/pictures/plateau.png, with what is drawn in it: a test computes it again, and compares.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import sgdynamics as sgd

ENDS = {10**3: 130.0, 10**4: 150.0, 10**9: 250.0}  # of alpha, a while after the plateau
SIMULATED, RUNS = 10**4, 8
FILE = Path(__file__).with_suffix(".png")


def computed() -> dict:
    """The risk against samples/d: the ODE, and runs from the same start."""
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf")
    algorithm = sgd.OnePassSGD(lr=4.0)
    found = {}
    for d, end in ENDS.items():
        start = sgd.random_start(problem, dimension=d, seed=3)
        alpha = np.linspace(0, end, 61)
        theory = sgd.solve_ode(problem, algorithm, start, alpha=alpha).risk.values[0]
        solver = sgd.simulate if d <= SIMULATED else sgd.solve_sde
        runs = solver(
            problem, algorithm, start, alpha=alpha, dimension=d, runs=RUNS, seed=3
        ).risk.values
        found[str(d)] = {"alpha": alpha, "theory": theory, "runs": runs}
    return json.loads(json.dumps(found, default=lambda array: array.round(7).tolist()))


def drawn(found: dict, file: Path) -> None:
    fig, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for colour, (d, one) in zip(("#4477aa", "#228833", "#cc6677"), found.items(), strict=True):
        power = f"$d = 10^{{{np.log10(int(d)):.0f}}}$"
        what = "runs of SGD" if int(d) <= SIMULATED else "paths of the SDE"
        for index, row in enumerate(one["runs"]):
            ax.semilogy(
                one["alpha"],
                row,
                color=colour,
                lw=0.9,
                alpha=0.5,
                label=f"{power}, {RUNS} {what}" if index == 0 else None,
            )
        ax.semilogy(one["alpha"], one["theory"], color=colour, lw=2.6, label=f"{power}, ODE")
    ax.set(xlabel=r"samples / $d$", ylabel="risk", xlim=(0, max(ENDS.values())), ylim=(1e-4, 0.2))
    ax.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    fig.savefig(file, dpi=130, metadata={"data": json.dumps(found)})
    plt.close(fig)


if __name__ == "__main__":
    drawn(computed(), FILE)
