"""A certificate for a problem of one's own: is the exact chain SGD, and do runs approach the theory at the predicted rate?

Two claims, each tested on the problem, algorithm and start at hand.

1. The simulation without the dimension (`method="exact"`) has the law of SGD on d-dimensional weights: at a small d, every overlap at every
   save point, by the two-sample Kolmogorov-Smirnov test and by the means.
2. The theory (the ODE; on a fixed data set DMFT) is the limit: at growing d and fixed t, with X an overlap of the chain and x of theory,

       spread of X = c d^s (1 + b/d),  s = -1/2,        mean of X - x = g_0 + g_1/d,  g_0 = 0.

   s and every g_0 are fitted with their errors. Source: Veiga, Stephan, Loureiro, Krzakala, Zdeborova (2022), where one-pass SGD stays
   within a constant times d^-1/2 of the ODE; the mean of the fluctuations enters at the next order, 1/d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import xarray as xr
from scipy import stats

from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.analysis.certificate import Certificate, Check
from sgdynamics.analysis.real_data import checked_samples, gap_on_data
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.progress import meter
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.overlap_starts import Start, broadcast_runs
from sgdynamics.problems.problem import Problem
from sgdynamics.results.clock import make_clock
from sgdynamics.simulation.exact import check_room
from sgdynamics.simulation.running import run
from sgdynamics.solvers.dmft import solve_dmft
from sgdynamics.solvers.ode import solve_ode

SMALL = 50  # dimension of the test in law, where the rows and signals fit
GROWING = (100, 400, 1600)
GROWING_DIRECT = (
    100,
    200,
    400,
    800,
)  # of updates that are simulated directly, whose cost grows with d
GROWING_FIXED = (50, 100, 200)  # on a fixed data set the cost of a run grows with d
ALPHA = (1.0, 2.0, 4.0)  # save points unless given: samples/d
STEPS = (4, 8, 16)  # and on a fixed data set
RUNS, RUNS_FIXED = 1000, 400
REPLICATES = 16  # of the DMFT paths, for standard errors that are themselves known
TESTS = 4  # that may fail by chance: they share the level
DIGITS = 10  # beyond which equal values may differ by rounding
ROUNDING = 1e-12  # spreads below this, relative, are none
SMALL_ERROR = 1e-2  # relative error of the theory's risk that a certificate accepts
FEW_DIVERGED = 0.01
BOOTSTRAPS = 200
BAND = float(
    stats.norm.cdf(1.0)
)  # the spread is half the distance of the 16% and 84% quantiles: heavy tails do not matter


def certify(
    problem: Problem,
    algorithm: OnePassSGD | FixedData,
    start: Start,
    *,
    times: ArrayArgument | None = None,
    alpha: ArrayArgument | None = None,
    steps: ArrayArgument | None = None,
    dimension: int | None = None,
    dimensions: Any = None,
    runs: int | None = None,
    level: float = 1e-3,
    paths: int = 1 << 14,
    seed: int = 0,
    progress: bool | None = None,
    data: ArrayArgument | None = None,
) -> Certificate:
    """Test theory and simulation on a problem of one's own: exact against direct runs in law, and runs against theory as d grows.

    ::

        X_exact = X_direct in law at one dimension;   spread of X ~ d^-1/2 and mean of X = theory + O(1/d) over several,

    for every entry X of M, Q, a trained head and, on a fixed data set, the train risk, at every save point.

    Parameters
    ----------
    problem : Problem
        What is learned, with Gaussian inputs.
    algorithm : OnePassSGD or an algorithm on fixed data
        How. The theory is ``solve_ode`` (with schedules, batches and updates) or, on a fixed data set, ``solve_dmft``. Of an update without
        an ODE only the law is tested; of a coordinatewise one, which has no chain, direct runs are compared with the ODE.
    start : Start
        Where, of one run.
    times : array_like, optional
        Save points in t; at most one of times, alpha, steps.
    alpha : array_like, optional
        Save points in samples/d; 1, 2, 4 unless one of the three is given.
    steps : array_like, optional
        Save points in steps; on a fixed data set 4, 8, 16 unless one of the three is given.
    dimension : int, optional
        Where exact and direct runs are compared; as small as rows and signals allow unless given.
    dimensions : sequence of int, optional
        Where runs are compared with the theory, three or more that increase, so large that terms beyond 1/d are below the errors; chosen
        unless given.
    runs : int, optional
        At each dimension; 1000 unless given, 400 on a fixed data set.
    level : float, default 0.001
        A problem for which all of this holds fails with this probability at most (Bonferroni over all entries, times and tests).
    paths : int, default 16384
        Of ``solve_dmft``, on a fixed data set.
    seed : int, default 0
        Of the random numbers.
    progress : bool, optional
        A progress bar; unless given on a terminal only.
    data : array_like (samples, inputs), optional
        The samples that the problem's covariance, ``sgd.spectrum_of(data, ...)``, was taken from: the certificate then says how far the
        Gaussian theory is off where SGD draws these samples themselves.

    Returns
    -------
    Certificate
        ``.passed``, ``.checks``, ``.paragraph`` for an appendix; print it for a table.

    Raises
    ------
    ValueError
        If an argument is refused, or this is not answered for the problem.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> certificate = sgd.certify(
    ...     problem, sgd.OnePassSGD(lr=0.1), begin, steps=[10], dimension=10, dimensions=[10, 20, 40], runs=200, progress=False)
    >>> certificate.passed
    True
    """
    dynamics = dynamics_of("certify", problem, algorithm)
    fixed = dynamics.has_data
    progress = checks.flag("progress", progress, optional=True)
    begin = dynamics.initial_state(start)
    if begin.runs != 1:
        raise checks.reject(
            "start",
            f"{begin.runs} runs",
            "a certificate is about one start, from which all runs leave: give one run",
        )
    runs = (RUNS_FIXED if fixed else RUNS) if runs is None else checks.integer("runs", runs, 50)
    level = checks.number("level", level, above=0.0)
    if level >= 1:
        raise checks.reject(
            "level", level, "give the probability of a false alarm, above 0 and below 1"
        )
    seed = checks.integer("seed", seed, 0)
    small, growing = _dimensions(dynamics, dimension, dimensions)
    samples = None if data is None else checked_samples(problem, data)
    if samples is not None and fixed:
        raise checks.reject(
            "data",
            samples.shape,
            "this is for one-pass SGD, which draws from the samples: give sgd.OnePassSGD(...)",
        )
    when = {
        name: value
        for name, value in (("times", times), ("alpha", alpha), ("steps", steps))
        if value is not None
    }
    when = when or ({"steps": STEPS} if fixed else {"alpha": ALPHA})
    if not fixed and "steps" in when:
        # theory has no steps, and runs of other dimensions need the same times: they are those of these steps at `dimension`
        given = checks.real_array("steps", steps, "give increasing whole numbers, 0 or more")
        when = {"alpha": np.atleast_1d(given) * (dynamics.algorithm.batch / small)}
    setting = _SharedRuns(dynamics, begin, runs, seed, when)
    setting.steps(small)  # refuses bad times before anything is computed
    no_ode = None if fixed else dynamics.no_ode_reason
    limit, chain = (
        no_ode is None and problem.spectrum is None,
        "coordinatewise update" not in algorithm.kinds,
    )
    if not limit and not chain:
        raise checks.reject(
            "update",
            getattr(algorithm, "update", None),
            "there is neither an exact chain nor a growing dimension to compare runs with",
        )
    with meter("certificate", 2.0 * chain + (1 + len(growing)) * limit, progress) as bar:
        found, comparisons = [], 0
        numbers: dict[str, Any] = {}
        remarks = []
        if chain:
            pair = []
            for number, method in enumerate(("exact", "direct")):
                pair.append(setting.simulate(small, method, seed_shift=number)[0])
                bar.advance(1)
            found, comparisons = _law(pair[0], pair[1], level / TESTS)
        else:
            remarks.append(
                f"{getattr(algorithm, 'update', None)} has no exact chain: direct runs are "
                "compared with the ODE"
            )
        if limit:
            chains = []
            for number, d in enumerate(growing):
                chains.append(
                    setting.simulate(d, "exact" if chain else "direct", seed_shift=2 + number)
                )
                bar.advance(1)
            theory = (
                _dmft(setting, paths) if fixed else _ode(setting, [chain[1] for chain in chains])
            )
            bar.advance(1)
            more, numbers = _limit(growing, chains, theory, begin, level / TESTS, seed)
            found += more
        else:
            growing = ()
            why = f"update = {algorithm.update} has no ODE ({no_ode})"  # type: ignore[union-attr]
            if problem.spectrum is not None:
                why = "a spectrum fixes the dimension, and there is none to grow"
            remarks.append(f"{why}: only the law at finite dimension is tested")
        found_on_data = None
        if samples is not None:
            steps_there = np.asarray(setting.steps(small))
            found_on_data = gap_on_data(dynamics, begin, samples, steps_there, runs, 64 * seed + 63)
    return Certificate(
        problem=problem,
        algorithm=algorithm,
        checks=tuple(found),
        times=setting.clock(small).t,
        dimension=small,
        dimensions=growing,
        runs=runs,
        level=level,
        comparisons=comparisons,
        theory="" if not limit else ("DMFT" if fixed else "ODE"),
        seed=seed,
        remarks=tuple(remarks),
        data=found_on_data,
        **numbers,
    )


def _dimensions(
    dynamics: SolverDynamics[Any], dimension: int | None, dimensions: Sequence[int]
) -> tuple[int, tuple[int, ...]]:
    """The dimension of the test in law and the growing ones; those not given are as small as rows and signals allow."""
    problem, algorithm, fixed = dynamics.problem, dynamics.algorithm, dynamics.has_data
    if problem.spectrum is not None:
        if dimensions is not None or problem.spectrum.infinite:
            fix = "a spectrum fixes the dimension: leave dimensions out, and give a finite one"
            raise checks.reject("dimensions", dimensions, fix)
        return int(check_dimension(problem, dimension, small=True)[0]), ()
    least = problem.signals + count_row_sets(None if fixed else algorithm.law) * problem.width
    needed = max(math.ceil(least / fraction) + 1 for fraction in problem.parameters["fractions"])
    small = max(SMALL, needed) if dimension is None else checks.integer("dimension", dimension, 1)
    default = (
        GROWING_FIXED
        if fixed
        else GROWING_DIRECT
        if "coordinatewise update" in algorithm.kinds
        else GROWING
    )
    enlarge = math.ceil(needed / default[0])
    given = (
        tuple(enlarge * d for d in default)
        if dimensions is None
        else tuple(
            np.atleast_1d(
                checks.real_array(
                    "dimensions", dimensions, "give three increasing whole numbers or more"
                )
            ).tolist()
        )
    )
    growing = tuple(checks.integer("dimensions", d, 1) for d in given)
    if len(growing) < 3 or any(one >= other for one, other in pairwise(growing)):
        raise checks.reject(
            "dimensions",
            dimensions,
            "give three increasing dimensions or more: the fits have a term 1/d each",
        )
    for d in (small, *growing):
        _, sizes = check_dimension(problem, d)
        if not fixed:
            check_room(problem, algorithm, sizes)
    return small, growing


@dataclass(frozen=True)
class _SharedRuns:
    """What all runs of a certificate share."""

    dynamics: SolverDynamics[Any]
    begin: Start
    runs: int
    seed: int
    when: dict[str, Any]

    def clock(self, dimension: int) -> Any:
        return make_clock(
            self.dynamics.algorithm, **self.when, dimension=dimension, whole_steps=True
        )

    def steps(self, dimension: int) -> np.ndarray:
        """Save points in steps, at least one and each once."""
        steps = self.clock(dimension).step
        if steps[0] < 1 or np.any(np.diff(steps) < 1):
            name, value = next(iter(self.when.items()))
            raise checks.reject(
                name,
                value,
                f"at dimension {dimension} these are the steps {steps.tolist()}: give later or fewer times",
            )
        return steps

    def simulate(
        self, dimension: int, method: str, *, seed_shift: int
    ) -> tuple[dict[str, np.ndarray], Any]:
        """Entries (run, time, entry) of every overlap, NaN where a run has diverged, and the clock; no risk, which is not needed."""
        steps, (d, sizes) = (
            self.steps(dimension),
            self.dynamics.resolve_dimension(
                dimension, allow_small_blocks=self.dynamics.problem.spectrum is not None
            ),
        )
        seed = 64 * self.seed + seed_shift
        simulator = self.dynamics.simulator(
            method, broadcast_runs(self.begin, self.runs), d, sizes, seed=seed
        )
        overlaps, _ = run(simulator, self.runs, steps, seed, "", False)
        return entries(self.dynamics.problem, overlaps), self.clock(dimension)


def entries(problem: Problem, overlaps: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every number that moves, (run, time, entry): M, the upper triangle of Q, a trained head, the train risk."""
    leading = overlaps["a"].shape[:2]
    upper = np.triu_indices(problem.width)
    found = {
        "M": overlaps["M"].reshape(*leading, -1),
        "Q": overlaps["Q"][..., upper[0], upper[1]].reshape(*leading, -1),
    }
    if problem.head == "trained":
        found["a"] = overlaps["a"]
    if "train_risk" in overlaps:
        found["train_risk"] = overlaps["train_risk"][..., None]
    return found


