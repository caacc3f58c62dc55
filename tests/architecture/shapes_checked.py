"""Trace the main paths of the engine with every array shape in a signature checked at run time.

`tests/architecture/test_shapes.py` runs `main` in a separate process, because the checks are slow.
Nothing is compiled: a trace knows all shapes. All sizes differ, so that no two can be confused:
3 rows, 2 signals, 4 blocks, 5 tokens, batches of 6, 7 runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

# modules whose annotations of shapes are checked
ENGINE = (
    "samples",
    "problems.losses",
    "problems.moves",
    "problems.structure",
    "problems.trial",
    "problems.user_losses",
    "problems.activations",
    "problems.problem",
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
PROBLEMS: tuple[str, ...] | None = None  # None: all of them


def checker(function: Any) -> Any:
    """Arguments and results held to their annotations; an int is a float, as for every type checker."""
    if "Self" in str(
        getattr(function, "__annotations__", "")
    ):  # known only where a whole class is decorated
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
    return (
        0.5
        * (
            jnp.mean(head * (fields @ weights))
            - jnp.tanh(signals[1] @ weights)
            - 0.1 * draws["noise"]
        )
        ** 2
    )


def problems(sgd: Any) -> dict[str, Callable[[], Any]]:
    """One of each expectation and way of drawing a sample; made when asked for."""
    committee = partial(sgd.TeacherStudent, width=3, teacher_width=2, noise=0.1)
    clusters = [(0.3, [1.0, 0.5], 1.0), (0.7, [-1.0, 0.2], 0.0)]
    more = {
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
            attention, width=3, signals=2, head="trained", tokens=5, covariance=BLOCKS, **more
        ),
        **{
            f"mixture of {width}": partial(sgd.GaussianMixture, "xor", width=width, snr=4.0)
            for width in (2, 3, 4, 5)
        },
    }


def begin(sgd: Any, problem: Any) -> Any:
    return sgd.random_start(problem, dimension=DIMENSION, runs=RUNS, seed=0)


def steps(sgd: Any, name: str, problem: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """(what, a function that traces it) of one problem."""
    from sgdynamics.base.random import run_keys
    from sgdynamics.expectations.choice import expectation_of
    from sgdynamics.expectations.risk import MARGIN, choose_quadrature, overlaps_at
    from sgdynamics.fixed_data import conditioning
    from sgdynamics.fixed_data.dmft import Sweep
    from sgdynamics.fixed_data.host_draws import Sampling
    from sgdynamics.fixed_data.paths import advance_paths
    from sgdynamics.fixed_data.response_form import advance_paths as advance_response_paths
    from sgdynamics.fixed_data.response_sweep import ResponseSweep
    from sgdynamics.fixed_data.setup import InitialDraws, InitialWeights, Setup, StepParameters
    from sgdynamics.ode.drift import drift
    from sgdynamics.problems.overlap_starts import Start
    from sgdynamics.sde.scheme import SdePaths
    from sgdynamics.simulation.direct import DirectSGD
    from sgdynamics.simulation.exact import ExactChain

    structure, numbers, start = problem.structure, problem.parameters, begin(sgd, problem)
    expectation, quadrature = (
        expectation_of(structure),
        choose_quadrature(problem, start.Q_blocks, MARGIN),
    )
    state = {"M": start.M_blocks[0], "Q": start.Q_blocks[0], "a": start.a[0]}
    sizes = problem.block_dimensions(DIMENSION)
    algorithm = sgd.OnePassSGD(lr=0.2, batch=BATCH)
    keys, chosen = run_keys(0, np.arange(RUNS)), np.arange(RUNS)

    def first(nodes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {key: value[0] for key, value in nodes.items()}

    finite = {"inverse_dimension": np.float64(1 / DIMENSION), "sizes": sizes.astype(float)}
    one = partial(
        drift,
        structure,
        quadrature,
        first(expectation.nodes(quadrature, False)),
        numbers,
        algorithm.parameters,
        state,
        batch=BATCH,
    )
    yield "drift", one
    if name in ("erf", "own", "tokens", "mixture of 2"):
        yield "drift at finite d", partial(one, finite=finite)
    overlaps = overlaps_at(structure, numbers, state)
    yield (
        "risk",
        partial(
            expectation.risk,
            quadrature,
            first(expectation.risk_nodes(quadrature)),
            numbers,
            overlaps,
            state["a"],
        ),
    )

    def advanced(simulator: Any) -> Any:
        return simulator.advance(simulator.initial(chosen), keys, 0, 3)

    if name in ("erf", "tokens", "own clusters"):
        single = sgd.OnePassSGD(lr=0.2)
        yield (
            "chain, batch 1",
            lambda: advanced(ExactChain(problem, single, start, DIMENSION, sizes)),
        )
        yield (
            f"chain, batch {BATCH}",
            lambda: advanced(ExactChain(problem, algorithm, start, DIMENSION, sizes)),
        )
        yield "direct", lambda: advanced(DirectSGD(problem, algorithm, start, DIMENSION, sizes))

    if name in ("erf", "tokens"):
        paths = SdePaths(problem, algorithm, start, DIMENSION, sizes, True)
        paths.set_steps(np.array([0, 3]), np.array([0.1]))
        yield "sde", partial(advanced, paths)

        def conditioned() -> Any:
            setup = Setup(structure, selects=True, thermal=True)
            selecting = sgd.PersistentSGD(
                lr=0.1, samples_per_dimension=1.5, batch_fraction=0.5, persistence_time=0.5
            )
            data = (
                sgd.Langevin(lr=0.1, samples_per_dimension=1.5, temperature=0.3).parameters
                | selecting.parameters
            )
            data["temperature"] = np.float64(0.3)
            T, L = np.zeros((structure.blocks, 3, 2)), np.stack([np.eye(3)] * structure.blocks)
            inputs = SAMPLES * structure.sample.tokens.inputs_per_sample
            normals = jnp.zeros((structure.blocks, 5, inputs))
            noise = jnp.zeros((SAMPLES, structure.sample.normals_per_sample))
            step = StepParameters(numbers, data, sizes.astype(float), 1e-10)
            weights = InitialWeights(T, L, np.ones(3))
            initial_draws = InitialDraws(normals, noise, jnp.full(SAMPLES, 0.5))
            state = conditioning.initial_state(setup, step, weights, initial_draws, 64)
            draws = conditioning.draw_step(setup, keys[0], inputs, 64, state.A.dtype)
            state = conditioning.advance_step(setup, step, state, draws, keys[0], jnp.asarray(0))
            return conditioning.observe(setup, numbers, state)

        yield "conditioning", conditioned
        begun = sgd.PersistentSGD(
            lr=0.1, samples_per_dimension=1.5, batch_fraction=0.5, persistence_time=0.5
        )
        first_run = Start(*(leaf[:1] for leaf in (start.M_blocks, start.Q_blocks, start.a)))
        sweep = Sweep(problem, begun, Sampling(64, 2), 1e-5, np.dtype("float64"))
        sweep.reserve_memory(4, None, None)
        group = sweep.initial_groups(first_run, sweep.host_draws())[0]
        until = (np.int64(0), np.zeros(1, dtype=np.int64), np.int64(2))
        yield (
            "paths at d -> infinity",
            lambda: advance_paths.__wrapped__(
                sweep.setup, sweep.step_parameters, group.paths, group.slots, None, *until
            ),
        )
    if name == "erf":
        first_run = Start(*(leaf[:1] for leaf in (start.M_blocks, start.Q_blocks, start.a)))
        response = ResponseSweep(
            problem, sgd.MultiPassSGD(), Sampling(64, 2), 1e-5, np.dtype("float64")
        )
        response.reserve_memory(4, None, None)
        response_paths = response.initial_groups(first_run, response.host_draws())[0].paths
        more = (np.bool_(False), None, np.int64(0), np.zeros(1, dtype=np.int64), np.int64(2))
        yield (
            "response form",
            lambda: advance_response_paths.__wrapped__(
                response.setup, response.step_parameters, response_paths, *more
            ),
        )


def main() -> int:
    with install_import_hook(
        [f"sgdynamics.{package}" for package in ENGINE], "tests.architecture.shapes_checked.checker"
    ):
        import sgdynamics as sgd

        for name in sgd.__all__:  # import everything while the import hook is active
            getattr(sgd, name)
    count, failed = 0, []
    with jax.enable_x64(True):
        for name, make in problems(sgd).items():
            if PROBLEMS is not None and name not in PROBLEMS:
                continue
            for what, trace in steps(sgd, name, make()):
                count += 1
                try:
                    jax.eval_shape(trace)
                except Exception as error:
                    failed.append(f"{name}, {what}: {type(error).__name__}: {str(error)[:900]}")
    print(f"{count} traces, {len(failed)} failed")
    print("\n\n".join(failed))
    return bool(failed)
