"""The exact chain as a GPU kernel, on a CPU: unrolled steps, lowering, and interpreted kernels."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.analysis.exit_requests import evaluate_watch
from sgdynamics.analysis.exit_simulation import PassageObserver
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.simulation import compressed
from sgdynamics.simulation.chain_steps import run_span, step_and_fold
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu import chain_kernel, chain_step
from sgdynamics.simulation.gpu.chain import KernelChain
from sgdynamics.simulation.gpu.chain_step import RunState, StepInputs
from sgdynamics.simulation.running import Observation, RunSetting, first_passage, run
from sgdynamics.simulation.span_draws import (
    assemble_draws,
    degrees_of_freedom,
    normal_shapes,
    split_into_shapes,
)
from tests.simulation.gpu.cases import CASES, make_chain, verify_kernels
from tests.simulation.gpu.test_unroll import unrolled_values


def slow_except(fast_case: str) -> list[Any]:
    """All cases as test parameters; only one of them is fast."""
    return [
        pytest.param(name, marks=() if name == fast_case else pytest.mark.slow) for name in CASES
    ]


def draw_inputs(chain: KernelChain, runs: int, index: int) -> tuple[Rows, RunState, StepInputs]:
    """States of runs, the same perturbed and packed, and the random numbers of one step."""
    generator, layout = np.random.default_rng(index), chain.layout
    state = chain.initial(np.zeros(runs, int))
    packed_state = jax.tree.map(
        lambda leaf: np.asarray(leaf) * (1 + 0.1 * generator.normal(size=leaf.shape)),
        chain_step.pack_states(layout, state, None),
    )
    draws = chain_step.step_draws(layout)
    chi = np.sqrt(generator.chisquare(20, size=(runs, *draws.chi_shape)))
    normals = generator.normal(size=(runs, draws.normals))
    return state, packed_state, StepInputs(normals, chi, np.full(runs, index))


def overlaps_of(chain: KernelChain, packed_state: RunState) -> dict[str, np.ndarray]:
    rows = chain_step.unpack_rows(chain.layout, jnp.asarray(packed_state.rows))
    scalars = tuple(jnp.asarray(scalar) for scalar in packed_state.scalars)
    state = Rows(rows, jnp.asarray(packed_state.head), scalars, packed_state.squares)
    return {key: np.asarray(value) for key, value in chain.overlaps(state).items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except("blocks"))
@float64
def test_unrolled_step_is_the_step_of_the_chain(name: str) -> None:
    """Overlaps after the step and the fold agree pathwise to 1e-12."""
    chain = make_chain(name, 40)
    assert chain.find_obstacle() is None
    _, packed_state, inputs = draw_inputs(chain, 4, 37)
    step = partial(chain_step.step_run, chain.layout, None)
    uniform = chain.uniform_inputs(None)
    expected = jax.vmap(step, (None, 0, 0))(uniform, packed_state, inputs)
    uniform_leaves, uniform_tree = jax.tree.flatten(uniform)
    varying_leaves, varying_tree = jax.tree.flatten((packed_state, inputs))

    def flat_step(*leaves: Any) -> list[Any]:
        count = len(uniform_leaves)
        arguments = jax.tree.unflatten(varying_tree, leaves[count:])
        return jax.tree.leaves(step(jax.tree.unflatten(uniform_tree, leaves[:count]), *arguments))

    values = unrolled_values(
        flat_step,
        [np.asarray(leaf) for leaf in varying_leaves],
        list(map(np.asarray, uniform_leaves)),
    )
    unrolled = jax.tree.unflatten(jax.tree.structure(expected), values)
    overlaps, expected_overlaps = overlaps_of(chain, unrolled), overlaps_of(chain, expected)
    for key in expected_overlaps:
        np.testing.assert_allclose(overlaps[key], expected_overlaps[key], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except("sphere"))
@float64
def test_single_step_is_the_first_step_of_a_span(name: str) -> None:
    """Overlaps agree pathwise to 1e-12.

    A single step may rotate the frame first and returns rows to the sphere after the fold; a step
    inside of a span does neither.
    """
    chain = make_chain(name, 40)
    state, _, inputs = draw_inputs(chain, 1, 0)
    layout, model = chain.layout, chain.uniform_inputs(None).model
    state = jax.tree.map(lambda leaf: leaf[0], state)
    normals = split_into_shapes(jnp.asarray(inputs.normals[0]), normal_shapes(layout, 1))
    degrees = degrees_of_freedom(layout, jnp.asarray(chain.block_sizes))
    draws = assemble_draws(layout, normals, jnp.asarray(inputs.chi), degrees)
    first_draws = jax.tree.map(lambda leaf: leaf[0], draws)
    single, _ = step_and_fold(layout, model, state, first_draws, 0, None, None)
    span_draws = jax.tree.map(lambda leaf: jnp.repeat(leaf, layout.folds, axis=0), draws)
    spanned, _ = run_span(layout, model, state, span_draws, (0, 0, 1), None, None)
    before, overlaps, expected = (
        chain.overlaps(jax.tree.map(lambda leaf: leaf[None], rows))
        for rows in (state, single, spanned)
    )
    assert np.max(np.abs(np.asarray(overlaps["M"] - before["M"]))) > 1e-6
    for key in overlaps:
        np.testing.assert_allclose(overlaps[key], expected[key], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_except("sphere"))
@float64
def test_kernels_are_lowered_to_triton(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's verifier accepts the kernels; without a GPU its own compiler is not reached."""
    verdicts = verify_kernels(monkeypatch)
    chain = make_chain(name, 40, runs=32)
    state, keys = chain.initial(np.arange(32)), run_keys(0, np.arange(32))
    ahead = chain.steps_ahead(32)
    assert (ahead > 0) == (name != "batch 5"), "few random numbers per step are drawn ahead"
    options = chain_kernel.ChainOptions(chain.layout, None, False, ahead)
    uniform = chain.uniform_inputs(None)
    program = chain_kernel.advance.trace(options, uniform, state, keys, 0, 100, None)
    assert "xla.gpu.triton" in program.lower(lowering_platforms=("cuda",)).as_text()
    assert verdicts == [True] * (1 + (ahead > 0))


