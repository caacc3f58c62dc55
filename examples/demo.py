"""The main job in one minute: phase retrieval with a network of width 4 at d = 3000, theory beside simulation.

One start, three answers: the ODE of the limit d -> infinity, 200 runs of the exact compressed chain, and a few runs of SGD on
3000-dimensional weights. Writes output/demo.png and output/demo.nc.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl
import numpy as np

import sgdynamics as sgd

DIMENSION = 3000
RUNS = 200
DIRECT_RUNS = 4
SHOWN = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
SEED = 7


def main(folder: Path, dimension: int = DIMENSION, runs: int = RUNS) -> None:
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    began = time.perf_counter()
    problem = sgd.TeacherStudent(width=4, activation="square", noise=0.01, constraint="sphere")
    algorithm = sgd.OnePassSGD(lr=0.4)
    start = sgd.start(problem, M=[[0.3], [0.2], [-0.2], [0.1]], Q=np.eye(4))
    times = np.linspace(0, SHOWN[-1], 51)

    print(
        f"phase retrieval, width {problem.width}, d = {dimension}, lr = {algorithm.lr}, noise = {problem.noise}"
    )
    print("solving the ODE ...", flush=True)
    theory = sgd.solve_ode(problem, algorithm, start, times=times)
    shared = {"times": times, "dimension": dimension, "seed": SEED, "progress": True}
    exact = sgd.simulate(problem, algorithm, start, runs=runs, **shared)
    direct = sgd.simulate(
        problem, algorithm, start, runs=DIRECT_RUNS, method="direct", dtype="float32", **shared
    )

    print_table(f"exact simulation ({runs} runs) against the ODE", sgd.compare(theory, exact))
    print_table(
        f"direct {dimension}-dimensional SGD ({DIRECT_RUNS} runs) against the ODE",
        sgd.compare(theory, direct),
    )

    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for result, label in (
        (theory, "ODE, $d \\to \\infty$"),
        (exact, f"exact, {runs} runs"),
        (direct, f"direct, {DIRECT_RUNS} runs"),
    ):
        sgd.plot.risk(result, ax=left, label=label)
    sgd.plot.overlaps(theory, ax=right)
    sgd.plot.overlaps(exact, ax=right, label=f"exact, {runs} runs")
    left.set_title("risk"), right.set_title("overlaps with the teacher")
    fig.suptitle(f"Phase retrieval, width 4: theory and SGD at $d$ = {dimension}")
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "demo.png"
    unfinished = folder / ".demo.part.png"
    fig.savefig(unfinished, dpi=130)
    unfinished.replace(picture)
    data = sgd.save({"theory": theory, "exact": exact, "direct": direct}, folder / "demo.nc")
    print(f"\nwrote {picture} and {data} ({time.perf_counter() - began:.0f} s in all)")


def print_table(title, table):
    """Risk and the first overlap at a few times, with the distance in standard errors."""
    print(f"\n{title}")
    print(
        f"{'t':>5}  {'excess risk: theory':>19}  {'simulation':>21}  {'apart':>8}    {'M_1: theory':>11}  {'simulation':>19}  {'apart':>8}"
    )
    for when in SHOWN:
        row = table.isel(time=int(np.argmin(np.abs(np.asarray(table.t) - when))))
        risk = (
            row["excess_risk_theory"],
            row["excess_risk_simulation"],
            row["excess_risk_standard_error"],
            row["excess_risk_z"],
        )
        overlap = tuple(
            row[f"M_{part}"].isel(unit=0, signal=0)
            for part in ("theory", "simulation", "standard_error", "z")
        )
        print(
            f"{float(row.t):5.2f}  {float(risk[0]):19.5f}  {float(risk[1]):10.5f} ± {float(risk[2]):.5f}  {float(risk[3]):+6.1f} s.e."
            f"  {float(overlap[0]):11.4f}  {float(overlap[1]):9.4f} ± {float(overlap[2]):.4f}  {float(overlap[3]):+6.1f} s.e."
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("output"))
