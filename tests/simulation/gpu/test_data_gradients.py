"""The kernel that reads a data set once a step, on a CPU in interpret mode: its sums and whole runs against the two products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.precision import float64
from sgdynamics.fixed_data import direct_steps
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.samples.sample import as_dtype, example_argument
from sgdynamics.simulation.gpu import data_gradients
from sgdynamics.simulation.running import run_until
from tests.fixed_data.test_direct import COMMITTEE, MIXTURE, PERSISTENT, SPHERE, sphere_start

SEED, RUNS, D = 5, 3, 50  # 150 samples: two chunks, the last of them not full


def erf_start(problem: Any, runs: int) -> Any:
    p, k = problem.width, problem.signals
    M = np.random.default_rng(1).normal(size=(runs, p, k)) / 4
    return sgd.start(
        problem,
        M=M,
        Q=M @ M.swapaxes(1, 2) + np.eye(p),
        a=np.linspace(0.5, 1.5, p) if problem.structure.trained else None,
    )


def mixture_start(problem: Any, runs: int) -> Any:
    M = np.random.default_rng(2).normal(size=(runs, 2, problem.signals)) / 4
    return sgd.start(problem, M=M, Q=M @ M.swapaxes(1, 2) + np.eye(2))


CASES: dict[str, Any] = {
    "sphere": (SPHERE, PERSISTENT, lambda problem, runs: sphere_start(runs)),
    "hot": (
        SPHERE,
        sgd.Langevin(lr=0.01, temperature=0.5),
        lambda problem, runs: sphere_start(runs),
    ),
    "committee": (COMMITTEE, sgd.MultiPassSGD(lr=0.02, batch_fraction=0.4), erf_start),
    "erf": (
        sgd.TeacherStudent(width=2, teacher_width=2, noise=0.1),
        sgd.GradientDescent(lr=0.05),
        erf_start,
    ),
    "mixture": (MIXTURE, PERSISTENT, mixture_start),
    "diverging": (
        SPHERE,
        sgd.MultiPassSGD(lr=0.6, batch_fraction=0.5),
        lambda problem, runs: sphere_start(runs),
    ),
}


def made(name: str, dtype: str, mode: str, d: int = D) -> DirectFixedData:
    problem, algorithm, begin = CASES[name]
    simulator = DirectFixedData(
        problem, algorithm, begin(problem, RUNS), d, problem.block_dimensions(d), dtype, SEED
    )
    if mode:
        simulator.use_kernel(mode)
        assert simulator.engine == "gpu_kernel (one read per step)", simulator.engine
    return simulator


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU's compiler makes it")
@float64
def test_what_the_compiler_refuses_goes_the_other_way() -> None:
    """A CPU's compiler has no such kernels: the result says so, and the products are made."""
    simulator = made("committee", "float64", "")
    simulator.use_kernel("triton")
    assert simulator.engine.startswith("xla (no kernel: ")
    assert "interpret mode" in simulator.engine
    assert not simulator.options.kernel


TRIED = [(name, dtype) for name in CASES for dtype in ("float64", "float32", "float16")]
OFTEN = (("sphere", "float16"), ("committee", "float64"))  # in the fast tests


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(*one, marks=() if one in OFTEN else pytest.mark.slow) for one in TRIED],
)
@float64
def test_sums_are_those_of_two_products(name: str, dtype: str) -> None:
    """Risk, gradient and that of the head, of every run, and fields: to rounding in float64, to 2e-6 of their size in float32."""
    simulator = made(name, dtype, "interpret")
    state, structure = simulator.initial(np.arange(RUNS)), simulator.structure
    numbers = as_dtype(simulator.first_parameters, simulator.dtype)

    @jax.jit
    def once(data: Any, state: Any) -> Any:
        found = data_gradients.sums(
            structure, "interpret", numbers, data, state.rows, state.head, state.selected
        )
        return found, data_gradients.fields("interpret", data.inputs, state.rows)

    @jax.jit
    def twice(data: Any, state: Any) -> Any:
        one = jax.vmap(
            lambda data, state: direct_steps.gradient_sums(
                structure, numbers, data, state.rows, state.head, state.selected
            )
        )
        return one(data, state), jnp.einsum(
            "rnd,rpd->rnp", data.inputs.astype(state.rows.dtype), state.rows, precision="highest"
        )

    (found, fields), (expected, fields_too) = (
        once(simulator.data, state),
        twice(simulator.data, state),
    )
    pairs = [(fields, fields_too), (found.gradient, expected.gradient)]
    if state.selected is None:
        pairs += [(found.risk, expected.risk)]
    else:
        assert found.risk is None  # of all samples, of which the kernel reads those in use
    pairs += [(found.head_gradient, expected.head_gradient)] if structure.trained else []
    for left, right in pairs:
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        assert (
            np.abs(left - right).max()
            < (1e-13 if dtype == "float64" else 2e-6) * np.abs(right).max()
        )


