"""The kernels on an NVIDIA GPU, compared with the same simulation by XLA; skipped elsewhere."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.papers.optimisers import least_squares
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu.chain import KernelChain, exact_chain
from sgdynamics.simulation.running import RunSetting, run
from tests.conftest import Z
from tests.simulation.gpu.cases import CASES, make_chain
from tests.simulation.gpu.test_data_gradients import CASES as FIXED_DATA_CASES
from tests.simulation.gpu.test_data_gradients import KERNEL_ENGINE, make_simulator
from tests.solvers.test_workers import DILOCO, LINEAR, LOCAL, ORIGIN, linear_rounds

pytestmark = pytest.mark.skipif(
    "NVIDIA" not in jax.local_devices()[0].device_kind, reason="needs an NVIDIA GPU"
)
RUNS = 1 << 16
# Number of steps at each dimension.
STEPS = {30: 60, 1_000_000: 4000}
P_VALUE = 1e-8


@pytest.mark.parametrize("dimension", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_law_of_the_chain(name: str, dimension: int) -> None:
    """Means, covariances and distribution functions of overlaps and heads agree.

    About a hundred p-values per case are compared with 1e-8, a false-alarm rate of 1e-6. An error
    of 5% in a standard deviation is 6 standard errors, or 3 for a law with long tails.
    """
    kernel_chain = make_chain(name, dimension, runs=RUNS)
    plain_chain = ExactChain(*kernel_chain.arguments)
    samples = []
    for chain, seed in ((kernel_chain, 0), (plain_chain, 1)):
        overlaps, diverged = run(chain, RUNS, np.array([STEPS[dimension]]), seed, "", False)
        assert np.all(diverged < 0)
        flat = [overlaps[key].reshape(RUNS, -1) for key in ("M", "Q", "a")]
        samples.append(np.concatenate(flat, axis=1))
    # Rows on the sphere have one length, up to rounding.
    is_moving = samples[1].std(axis=0) > 1e-9
    x, y = (values[:, is_moving] for values in samples)
    # Equal entries, as those of the symmetric Q, count once.
    _, columns = np.unique(x[0], return_index=True)
    x, y = x[:, columns], y[:, columns]
    x_scaled, y_scaled = ((values - values.mean(axis=0)) / y.std(axis=0) for values in (x, y))
    for i in range(x.shape[1]):
        assert stats.ks_2samp(x[:, i], y[:, i]).pvalue > P_VALUE
        assert stats.ttest_ind(x[:, i], y[:, i], equal_var=False).pvalue > P_VALUE
        for j in range(i + 1):
            products = (scaled[:, i] * scaled[:, j] for scaled in (x_scaled, y_scaled))
            assert stats.ttest_ind(*products, equal_var=False).pvalue > P_VALUE


def test_engine_of_a_result() -> None:
    problem, algorithm, arguments = CASES["erf"]()
    start = sgd.start(problem, **arguments)
    result = sgd.simulate(problem, algorithm, start, steps=[10], dimension=100, runs=4)
    assert result.attrs["engine"] == "gpu_kernel"
    wide = sgd.TeacherStudent(width=40)
    start = sgd.start(wide, M=np.full((40, 1), 0.1), Q=np.eye(40))
    result = sgd.simulate(wide, sgd.OnePassSGD(lr=0.1), start, steps=[10], dimension=100)
    assert "no kernel" in result.attrs["engine"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", [name for name in FIXED_DATA_CASES if name != "diverging"])
def test_fixed_data_kernel_agrees_with_two_products(name: str, dtype: str) -> None:
    """20 steps on the same data agree pathwise; d = 1000 and the last chunk is partly filled."""
    results = []
    for use_kernel in (True, False):
        simulator = make_simulator(name, dtype, "", 1000)
        assert simulator.engine == KERNEL_ENGINE
        if not use_kernel:
            simulator.options = simulator.options._replace(kernel="")
        results.append(run(simulator, 3, np.array([0, 1, 20]), 5, "", False)[0])
    overlaps, expected = results
    relative, absolute = (1e-10, 1e-12) if dtype == "float64" else (1e-3, 1e-5)
    for key, value in expected.items():
        np.testing.assert_allclose(overlaps[key], value, rtol=relative, atol=absolute)


def test_exit_times() -> None:
    """Exit times of 2^14 runs have one law with and without the kernel (Kolmogorov, 1e-6)."""
    problem, algorithm = sgd.TeacherStudent(width=1), sgd.OnePassSGD(lr=0.05)
    start = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    options = {
        "threshold": 0.1,
        "method": "exact",
        "dimension": 300,
        "runs": 1 << 14,
        "max_time": 60.0,
    }
    by_kernel = sgd.exit_time(problem, algorithm, start, seed=0, **options)
    chain = exact_chain(problem, algorithm, RunSetting(start, 300, np.array([300])))
    assert isinstance(chain, KernelChain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelChain, "with_observation", lambda self, *_: ExactChain(*self.arguments))
        plain = sgd.exit_time(problem, algorithm, start, seed=1, **options)
    assert by_kernel.left == plain.left == 1 << 14
    assert stats.ks_2samp(by_kernel.times, plain.times).pvalue > 1e-6


def test_results_are_independent_of_save_points_and_runs() -> None:
    often, _ = run(
        make_chain("erf", 100, runs=200), 200, np.array([0, 1, 63, 70, 500]), 3, "", False
    )
    once, _ = run(make_chain("erf", 100, runs=77), 77, np.array([0, 500]), 3, "", False)
    for name in once:
        # Products of rows are summed in a different order for another number of runs.
        np.testing.assert_allclose(often[name][:77, -1], once[name][:, -1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["square", "erf", "own", "sphere", "head", "blocks", "momentum"])
def test_drawing_ahead_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random numbers drawn inside of the step, and ahead with several steps per iteration."""
    finals = []
    for ahead, steps in ((0, [0, 3001]), (256, [0, 3001]), (256, [0, 1, 63, 70, 1000, 3001])):
        monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs, ahead=ahead: ahead)
        overlaps, _ = run(make_chain(name, 1000, runs=100), 100, np.array(steps), 0, "", False)
        finals.append({key: value[:, -1] for key, value in overlaps.items()})
    for final in finals[1:]:
        for key, value in finals[0].items():
            np.testing.assert_array_equal(final[key], value)