@float64
def test_rotation_of_the_frame_to_the_input() -> None:
    """Inner products stay, and the input has one coordinate outside of the signals."""
    chain = make_chain("blocks", 40)
    generator, layout = np.random.default_rng(0), chain.layout
    width, columns = chain.initial(np.zeros(1, int)).rows.shape[1:]
    rows, x = generator.normal(size=(width, columns)), generator.normal(size=(1, columns))
    rotated_rows, rotated_x = map(
        np.asarray, compressed.rotate_to_input(layout, jnp.asarray(rows), jnp.asarray(x))
    )
    np.testing.assert_allclose(rotated_rows @ rotated_rows.T, rows @ rows.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(rotated_rows @ rotated_x.T, rows @ x.T, rtol=1e-12, atol=1e-12)
    first_zero = layout.structure.signals + 1
    assert np.all(layout.split(rotated_x)[1][..., first_zero : layout.inside] == 0)
    # An input that is 0 outside of the signals leaves the rows unchanged.
    unchanged, _ = compressed.rotate_to_input(
        layout, jnp.asarray(rows), jnp.asarray(np.zeros_like(x))
    )
    np.testing.assert_array_equal(unchanged, rows)


def use_steps_ahead(monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
    """Draw the random numbers of this many steps ahead, whatever the number of runs."""
    monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs: ahead)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 128])
def test_kernel_is_independent_of_save_points_and_runs(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save points, pieces and the number of runs change nothing.

    Nor does drawing ahead, except that a CPU rounds differently where several steps are in one
    loop. A GPU does not, which its own test checks.
    """
    monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs: ahead if runs == 40 else 0)
    rounding = 1e-14 if ahead else 0.0
    chain = make_chain("square", 40, runs=40, interpret=True)
    often, _ = run(chain, 40, np.array([0, 1, 63, 70, 150]), 3, "", False)
    once, _ = run(chain, 40, np.array([0, 150]), 3, "", False)
    fewer_runs = make_chain("square", 40, runs=33, interpret=True)
    few, diverged = run(fewer_runs, 33, np.array([0, 150]), 3, "", False)
    for name in once:
        np.testing.assert_allclose(often[name][:, -1], once[name][:, -1], rtol=rounding, atol=0)
        np.testing.assert_allclose(few[name], once[name][:33], rtol=rounding, atol=0)
    assert np.all(diverged < 0)
    assert np.std(once["M"][:, -1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 64])
def test_spectrum_of_small_blocks(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is compressed: no chi variables and no fold. Overlaps are finite and move."""
    use_steps_ahead(monkeypatch, ahead)
    spectrum = sgd.Spectrum(np.linspace(0.5, 2.0, 3), np.ones(3, int))
    problem = sgd.TeacherStudent(width=1, activation="erf", covariance=spectrum)
    start = broadcast_runs(sgd.random_start(problem, dimension=3, seed=0), 33)
    chain = KernelChain(
        problem, sgd.OnePassSGD(lr=0.05), RunSetting(start, 3, problem.block_dimensions(3)), True
    )
    assert chain.find_obstacle() is None
    overlaps, diverged = run(chain, 33, np.array([0, 70]), 0, "", False)
    assert np.all(diverged < 0)
    assert np.std(overlaps["M"][:, -1]) > 0
    assert np.all(np.isfinite(overlaps["Q"]))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 64])