@pytest.mark.parametrize(
    ("name", "dtype", "d"),
    [("sphere", "float16", 1000), ("committee", "float32", 2000), ("mixture", "float64", 100)],
)
@float64
def test_it_is_lowered_for_a_gpu_on_any_machine(name: str, dtype: str, d: int) -> None:
    """As far as JAX goes: Triton's own compiler is not asked."""
    simulator = made(name, dtype, "interpret", d)
    structure, n, numbers = (
        simulator.structure,
        simulator.samples,
        as_dtype(simulator.first_parameters, simulator.dtype),
    )

    def shape(*sizes: int, dtype: Any = simulator.dtype) -> Any:
        return jax.ShapeDtypeStruct((RUNS, *sizes), dtype)

    example = as_dtype(example_argument(structure.sample, simulator.parameters), simulator.dtype)
    given = jax.tree.map(lambda one: shape(n, *one.shape, dtype=one.dtype), example)
    data = direct_steps.Data(
        shape(n, d, dtype=simulator.stored), shape(n, structure.signals), given
    )

    def both(data: Any, rows: Any, head: Any, selected: Any) -> Any:
        sums = data_gradients.sums(structure, "triton", numbers, data, rows, head, selected)
        return sums, data_gradients.fields("triton", data.inputs, rows)

    traced = jax.jit(both).trace(
        data, shape(structure.width, d), shape(structure.width), shape(n, dtype=bool)
    )
    assert traced.lower(lowering_platforms=("cuda",)).as_text().count("triton") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sphere", "float32"),
        ("diverging", "float64"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (("hot", "float16"), ("committee", "float64"))
        ),
    ],
)
def test_runs_are_those_of_two_products(name: str, dtype: str) -> None:
    """Pathwise: same data, selection, kicks and stops; 37 steps, the last 34 two stretches and a rest; some runs stop on the way."""
    results = []
    for mode in ("interpret", ""):
        simulator = made(name, dtype, mode)
        if not mode:
            simulator.options = simulator.options._replace(together=True)
        results.append(run_until(simulator, RUNS, np.array([0, 3, 37]), SEED, "", False, 1e-9))
    (found, lost, stopped), (expected, lost_too, stopped_too) = results
    np.testing.assert_array_equal(lost, lost_too)
    assert np.any(lost >= 0) == (name == "diverging")
    np.testing.assert_array_equal(stopped, stopped_too)
    for key, value in expected.items():
        relative, absolute = (1e-11, 1e-13) if dtype == "float64" else (2e-4, 2e-6)
        np.testing.assert_allclose(found[key], value, rtol=relative, atol=absolute)


def test_what_the_kernel_leaves_to_two_products() -> None:
    """A loss that cannot be unrolled, rows that do not fit into registers: named, and the runs are what they were."""

    def sorted_loss(fields: Any, signals: Any, head: Any, noise: Any) -> Any:
        return jnp.sum((jnp.sort(fields) - signals) ** 2)

    problem = sgd.Problem(sorted_loss, width=2, signals=2)
    begin = sgd.start(problem, M=np.eye(2) / 2, Q=np.eye(2))
    for d, said in ((20, "sort"), (1 << 13, "rows of 2 x 8192")):
        algorithm = sgd.GradientDescent(samples_per_dimension=2.0 if d == 20 else 0.01)
        simulator = DirectFixedData(problem, algorithm, begin, d, problem.block_dimensions(d))
        simulator.use_kernel("interpret")
        assert said in simulator.engine
        assert not simulator.options.kernel


