"""The table of stored cases: a name, and a function without arguments that returns arrays by name.

Only public names are called, so that the table outlives what is behind them. Cases are short: few steps, so that rounding is not amplified.
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
from tests.stored.problems import PROBLEMS, THREE, begin, product

Arrays = dict[str, np.ndarray]

TIMES = [0.0, 0.1, 0.3]
COORDINATES = ("t", "alpha", "step", "diverged_at", "stopped_at")


def arrays(found: Mapping[Any, Any] | xr.Dataset) -> Arrays:
    """What is stored of a result: numbers by name, as float64; of a Dataset its variables and clocks."""
    if isinstance(found, xr.Dataset):
        found = {
            name: found[name].values
            for name in [*found.data_vars, *(one for one in COORDINATES if one in found.coords)]
        }
    return {str(name): np.asarray(value, dtype=np.float64) for name, value in found.items()}


def prefixed(parts: Mapping[str, Arrays]) -> Arrays:
    return {
        f"{part} {name}": value for part, values in parts.items() for name, value in values.items()
    }


# one pass


def ode(name: str, algorithm: Any = None, **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    when = more.pop("when", {"times": [0.0, 0.5, 2.0]})
    return arrays(
        sgd.solve_ode(problem, algorithm or sgd.OnePassSGD(lr=0.2), begin(problem), **when, **more)
    )


def sde(name: str, algorithm: Any = None, **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    when = more.pop("when", {"times": TIMES, "step": 0.1})
    more = {"dimension": 100, "seed": 3, **more}
    start = begin(problem)
    runs = {} if hasattr(start, "r2") else {"runs": 2}
    return arrays(
        sgd.solve_sde(problem, algorithm or sgd.OnePassSGD(lr=0.2), start, **when, **runs, **more)
    )


def steps(name: str, algorithm: Any = None, method: str = "exact", **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    when = more.pop("when", {"steps": [0, 1, 7, 25]})
    more = {"dimension": 40, "seed": 4, **more}
    start = begin(problem)
    runs = {} if hasattr(start, "r2") else {"runs": 2}
    return arrays(
        sgd.simulate(
            problem,
            algorithm or sgd.OnePassSGD(lr=0.2),
            start,
            **when,
            **runs,
            method=method,
            **more,
        )
    )


def diverging() -> Arrays:
    """Two runs, of which one is NaN from some step on; apart, so that what it reached is not the scale of the other."""
    problem = PROBLEMS["square"]()
    start = sgd.start(problem, M=[[[0.3], [0.1]], [[0.3], [0.1]]], Q=[np.eye(2), 400 * np.eye(2)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = sgd.simulate(
            problem, sgd.OnePassSGD(lr=0.5), start, steps=[0, 2, 10, 40], dimension=40, seed=1
        )
    return prefixed(
        {word: arrays(found.isel(run=[run])) for run, word in enumerate(("calm", "wild"))}
    )


UPDATES = {
    "momentum": updates.momentum(0.6),
    "reuse": updates.reuse(3),
    "normalised": updates.normalised(),
    "clipped": updates.clipped(0.4),
    "sam": updates.sam(0.1),
}


def falling(alpha):
    return 0.4 / (1 + alpha)


# each SDE is a long program to compile; none is defined for mixtures without noise
PATHS = (
    *(
        "square",
        "erf",
        "relu",
        "trained head",
        "sphere",
        "sphere, trained relu",
        "logistic",
        "two blocks",
        "three blocks",
    ),
    *(
        "one direction, kinked",
        "two directions",
        "own",
        "own, blocks",
        "own clusters, blocks",
        "binary",
        "xor",
    ),
    *("spiked matrix", "spiked tensor"),
)

FLOW = {"times": [0.0, 0.5, 2.0]}


def one_pass() -> dict[str, Callable[[], Arrays]]:
    table: dict[str, Callable[[], Arrays]] = {}
    for name in PROBLEMS:
        table[f"{name}, ode"] = partial(ode, name)
        if name in PATHS:
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
        table[f"{name}, flow"] = partial(ode, name, sgd.OnePassSGD(lr=0.0), when=FLOW)
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
    batches = (1, 2, 7)  # one sample, no more than the width, more than the width
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
    table["square, sde, own step"] = partial(sde, "square", when={"times": TIMES})
    schedule = {"algorithm": sgd.OnePassSGD(lr=falling), "when": {"alpha": [0.0, 0.2, 0.6]}}
    table["erf, ode, schedule"] = partial(ode, "erf", **schedule)
    table["erf, sde, schedule"] = partial(
        sde, "erf", schedule["algorithm"], when={**schedule["when"], "step": 0.3}
    )
    table["erf, chain, schedule"] = partial(steps, "erf", **schedule)
    table["erf, direct, schedule"] = partial(steps, "erf", method="direct", **schedule)
    pieces = sgd.OnePassSGD(lr=sgd.piecewise_rate([0.3], [0.5, 0.1]), batch=2)
    table["square, ode, pieces"] = partial(ode, "square", pieces, when=schedule["when"])
    table["square, chain, pieces"] = partial(steps, "square", pieces, when=schedule["when"])
    for kind, update in UPDATES.items():
        for method, word in (("exact", "chain"), ("direct", "direct")):
            for batch in batches[::2]:
                algorithm = sgd.OnePassSGD(lr=0.3, batch=batch, update=update)
                if (method, batch) != ("direct", 1):
                    table[f"trained head, {word}, {kind}, batch {batch}"] = partial(
                        steps, "trained head", algorithm, method
                    )
        table[f"blocks on the sphere, chain, {kind}"] = partial(
            steps, "blocks on the sphere", sgd.OnePassSGD(lr=0.3, batch=2, update=update)
        )
    table["spiked matrix, tensor"] = partial(steps, "spiked matrix", method="tensor", dimension=8)
    table["square, chain, diverging"] = diverging
    return table


# a fixed data set

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


def fixed(name: str, algorithm: str, method: str = "exact", **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    more = {"steps": [0, 2, 6], "dimension": 30, "runs": 2, "seed": 5, **more}
    return arrays(sgd.simulate(problem, DATA[algorithm], begin(problem), method=method, **more))


def dmft(name: str, algorithm: str, **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    more = {"steps": [0, 2, 6], "paths": 512, "replicates": 2, "seed": 6, **more}
    return arrays(sgd.solve_dmft(problem, DATA[algorithm], begin(problem), **more))


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
        table[f"{name}, {algorithm}, exact"] = partial(fixed, name, algorithm)
        table[f"{name}, {algorithm}, direct"] = partial(fixed, name, algorithm, "direct")
        table[f"{name}, {algorithm}, dmft"] = partial(dmft, name, algorithm)
    table["sphere, persistent, direct, shared data"] = partial(
        fixed, "sphere", "persistent", "direct", shared_data=True
    )
    table["relu, descent, direct, stopped"] = partial(
        fixed, "relu", "descent", "direct", steps=[0, 100, 200], stop_at=0.05
    )
    table["two blocks, langevin, dmft, two times"] = partial(
        dmft, "two blocks", "langevin", two_time=True
    )
    return table


# wide networks


def wide(problem: Any, **more: Any) -> Arrays:
    start = sgd.random_start(
        problem, dimension=40, seed=2, sampling=more.pop("sampling", "independent"), wide=True
    )
    more = {"times": [0.0, 0.3, 1.0], **more}
    return arrays(sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.2), start, **more))


def mean_field() -> dict[str, Callable[[], Arrays]]:
    def two_layer(**more: Any) -> Any:
        return sgd.TeacherStudent(width=8, teacher_width=2, noise=0.1, **more)

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


# questions


def exits(name: str, method: str, algorithm: Any = None, **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    more = {"threshold": 0.3, "max_time": 12.0, **more}
    if method != "ode":
        more = {"dimension": 40, "runs": 4, "seed": 7, **more}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # runs that do not leave are NaN, which is stored too
        found = sgd.exit_time(
            problem, algorithm or sgd.OnePassSGD(lr=0.2), begin(problem), method=method, **more
        )
    return arrays({"times": found.times, "diverged": found.diverged})


def roots(problem: Any, algorithm: Any, **more: Any) -> Arrays:
    """Of fixed points what no symmetry and no family changes: the risk, the growth rates, the size of the family."""
    found = sgd.fixed_points(problem, algorithm, **more)
    rates = np.array([np.sort(np.real(point.eigenvalues)) for point in found])
    known = {"risk": [point.risk for point in found], "rates": rates}
    if not isinstance(problem, sgd.SpikedTensor):
        known["family"] = [point.manifold_dimension for point in found]
    return arrays(known)


def hessian(name: str, **more: Any) -> Arrays:
    problem = PROBLEMS[name]()
    found = sgd.hessian_spectrum(problem, begin(problem), dimension=50, **more)
    return arrays(
        {
            "eigenvalues": found.eigenvalues,
            "multiplicities": found.multiplicities,
            "gradient": found.gradient_norm,
        }
    )


def pure(name: str, dimension: int = 60) -> Arrays:
    """Drift (with and without noise, and at d), risk, and how the solution changes with lr, as JAX functions."""
    problem = PROBLEMS[name]()
    start = begin(problem)
    with jax.enable_x64(True):
        fixed = (problem.structure, problem.parameters, functional.state(start))
        quadrature = functional.quadrature(problem, start)
        kinds = {"drift": {"lr": 0.3}, "flow": {"flow": True}}
        kinds["finite"] = {
            "lr": 0.3,
            "batch": 2,
            "finite": functional.finite(problem, dimension, 2),
        }
        found = {
            kind: arrays(
                jax.jit(partial(functional.drift, *fixed, quadrature=quadrature, **more))()
            )
            for kind, more in kinds.items()
        }

        def last(lr: Any) -> Any:
            return functional.solve(
                *fixed, [0.0, 0.5], lr=lr, quadrature=quadrature, last=True, mode="forward"
            )

        if not problem.clusters:  # for a mixture this is half a minute of compiling
            value, change = jax.jvp(last, (0.3,), (1.0,))
            found |= {"last": arrays(value), "change": arrays(change)}
        return {
            **prefixed(found),
            "risk": np.asarray(functional.risk(*fixed, quadrature=quadrature)),
        }


def sweep_ode() -> Arrays:
    problem = PROBLEMS["trained head"]()
    over = {"lr": [0.0, 0.1, 0.3], "problem.weight_decay": [0.0, 0.2]}
    return arrays(
        sgd.sweep(
            "solve_ode",
            over=over,
            problem=problem,
            algorithm=sgd.OnePassSGD(),
            start=begin(problem),
            times=TIMES,
        )[["M", "Q", "a", "risk"]]
    )


def sweep_exits() -> Arrays:
    problem = PROBLEMS["square"]()
    rest = {
        "problem": problem,
        "algorithm": sgd.OnePassSGD(),
        "start": begin(problem),
        "threshold": 0.3,
        "max_time": 12.0,
    }
    return arrays(
        sgd.sweep("exit_time", over={"lr": [0.05, 0.2], "problem.noise": [0.0, 0.3]}, **rest)[
            ["times"]
        ]
    )


def sweep_chain() -> Arrays:
    problem = PROBLEMS["square"]()
    rest = {
        "problem": problem,
        "algorithm": sgd.OnePassSGD(),
        "start": begin(problem),
        "steps": [0, 10],
        "dimension": 40,
        "runs": 2,
    }
    return arrays(
        sgd.sweep("simulate", over={"lr": [0.05, 0.2], "seed": [0, 1]}, **rest)[["M", "Q", "risk"]]
    )


def draws() -> Arrays:
    """Random starts of every kind of problem."""
    blocks = sgd.TeacherStudent(width=2, activation="relu", covariance=THREE)
    found = {
        name: sgd.random_start(PROBLEMS[name](), dimension=40, runs=2, seed=8)
        for name in ("erf", "sphere", "xor")
    }
    found["blocks"] = sgd.random_start(blocks, dimension=40, runs=2, seed=8)
    found["orthogonal"] = sgd.random_start(
        PROBLEMS["square"](), dimension=40, runs=2, seed=8, orthogonal=True, scale=0.5
    )
    result = {
        name: arrays({"M": one.M_blocks, "Q": one.Q_blocks, "a": one.a})
        for name, one in found.items()
    }
    spiked = sgd.random_start(PROBLEMS["spiked matrix"](), dimension=40, runs=2, seed=8)
    return prefixed({**result, "spiked": arrays({"m": spiked.m, "r2": spiked.r2})})


def noise(name: str) -> Arrays:
    problem = PROBLEMS[name]()
    found = sgd.increment_covariance(problem, sgd.OnePassSGD(lr=0.3), begin(problem))
    return arrays({"covariance": found.covariance})


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

# one of each kind, together under 30 s of one core: these run with the fast tests
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
