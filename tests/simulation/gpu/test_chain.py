"""The chain as one GPU kernel, on a CPU: what is unrolled against JAX itself, a step against the chain's, the kernel in interpret mode."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special as scipy_special

import sgdynamics as sgd
from sgdynamics.analysis.exit_requests import evaluate_watch
from sgdynamics.analysis.exit_simulation import PassageObserver
from sgdynamics.base.precision import float64
from sgdynamics.base.random import run_keys
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.problems.overlap_starts import broadcast_runs
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu import chain as chain_module
from sgdynamics.simulation.gpu import constant_folding, unroll
from sgdynamics.simulation.gpu.chain import KernelChain, Lane, Turn
from sgdynamics.simulation.gpu.special import erf, erfc
from sgdynamics.simulation.running import Observation, first_passage, run
from tests.simulation.gpu.cases import CASES, made, verified


@float64
def test_error_functions_to_rounding() -> None:
    x = np.concatenate([np.linspace(-9, 9, 40_001), np.logspace(-12, 0, 500), [np.inf, -np.inf]])
    found = np.asarray(erf(x))
    assert np.max(np.abs(found - scipy_special.erf(x))) < 1e-15
    assert np.max(np.abs(found[x != 0] / scipy_special.erf(x[x != 0]) - 1)) < 1e-15
    x = np.linspace(-6, 20, 40_001)
    assert (
        np.max(np.abs(np.asarray(erfc(x)) / scipy_special.erfc(x) - 1)) < 1e-14
    )  # rounding of x^2 in the exponent
    assert np.isnan(np.asarray(erf(np.array([np.nan]))))


def as_objects(values: np.ndarray, lead: int = 1) -> np.ndarray:
    found = np.empty(values.shape[lead:], dtype=object)
    for place in np.ndindex(*found.shape):
        found[place] = jnp.asarray(values[(*[slice(None)] * lead, *place)])
    return found


def unrolled_values(
    function: Any, own: list[np.ndarray], shared: list[np.ndarray]
) -> list[np.ndarray]:
    """What a function of shared arrays and of each run's gives by numbers, (runs, ...)."""
    kinds = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in shared]
    kinds += [jax.ShapeDtypeStruct(one.shape[1:], one.dtype) for one in own]
    program = unroll.traced(function, *kinds)
    parts = unroll.split(program, set(program.inputs[: len(shared)]))
    before = unroll.computed_before(
        program, parts, dict(zip(program.inputs, map(jnp.asarray, shared), strict=False))
    )
    values = {
        name: as_objects(np.asarray(one), 0) for name, one in zip(parts.shared, before, strict=True)
    }
    values |= dict(zip(program.inputs[len(shared) :], map(as_objects, own), strict=True))
    found = unroll.run(program, parts.after, values)
    flat = [
        [np.broadcast_to(np.asarray(one), len(own[0])) for one in array.reshape(-1)]
        for array in found
    ]
    return [
        np.array(one).T.reshape(-1, *array.shape) for one, array in zip(flat, found, strict=True)
    ]


FUNCTIONS: dict[str, Any] = {
    "products": lambda A, x, i: (
        A @ x.T,
        jnp.einsum("ij,kj->ik", x, A),
        jnp.outer(x[0], x[1]),
        jnp.linalg.norm(x),
    ),
    "sums": lambda A, x, i: (
        jnp.cumsum(x, axis=1),
        x.sum(axis=0),
        jnp.prod(x),
        x.max(axis=1),
        jnp.var(x),
        x.min(),
    ),
    "places": lambda A, x, i: (
        x[:, i],
        jax.lax.dynamic_slice(x, (0, i), (3, 1)),
        jnp.argmax(x, axis=1),
        A[1, i],
        x.at[i % 1].get(),
    ),
    "moves": lambda A, x, i: (
        x.at[1].add(x[0]).at[:, 2].set(3.0),
        jnp.flip(x),
        jnp.roll(x, 1),
        jnp.tile(x, 2),
        jnp.ravel(x, order="F"),
    ),
    "parts": lambda A, x, i: (
        jnp.split(x, [1], axis=1),
        jnp.concatenate([x, A]),
        x[:, jnp.array([], int)].sum(axis=1),
    ),
    "choices": lambda A, x, i: (
        jax.lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
        jnp.clip(x, -0.1, 0.1),
        jnp.any(x > 1),
        jnp.all(x > 0),
    ),
    "loops": lambda A, x, i: jax.lax.scan(
        lambda sum_, row: (0.5 * sum_ + row, sum_), jnp.zeros(4), x
    ),
    "lookup": lambda A, x, i: jnp.searchsorted(jnp.array([-0.5, 0.0, 0.4]), x[0, 0], side="right"),
    "triangle": lambda A, x, i: (lambda r: r.T @ r)(jnp.linalg.qr(x.T, mode="r")),
    "before": lambda A, x, i: x * jnp.linalg.eigh(A @ A.T)[0][:, None],
    "gradients": jax.grad(
        lambda A, x, i: (
            jax.nn.gelu(x).sum()
            + jax.nn.logsumexp(x)
            + jnp.sum(jax.scipy.special.erf(x)) ** 2
            + jnp.max(x)
        ),
        argnums=1,
    ),
}


