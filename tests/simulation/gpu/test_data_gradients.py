"""The kernel that reads a data set once per step, interpreted on a CPU.

Its sums and whole runs are compared with those by two matrix products.
"""

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
from sgdynamics.simulation.running import RunSetting, run_until
from tests.conftest import Z
from tests.fixed_data.test_direct import COMMITTEE, MIXTURE, PERSISTENT, SPHERE, sphere_start

# 150 samples: two chunks, the last of them partly filled.
SEED, RUNS, DIMENSION = 5, 3, 50
KERNEL_ENGINE = "gpu_kernel (one read per step)"


def erf_start(problem: Any, runs: int) -> Any:
    p, k = problem.width, problem.signals
    M = np.random.default_rng(1).normal(size=(runs, p, k)) / 4
    head = np.linspace(0.5, 1.5, p) if problem.structure.trained else None
    return sgd.start(problem, M=M, Q=M @ M.swapaxes(1, 2) + np.eye(p), a=head)


def mixture_start(problem: Any, runs: int) -> Any:
    M = np.random.default_rng(2).normal(size=(runs, 2, problem.signals)) / 4
    return sgd.start(problem, M=M, Q=M @ M.swapaxes(1, 2) + np.eye(2))


def phase_retrieval_start(problem: Any, runs: int) -> Any:
    return sphere_start(runs)


# Problem, algorithm, and initial condition as a function of the problem and the number of runs.
CASES: dict[str, Any] = {
    "sphere": (SPHERE, PERSISTENT, phase_retrieval_start),
    "hot": (SPHERE, sgd.Langevin(lr=0.01, temperature=0.5), phase_retrieval_start),
    "committee": (COMMITTEE, sgd.MultiPassSGD(lr=0.02, batch_fraction=0.4), erf_start),
    "erf": (
        sgd.TeacherStudent(width=2, teacher_width=2, noise=0.1),
        sgd.GradientDescent(lr=0.05),
        erf_start,
    ),
    "mixture": (MIXTURE, PERSISTENT, mixture_start),
    "diverging": (SPHERE, sgd.MultiPassSGD(lr=0.6, batch_fraction=0.5), phase_retrieval_start),
}


def make_simulator(name: str, dtype: str, mode: str, d: int = DIMENSION) -> DirectFixedData:
    """The simulator of a case; `mode` is that of the kernel, empty for the default engine."""
    problem, algorithm, make_start = CASES[name]
    sizes = problem.block_dimensions(d)
    setting = RunSetting(make_start(problem, RUNS), d, sizes, dtype=dtype, seed=SEED)
    simulator = DirectFixedData(problem, algorithm, setting)
    if mode:
        simulator.use_kernel(mode)
        assert simulator.engine == KERNEL_ENGINE, simulator.engine
    return simulator


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="a GPU compiles the kernel")
@float64
def test_errors_of_the_compiler_are_reported() -> None:
    """A CPU has no compiler for the kernel: the engine reports it, and XLA makes the products."""
    simulator = make_simulator("committee", "float64", "")
    simulator.use_kernel("triton")
    assert simulator.engine.startswith("xla (no kernel: ")
    assert "interpret mode" in simulator.engine
    assert not simulator.options.kernel


SUM_CASES = [(name, dtype) for name in CASES for dtype in ("float64", "float32", "float16")]
FAST_SUM_CASES = (("sphere", "float16"), ("committee", "float64"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(*case, marks=() if case in FAST_SUM_CASES else pytest.mark.slow)
        for case in SUM_CASES
    ],
)
@float64
def test_sums_are_those_of_two_products(name: str, dtype: str) -> None:
    """Risk, gradients and fields agree to rounding in float64, and to 2e-6 in float32."""
    simulator = make_simulator(name, dtype, "interpret")
    state, structure = simulator.initial(np.arange(RUNS)), simulator.structure
    parameters = as_dtype(simulator.first_parameters, simulator.dtype)

    @jax.jit
    def compute_by_kernel(data: Any, state: Any) -> Any:
        sums = data_gradients.sums(
            structure, "interpret", parameters, data, state.rows, state.head, state.selected
        )
        return sums, data_gradients.fields("interpret", data.inputs, state.rows)

    @jax.jit
    def compute_in_two_products(data: Any, state: Any) -> Any:
        sums = jax.vmap(
            lambda data, state: direct_steps.gradient_sums(
                structure, parameters, data, state.rows, state.head, state.selected
            )
        )
        inputs = data.inputs.astype(state.rows.dtype)
        fields = jnp.einsum("rnd,rpd->rnp", inputs, state.rows, precision="highest")
        return sums(data, state), fields

    sums, fields = compute_by_kernel(simulator.data, state)
    expected, expected_fields = compute_in_two_products(simulator.data, state)
    pairs = [(fields, expected_fields), (sums.gradient, expected.gradient)]
    if state.selected is None:
        pairs += [(sums.risk, expected.risk)]
    else:
        assert sums.risk is None  # the kernel has read the selected samples only
    pairs += [(sums.head_gradient, expected.head_gradient)] if structure.trained else []
    tolerance = 1e-13 if dtype == "float64" else 2e-6
    for value, reference in pairs:
        value, reference = np.asarray(value, np.float64), np.asarray(reference, np.float64)
        assert np.abs(value - reference).max() < tolerance * np.abs(reference).max()