def test_deep_linear_limit_and_exact_law() -> None:
    """The recursion has its reference values; a run at d = 1e6 is close to them."""
    problem = sgd.DeepLinear(depth=3, noise=0.25)
    algorithm = sgd.GradientDescent(lr=0.1, samples_per_dimension=2.0)
    limit = sgd.solve_dmft(problem, algorithm, steps=[10, 20, 40], progress=False)
    excess = 2 * limit.excess_risk.values[0]
    assert np.allclose(excess, [0.35373, 0.24877, 0.22252], atol=6e-6)
    arguments = {"dimension": 10**6, "runs": 24, "seed": 3, "progress": False}
    runs = sgd.simulate(problem, algorithm, steps=[10, 20, 40], **arguments)
    assert np.allclose(2 * runs.excess_risk.mean("run"), excess, atol=2e-3)


def test_diagonal_and_wide_networks() -> None:
    """The limits on the GPU are those of the CPU, at equal seeds.

    A new direction of the basis may have another sign there. Wide networks then have other sampled
    neurons, and agree within their sampling errors.
    """
    diagonal = sgd.DiagonalNetwork(teacher=[(1.0, 0.1), (0.0, 0.9)], start=0.5)
    wide = sgd.WideNetwork(np.eye(4), [1.0, 1.0, -1.0, -1.0], gamma0=2.0)
    cases = [
        (diagonal, sgd.GradientDescent(lr=0.1, samples_per_dimension=0.5), "excess_risk"),
        (wide, sgd.GradientDescent(lr=0.3), "outputs"),
    ]
    for problem, algorithm, name in cases:
        arguments = {"steps": [0, 5, 10], "paths": 4096, "progress": False}
        on_gpu = sgd.solve_dmft(problem, algorithm, **arguments)
        with jax.default_device(jax.devices("cpu")[0]):
            on_cpu = sgd.solve_dmft(problem, algorithm, **arguments)
        tolerance = 1e-9
        if problem is wide:
            error = np.hypot(on_gpu[f"{name}_standard_error"], on_cpu[f"{name}_standard_error"])
            tolerance += Z * error.values
        assert np.all(np.abs(on_gpu[name] - on_cpu[name]).values <= tolerance), name


@pytest.mark.parametrize("workers", [LOCAL, DILOCO], ids=["local", "diloco"])
def test_rounds_of_workers_have_the_closed_mean(workers: sgd.Workers) -> None:
    """|w - w*|^2 of linear students after four rounds at d = 1000."""
    arguments = {"alpha": [2.0], "dimension": 1000, "runs": 1 << 12, "progress": False}
    runs = sgd.simulate(LINEAR, workers, ORIGIN, **arguments)
    U = 2 * runs.excess_risk.values[:, 0]
    error = U.std() / np.sqrt(len(U))
    assert abs(U.mean() - linear_rounds(workers, 4, d=1000)[-1]) < Z * error


