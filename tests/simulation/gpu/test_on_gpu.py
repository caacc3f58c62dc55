"""The chain's kernel on an NVIDIA GPU: its law for every feature, against the chain without a kernel. Skipped where there is none."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.gpu.chain import KernelChain, exact_chain
from sgdynamics.simulation.running import run
from tests.simulation.gpu.cases import CASES, made
from tests.simulation.gpu.test_data_gradients import CASES as FIXED
from tests.simulation.gpu.test_data_gradients import made as fixed

pytestmark = pytest.mark.skipif(
    "NVIDIA" not in jax.local_devices()[0].device_kind, reason="needs an NVIDIA GPU"
)
RUNS = 1 << 16
STEPS = {30: 60, 1_000_000: 4000}


@pytest.mark.parametrize("dimension", STEPS)
@pytest.mark.parametrize("name", CASES)
def test_the_law_of_the_chain(name: str, dimension: int) -> None:
    """Means, covariances, and Kolmogorov's distance of overlaps and heads. Each p-value is below 1e-8 by chance with that chance, of
    about a hundred a case: 1e-6. A spread that is off by 5% is 6 standard errors, or 3 where its law has long tails."""
    kernel = made(name, dimension, runs=RUNS)
    plain = ExactChain(*kernel.setting)
    values = []
    for chain, seed in ((kernel, 0), (plain, 1)):
        found, diverged = run(chain, RUNS, np.array([STEPS[dimension]]), seed, "", False)
        assert np.all(diverged < 0)
        values.append(
            np.concatenate([found[key].reshape(RUNS, -1) for key in ("M", "Q", "a")], axis=1)
        )
    moving = values[1].std(axis=0) > 1e-9  # but for rounding, rows on the sphere have one length
    one, other = (value[:, moving] for value in values)
    # numbers that are there twice, as Q is, count once
    _, places = np.unique(one[0], return_index=True)
    one, other = one[:, places], other[:, places]
    scaled = [(value - value.mean(axis=0)) / other.std(axis=0) for value in (one, other)]
    for column in range(one.shape[1]):
        assert stats.ks_2samp(one[:, column], other[:, column]).pvalue > 1e-8
        assert stats.ttest_ind(one[:, column], other[:, column], equal_var=False).pvalue > 1e-8
        for row in range(column + 1):
            products = [value[:, column] * value[:, row] for value in scaled]
            assert stats.ttest_ind(*products, equal_var=False).pvalue > 1e-8


def test_what_runs_where() -> None:
    problem, algorithm, given = CASES["erf"]()
    begin = sgd.start(problem, **given)
    assert (
        sgd.simulate(problem, algorithm, begin, steps=[10], dimension=100, runs=4).attrs["engine"]
        == "gpu_kernel"
    )
    wide = sgd.TeacherStudent(width=40)
    found = sgd.simulate(
        wide,
        sgd.OnePassSGD(lr=0.1),
        sgd.start(wide, M=np.full((40, 1), 0.1), Q=np.eye(40)),
        steps=[10],
        dimension=100,
    )
    assert "no kernel" in found.attrs["engine"]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", [one for one in FIXED if one != "diverging"])
def test_one_read_of_a_data_set_is_two_products(name: str, dtype: str) -> None:
    """20 steps of the kernel and of two products, on the same data, d = 1000 and a last chunk that is not full: pathwise."""
    results = []
    for kernel in (True, False):
        simulator = fixed(name, dtype, "", 1000)
        assert simulator.engine == "gpu_kernel (one read per step)"
        if not kernel:
            simulator.options = simulator.options._replace(kernel="")
        results.append(run(simulator, 3, np.array([0, 1, 20]), 5, "", False)[0])
    relative, absolute = (1e-10, 1e-12) if dtype == "float64" else (1e-3, 1e-5)
    for key, value in results[1].items():
        np.testing.assert_allclose(results[0][key], value, rtol=relative, atol=absolute)


def test_exit_times() -> None:
    """Kernel and chain without it, 2^14 runs: one law of exit times (Kolmogorov, 1e-6)."""
    problem = sgd.TeacherStudent(width=1)
    begin = sgd.start(problem, M=[[0.1]], Q=[[1.0]])
    setting = {
        "threshold": 0.1,
        "method": "exact",
        "dimension": 300,
        "runs": 1 << 14,
        "max_time": 60.0,
    }
    one = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.05), begin, seed=0, **setting)
    assert isinstance(
        exact_chain(problem, sgd.OnePassSGD(lr=0.05), begin, 300, np.array([300])), KernelChain
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            KernelChain, "with_observation", lambda self, *given: ExactChain(*self.setting)
        )
        other = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.05), begin, seed=1, **setting)
    assert one.left == other.left == 1 << 14
    assert stats.ks_2samp(one.times, other.times).pvalue > 1e-6


def test_the_same_numbers_however_it_is_cut() -> None:
    chain = made("erf", 100, runs=200)
    often, _ = run(chain, 200, np.array([0, 1, 63, 70, 500]), 3, "", False)
    once, _ = run(made("erf", 100, runs=77), 77, np.array([0, 500]), 3, "", False)
    for name in once:
        # the products of rows are summed in another order for another number of runs
        np.testing.assert_allclose(often[name][:77, -1], once[name][:, -1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["square", "erf", "own", "sphere", "head", "blocks", "momentum"])
def test_the_same_numbers_wherever_they_are_made(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: random numbers made where they are used, and a block of steps ahead with several steps in the loop."""
    found = []
    for ahead, saved in ((0, [0, 3001]), (256, [0, 3001]), (256, [0, 1, 63, 70, 1000, 3001])):
        monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs, ahead=ahead: ahead)
        found.append(run(made(name, 1000, runs=100), 100, np.array(saved), 0, "", False)[0])
    for key, value in found[0].items():
        for other in found[1:]:
            np.testing.assert_array_equal(other[key][:, -1], value[:, -1])