def _law(
    exact: dict[str, np.ndarray], direct: dict[str, np.ndarray], level: float
) -> tuple[list[Check], int]:
    """Exact and direct runs in law: the smallest corrected p-value of Kolmogorov-Smirnov, and the largest difference of means."""
    one, other = (
        np.concatenate([part.reshape(len(part), -1) for part in each.values()], axis=1)
        for each in (exact, direct)
    )
    # a run that has diverged is beyond every other: how many do is part of the law
    one, other = (np.where(np.isfinite(part), part, np.inf) for part in (one, other))
    scale = np.maximum(1.0, np.abs(np.where(np.isfinite(one), one, 0.0)).max(axis=0))
    # atoms (a ReLU never active, a row on the sphere) are equal up to rounding
    one, other = (np.round(part / scale, DIGITS) for part in (one, other))
    moving = [
        i
        for i in range(one.shape[1])
        if min(one[:, i].min(), other[:, i].min()) < max(one[:, i].max(), other[:, i].max())
    ]
    p_values = [float(cast(Any, stats.ks_2samp(one[:, i], other[:, i])).pvalue) for i in moving]
    smallest = min([1.0, *(len(moving) * p for p in p_values)])
    found = [
        Check(
            "exact = direct: law",
            smallest,
            f"corrected KS p-value of {level:.2g} or more",
            smallest >= level,
        )
    ]
    a, b = one[:, moving], other[:, moving]
    sure = np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0)
    a, b = a[:, sure], b[:, sure]
    error = np.sqrt(a.var(axis=0, ddof=1) / len(a) + b.var(axis=0, ddof=1) / len(b))
    z = float(
        np.max(
            np.abs(a.mean(axis=0) - b.mean(axis=0)) / np.maximum(error, 10.0**-DIGITS), initial=0.0
        )
    )
    most = _quantile(level, a.shape[1])
    found.append(Check("exact = direct: means", z, f"largest |z| of {most:.2f} or less", z <= most))
    return found, len(moving)


