"""The table of stored cases: a name, and a function without arguments that returns arrays by name.

The cases call only public names, so that the table stays valid when the implementation changes.
They take few steps, so that rounding errors are not amplified.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
import xarray as xr

import sgdynamics as sgd
from sgdynamics import updates
from sgdynamics.solvers import functional
from tests.stored.problems import PROBLEMS, THREE, product, start_of

Arrays = dict[str, np.ndarray]

TIMES = [0.0, 0.1, 0.3]
CLOCKS = ("t", "alpha", "step", "diverged_at", "stopped_at")


def arrays(result: Mapping[Any, Any] | xr.Dataset) -> Arrays:
    """The stored arrays of a result, as float64; for a Dataset its variables and clocks."""
    if isinstance(result, xr.Dataset):
        names = [*result.data_vars, *(name for name in CLOCKS if name in result.coords)]
        result = {name: result[name].values for name in names}
    return {str(name): np.asarray(value, dtype=np.float64) for name, value in result.items()}


def with_prefix(groups: Mapping[str, Arrays]) -> Arrays:
    """Join groups of arrays, with the name of the group in front of each array name."""
    return {
        f"{group} {name}": value
        for group, values in groups.items()
        for name, value in values.items()
    }


def runs_of(start: Any) -> dict[str, int]:
    """The argument `runs`; the start of a spiked tensor has two runs already."""
    return {} if hasattr(start, "r2") else {"runs": 2}


# ------------------------------------------------------------ one pass


def ode(name: str, algorithm: Any = None, clock: Any = None, **options: Any) -> Arrays:
    problem = PROBLEMS[name]()
    clock = clock or {"times": [0.0, 0.5, 2.0]}
    algorithm = algorithm or sgd.OnePassSGD(lr=0.2)
    return arrays(sgd.solve_ode(problem, algorithm, start_of(problem), **clock, **options))


def sde(name: str, algorithm: Any = None, clock: Any = None, **options: Any) -> Arrays:
    problem = PROBLEMS[name]()
    start = start_of(problem)
    algorithm = algorithm or sgd.OnePassSGD(lr=0.2)
    clock = clock or {"times": TIMES, "step": 0.1}
    options = {"dimension": 100, "seed": 3, **runs_of(start), **options}
    return arrays(sgd.solve_sde(problem, algorithm, start, **clock, **options))


def steps(
    name: str, algorithm: Any = None, method: str = "exact", clock: Any = None, **options: Any
) -> Arrays:
    problem = PROBLEMS[name]()
    start = start_of(problem)
    algorithm = algorithm or sgd.OnePassSGD(lr=0.2)
    clock = clock or {"steps": [0, 1, 7, 25]}
    options = {"dimension": 40, "seed": 4, **runs_of(start), **options}
    return arrays(sgd.simulate(problem, algorithm, start, **clock, method=method, **options))


def diverging() -> Arrays:
    """Two runs, of which one diverges to NaN.

    They are stored as separate arrays, because gaps are relative to the largest value of an array.
    """
    problem = PROBLEMS["square"]()
    start = sgd.start(problem, M=[[[0.3], [0.1]], [[0.3], [0.1]]], Q=[np.eye(2), 400 * np.eye(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = sgd.simulate(
            problem, sgd.OnePassSGD(lr=0.5), start, steps=[0, 2, 10, 40], dimension=40, seed=1
        )
    labels = ("calm", "wild")
    return with_prefix({label: arrays(result.isel(run=[run])) for run, label in enumerate(labels)})


UPDATES = {
    "momentum": updates.momentum(0.6),
    "reuse": updates.reuse(3),
    "normalised": updates.normalised(),
    "clipped": updates.clipped(0.4),
    "sam": updates.sam(0.1),
}


def decaying_rate(alpha):
    return 0.4 / (1 + alpha)


# Problems with a stored SDE, whose program takes long to compile. Mixtures without noise have none.
WITH_SDE = (
    "square",
    "erf",
    "relu",
    "trained head",
    "sphere",
    "sphere, trained relu",
    "logistic",
    "two blocks",
    "three blocks",
    "one direction, kinked",
    "two directions",
    "own",
    "own, blocks",
    "own clusters, blocks",
    "binary",
    "xor",
    "spiked matrix",
    "spiked tensor",
)

FLOW = {"times": [0.0, 0.5, 2.0]}


def one_pass() -> dict[str, Callable[[], Arrays]]:
    table: dict[str, Callable[[], Arrays]] = {}
    for name in PROBLEMS:
        table[f"{name}, ode"] = partial(ode, name)
        if name in WITH_SDE:
            table[f"{name}, sde"] = partial(sde, name)
        table[f"{name}, chain"] = partial(steps, name)
        table[f"{name}, direct"] = partial(steps, name, method="direct")
    for name in (
        "square",
        "trained head",
        "two blocks",
        "one direction, kinked",
        "own, kinked",
        "xor without noise",
        "spiked tensor",
    ):
        table[f"{name}, flow"] = partial(ode, name, sgd.OnePassSGD(lr=0.0), clock=FLOW)
    for name in (
        "erf",
        "relu",
        "sphere",
        "three blocks",
        "own",
        "own clusters",
        "binary",
        "spiked tensor",
    ):
        table[f"{name}, ode at d"] = partial(ode, name, dimension=50)
    batches = (1, 2, 7)  # 1, at most the width, more than the width
    for name in ("trained head", "two blocks", "xor"):
        for batch in batches[1:]:
            algorithm = sgd.OnePassSGD(lr=0.5, batch=batch, head_rate=0.4)
            table[f"{name}, chain, batch {batch}"] = partial(steps, name, algorithm)
            table[f"{name}, direct, batch {batch}"] = partial(steps, name, algorithm, "direct")
        table[f"{name}, ode, batch 7 at d"] = partial(
            ode, name, sgd.OnePassSGD(lr=0.5, batch=7, head_rate=0.4), dimension=50
        )
    table["trained head, sde, batch 7"] = partial(
        sde, "trained head", sgd.OnePassSGD(lr=0.5, batch=7, head_rate=0.4)
    )
    table["sphere, sde, lower order"] = partial(sde, "sphere", higher_order=False)
    table["square, sde, own step"] = partial(sde, "square", clock={"times": TIMES})
    schedule = {"algorithm": sgd.OnePassSGD(lr=decaying_rate), "clock": {"alpha": [0.0, 0.2, 0.6]}}
    table["erf, ode, schedule"] = partial(ode, "erf", **schedule)
    table["erf, sde, schedule"] = partial(
        sde, "erf", schedule["algorithm"], clock={**schedule["clock"], "step": 0.3}
    )
    table["erf, chain, schedule"] = partial(steps, "erf", **schedule)
    table["erf, direct, schedule"] = partial(steps, "erf", method="direct", **schedule)
    pieces = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.3], [0.5, 0.1]), batch=2)
    table["square, ode, pieces"] = partial(ode, "square", pieces, clock=schedule["clock"])
    table["square, chain, pieces"] = partial(steps, "square", pieces, clock=schedule["clock"])
    for kind, update in UPDATES.items():
        for method, label in (("exact", "chain"), ("direct", "direct")):
            for batch in batches[::2]:
                algorithm = sgd.OnePassSGD(lr=0.3, batch=batch, update=update)
                if (method, batch) != ("direct", 1):
                    table[f"trained head, {label}, {kind}, batch {batch}"] = partial(
                        steps, "trained head", algorithm, method
                    )
        table[f"blocks on the sphere, chain, {kind}"] = partial(
            steps, "blocks on the sphere", sgd.OnePassSGD(lr=0.3, batch=2, update=update)
        )
    table["spiked matrix, tensor"] = partial(steps, "spiked matrix", method="tensor", dimension=8)
    table["square, chain, diverging"] = diverging
    return table


# ------------------------------------------------------------ a fixed data set

DATA: dict[str, Any] = {
    "descent": sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0),
    "multi-pass": sgd.MultiPassSGD(lr=0.1, samples_per_dimension=2.0, batch_fraction=0.4),
    "multi-pass, not rescaled": sgd.MultiPassSGD(
        lr=0.1, samples_per_dimension=2.0, batch_fraction=0.4, rescale=False
    ),
    "persistent": sgd.PersistentSGD(
        lr=0.1, samples_per_dimension=2.0, batch_fraction=0.5, persistence_time=0.5
    ),
    "langevin": sgd.Langevin(lr=0.1, samples_per_dimension=2.0, temperature=0.3, head_rate=0.5),
    "langevin, cooled": sgd.Langevin(
        lr=0.1, samples_per_dimension=2.0, temperature=sgd.piecewise_rate([0.25], [1.0, 0.0])
    ),
}


def data_steps(name: str, algorithm: str, method: str = "exact", **options: Any) -> Arrays:
    problem = PROBLEMS[name]()
    options = {"steps": [0, 2, 6], "dimension": 30, "runs": 2, "seed": 5, **options}
    return arrays(
        sgd.simulate(problem, DATA[algorithm], start_of(problem), method=method, **options)
    )


def dmft(name: str, algorithm: str, **options: Any) -> Arrays:
    problem = PROBLEMS[name]()
    options = {"steps": [0, 2, 6], "paths": 512, "replicates": 2, "seed": 6, **options}
    return arrays(sgd.solve_dmft(problem, DATA[algorithm], start_of(problem), **options))


def fixed_data() -> dict[str, Callable[[], Arrays]]:
    table: dict[str, Callable[[], Arrays]] = {}
    pairs = [("trained head", algorithm) for algorithm in DATA]
    pairs += [
        ("sphere", "persistent"),
        ("erf", "multi-pass"),
        ("relu", "langevin"),
        ("two blocks", "langevin"),
        ("own", "descent"),
    ]
    pairs += [
        ("two directions", "descent"),
        ("own clusters, blocks", "multi-pass"),
        ("binary", "langevin"),
        ("xor", "persistent"),
    ]
    pairs += [("correlation", "descent")]
    for name, algorithm in pairs:
        table[f"{name}, {algorithm}, exact"] = partial(data_steps, name, algorithm)
        table[f"{name}, {algorithm}, direct"] = partial(data_steps, name, algorithm, "direct")
        table[f"{name}, {algorithm}, dmft"] = partial(dmft, name, algorithm)
    table["sphere, persistent, direct, shared data"] = partial(
        data_steps, "sphere", "persistent", "direct", shared_data=True
    )
    table["relu, descent, direct, stopped"] = partial(
        data_steps, "relu", "descent", "direct", steps=[0, 100, 200], stop_at=0.05
    )
    table["two blocks, langevin, dmft, two times"] = partial(
        dmft, "two blocks", "langevin", two_time=True
    )
    return table


# ------------------------------------------------------------ wide networks


def wide(problem: Any, **options: Any) -> Arrays:
    start = sgd.random_start(
        problem, dimension=40, seed=2, sampling=options.pop("sampling", "independent"), wide=True
    )
    options = {"times": [0.0, 0.3, 1.0], **options}
    return arrays(sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.2), start, **options))


def mean_field() -> dict[str, Callable[[], Arrays]]:
    def two_layer(**options: Any) -> Any:
        return sgd.TeacherStudent(width=8, teacher_width=2, noise=0.1, **options)

    return {
        "mean field, pairs": lambda: wide(two_layer(activation="erf"), expectations="pairs"),
        "mean field, series": lambda: wide(
            two_layer(activation="relu", head="trained"), expectations="series"
        ),
        "mean field at d": lambda: wide(
            two_layer(activation="tanh", weight_decay=0.01), dimension=40, sampling="sobol"
        ),
        "mean field, sphere": lambda: wide(two_layer(activation="square", constraint="sphere")),
        "mean field, directions": lambda: wide(
            sgd.MultiIndex(product, directions=2, width=8, activation="relu")
        ),
    }


# ------------------------------------------------------------ questions


def exits(name: str, method: str, algorithm: Any = None, **options: Any) -> Arrays:
    problem = PROBLEMS[name]()
    algorithm = algorithm or sgd.OnePassSGD(lr=0.2)
    options = {"threshold": 0.3, "max_time": 12.0, **options}
    if method != "ode":
        options = {"dimension": 40, "runs": 4, "seed": 7, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # runs without an exit are NaN, which is stored too
        exit_times = sgd.exit_time(problem, algorithm, start_of(problem), method=method, **options)
    return arrays({"times": exit_times.times, "diverged": exit_times.diverged})


def roots(problem: Any, algorithm: Any, **options: Any) -> Arrays:
    """The invariants of fixed points: the risk, the growth rates, the dimension of the family."""
    points = sgd.fixed_points(problem, algorithm, **options)
    rates = np.array([np.sort(np.real(point.eigenvalues)) for point in points])
    invariants = {"risk": [point.risk for point in points], "rates": rates}
    if not isinstance(problem, sgd.SpikedTensor):
        invariants["family"] = [point.manifold_dimension for point in points]
    return arrays(invariants)


def hessian(name: str, **options: Any) -> Arrays:
    problem = PROBLEMS[name]()
    spectrum = sgd.hessian_spectrum(problem, start_of(problem), dimension=50, **options)
    return arrays(
        {
            "eigenvalues": spectrum.eigenvalues,
            "multiplicities": spectrum.multiplicities,
            "gradient": spectrum.gradient_norm,
        }
    )


def pure(name: str, dimension: int = 60) -> Arrays:
    """Pure JAX functions: drift (with and without noise, and at d), risk, sensitivity to lr."""
    problem = PROBLEMS[name]()
    start = start_of(problem)
    with jax.enable_x64(True):
        arguments = (problem.structure, problem.parameters, functional.state(start))
        quadrature = functional.quadrature(problem, start)
        finite = functional.finite(problem, dimension, 2)
        drift_options = {
            "drift": {"lr": 0.3},
            "flow": {"flow": True},
            "finite": {"lr": 0.3, "batch": 2, "finite": finite},
        }
        groups = {}
        for label, options in drift_options.items():
            drift = partial(functional.drift, *arguments, quadrature=quadrature, **options)
            groups[label] = arrays(jax.jit(drift)())

        def final_state(lr: Any) -> Any:
            return functional.solve(
                *arguments, [0.0, 0.5], lr=lr, quadrature=quadrature, last=True, mode="forward"
            )

        if not problem.clusters:  # a mixture compiles for half a minute here
            value, change = jax.jvp(final_state, (0.3,), (1.0,))
            groups |= {"last": arrays(value), "change": arrays(change)}
        risk = functional.risk(*arguments, quadrature=quadrature)
        return {**with_prefix(groups), "risk": np.asarray(risk)}


def sweep_ode() -> Arrays:
    problem = PROBLEMS["trained head"]()
    over = {"lr": [0.0, 0.1, 0.3], "problem.weight_decay": [0.0, 0.2]}
    return arrays(
        sgd.sweep(
            "solve_ode",
            over=over,
            problem=problem,
            algorithm=sgd.OnePassSGD(),
            start=start_of(problem),
            times=TIMES,
        )[["M", "Q", "a", "risk"]]
    )


def sweep_exits() -> Arrays:
    problem = PROBLEMS["square"]()
    arguments = {
        "problem": problem,
        "algorithm": sgd.OnePassSGD(),
        "start": start_of(problem),
        "threshold": 0.3,
        "max_time": 12.0,
    }
    return arrays(
        sgd.sweep("exit_time", over={"lr": [0.05, 0.2], "problem.noise": [0.0, 0.3]}, **arguments)[
            ["times"]
        ]
    )


def sweep_chain() -> Arrays:
    problem = PROBLEMS["square"]()
    arguments = {
        "problem": problem,
        "algorithm": sgd.OnePassSGD(),
        "start": start_of(problem),
        "steps": [0, 10],
        "dimension": 40,
        "runs": 2,
    }
    return arrays(
        sgd.sweep("simulate", over={"lr": [0.05, 0.2], "seed": [0, 1]}, **arguments)[
            ["M", "Q", "risk"]
        ]
    )


def draws() -> Arrays:
    """Random starts of all kinds of problems."""
    blocks = sgd.TeacherStudent(width=2, activation="relu", covariance=THREE)
    starts = {
        name: sgd.random_start(PROBLEMS[name](), dimension=40, runs=2, seed=8)
        for name in ("erf", "sphere", "xor")
    }
    starts["blocks"] = sgd.random_start(blocks, dimension=40, runs=2, seed=8)
    starts["orthogonal"] = sgd.random_start(
        PROBLEMS["square"](), dimension=40, runs=2, seed=8, orthogonal=True, scale=0.5
    )
    groups = {
        name: arrays({"M": start.M_blocks, "Q": start.Q_blocks, "a": start.a})
        for name, start in starts.items()
    }
    spiked = sgd.random_start(PROBLEMS["spiked matrix"](), dimension=40, runs=2, seed=8)
    groups["spiked"] = arrays({"m": spiked.m, "r2": spiked.r2})
    return with_prefix(groups)


def noise(name: str) -> Arrays:
    problem = PROBLEMS[name]()
    increments = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=0.3), start_of(problem))
    return arrays({"covariance": increments.covariance})


def questions() -> dict[str, Callable[[], Arrays]]:
    methods = ("ode", "sde", "exact", "direct")
    table: dict[str, Callable[[], Arrays]] = {
        f"exit time, {method}": partial(exits, "square", method) for method in methods
    }
    table["exit time, ode at d"] = partial(exits, "trained head", "ode", dimension=40)
    table["exit time, flow"] = partial(exits, "relu", "ode", sgd.OnePassSGD(lr=0.0))
    table["exit time, overlap"] = partial(
        exits,
        "binary",
        "exact",
        sgd.OnePassSGD(lr=0.5),
        criterion="overlap",
        threshold=0.35,
        max_time=2.0,
    )
    table["fixed points"] = lambda: roots(
        sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1),
        sgd.OnePassSGD(lr=0.2),
        tries=8,
    )
    table["fixed points, spiked"] = lambda: roots(
        PROBLEMS["spiked matrix"](), sgd.OnePassSGD(lr=0.2)
    )
    table |= {
        f"hessian, {name}": partial(hessian, name)
        for name in ("erf", "relu", "sphere", "two blocks", "two directions")
    }
    table["hessian, held to the sphere"] = partial(hessian, "relu", constraint="sphere")
    table |= {
        f"functional, {name}": partial(pure, name)
        for name in ("erf", "trained head", "two blocks", "own", "binary")
    }
    table |= {
        f"increments, {name}": partial(noise, name)
        for name in ("square", "trained head", "sphere", "two blocks", "binary")
    }
    return table | {
        "sweep, ode": sweep_ode,
        "sweep, exit time": sweep_exits,
        "sweep, chain": sweep_chain,
        "random starts": draws,
    }


CASES: dict[str, Callable[[], Arrays]] = {
    **one_pass(),
    **fixed_data(),
    **mean_field(),
    **questions(),
}

# A case of each kind. Together they take less than 30 s on one core and run with the fast tests.
FAST = (
    "square, ode",
    "erf, chain",
    "own, direct",
    "three blocks, chain",
    "xor without noise, chain",
    "spiked matrix, sde",
    "spiked tensor, chain",
    "trained head, multi-pass, direct",
    "mean field, pairs",
    "hessian, erf",
    "increments, two blocks",
    "random starts",
)