@float64
def test_first_passage_inside_of_the_kernel(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run leaves at the first step after which its risk is below the level."""
    use_steps_ahead(monkeypatch, ahead)
    problem, algorithm, arguments = CASES["square"]()
    start = sgd.start(problem, **arguments)
    dynamics = dynamics_of("exit_time by runs", problem, algorithm)
    watch, shared = dynamics.exit_watch("risk", start, 40)
    chain = make_chain("square", 40, runs=40, interpret=True)
    overlaps, _ = run(chain, 40, np.arange(0, 151), 3, "", False)
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in overlaps.items()}
    risks = np.asarray(evaluate_watch(watch, shared, flat)).reshape(40, -1)
    level = 0.7 * risks[0, 0]
    records = {"left": np.full(40, -1.0), "value": risks[:, 0], "level": np.full(40, level)}
    observation = Observation(records, PassageObserver(watch, interpolate=False), shared)
    chain = make_chain("square", 40, runs=40, interpret=True)
    assert chain.with_observation(observation) is chain
    left, diverged = first_passage(chain, observation, 150, 3, "", False)
    below = risks[:, 1:] < level
    expected = np.where(below.any(axis=1), below.argmax(axis=1) + 1.0, np.nan)
    np.testing.assert_array_equal(left, expected)
    assert 5 < np.isfinite(left).sum() < 40
    assert not diverged.any()


@float64
def test_observation_that_cannot_be_unrolled_is_left_to_xla() -> None:
    problem, algorithm, arguments = CASES["square"]()

    def sorted_overlap(state: Any) -> Any:
        return jnp.sort(state["M"].reshape(-1))[0]

    dynamics = dynamics_of("exit_time by runs", problem, algorithm)
    watch, shared = dynamics.exit_watch(sorted_overlap, sgd.start(problem, **arguments), 40)
    chain = make_chain("square", 40, runs=2, interpret=True)
    records = {name: np.zeros(2) for name in ("left", "value", "level")}
    observer = PassageObserver(watch, interpolate=False)
    assert type(chain.with_observation(Observation(records, observer, shared))) is ExactChain
    first_records = jax.tree.map(lambda leaf: leaf[:1], records)
    assert chain.find_obstacle(observer, first_records, shared) == "the primitive sort"


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 64])
def test_diverging_runs_are_marked(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with a large step size end at a multiple of the span, and the others continue."""
    use_steps_ahead(monkeypatch, ahead)
    problem = sgd.TeacherStudent(width=1)
    start = broadcast_runs(sgd.start(problem, M=[[0.4]], Q=[[1.0]]), 40)
    chain = KernelChain(
        problem, sgd.OnePassSGD(lr=3.0), RunSetting(start, 40, problem.block_dimensions(40)), True
    )
    overlaps, diverged = run(chain, 40, np.array([0, 10, 300]), 0, "", False)
    is_lost = diverged >= 0
    assert np.all(np.isnan(overlaps["M"][is_lost, -1]))
    assert np.all(np.isfinite(overlaps["M"][~is_lost]))
    assert is_lost.any()
    assert np.all(diverged[is_lost] < 300)
    assert np.all(np.isin(diverged[is_lost], [0, 10, 64, 128, 192, 256]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["erf", "mixture", "batch 5", "blocks"])
def test_law_of_the_chain(name: str) -> None:
    """Means and variances of overlaps agree with those of the chain without a kernel.

    About ten values each have |z| < 5.2, a false-alarm rate of about 1e-6 in all. With 4096 runs an
    error of 5% in a standard deviation is four and a half standard errors.
    """
    kernel_chain, runs = make_chain(name, 30, runs=4096, interpret=True), 4096
    plain_chain = ExactChain(*kernel_chain.arguments)
    kernel_overlaps, plain_overlaps = (
        run(chain, runs, np.array([60]), seed, "", False)[0]
        for chain, seed in ((kernel_chain, 0), (plain_chain, 1))
    )

    def z_score(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Difference of two means in standard errors."""
        variance = (x.var(axis=0) + y.var(axis=0)) / runs
        return (x.mean(axis=0) - y.mean(axis=0)) / np.sqrt(variance + 1e-30)

    for key in kernel_overlaps:
        x, y = (overlaps[key].reshape(runs, -1) for overlaps in (kernel_overlaps, plain_overlaps))
        is_moving = x.std(axis=0) > 0
        squares = [(values - values.mean(axis=0)) ** 2 for values in (x, y)]
        for z in (z_score(x, y), z_score(*squares)):
            assert np.max(np.abs(z[is_moving]), initial=0.0) < 5.2, (key, z)