def _quantile(level: float, count: int) -> float:
    """How many standard errors the largest of `count` normal numbers may be away, at this level in all."""
    return float(stats.norm.isf(level / (2 * max(count, 1))))


@dataclass(frozen=True)
class _Theory:
    """The theory at the times of every dimension: entries (time, entry) by name, standard errors, relative errors of its risk."""

    values: list[dict[str, np.ndarray]]
    errors: dict[str, np.ndarray] | None
    quadrature: float
    integrator: float
    relative: float  # error of the values, beside `errors`: a share of how far they have moved


def _ode(setting: _SharedRuns, clocks: list[Any]) -> _Theory:
    """One solution, at the whole steps of every dimension."""
    points = [np.asarray(one.alpha, dtype=np.float64) for one in clocks]
    every, where = np.unique(np.concatenate(points), return_inverse=True)
    found = solve_ode(
        setting.dynamics.problem, setting.dynamics.algorithm, setting.begin, alpha=every
    )
    values = entries(setting.dynamics.problem, _blocks(found))
    places = np.split(where, np.cumsum([len(part) for part in points])[:-1])
    quadrature = max(
        float(found.attrs.get(name, 0.0)) for name in ("error_quadrature", "error_quadrature_risk")
    )
    integrator = float(found.attrs["error_integrator"])
    parts = [{name: value[0, place] for name, value in values.items()} for place in places]
    return _Theory(parts, None, quadrature, integrator, quadrature + integrator)