@pytest.mark.parametrize(
    ("name", "dtype", "d"),
    [("sphere", "float16", 1000), ("committee", "float32", 2000), ("mixture", "float64", 100)],
)
@float64
def test_kernels_are_lowered_to_triton(name: str, dtype: str, d: int) -> None:
    """JAX lowers the kernels on any machine; Triton's own compiler is not reached."""
    simulator = make_simulator(name, dtype, "interpret", d)
    structure, n = simulator.structure, simulator.samples
    parameters = as_dtype(simulator.first_parameters, simulator.dtype)

    def shape(*sizes: int, dtype: Any = simulator.dtype) -> Any:
        return jax.ShapeDtypeStruct((RUNS, *sizes), dtype)

    example = as_dtype(example_argument(structure.sample, simulator.parameters), simulator.dtype)
    draws = jax.tree.map(lambda leaf: shape(n, *leaf.shape, dtype=leaf.dtype), example)
    inputs = shape(n, d, dtype=simulator.stored)
    data = direct_steps.Data(inputs, shape(n, structure.signals), draws)

    def sums_and_fields(data: Any, rows: Any, head: Any, selected: Any) -> Any:
        sums = data_gradients.sums(structure, "triton", parameters, data, rows, head, selected)
        return sums, data_gradients.fields("triton", data.inputs, rows)

    program = jax.jit(sums_and_fields).trace(
        data, shape(structure.width, d), shape(structure.width), shape(n, dtype=bool)
    )
    assert program.lower(lowering_platforms=("cuda",)).as_text().count("triton") == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("sphere", "float32"),
        ("diverging", "float64"),
        ("hot", "float16"),
        ("committee", "float64"),
    ],
)
def test_runs_are_those_of_two_products(name: str, dtype: str) -> None:
    """Runs agree pathwise: data, selections, noise and stops are the same.

    Of the 37 steps, the last 34 are two stretches and a remainder; some runs stop in between.
    """
    results = []
    for mode in ("interpret", ""):
        simulator = make_simulator(name, dtype, mode)
        if not mode:
            simulator.options = simulator.options._replace(together=True)
        results.append(run_until(simulator, RUNS, np.array([0, 3, 37]), SEED, "", False, 1e-9))
    (overlaps, diverged, stopped), (expected, expected_diverged, expected_stopped) = results
    np.testing.assert_array_equal(diverged, expected_diverged)
    assert np.any(diverged >= 0) == (name == "diverging")
    np.testing.assert_array_equal(stopped, expected_stopped)
    relative, absolute = (1e-11, 1e-13) if dtype == "float64" else (2e-4, 2e-6)
    for key, value in expected.items():
        np.testing.assert_allclose(overlaps[key], value, rtol=relative, atol=absolute)


def test_unsupported_losses_and_sizes_are_named() -> None:
    """A loss that cannot be unrolled, and rows that do not fit into registers, are left to XLA."""

    def sorted_loss(fields: Any, signals: Any, head: Any, noise: Any) -> Any:
        return jnp.sum((jnp.sort(fields) - signals) ** 2)

    problem = sgd.Problem(sorted_loss, width=2, signals=2)
    start = sgd.start(problem, M=np.eye(2) / 2, Q=np.eye(2))
    for d, reason in ((20, "the primitive sort"), (1 << 13, "rows of 2 x 8192 values")):
        algorithm = sgd.GradientDescent(samples_per_dimension=2.0 if d == 20 else 0.01)
        simulator = DirectFixedData(
            problem, algorithm, RunSetting(start, d, problem.block_dimensions(d))
        )
        simulator.use_kernel("interpret")
        assert reason in simulator.engine
        assert not simulator.options.kernel