SHOWN = ("places", "moves", "loops", "triangle", "gradients")  # of the functions, in the fast tests


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one in SHOWN else pytest.mark.slow) for one in FUNCTIONS]
)
@float64
def test_numbers_as_jax_has_them(name: str) -> None:
    draws = np.random.default_rng(0)
    x, A, i = draws.normal(size=(5, 3, 4)), draws.normal(size=(3, 4)), draws.integers(0, 4, size=5)
    found = unrolled_values(FUNCTIONS[name], [x, i], [A])
    expected = jax.tree.leaves(
        jax.vmap(FUNCTIONS[name], (None, 0, 0))(*map(jnp.asarray, (A, x, i)))
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-12, atol=1e-13)


@float64
def test_constants_are_what_jax_computes() -> None:
    """Every primitive that is taken in NumPy, on numbers of several kinds and shapes: the same bits, shapes and kinds as JAX's own."""

    def every(x: Any, i: Any) -> Any:
        wide = jax.lax.broadcast_in_dim(x, (3, 2, 4), (2,)) * jax.lax.broadcasted_iota(
            np.float64, (3, 2, 4), 1
        )
        chosen = jax.lax.select_n(i, x, 2 * x, x - 1), jnp.where(x > 0.1, x, -x)
        several = (
            jax.lax.concatenate([wide, wide + x], 1).reshape(6, 8),
            jax.lax.squeeze(x[None], (0,)).astype(np.int32),
        )
        turned = (
            jnp.ravel(wide, order="F"),
            wide.transpose(2, 0, 1)[1:3, ::2],
            jax.lax.expand_dims(x, (0, 2)),
            (x * 1e300).astype(np.int32),
        )
        return (
            wide,
            chosen,
            several,
            turned,
            x < i,
            i == 1,
            i != 2,
            i * 3 - 1,
            jnp.arange(5).astype(bool),
        )

    x, i = np.array([-0.3, 0.1, 0.7, 2.5]), np.array([0, 2, 1, 1], np.int32)
    jaxpr, met = jax.make_jaxpr(every)(x, i).jaxpr, set()

    def walked(jaxpr: Any, values: dict[Any, Any]) -> None:
        for equation in jaxpr.eqns:
            given = [
                np.asarray(one.val, one.aval.dtype) if hasattr(one, "val") else values[one]
                for one in equation.invars
            ]
            if "jaxpr" in equation.params:
                inner = equation.params["jaxpr"]
                walked(inner.jaxpr, inside := dict(zip(inner.jaxpr.invars, given, strict=True)))
                expected = [inside[one] for one in inner.jaxpr.outvars]
            else:
                expected = [
                    np.asarray(equation.primitive.bind(*map(jnp.asarray, given), **equation.params))
                ]
                (found,) = constant_folding.evaluated(equation.primitive, equation.params, given)
                np.testing.assert_array_equal(found, expected[0])
                assert (found.dtype, found.shape) == (expected[0].dtype, expected[0].shape), (
                    equation
                )
                met.add(equation.primitive.name)
            values |= dict(zip(equation.outvars, expected, strict=True))

    walked(jaxpr, dict(zip(jaxpr.invars, (x, i), strict=True)))
    assert met >= set(constant_folding.IN_NUMPY) - {"expand_dims"}  # which JAX writes as others


@float64
def test_what_cannot_be_unrolled_is_named() -> None:
    draws = np.random.default_rng(0)
    for function, said in (
        (lambda x: jnp.sort(x), "sort"),
        (lambda x: jax.lax.while_loop(lambda y: y[0] < 9, lambda y: y + 1, x), "while"),
        (lambda x: jnp.linalg.qr(x.reshape(3, 2))[0], "QR"),
        (lambda x: jax.scipy.special.gammaln(x), "lgamma"),
        (lambda x: jnp.zeros((400, 400)) + x[0], "numbers"),
    ):
        with pytest.raises(unroll.NotUnrolled, match=said):
            unrolled_values(function, [draws.normal(size=(4, 6))], [])


