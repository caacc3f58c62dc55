"""Simulations of a certificate, and the theory at the same save points.

Both are compared entry by entry. An entry is one number of the state that changes: an overlap in
M, an overlap in the upper triangle of Q, a weight of a trained head, or the training risk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.problems.overlap_starts import Start, broadcast_runs
from sgdynamics.problems.problem import Problem
from sgdynamics.results.clock import Clock, make_clock
from sgdynamics.results.states import head_of
from sgdynamics.simulation.running import RunSetting, run
from sgdynamics.solvers.dmft import solve_dmft
from sgdynamics.solvers.ode import solve_ode

# Number of replicates of the DMFT paths: enough for standard errors that are known themselves.
REPLICATES = 16

# Values of all entries by name, (run, time, entry) of runs or (time, entry) of a theory.
Entries = dict[str, np.ndarray]


@dataclass(frozen=True)
class CertifiedRuns:
    """The settings that all runs and the theory of a certificate share.

    Attributes
    ----------
    dynamics : SolverDynamics
        The problem under the algorithm.
    initial_state : Start
        Initial condition of one run, from which all runs start.
    runs : int
        Number of runs at each dimension.
    seed : int
        Seed of the certificate.
    save_points : dict
        The save points as `times`, `alpha` or `steps`.
    """

    dynamics: SolverDynamics[Any]
    initial_state: Start
    runs: int
    seed: int
    save_points: Mapping[str, ArrayArgument]

    def clock(self, dimension: int) -> Clock:
        """The save points, rounded to whole steps at this dimension."""
        return make_clock(
            self.dynamics.algorithm, **self.save_points, dimension=dimension, whole_steps=True
        )

    def steps(self, dimension: int) -> np.ndarray:
        """The save points in steps; ValueError if one is 0 or two coincide."""
        steps = self.clock(dimension).step
        assert steps is not None  # the clock has a dimension
        if steps[0] < 1 or np.any(np.diff(steps) < 1):
            name, value = next(iter(self.save_points.items()))
            fix = (
                f"at dimension {dimension} these save points are the steps {steps.tolist()}. Use "
                "later or fewer times."
            )
            raise checks.reject(name, value, fix)
        return steps

    def simulate(self, dimension: int, method: str, *, seed_shift: int) -> Entries:
        """Simulate all runs at one dimension; entries are NaN after a run has diverged."""
        steps = self.steps(dimension)
        has_spectrum = self.dynamics.problem.spectrum is not None
        d, sizes = self.dynamics.resolve_dimension(dimension, allow_small_blocks=has_spectrum)
        seed = 64 * self.seed + seed_shift
        initial_states = broadcast_runs(self.initial_state, self.runs)
        simulator = self.dynamics.simulator(RunSetting(initial_states, d, sizes, method, seed=seed))
        overlaps, _ = run(simulator, self.runs, steps, seed, "", False)
        return entries_of(self.dynamics.problem, overlaps)


@dataclass(frozen=True)
class Theory:
    """The theory at the save points of the runs.

    Attributes
    ----------
    values : list of dict
        Entries (time, entry) by name, one dictionary for each dimension, or a single one if the
        save points are the same at all dimensions.
    errors : dict or None
        Standard errors of the entries, if the theory is sampled.
    quadrature : float
        Relative error of the risk due to the expectations.
    integrator : float
        Relative error of the risk due to the integrator.
    relative : float
        Error of the entries in addition to `errors`, relative to their largest change since the
        start.
    """

    values: list[Entries]
    errors: Entries | None
    quadrature: float
    integrator: float
    relative: float


def entries_of(problem: Problem, overlaps: Mapping[str, np.ndarray]) -> Entries:
    """Entries (run, time, entry) of overlaps: M, the upper triangle of Q, a trained head, and the
    training risk if there is one."""
    leading = overlaps["a"].shape[:2]
    rows, columns = np.triu_indices(problem.width)
    entries = {
        "M": overlaps["M"].reshape(*leading, -1),
        "Q": overlaps["Q"][..., rows, columns].reshape(*leading, -1),
    }
    if problem.head == "trained":
        entries["a"] = overlaps["a"]
    if "train_risk" in overlaps:
        entries["train_risk"] = overlaps["train_risk"][..., None]
    return entries


def ode_theory(setting: CertifiedRuns, dimensions: Sequence[int]) -> Theory:
    """The ODE at the save points of every dimension, from one solution.

    Save points are whole steps, so that in units of alpha they differ between dimensions. The ODE
    is solved once at the union of all of them.
    """
    alphas = [np.asarray(setting.clock(d).alpha, dtype=np.float64) for d in dimensions]
    union, indices = np.unique(np.concatenate(alphas), return_inverse=True)
    solution = solve_ode(
        setting.dynamics.problem, setting.dynamics.algorithm, setting.initial_state, alpha=union
    )
    entries = entries_of(setting.dynamics.problem, _overlaps_of(solution))
    ends = np.cumsum([len(alpha) for alpha in alphas])[:-1]
    values = [
        {name: entry[0, times] for name, entry in entries.items()}
        for times in np.split(indices, ends)
    ]
    quadrature = max(
        float(solution.attrs.get(name, 0.0))
        for name in ("error_quadrature", "error_quadrature_risk")
    )
    integrator = float(solution.attrs["error_integrator"])
    return Theory(values, None, quadrature, integrator, quadrature + integrator)


def dmft_theory(setting: CertifiedRuns, paths: int) -> Theory:
    """DMFT at the save points, which are the same steps at all dimensions, with standard errors."""
    problem = setting.dynamics.problem
    solution = solve_dmft(
        problem,
        setting.dynamics.algorithm,
        setting.initial_state,
        steps=setting.steps(1),
        paths=paths,
        replicates=REPLICATES,
        seed=setting.seed,
        progress=False,
    )
    # Sums over the covariance blocks, because the standard errors are those of the sums.
    entries = entries_of(problem, _overlaps_of(solution, sum_blocks=True))
    standard_errors = entries_of(
        problem, _overlaps_of(solution, sum_blocks=True, suffix="_standard_error")
    )
    values = {name: entry[0] for name, entry in entries.items()}
    errors = {name: entry[0] for name, entry in standard_errors.items()}
    quadrature = float(solution.attrs.get("error_quadrature", 0.0))
    return Theory([values], errors, quadrature, math.nan, 0.0)


def _overlaps_of(
    solution: xr.Dataset, sum_blocks: bool = False, suffix: str = ""
) -> dict[str, np.ndarray]:
    """Overlaps of a solution in the shape of a simulator's, (run, time, block, ...)."""
    overlaps = {}
    for name in ("M", "Q"):
        has_blocks = f"{name}_block" in solution and not sum_blocks
        source = f"{name}_block" if has_blocks else name
        overlap = np.asarray(solution[source + suffix])
        overlaps[name] = overlap if overlap.ndim == 5 else overlap[:, :, None]
    overlaps["a"] = head_of(solution, suffix)
    if "train_risk" in solution:
        overlaps["train_risk"] = np.asarray(solution[f"train_risk{suffix}"])
    return overlaps