def _dmft(setting: _SharedRuns, paths: int) -> _Theory:
    steps = setting.steps(1)
    settings = {"paths": paths, "replicates": REPLICATES, "seed": setting.seed, "progress": False}
    found = solve_dmft(
        setting.dynamics.problem, setting.dynamics.algorithm, setting.begin, steps=steps, **settings
    )
    # blocks are added up: the standard errors are of the sums
    values = {
        name: value[0]
        for name, value in entries(setting.dynamics.problem, _blocks(found, add=True)).items()
    }
    errors = {
        name: value[0]
        for name, value in entries(
            setting.dynamics.problem, _blocks(found, add=True, suffix="_standard_error")
        ).items()
    }
    share = float(found.attrs.get("error_quadrature", 0.0))
    return _Theory([values], errors, share, math.nan, 0.0)


def _blocks(
    found: xr.Dataset | Mapping[str, Any], add: bool = False, suffix: str = ""
) -> dict[str, np.ndarray]:
    """Overlaps of a result in the form of a simulator's, with a block axis."""
    names = {
        name: name if add or f"{name}_block" not in found else f"{name}_block"
        for name in ("M", "Q")
    }
    result = {name: np.asarray(found[source + suffix]) for name, source in names.items()}
    result = {
        name: value if value.ndim == 5 else value[:, :, None] for name, value in result.items()
    }
    result["a"] = np.asarray(found[f"a{suffix}"])
    if "train_risk" in found:
        result["train_risk"] = np.asarray(found[f"train_risk{suffix}"])
    return result