@float64
def test_half_precision_data_sets() -> None:
    """Float16 inputs are rounded ones, and signals are those of the rounded inputs.

    The data set takes half of the memory. Spectra beyond the range of float16 raise ValueError.
    """
    half = make_simulator("committee", "float16", "")
    double = make_simulator("committee", "float64", "")
    half.initial(np.arange(RUNS))
    double.initial(np.arange(RUNS))
    assert half.data is not None
    assert double.data is not None
    x = np.asarray(half.data.inputs)
    assert x.dtype == np.float16
    single = np.asarray(double.data.inputs).astype(np.float32)
    np.testing.assert_array_equal(x, single.astype(np.float16))
    signal_coordinates = x[..., half.placement.axes].astype(np.float64)
    signals = signal_coordinates @ np.asarray(half.placement.signals).T
    np.testing.assert_allclose(np.asarray(half.data.signals), signals, rtol=1e-6, atol=1e-6)
    half_large, single_large = (
        DirectFixedData(
            SPHERE, PERSISTENT, RunSetting(sphere_start(1), 1000, np.array([1000]), dtype=dtype)
        )
        for dtype in ("float16", "float32")
    )
    assert 0.49 < half_large.bytes_of(1000) / single_large.bytes_of(1000) < 0.53
    problem = sgd.TeacherStudent(width=1, covariance=[(1e-6, 0.5), (1.0, 0.5)])
    start = sgd.start(problem, M=[[[0.1]], [[0.1]]], Q=[[[0.5]], [[0.5]]])
    options = {"steps": [1], "dimension": 20, "method": "direct", "dtype": "float16"}
    with pytest.raises(ValueError, match=r'dtype = .float16.*0\.001 to 1.*Use "float32"'):
        sgd.simulate(problem, PERSISTENT, start, **options)
    with pytest.raises(ValueError, match=r"dtype = .float16.*fixed data set"):
        sgd.simulate(SPHERE, sgd.OnePassSGD(lr=0.1), sphere_start(1), **options)


@pytest.mark.slow
def test_half_precision_data_sets_have_the_same_law() -> None:
    """Phase retrieval on the sphere, N = 60, 600 runs: float16 and float64 with different seeds.

    The fractions of runs that recover the signal, and the means of |m|, agree within 4.9 standard
    errors (false-alarm rate 1e-6). The standard errors are 0.02 and 0.01.
    """
    algorithm = sgd.PersistentSGD(
        lr=0.02, samples_per_dimension=3.0, batch_fraction=0.5, persistence_time=1.0
    )
    options = {
        "times": [0, 2, 30],
        "dimension": 60,
        "runs": 600,
        "method": "direct",
        "stop_at": 1e-7,
    }
    recovered, sizes = [], []
    for dtype, seed in (("float16", 0), ("float64", 1)):
        result = sgd.simulate(SPHERE, algorithm, sphere_start(1), dtype=dtype, seed=seed, **options)
        recovered.append(np.isfinite(result.stopped_at.values))
        sizes.append(np.abs(result.M.values[:, 1, 0, 0]))
    for samples in (recovered, sizes):
        half, double = (np.asarray(values, dtype=np.float64) for values in samples)
        standard_error = np.hypot(half.std(), double.std()) / np.sqrt(len(half))
        assert abs(half.mean() - double.mean()) < Z * standard_error
    assert 0.1 < np.mean(recovered) < 0.9


def test_selected_samples_are_listed_for_each_chunk() -> None:
    """None, some and all samples of a chunk are selected; the last chunk is partly filled."""
    selected = np.random.default_rng(0).random((3, 300)) < [[0.0], [0.4], [1.0]]
    positions, counts = map(np.asarray, data_gradients.list_selected(jnp.asarray(selected)))
    for run, chunk in np.ndindex(counts.shape):
        first = chunk * data_gradients.CHUNK
        expected = np.flatnonzero(selected[run, first : first + data_gradients.CHUNK])
        assert counts[run, chunk] == len(expected)
        np.testing.assert_array_equal(positions[run, chunk, : counts[run, chunk]], expected)
