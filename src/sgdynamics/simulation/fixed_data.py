"""`simulate` for algorithms on a fixed data set: checks, direct runs or the exact law, early stop, and the stability of a single sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr
from scipy import integrate, special

from sgdynamics import checks
from sgdynamics.algorithms.fixed_data import FixedData, checked_fixed_data
from sgdynamics.clock import clock, time_of_steps
from sgdynamics.gaussian.risk import risk_in_time
from sgdynamics.problems.losses import squared
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.starts import Start, broadcast_runs, check_dimension, checked_start
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.progress import warn
from sgdynamics.results import largest_share, trajectory
from sgdynamics.samples.spectrum import trace, variance
from sgdynamics.simulation.fixed_direct import DirectFixedData
from sgdynamics.simulation.running import CHECK_STEPS, Simulator, run_until

MANY_UNSTABLE = 0.5  # samples beyond the stability limit, expected in all the data sets of a call, from which on it warns


def simulate_fixed_data(
    problem: Problem,
    algorithm: FixedData,
    start: Start,
    *,
    times: Any = None,
    alpha: Any = None,
    steps: Any = None,
    dimension: int,
    runs: int | None = None,
    seed: int = 0,
    method: str = "exact",
    dtype: str = "float64",
    progress: bool | None = None,
    shared_data: bool = False,
    stop_at: float | None = None,
) -> xr.Dataset:
    """Gradient descent, multi-pass or persistent SGD, Langevin on a fixed data set at dimension d, t = lr steps.

        W <- W - lr (1/(b n)) sum_mu s_mu dloss_mu/dW + sqrt(2 T lr/d) N(0, I)

    Arguments as in `simulate`; the result has `train_risk` too, the mean loss over all samples. With `stop_at` the coordinate
    `stopped_at` is the time at which the train risk of a run was first seen below it, at a multiple of 100 steps (NaN where it was not);
    the run keeps the values that it had there.
    """
    checked_fixed_data(algorithm)
    checks.choice("method", method, ("exact", "direct"))
    checks.choice("dtype", dtype, ("float64", "float32"))
    if method == "exact" and dtype != "float64":
        raise checks.reject("dtype", dtype, "the exact law is computed in float64 only: leave it, or take method='direct'")
    if method == "exact" and shared_data:
        raise checks.reject("shared_data", shared_data, "the exact law keeps no data set that runs could share: take method='direct'")
    if stop_at is not None:
        stop_at = checks.number("stop_at", stop_at, above=0.0)
    d, sizes = check_dimension(problem, dimension, small=True)
    samples = algorithm.samples(d)
    seed = checks.whole("seed", seed, 0)
    when = clock(algorithm, times=times, alpha=alpha, steps=steps, dimension=d, whole_steps=True)
    problem.check_numbers(when.t[-1], "t")
    begin = broadcast_runs(checked_start(problem, start), runs)
    if method == "exact":
        from sgdynamics.simulation.fixed_exact import ExactFixedData

        simulator: Simulator = ExactFixedData(problem, algorithm, begin, d, sizes, seed)
    else:
        simulator = DirectFixedData(problem, algorithm, begin, d, sizes, dtype, seed, shared_data)
    _warn_unstable(problem, algorithm, begin, samples)
    assert when.step is not None
    label = f"{method} simulation, d = {d}, {samples} samples"
    overlaps, last, stopped = run_until(simulator, begin.runs, when.step, seed, label, progress, stop_at)
    risk, error = risk_in_time(problem, overlaps, when.t)
    diverged_at = np.where(last >= 0, time_of_steps(algorithm, last, d), np.nan)
    if np.any(last >= 0):
        warn(
            f"{int((last >= 0).sum())} of {begin.runs} runs diverged, the first after t = {np.nanmin(diverged_at):.4g} "
            "(coordinate diverged_at); a smaller lr may help"
        )
    spread = risk.std(axis=0, ddof=1) / np.sqrt(begin.runs) if begin.runs > 1 and not np.any(last >= 0) else None
    attributes = {
        "seed": seed,
        "dimension": d,
        "samples": samples,
        "dtype": dtype,
        "shared_data": int(shared_data),
        "stop_at": stop_at,
        "assumptions": "Gaussian inputs, a fixed data set" + (", exact in law" if method == "exact" else ""),
        "error_quadrature": error,
        "error_sampling": None if spread is None else largest_share(spread, risk.mean(axis=0)),
    }
    flags = {"diverged_at": diverged_at, "method": f"simulate-{method}", "attributes": attributes}
    result = trajectory(problem, algorithm, when, overlaps, risk, **flags)
    if stop_at is None:
        return result
    stopped_at = np.where(stopped >= 0, time_of_steps(algorithm, stopped, d), np.nan)
    meaning = {"long_name": f"time at which the train risk was below stop_at, seen every {CHECK_STEPS} steps"}
    return result.assign_coords(stopped_at=("run", stopped_at, meaning))


def stability_limit(problem: Problem, algorithm: FixedData) -> float | None:
    """The largest residual a (f - y) of a sample whose own pull is stable; None for problems that this does not cover.

    A sample's pull moves its own field by -(lr |x|^2/(b n)) dloss/dlambda = -(2 lr tr/(b alpha)) a (a lambda^2 - y) lambda, with the batch
    fraction b (where the gradient is rescaled by it, else 1), alpha = n/d and tr = |x|^2/d. That flips and enlarges the field, further with
    every step, once

        a (a lambda^2 - y) > b alpha/(lr tr).

    Covers one unit f = a lambda^2 with the squared loss, any teacher, constraint and covariance; other samples' pulls are left out. In the
    units of Mignacco, Urbani, Zdeborova (2021), eta = 2 lr/alpha and v = (h^2 - h0^2)^2/4, it reads h^2 - h0^2 > 2 b/eta. At fixed lr and
    d -> infinity some sample is beyond any limit: the limit d -> infinity is only metastable.
    """
    covered = (
        isinstance(problem, TeacherStudent)
        and problem.width == 1
        and problem.head == "fixed"
        and problem.loss is squared
        and problem.activation.coefficients == (0.0, 0.0, 1.0)
    )
    if not covered:
        return None
    return algorithm.divisor * algorithm.samples_per_dimension / (algorithm.lr * float(trace(problem.parameters)))


def unstable_share(problem: Problem, algorithm: FixedData, begin: Start) -> np.ndarray | None:
    """For each run of a start the probability that a sample is beyond `stability_limit` there, P(h^2 - h0^2 > limit).

    In a frame where both fields are independent, h^2 - h0^2 = u z1^2 - v z2^2, so it is E_z2 erfc(sqrt((limit + v z2^2)/(2 u))).
    Covers phase retrieval without label noise: one unit of head 1 and one teacher unit, both squared; None for other problems.
    """
    limit = stability_limit(problem, algorithm)
    if limit is None or not isinstance(problem, TeacherStudent):
        return None
    squares = problem.teacher_width == 1 and problem.teacher_activation.coefficients == (0.0, 0.0, 1.0)
    if not squares or problem.noise > 0 or problem.teacher_head[0] != 1 or np.any(begin.a != 1):
        return None
    q, m, q0 = (variance(problem.parameters, part)[..., 0, 0] for part in (begin.Q_blocks, begin.M_blocks, problem.gram))
    found = {}
    for pair in {*zip(q.tolist(), m.tolist(), strict=True)}:
        found[pair] = _beyond(*pair, float(q0), limit)
    return np.array([found[pair] for pair in zip(q.tolist(), m.tolist(), strict=True)])


def _beyond(q: float, m: float, q0: float, limit: float) -> float:
    # eigenvalues of diag(1, -1) times the covariance [[q, m], [m, q0]]
    root = np.sqrt(max((q + q0) ** 2 - 4 * m * m, 0.0))
    u, v = (root + q - q0) / 2, (root - q + q0) / 2
    if u <= 0:
        return 0.0

    def density(z: float) -> float:
        return float(special.erfc(np.sqrt((limit + v * z * z) / (2 * u))) * np.exp(-z * z / 2))

    return float(integrate.quad(density, 0, np.inf)[0]) * np.sqrt(2 / np.pi)


def _warn_unstable(problem: Problem, algorithm: FixedData, begin: Start, samples: int) -> None:
    shares = unstable_share(problem, algorithm, begin)
    if shares is None:
        return
    expected = samples * float(shares.sum())
    if expected > MANY_UNSTABLE:
        limit = stability_limit(problem, algorithm)
        warn(
            f"about {expected:.2g} of the {samples} samples of {begin.runs} runs start beyond the stability limit h^2 - h0^2 > {limit:.4g} "
            "of a single sample (batch fraction * samples_per_dimension/lr): their runs may blow up; take a smaller lr or a larger batch"
        )
