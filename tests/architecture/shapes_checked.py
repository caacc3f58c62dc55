"""Trace the main paths of the engine with every array shape in a signature checked at run time.

`tests/architecture/test_shapes.py` runs `main` in a separate process, because the checks are slow.
Nothing is compiled: a trace knows all shapes. All sizes differ, so that no two can be confused:
3 rows, 2 signals, 4 blocks, 5 tokens, batches of 6, 7 runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# Modules whose annotations are checked.
ENGINE = (
    "samples",
    "problems.losses",
    "problems.moves",
    "problems.structure",
    "problems.trial",
    "problems.user_losses",
    "problems.activations",
    "problems.problem",
    "problems.sample_functions",
    "problems.constraints",
    "problems.frames",
    "problems.overlap_starts",
    "problems.starts",
    "problems.wide_starts",
)
ENGINE += (
    "algorithms",
    "expectations",
    "simulation",
    "fixed_data",
    "ode",
    "sde",
    "mean_field",
    "base.random",
)
ENGINE += ("dynamics.spiked_equations", "analysis.effective")
BLOCKS = [(4.0, 0.1), (2.0, 0.2), (1.0, 0.3), (0.5, 0.4)]
RUNS, BATCH, DIMENSION, SAMPLES = 7, 6, 200, 90
# Names of the problems that are traced; None for all.
PROBLEMS: tuple[str, ...] | None = None
# Problems of which more is traced than drift and risk, because they cover most types of arrays.
SIMULATED = ("erf", "tokens", "own clusters")
CONDITIONED = ("erf", "tokens")
WITH_FINITE_DRIFT = ("erf", "own", "tokens", "mixture of 2")

# What is traced, with a function without arguments.
Traces = Iterator[tuple[str, Callable[[], Any]]]


def checker(function: Any) -> Any:
    """Decorate a function with a check of its annotations; an int is accepted as a float."""
    # beartype resolves `Self` only if it decorates the whole class.
    if "Self" in str(getattr(function, "__annotations__", "")):
        return function
    return beartype(function, conf=BeartypeConf(is_pep484_tower=True))


def product(z: Any) -> Any:
    return z[0] * z[1]


def larger(z: Any) -> Any:
    return jnp.maximum(z[0], z[1])


def hinge(fields: Any, signals: Any, head: Any, noise_draw: Any) -> Any:
    return jax.nn.softplus(0.5 - jnp.tanh(signals[0] + 0.3 * noise_draw) * jnp.mean(head * fields))


def classes(fields: Any, signals: Any, head: Any, label: Any) -> Any:
    return jnp.mean(jax.nn.softplus((1 - 2 * label) * head * jnp.tanh(fields)))


def attention(fields: Any, signals: Any, head: Any, draws: Any) -> Any:
    weights = jax.nn.softmax(signals[0])
    output = jnp.mean(head * (fields @ weights))
    label = jnp.tanh(signals[1] @ weights) + 0.1 * draws["noise"]
    return 0.5 * (output - label) ** 2


def problems(sgd: Any) -> dict[str, Callable[[], Any]]:
    """Return functions that make a problem for each family of expectations and of samples."""
    committee = partial(sgd.TeacherStudent, width=3, teacher_width=2, noise=0.1)
    clusters = [(0.3, [1.0, 0.5], 1.0), (0.7, [-1.0, 0.2], 0.0)]
    sample_options = {
        "token_correlation": 0.7 * np.eye(5) + 0.3,
        "means": 0.3 * np.ones((5, 2)),
        "draws": {"noise": "normal", "group": [0.3, 0.7]},
    }
    return {
        "erf": lambda: committee(activation="erf", covariance=BLOCKS, head="trained"),
        "square": lambda: committee(activation="square"),
        "relu": lambda: committee(activation="relu"),
        "softplus, sphere": lambda: committee(activation="softplus", constraint="sphere"),
        "kinked": lambda: committee(
            activation=sgd.Activation(lambda x: jnp.where(x > 0, x, 0.1 * x), kinks=(0.0,))
        ),
        "grid": lambda: sgd.MultiIndex(
            product, directions=2, width=3, activation="relu", covariance=BLOCKS
        ),
        "cut grid": lambda: sgd.MultiIndex(
            larger, directions=2, width=3, activation="erf", kinks=[((1.0, -1.0), 0.0)]
        ),
        "own": lambda: sgd.Problem(hinge, width=3, signals=2, head="trained", covariance=BLOCKS),
        "own, kinked": lambda: sgd.Problem(hinge, width=3, signals=2, kinks=(0.0,)),
        "own clusters": lambda: sgd.Problem(
            classes, width=3, signals=2, covariance=BLOCKS, clusters=clusters
        ),
        "tokens": lambda: sgd.Problem(
            attention,
            width=3,
            signals=2,
            head="trained",
            tokens=5,
            covariance=BLOCKS,
            **sample_options,
        ),
        **{
            f"mixture of {width}": partial(sgd.GaussianMixture, "xor", width=width, snr=4.0)
            for width in (2, 3, 4, 5)
        },
    }


def random_start(sgd: Any, problem: Any) -> Any:
    return sgd.random_start(problem, dimension=DIMENSION, runs=RUNS, seed=0)


def traces(sgd: Any, name: str, problem: Any) -> Traces:
    """Yield the paths of the engine that a problem goes through."""
    start = random_start(sgd, problem)
    yield from theory_traces(sgd, name, problem, start)
    if name in SIMULATED:
        yield from simulation_traces(sgd, problem, start)
    if name in CONDITIONED:
        yield from sde_traces(sgd, problem, start)
        yield "conditioning", partial(condition, sgd, problem)
        yield from dmft_traces(sgd, problem, start)
    if name == "erf":
        yield from response_traces(sgd, problem, start)


def theory_traces(sgd: Any, name: str, problem: Any, start: Any) -> Traces:
    """Yield the drift of the ODE and the risk."""
    from sgdynamics.expectations.choice import expectation_of
    from sgdynamics.expectations.risk import MARGIN, choose_quadrature, overlaps_at
    from sgdynamics.ode.drift import drift

    structure, parameters = problem.structure, problem.parameters
    expectation = expectation_of(structure)
    quadrature = choose_quadrature(problem, start.Q_blocks, MARGIN)
    state = {"M": start.M_blocks[0], "Q": start.Q_blocks[0], "a": start.a[0]}

    def first_replicate(nodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {key: value[0] for key, value in nodes.items()}

    trace_drift = partial(
        drift,
        structure,
        quadrature,
        first_replicate(expectation.nodes(quadrature, False)),
        parameters,
        sgd.OnePassSGD(lr=0.2, batch=BATCH).parameters,
        state,
        batch=BATCH,
    )
    yield "drift", trace_drift
    if name in WITH_FINITE_DRIFT:
        sizes = problem.block_dimensions(DIMENSION).astype(float)
        finite = {"inverse_dimension": np.float64(1 / DIMENSION), "sizes": sizes}
        yield "drift at finite d", partial(trace_drift, finite=finite)
    yield (
        "risk",
        partial(
            expectation.risk,
            quadrature,
            first_replicate(expectation.risk_nodes(quadrature)),
            parameters,
            overlaps_at(structure, parameters, state),
            state["a"],
        ),
    )


def advance(simulator: Any) -> Any:
    """Advance all runs of a simulator by three steps."""
    runs = np.arange(RUNS)
    return simulator.advance(simulator.initial(runs), keys_of_runs(), 0, 3)


@cache
def keys_of_runs() -> Any:
    """The keys of the runs; `main` computes them before any trace, as their program is compiled."""
    from sgdynamics.base.random import run_keys

    return run_keys(0, np.arange(RUNS))


def simulation_traces(sgd: Any, problem: Any, start: Any) -> Traces:
    """Yield steps of the exact chain and of direct runs."""
    from sgdynamics.simulation.direct import DirectSGD
    from sgdynamics.simulation.exact import ExactChain
    from sgdynamics.simulation.running import RunSetting

    sizes = problem.block_dimensions(DIMENSION)
    single, batched = sgd.OnePassSGD(lr=0.2), sgd.OnePassSGD(lr=0.2, batch=BATCH)
    for label, simulator, algorithm in (
        ("chain, batch 1", ExactChain, single),
        (f"chain, batch {BATCH}", ExactChain, batched),
        ("direct", DirectSGD, batched),
    ):
        arguments = (problem, algorithm, RunSetting(start, DIMENSION, sizes))
        yield label, lambda make=simulator, arguments=arguments: advance(make(*arguments))


def sde_traces(sgd: Any, problem: Any, start: Any) -> Traces:
    """Yield steps of the SDE."""
    from sgdynamics.sde.paths import SdePaths
    from sgdynamics.simulation.running import RunSetting

    algorithm = sgd.OnePassSGD(lr=0.2, batch=BATCH)
    sizes = problem.block_dimensions(DIMENSION)
    paths = SdePaths(problem, algorithm, RunSetting(start, DIMENSION, sizes), True)
    paths.set_steps(np.array([0, 3]), np.array([0.1]))
    yield "sde", partial(advance, paths)


def persistent_sgd(sgd: Any) -> Any:
    return sgd.PersistentSGD(
        lr=0.1, samples_per_dimension=1.5, batch_fraction=0.5, persistence_time=0.5
    )


def condition(sgd: Any, problem: Any) -> Any:
    """Take one step on a fixed data set, with the data conditioned on what was read before."""
    from sgdynamics.fixed_data import conditioning
    from sgdynamics.fixed_data.setup import InitialDraws, InitialWeights, Setup, StepParameters

    structure, parameters = problem.structure, problem.parameters
    sizes = problem.block_dimensions(DIMENSION).astype(float)
    key = keys_of_runs()[0]
    setup = Setup(structure, selects=True, thermal=True)
    langevin = sgd.Langevin(lr=0.1, samples_per_dimension=1.5, temperature=0.3)
    hyperparameters = langevin.parameters | persistent_sgd(sgd).parameters
    hyperparameters["temperature"] = np.float64(0.3)
    T, L = np.zeros((structure.blocks, 3, 2)), np.stack([np.eye(3)] * structure.blocks)
    inputs = SAMPLES * structure.sample.tokens.inputs_per_sample
    normals = jnp.zeros((structure.blocks, 5, inputs))
    noise = jnp.zeros((SAMPLES, structure.sample.normals_per_sample))
    step = StepParameters(parameters, hyperparameters, sizes, 1e-10)
    weights = InitialWeights(T, L, np.ones(3))
    initial_draws = InitialDraws(normals, noise, jnp.full(SAMPLES, 0.5))
    state = conditioning.initial_state(setup, step, weights, initial_draws, 64)
    draws = conditioning.draw_step(setup, key, inputs, 64, state.A.dtype)
    state = conditioning.advance_step(setup, step, state, draws, key, jnp.asarray(0))
    return conditioning.observe(setup, parameters, state)


def first_run(start: Any) -> Any:
    from sgdynamics.problems.overlap_starts import Start

    return Start(*(leaf[:1] for leaf in (start.M_blocks, start.Q_blocks, start.a)))


def dmft_traces(sgd: Any, problem: Any, start: Any) -> Traces:
    """Yield steps of the paths of the effective process at infinite dimension."""
    from sgdynamics.fixed_data.dmft import Sweep
    from sgdynamics.fixed_data.host_draws import Sampling
    from sgdynamics.fixed_data.paths import advance_paths

    sweep = Sweep(problem, persistent_sgd(sgd), Sampling(64, 2), 1e-5, np.dtype("float64"))
    sweep.reserve_memory(4, None, None)
    group = sweep.initial_groups(first_run(start), sweep.host_draws())[0]
    steps = (np.int64(0), np.zeros(1, dtype=np.int64), np.int64(2))
    yield (
        "paths at d -> infinity",
        lambda: advance_paths.__wrapped__(
            sweep.setup, sweep.step_parameters, group.paths, group.slots, None, *steps
        ),
    )


def response_traces(sgd: Any, problem: Any, start: Any) -> Traces:
    """Yield steps of the paths in response form."""
    from sgdynamics.fixed_data.host_draws import Sampling
    from sgdynamics.fixed_data.response_form import advance_paths
    from sgdynamics.fixed_data.response_sweep import ResponseSweep

    algorithm = sgd.MultiPassSGD()
    sweep = ResponseSweep(problem, algorithm, Sampling(64, 2), 1e-5, np.dtype("float64"))
    sweep.reserve_memory(4, None, None)
    paths = sweep.initial_groups(first_run(start), sweep.host_draws())[0].paths
    steps = (np.bool_(False), None, np.int64(0), np.zeros(1, dtype=np.int64), np.int64(2))
    yield (
        "response form",
        lambda: advance_paths.__wrapped__(sweep.setup, sweep.step_parameters, paths, *steps),
    )


def main() -> int:
    """Trace all paths, print the failures, and return the exit status."""
    hooked = [f"sgdynamics.{package}" for package in ENGINE]
    with install_import_hook(hooked, "tests.architecture.shapes_checked.checker"):
        import sgdynamics as sgd

        for name in sgd.__all__:  # import everything while the import hook is active
            getattr(sgd, name)
    count, failures = 0, []
    with jax.enable_x64(True):
        keys_of_runs()
        for name, make in problems(sgd).items():
            if PROBLEMS is not None and name not in PROBLEMS:
                continue
            for label, trace in traces(sgd, name, make()):
                count += 1
                try:
                    jax.eval_shape(trace)
                except Exception as error:
                    failures.append(f"{name}, {label}: {type(error).__name__}: {str(error)[:900]}")
    print(f"{count} traces, {len(failures)} failed")
    print("\n\n".join(failures))
    return bool(failures)