def one_turn(chain: Any, runs: int, index: int) -> tuple[Any, Any, Turn]:
    """States of runs, and the random numbers of one step of each."""
    draws = np.random.default_rng(index)
    state = chain.initial(np.zeros(runs, int))
    lane = chain_module.of_runs(chain.layout, state, None)
    lane = jax.tree.map(
        lambda leaf: np.asarray(leaf) * (1 + 0.1 * draws.normal(size=leaf.shape)), lane
    )
    counts = [
        int(np.prod(shape)) for shape in chain_module.compressed.normal_shapes(chain.layout, 1)
    ]
    lengths = np.sqrt(
        draws.chisquare(20, size=(runs, len(chain.layout.compressed_blocks), chain.layout.columns))
    )
    return state, lane, Turn(draws.normal(size=(runs, sum(counts))), lengths, np.full(runs, index))


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "blocks" else pytest.mark.slow) for one in CASES]
)
@float64
def test_a_step_is_that_of_the_chain(name: str) -> None:
    """Pathwise, from the same random numbers, 1e-12: overlaps after the step and the fold."""
    chain = made(name, 40)
    assert chain.find_obstacle() is None
    _, lane, turn = one_turn(chain, 4, 37)
    step = partial(chain_module.one_step, chain.layout, None)
    shared = (chain.numbers, chain.block_sizes, None)
    expected = jax.vmap(step, (None, 0, 0))(shared, lane, turn)
    leaves = [np.asarray(one) for one in jax.tree.leaves(shared)]
    trees = jax.tree.structure(shared), jax.tree.structure(lane), jax.tree.structure(turn)
    own = [np.asarray(one) for one in jax.tree.leaves((lane, turn))]

    def flat(*given: Any) -> list[Any]:
        first, cut = given[: len(leaves)], len(leaves) + trees[1].num_leaves
        parts = zip(trees, (first, given[len(leaves) : cut], given[cut:]), strict=True)
        return jax.tree.leaves(step(*(jax.tree.unflatten(tree, part) for tree, part in parts)))

    found = jax.tree.unflatten(jax.tree.structure(expected), unrolled_values(flat, own, leaves))
    for one, other in ((found, expected),):
        both = [overlaps_of(chain, lanes) for lanes in (one, other)]
        for key in both[0]:
            np.testing.assert_allclose(both[0][key], both[1][key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "sphere" else pytest.mark.slow) for one in CASES]
)
@float64
def test_a_lone_step_is_the_first_of_a_span(name: str) -> None:
    """Pathwise, 1e-12: the frame may be turned before a step, and rows return to the sphere after the fold, where a span does neither."""
    chain = made(name, 40)
    state, _, turn = one_turn(chain, 1, 0)
    layout, numbers = chain.layout, chain.numbers
    state = jax.tree.map(lambda leaf: leaf[0], state)
    parts = chain_module.compressed.split_into_shapes(
        jnp.asarray(turn.normals[0]), chain_module.compressed.normal_shapes(layout, 1)
    )
    free = chain_module.compressed.degrees_of_freedom(layout, jnp.asarray(chain.block_sizes))
    draws = chain_module.compressed.assemble_draws(layout, parts, jnp.asarray(turn.lengths), free)
    many = jax.tree.map(lambda leaf: jnp.repeat(leaf, layout.folds, axis=0), draws)
    lone, _ = chain_module.compressed.step_and_fold(
        layout, numbers, state, jax.tree.map(lambda leaf: leaf[0], draws), 0, None, None
    )
    first, _ = chain_module.compressed.run_span(layout, numbers, state, many, (0, 0, 1), None, None)
    one, other = (
        chain.overlaps(jax.tree.map(lambda leaf: leaf[None], found)) for found in (lone, first)
    )
    begun = chain.overlaps(jax.tree.map(lambda leaf: leaf[None], state))
    assert np.max(np.abs(np.asarray(one["M"] - begun["M"]))) > 1e-6
    for key in one:
        np.testing.assert_allclose(one[key], other[key], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=() if one == "sphere" else pytest.mark.slow) for one in CASES]
)
@float64
def test_the_compiler_of_kernels_takes_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU a kernel can be made up to its compiler's own language, which lacks much that JAX has, and be verified there."""
    kernels = verified(monkeypatch)
    chain = made(name, 40, runs=32)
    state, keys = chain.initial(np.arange(32)), run_keys(0, np.arange(32))
    ahead = chain.steps_ahead(32)
    assert (ahead > 0) == (name != "batch 5"), "few numbers a step are made ahead"
    traced = chain_module.advance.trace(
        chain.layout,
        None,
        False,
        ahead,
        chain.numbers,
        chain.block_sizes,
        state,
        keys,
        0,
        100,
        None,
        None,
    )
    assert "xla.gpu.triton" in traced.lower(lowering_platforms=("cuda",)).as_text()
    assert kernels == [True] * (1 + (ahead > 0))