def test_stages_have_the_means_of_the_ode() -> None:
    """Two generations of linear students at d = 1000 with weighted labels."""
    algorithm = sgd.OnePassSGD(lr=0.5)
    stages = sgd.model_collapse(LINEAR, algorithm, {"times": [2.0]}, 2, 0.6)
    theory = sgd.stages(sgd.solve_ode, stages, ORIGIN).excess_risk.values[0]
    options = {"dimension": 1000, "runs": 1 << 12, "progress": False}
    excess = sgd.stages(sgd.simulate, stages, ORIGIN, **options).excess_risk
    error = excess.std("run").values / np.sqrt(excess.sizes["run"])
    assert np.all(np.abs(excess.mean("run").values - theory) < Z * error + 3e-3 * theory)


@pytest.mark.parametrize("name", ["momentum", "nesterov"])
def test_updates_on_data_have_the_closed_means(name: str) -> None:
    """DMFT and direct runs of least squares at alpha = 2, from M = 0.2 and Q = 0.5."""
    problem = sgd.TeacherStudent(width=1, teacher_width=1, activation="linear", noise=0.25)
    start = sgd.start(problem, M=[[0.2]], Q=[[0.5]])
    update = getattr(sgd.updates, name)(0.8)
    algorithm = sgd.GradientDescent(lr=0.4, samples_per_dimension=2.0, update=update)
    steps = [5, 12]
    means = least_squares(algorithm, steps, M=0.2, Q=0.5, noise=0.25)
    options = {"steps": steps, "seed": 3, "progress": False}
    theory = sgd.solve_dmft(problem, algorithm, start, paths=1 << 14, replicates=4, **options)
    runs = sgd.simulate(
        problem, algorithm, start, dimension=1000, runs=64, method="direct", **options
    )
    for key, expected in (("M", means.M), ("Q", means.Q), ("train_risk", means.train_risk)):
        error = theory[f"{key}_standard_error"].values.ravel()
        assert np.all(np.abs(theory[key].values.ravel() - expected) < Z * error), key
        values = runs[key].values.reshape(64, -1)
        error = values.std(axis=0) / 8
        gap = np.abs(values.mean(axis=0) - expected)
        assert np.all(gap < Z * error + 0.005 * np.abs(expected)), key


def test_sam_has_one_limit_on_both_devices() -> None:
    """SAM with two gradients per step: DMFT on the GPU and on the CPU within their errors."""
    problem = sgd.TeacherStudent(width=1, teacher_width=1, activation="erf", noise=0.05)
    start = sgd.start(problem, M=[[0.3]], Q=[[0.8]])
    algorithm = sgd.MultiPassSGD(
        lr=1.0, samples_per_dimension=3.0, batch_fraction=0.3, update=sgd.updates.sam(0.4)
    )
    options = {"steps": [5, 10], "paths": 4096, "progress": False}
    on_gpu = sgd.solve_dmft(problem, algorithm, start, **options)
    with jax.default_device(jax.devices("cpu")[0]):
        on_cpu = sgd.solve_dmft(problem, algorithm, start, **options)
    for key in ("M", "Q", "train_risk"):
        error = np.hypot(on_gpu[f"{key}_standard_error"], on_cpu[f"{key}_standard_error"])
        assert np.all(np.abs(on_gpu[key] - on_cpu[key]) < Z * error + 1e-9), key


@pytest.mark.parametrize("method", ["exact", "direct"])
def test_message_passing_follows_its_state_evolution(method: str) -> None:
    """Bayes-optimal AMP of sign labels at d = 1000, both laws; the limit ends at the floor."""
    problem = sgd.TeacherStudent(width=1, activation="linear", labels=sgd.labels.sign())
    algorithm = sgd.AMP(2.0)
    limit = sgd.solve_dmft(problem, algorithm, None, steps=[1, 3, 60], progress=False)
    assert abs(limit.M.values[0, -1].item() - 0.728298174) < 1e-9
    options = {"steps": [1, 3, 12], "dimension": 1000, "runs": 24, "progress": False}
    runs = sgd.simulate(problem, algorithm, None, method=method, **options)
    for key in ("M", "Q"):
        values = runs[key].values.reshape(24, -1)
        error = values.std(axis=0, ddof=1) / np.sqrt(24)
        expected = limit[key].values.ravel()
        # step 12 is at the end up to 1e-4; the bias of order 1/d is a few units
        assert np.all(np.abs(values.mean(axis=0) - expected) < Z * error + 6 / 1000), key
        assert np.all(error < 0.01), key