@float64
def test_half_width_data_sets() -> None:
    """Inputs are the rounded ones, signals those of the rounded inputs to float32; half of the memory; wide spectra are refused."""
    simulator, single = made("committee", "float16", ""), made("committee", "float64", "")
    simulator.initial(np.arange(RUNS))
    single.initial(np.arange(RUNS))
    assert simulator.data is not None
    assert single.data is not None
    x = np.asarray(simulator.data.inputs)
    assert x.dtype == np.float16
    np.testing.assert_array_equal(x, np.asarray(single.data.inputs).astype(np.float16))
    signals = (
        x[..., simulator.placement.axes].astype(np.float64)
        @ np.asarray(simulator.placement.signals).T
    )
    np.testing.assert_allclose(np.asarray(simulator.data.signals), signals, rtol=1e-6, atol=1e-6)
    large = [
        DirectFixedData(SPHERE, PERSISTENT, sphere_start(1), 1000, np.array([1000]), one)
        for one in ("float16", "float32")
    ]
    share = large[0].bytes_of(1000) / large[1].bytes_of(1000)
    assert 0.49 < share < 0.53
    small = sgd.TeacherStudent(width=1, covariance=[(1e-6, 0.5), (1.0, 0.5)])
    given = {"steps": [1], "dimension": 20, "method": "direct", "dtype": "float16"}
    with pytest.raises(ValueError, match=r'dtype = .float16.*0\.001 to 1.*Use "float32"'):
        sgd.simulate(
            small, PERSISTENT, sgd.start(small, M=[[[0.1]], [[0.1]]], Q=[[[0.5]], [[0.5]]]), **given
        )
    with pytest.raises(ValueError, match=r"dtype = .float16.*fixed data set"):
        sgd.simulate(SPHERE, sgd.OnePassSGD(lr=0.1), sphere_start(1), **given)


@pytest.mark.slow
def test_half_width_data_sets_have_the_law_of_whole_ones() -> None:
    """Phase retrieval on the sphere at N = 60, 600 runs: shares that recover and means of |m| in float16 and float64, of other seeds.

    By chance beyond 4.9 standard errors once in 1e6; those of the share and of |m| are .02 and .01.
    """
    problem, algorithm = (
        SPHERE,
        sgd.PersistentSGD(
            lr=0.02, samples_per_dimension=3.0, batch_fraction=0.5, persistence_time=1.0
        ),
    )
    shares, means = [], []
    for dtype, seed in (("float16", 0), ("float64", 1)):
        given = {
            "times": [0, 2, 30],
            "dimension": 60,
            "runs": 600,
            "seed": seed,
            "method": "direct",
            "dtype": dtype,
            "stop_at": 1e-7,
        }
        found = sgd.simulate(problem, algorithm, sphere_start(1), **given)
        shares.append(np.isfinite(found.stopped_at.values))
        means.append(np.abs(found.M.values[:, 1, 0, 0]))
    for one, other in (shares, means):
        one, other = (np.asarray(part, dtype=np.float64) for part in (one, other))
        assert abs(one.mean() - other.mean()) < 4.9 * np.hypot(one.std(), other.std()) / np.sqrt(
            len(one)
        )
    assert 0.1 < np.mean(shares) < 0.9


def test_samples_in_use_are_listed_chunk_by_chunk() -> None:
    """None, some and all of a chunk, and a last one that is not full."""
    selected = np.random.default_rng(0).random((3, 300)) < [[0.0], [0.4], [1.0]]
    places, counts = (np.asarray(one) for one in data_gradients.listed(jnp.asarray(selected)))
    for run, chunk in np.ndindex(counts.shape):
        expected = np.flatnonzero(
            selected[run, chunk * data_gradients.CHUNK : (chunk + 1) * data_gradients.CHUNK]
        )
        assert counts[run, chunk] == len(expected)
        np.testing.assert_array_equal(places[run, chunk, : counts[run, chunk]], expected)