def _limit(
    dimensions: tuple[int, ...],
    chains: list[Any],
    theory: _Theory,
    begin: Start,
    level: float,
    seed: int,
) -> tuple[list[Check], dict[str, Any]]:
    """Spread and mean of the runs against the theory, as d grows."""
    names = list(theory.values[0])
    values = [
        _stack(chain[0], theory, names) for chain in chains
    ]  # (run, entry and time) of each dimension
    targets = [np.concatenate([part[name].reshape(-1) for name in names]) for part in theory.values]
    targets = targets * (len(values) if len(targets) == 1 else 1)
    whole = [np.isfinite(part).all(axis=1) for part in values]
    diverged = float(1 - whole[-1].mean())
    values = [part[keep] for part, keep in zip(values, whole, strict=True)]
    if min(len(part) for part in values) < 2 or not all(
        np.isfinite(part).all() for part in targets
    ):
        return [
            Check("runs against the theory", math.nan, "finite runs and a finite theory", False)
        ], {}
    gap = np.stack(
        [part.mean(axis=0) - target for part, target in zip(values, targets, strict=True)]
    )
    error = np.stack([part.std(axis=0, ddof=1) / math.sqrt(len(part)) for part in values])
    scale = np.maximum(1.0, np.abs(targets[-1]))
    moving = np.all(error > ROUNDING * scale, axis=0)
    sizes = [_spread(part[:, moving]) for part in values]
    wide = np.all(np.stack(sizes) > ROUNDING * scale[moving], axis=0)
    found = []
    spread, spread_error = _pooled_spread(values, moving, wide, seed)
    slope, slope_error = _fit(np.array(dimensions), np.log(spread), spread_error / spread)
    most = _quantile(level, 1)
    text = f"-0.5 within {most:.2f} x {slope_error:.2g}"
    found.append(
        Check("spread ~ d^s: s", slope, text, abs(slope + 0.5) <= most * slope_error, slope_error)
    )
    # mean - theory = g_0 + g_1/d, entry by entry
    most = _quantile(level, int(moving.sum()))
    own = np.zeros(gap.shape[1])
    if theory.errors is not None:
        # few replicates: their t-distribution is wider than the normal one at this level
        wider = float(stats.t.isf(stats.norm.sf(most), REPLICATES - 1)) / most
        own = wider * np.concatenate([theory.errors[name].reshape(-1) for name in names])
    own = np.hypot(
        own,
        theory.relative
        * np.max(
            np.abs(np.stack([part.mean(axis=0) for part in values]) - _first(begin, theory, names))
        ),
    )
    z = _intercept(np.array(dimensions), gap[:, moving], error[:, moving], own[moving])
    largest = float(np.max(np.abs(z), initial=0.0))
    found.append(
        Check(
            "mean gap, d -> infinity",
            largest,
            f"largest |z| of {most:.2f} or less",
            largest <= most,
        )
    )
    budget = {
        "error of the quadrature": theory.quadrature,
        "error of the integrator": theory.integrator,
    }
    for label, size in budget.items():
        if math.isfinite(size):
            found.append(
                Check(label, size, f"{SMALL_ERROR:g} of the risk or less", size <= SMALL_ERROR)
            )
    if diverged:
        text = f"{FEW_DIVERGED:g} of the runs at d = {dimensions[-1]} or fewer"
        found.append(Check("diverged", diverged, text, diverged <= FEW_DIVERGED))
    rms, noise = (np.sqrt(np.mean(part[:, moving] ** 2, axis=1)) for part in (gap, error))
    numbers = {
        "spread": spread,
        "spread_slope": slope,
        "spread_slope_error": slope_error,
        "gap": rms,
        "gap_noise": noise,
        "error_quadrature": theory.quadrature,
        "error_integrator": theory.integrator,
        "error_sampling": float(np.max(error[-1][moving], initial=0.0)),
    }
    return found, numbers