@float64
def test_a_frame_that_faces_the_input() -> None:
    """Products of rows with each other and with the input stay; the input has one number beside the signals."""
    chain = made("blocks", 40)
    draws = np.random.default_rng(0)
    width, columns = chain.initial(np.zeros(1, int)).rows.shape[1:]
    rows, x = draws.normal(size=(width, columns)), draws.normal(size=(1, columns))
    turned, seen = (
        np.asarray(one)
        for one in chain_module.compressed.rotate_to_input(
            chain.layout, jnp.asarray(rows), jnp.asarray(x)
        )
    )
    np.testing.assert_allclose(turned @ turned.T, rows @ rows.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(turned @ seen.T, rows @ x.T, rtol=1e-12, atol=1e-12)
    signals, inside = chain.layout.structure.signals, chain.layout.inside
    assert np.all(chain.layout.split(seen)[1][..., signals + 1 : inside] == 0)
    # an input that has nothing there leaves rows as they are
    nothing = np.zeros_like(x)
    np.testing.assert_array_equal(
        chain_module.compressed.rotate_to_input(
            chain.layout, jnp.asarray(rows), jnp.asarray(nothing)
        )[0],
        rows,
    )


def overlaps_of(chain: Any, lane: Lane) -> dict[str, np.ndarray]:
    rows = chain_module.unpacked(chain.layout, jnp.asarray(lane.rows))
    state = chain_module.Rows(
        rows, jnp.asarray(lane.head), tuple(jnp.asarray(one) for one in lane.scalars), lane.squares
    )
    return {key: np.asarray(value) for key, value in chain.overlaps(state).items()}


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 128])
def test_the_kernel_gives_the_same_numbers_however_it_is_cut(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Save points, pieces and the number of runs change nothing; nor does it matter where random numbers are made, but that a processor
    rounds in other places where several steps are in one loop (a GPU does not, which its own test asks for)."""
    monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs: ahead if runs == 40 else 0)
    rounding = 1e-14 if ahead else 0.0
    chain = made("square", 40, runs=40, interpret=True)
    often, _ = run(chain, 40, np.array([0, 1, 63, 70, 150]), 3, "", False)
    once, _ = run(chain, 40, np.array([0, 150]), 3, "", False)
    few, diverged = run(
        made("square", 40, runs=33, interpret=True), 33, np.array([0, 150]), 3, "", False
    )
    for name in once:
        np.testing.assert_allclose(often[name][:, -1], once[name][:, -1], rtol=rounding, atol=0)
        np.testing.assert_allclose(few[name], once[name][:33], rtol=rounding, atol=0)
    assert np.all(diverged < 0)
    assert np.std(once["M"][:, -1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 64])
def test_a_spectrum_of_small_blocks_has_a_kernel(
    ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No block is compressed: no chi variables, no fold. Overlaps after some steps are finite, and move."""
    monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs: ahead)
    problem = sgd.TeacherStudent(
        width=1,
        activation="erf",
        covariance=sgd.Spectrum(np.linspace(0.5, 2.0, 3), np.ones(3, int)),
    )
    begin = broadcast_runs(sgd.random_start(problem, dimension=3, seed=0), 33)
    chain = KernelChain(
        problem, sgd.OnePassSGD(lr=0.05), begin, 3, problem.block_dimensions(3), True
    )
    assert chain.find_obstacle() is None
    saved, diverged = run(chain, 33, np.array([0, 70]), 0, "", False)
    assert np.all(diverged < 0)
    assert np.std(saved["M"][:, -1]) > 0
    assert np.all(np.isfinite(saved["Q"]))


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 64])
@float64
def test_first_passage_inside_the_kernel(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step at which each run leaves is the first after which its risk, seen after every step, is below the level."""
    monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs: ahead)
    problem, algorithm, given = CASES["square"]()
    begin = sgd.start(problem, **given)
    watch, shared = dynamics_of("exit_time by runs", problem, algorithm).exit_watch(
        "risk", begin, 40
    )
    path, _ = run(made("square", 40, runs=40, interpret=True), 40, np.arange(0, 151), 3, "", False)
    every = {name: value.reshape(-1, *value.shape[2:]) for name, value in path.items()}
    risks = np.asarray(evaluate_watch(watch, shared, every)).reshape(40, -1)
    level = 0.7 * risks[0, 0]
    seen = {"left": np.full(40, -1.0), "value": risks[:, 0], "level": np.full(40, level)}
    observation = Observation(seen, PassageObserver(watch, interpolate=False), shared)
    chain = made("square", 40, runs=40, interpret=True)
    assert chain.with_observation(observation) is chain
    left, diverged = first_passage(chain, observation, 150, 3, "", False)
    below = risks[:, 1:] < level
    np.testing.assert_array_equal(
        left, np.where(below.any(axis=1), below.argmax(axis=1) + 1.0, np.nan)
    )
    assert 5 < np.isfinite(left).sum() < 40
    assert not diverged.any()


@float64
def test_a_watch_that_cannot_be_unrolled_goes_the_other_way() -> None:
    problem, algorithm, given = CASES["square"]()

    def sorted_overlap(state: Any) -> Any:
        return jnp.sort(state["M"].reshape(-1))[0]

    watch, shared = dynamics_of("exit_time by runs", problem, algorithm).exit_watch(
        sorted_overlap, sgd.start(problem, **given), 40
    )
    chain = made("square", 40, runs=2, interpret=True)
    seen = {name: np.zeros(2) for name in ("left", "value", "level")}
    observation = Observation(seen, PassageObserver(watch, interpolate=False), shared)
    assert type(chain.with_observation(observation)) is ExactChain
    assert "sort" in str(
        chain.find_obstacle(
            PassageObserver(watch, interpolate=False),
            jax.tree.map(lambda one: one[:1], seen),
            shared,
        )
    )


@pytest.mark.parametrize("ahead", [0, 64])
def test_runs_that_diverge_are_marked(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rate far past stability: runs end, at a step that is a multiple of the span, and the others go on."""
    monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs: ahead)
    problem = sgd.TeacherStudent(width=1)
    begin = broadcast_runs(sgd.start(problem, M=[[0.4]], Q=[[1.0]]), 40)
    chain = KernelChain(
        problem, sgd.OnePassSGD(lr=3.0), begin, 40, problem.block_dimensions(40), True
    )
    saved, diverged = run(chain, 40, np.array([0, 10, 300]), 0, "", False)
    gone = diverged >= 0
    assert np.all(np.isnan(saved["M"][gone, -1]))
    assert np.all(np.isfinite(saved["M"][~gone]))
    assert gone.any()
    assert np.all(diverged[gone] < 300)
    assert np.all(np.isin(diverged[gone], [0, 10, 64, 128, 192, 256]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["erf", "mixture", "batch 5", "blocks"])
def test_the_law_of_the_chain(name: str) -> None:
    """Means and spreads of overlaps against the chain without a kernel; |z| < 5.2 for some ten numbers each: about 1e-6 in all.
    4096 runs see 5% of a spread at four and a half standard errors, and 1% of a mean where it moves as it does here."""
    kernel = made(name, 30, runs=4096, interpret=True)
    plain = ExactChain(*kernel.setting)
    both = [
        run(one, 4096, np.array([60]), seed, "", False)[0]
        for one, seed in ((kernel, 0), (plain, 1))
    ]
    for key in both[0]:
        one, other = (values[key].reshape(4096, -1) for values in both)
        moving = one.std(axis=0) > 0
        z = (one.mean(axis=0) - other.mean(axis=0)) / np.sqrt(
            (one.var(axis=0) + other.var(axis=0)) / 4096 + 1e-30
        )
        assert np.max(np.abs(z[moving]), initial=0.0) < 5.2, (key, z)
        squares = [(values - values.mean(axis=0)) ** 2 for values in (one, other)]
        z = (squares[0].mean(axis=0) - squares[1].mean(axis=0)) / np.sqrt(
            sum(one.var(axis=0) for one in squares) / 4096 + 1e-30
        )
        assert np.max(np.abs(z[moving]), initial=0.0) < 5.2, (key, z)
