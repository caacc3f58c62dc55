"""Compare the theory of SGD with simulations: phase retrieval by a network with four units.

SGD trains the network on fresh samples in d = 3000 dimensions. From one initial condition this
example computes the training in three ways:

- ``sgd.solve_ode`` solves the ordinary differential equations of the limit d -> infinity,
- ``sgd.simulate`` draws 200 runs from the exact law of SGD at d = 3000, which it reduces to a
  Markov chain on a few variables,
- ``sgd.simulate(..., method="direct")`` trains 4 networks with all their 3000-dimensional weights.

Run it with

    python examples/demo.py [FOLDER]

It takes about a minute, prints how far theory and simulations differ, and writes ``demo.png`` and
``demo.nc`` (the three results) to FOLDER, which defaults to ``output``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np
import xarray as xr

import sgdynamics as sgd

DIMENSION = 3000
RUNS = 200
DIRECT_RUNS = 4
PRINTED_TIMES = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
SEED = 7


def main(folder: Path, dimension: int = DIMENSION, runs: int = RUNS) -> None:
    """Compute the three results, print the comparisons, and write the figure and the results."""
    start_time = time.perf_counter()

    # Four units y = mean_i (w_i . x)^2 on the unit sphere learn one teacher unit (w* . x)^2.
    # M = W W*^T are the overlaps with the teacher, Q = W W^T those of the units with each other.
    problem = sgd.TeacherStudent(width=4, activation="square", noise=0.01, constraint="sphere")
    algorithm = sgd.OnePassSGD(lr=0.4)
    start = sgd.start(problem, M=[[0.3], [0.2], [-0.2], [0.1]], Q=np.eye(4))
    times = np.linspace(0, PRINTED_TIMES[-1], 51)

    print(
        f"phase retrieval, width {problem.width}, d = {dimension}, lr = {algorithm.lr},"
        f" noise = {problem.noise}"
    )
    print("solving the ODE ...", flush=True)
    theory = sgd.solve_ode(problem, algorithm, start, times=times)

    settings = {"times": times, "dimension": dimension, "seed": SEED, "progress": True}
    exact = sgd.simulate(problem, algorithm, start, runs=runs, **settings)
    direct = sgd.simulate(
        problem, algorithm, start, runs=DIRECT_RUNS, method="direct", dtype="float32", **settings
    )

    print_comparison(f"exact simulation ({runs} runs) against the ODE", sgd.compare(theory, exact))
    print_comparison(
        f"direct {dimension}-dimensional SGD ({DIRECT_RUNS} runs) against the ODE",
        sgd.compare(theory, direct),
    )

    folder.mkdir(parents=True, exist_ok=True)
    picture = draw(theory, exact, direct, dimension, folder)
    results = sgd.save({"theory": theory, "exact": exact, "direct": direct}, folder / "demo.nc")
    print(f"\nwrote {picture} and {results} ({time.perf_counter() - start_time:.0f} s in total)")


def print_comparison(title: str, comparison: xr.Dataset) -> None:
    """Print excess risk and first overlap at a few times, with differences in standard errors."""
    print(f"\n{title}")
    print(
        f"{'t':>5}  {'excess risk: theory':>19}  {'simulation':>21}  {'diff.':>8}  "
        f"  {'M_1: theory':>11}  {'simulation':>19}  {'diff.':>8}"
    )
    for printed_time in PRINTED_TIMES:
        row = comparison.isel(time=int(np.argmin(np.abs(comparison.t.values - printed_time))))
        first_overlap = row.isel(unit=0, signal=0)
        print(
            f"{row.t.item():5.2f}"
            f"  {row.excess_risk_theory.item():19.5f}"
            f"  {row.excess_risk_simulation.item():10.5f}"
            f" ± {row.excess_risk_standard_error.item():.5f}"
            f"  {row.excess_risk_z.item():+6.1f} s.e."
            f"  {first_overlap.M_theory.item():11.4f}"
            f"  {first_overlap.M_simulation.item():9.4f}"
            f" ± {first_overlap.M_standard_error.item():.4f}"
            f"  {first_overlap.M_z.item():+6.1f} s.e."
        )


def draw(
    theory: xr.Dataset, exact: xr.Dataset, direct: xr.Dataset, dimension: int, folder: Path
) -> Path:
    """Draw the risk of all results and the overlaps of theory and exact runs."""
    mpl.use("Agg")  # draws into a file, without a display
    import matplotlib.pyplot as plt

    labels = {
        "ODE, $d \\to \\infty$": theory,
        f"exact, {exact.sizes['run']} runs": exact,
        f"direct, {direct.sizes['run']} runs": direct,
    }
    fig, (risk_ax, overlap_ax) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, result in labels.items():
        sgd.plot.risk(result, ax=risk_ax, label=label)
    sgd.plot.overlaps(theory, ax=overlap_ax)
    sgd.plot.overlaps(exact, ax=overlap_ax, label=f"exact, {exact.sizes['run']} runs")
    risk_ax.set_title("risk")
    overlap_ax.set_title("overlaps with the teacher")
    fig.suptitle(f"Phase retrieval, width 4: theory and SGD at $d$ = {dimension}")
    picture = folder / "demo.png"
    fig.savefig(picture, dpi=130)
    return picture


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