def _stack(chain: dict[str, np.ndarray], theory: _Theory, names: list[str]) -> np.ndarray:
    """Runs as rows, in the order of the theory's numbers; blocks are added up where the theory gives only sums."""
    parts = []
    for name in names:
        value, wanted = chain[name], theory.values[0][name].shape[-1]
        if value.shape[-1] != wanted:
            value = value.reshape(*value.shape[:2], -1, wanted).sum(axis=2)
        parts.append(value.reshape(len(value), -1))
    return np.concatenate(parts, axis=1)


def _first(begin: Start, theory: _Theory, names: list[str]) -> np.ndarray:
    """The start in the same order, once a save point (0 for the train risk, which the start does not tell)."""
    upper = np.triu_indices(begin.a.shape[1])
    parts = {
        "M": begin.M_blocks[0],
        "Q": begin.Q_blocks[0][..., upper[0], upper[1]],
        "a": begin.a[0],
    }
    found = []
    for name in names:
        times, count = theory.values[0][name].shape
        one = parts[name].reshape(-1, count).sum(axis=0) if name in parts else np.zeros(count)
        found.append(np.tile(one, times))
    return np.concatenate(found)


def _spread(values: np.ndarray) -> np.ndarray:
    """Half the distance between the 16% and 84% quantiles over runs: the standard deviation of a normal law."""
    low, high = np.quantile(values, [1 - BAND, BAND], axis=0)
    return (high - low) / 2


def _pooled_spread(
    values: list[np.ndarray], moving: np.ndarray, wide: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """One spread a dimension, the geometric mean over entries and times, and its error by the bootstrap over whole runs."""
    generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(7,)))
    found, errors = [], []
    for part in values:
        chosen = part[:, moving][:, wide]
        if chosen.shape[1] == 0:
            return np.full(len(values), np.nan), np.full(len(values), np.nan)
        again = [
            np.mean(_log(_spread(chosen[generator.integers(0, len(chosen), len(chosen))])))
            for _ in range(BOOTSTRAPS)
        ]
        found.append(float(np.exp(np.mean(_log(_spread(chosen))))))
        errors.append(found[-1] * float(np.std(again, ddof=1)))
    return np.array(found), np.array(errors)


def _log(values: np.ndarray) -> np.ndarray:
    return np.log(np.maximum(values, np.finfo(float).tiny))


def _fit(dimensions: np.ndarray, logarithms: np.ndarray, errors: np.ndarray) -> tuple[float, float]:
    """s of log(spread) = c + s log d + b/d with its error, by weighted least squares."""
    if not np.all(np.isfinite(logarithms)):
        return math.nan, math.nan
    design = (
        np.stack([np.ones(len(dimensions)), np.log(dimensions), 1.0 / dimensions], axis=1)
        / errors[:, None]
    )
    inverse = np.linalg.pinv(design)
    return float(inverse[1] @ (logarithms / errors)), float(np.linalg.norm(inverse[1]))


def _intercept(
    dimensions: np.ndarray, gap: np.ndarray, error: np.ndarray, own: np.ndarray
) -> np.ndarray:
    """g_0/error of gap = g_0 + g_1/d, entry by entry; `own` is the error that the theory itself has at every dimension."""
    x = 1.0 / dimensions[:, None]
    weight = error**-2.0
    total, first, second = weight.sum(axis=0), (weight * x).sum(axis=0), (weight * x**2).sum(axis=0)
    determinant = total * second - first**2
    g0 = (
        second * (weight * gap).sum(axis=0) - first * (weight * x * gap).sum(axis=0)
    ) / determinant
    return g0 / np.sqrt(second / determinant + own**2)
