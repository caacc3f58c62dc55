"""Smoke tests: one small call of every solver, and every GPU kernel interpreted on a CPU.

`make smoke` runs them in about a minute. The workflows run them on Linux, macOS and Windows, and
every night with the newest versions of JAX and the other dependencies.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base.precision import float64
from sgdynamics.cli.main import main
from sgdynamics.simulation.gpu import chain_kernel, data_gradients, draws, pallas
from sgdynamics.simulation.gpu.chain import KernelChain
from sgdynamics.simulation.running import run
from tests.conftest import Z
from tests.simulation.gpu.cases import make_chain
from tests.simulation.gpu.test_data_gradients import make_simulator

ROOT = Path(__file__).parents[2]
KERNEL_MODULES = (chain_kernel, draws, data_gradients)
PROBLEM = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1)
ALGORITHM = sgd.OnePassSGD(lr=0.5)
ALPHA = [0.0, 1.0, 2.0]


def random_start(dimension: int = 200) -> sgd.Start:
    return sgd.random_start(PROBLEM, dimension=dimension, seed=0)


@pytest.mark.slow
def test_theory_agrees_with_exact_and_direct_runs() -> None:
    start = random_start()
    theory = sgd.solve_ode(PROBLEM, ALGORITHM, start, alpha=ALPHA, dimension=200)
    for method in ("exact", "direct"):
        runs = sgd.simulate(
            PROBLEM, ALGORITHM, start, alpha=ALPHA, dimension=200, runs=50, method=method
        )
        z = sgd.compare(theory, runs)["risk_z"].values
        assert np.abs(z).max() < Z, method
    paths = sgd.solve_sde(PROBLEM, ALGORITHM, start, alpha=ALPHA, dimension=200, runs=50)
    assert np.abs(sgd.compare(theory, paths)["risk_z"].values).max() < Z


@pytest.mark.slow
def test_effective_process_of_a_data_set() -> None:
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    algorithm = sgd.GradientDescent(lr=0.2, samples_per_dimension=3.0)
    start = sgd.start(problem, M=[[0.0]], Q=[[1.0]])
    theory = sgd.solve_dmft(problem, algorithm, start, steps=[0, 2, 4])
    runs = sgd.simulate(problem, algorithm, start, steps=[0, 2, 4], dimension=300, runs=20)
    np.testing.assert_allclose(
        theory.risk.values.mean(0), runs.risk.values.mean(0), rtol=0.1, err_msg="DMFT"
    )


@pytest.mark.slow
def test_results_are_written_and_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = sgd.solve_ode(PROBLEM, ALGORITHM, random_start(), alpha=ALPHA)
    sgd.save(result, tmp_path / "result.nc")
    np.testing.assert_array_equal(sgd.load(tmp_path / "result.nc").risk, result.risk)
    fig, _ = sgd.plot.risk(result)
    fig.savefig(tmp_path / "result.png")
    assert (tmp_path / "result.png").stat().st_size > 5000
    monkeypatch.setattr(sys, "argv", ["sgdynamics", "info", "--json"])
    with contextlib.suppress(SystemExit):
        main()
    assert sgd.__version__ in capsys.readouterr().out


def count_kernels(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Numbers of kernels built from now on, by the module that builds them."""
    counts = {module.__name__: 0 for module in KERNEL_MODULES}

    def counting(module: Any, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[module.__name__] += 1
            return original(*args, **kwargs)

        return call

    for module in KERNEL_MODULES:
        monkeypatch.setattr(module, "call_kernel", counting(module, module.call_kernel))
    return counts


def test_the_modules_with_kernels_are_known() -> None:
    """A new kernel is added to KERNEL_MODULES, and with it to the smoke tests."""
    package = ROOT / "src/sgdynamics"
    calls = re.compile(r"^\s+(?:return )?(?:\w+ = )?call_kernel\(", flags=re.MULTILINE)
    modules = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts)
        for path in package.rglob("*.py")
        if calls.search(path.read_text(encoding="utf-8"))
    }
    assert modules == {module.__name__ for module in KERNEL_MODULES}


@pytest.mark.slow
@float64
def test_kernels_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of the chain, of its random numbers and of data sets run on a CPU."""
    counts = count_kernels(monkeypatch)
    results = []
    for ahead in (0, 64):
        monkeypatch.setattr(KernelChain, "steps_ahead", lambda self, runs, ahead=ahead: ahead)
        chain = make_chain("square", 40, runs=40, interpret=True)
        values, diverged = run(chain, 40, np.array([0, 70]), 3, "", False)
        assert np.all(diverged < 0)
        results.append(values["M"][:, -1])
    # Drawing ahead changes the rounding on a CPU, and nothing else.
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)
    assert np.std(results[0]) > 0
    if pallas.triton is None:
        pytest.skip("jaxlib for Windows has no Triton, whose loads the kernels of data sets use")

    simulator = make_simulator("committee", "float64", "interpret")
    state, data = simulator.initial(np.arange(3)), simulator.data
    fields = jax.jit(data_gradients.fields, static_argnums=0)("interpret", data.inputs, state.rows)
    expected = np.einsum("rnd,rpd->rnp", data.inputs, state.rows)
    np.testing.assert_allclose(fields, expected, rtol=1e-12, atol=1e-12)
    assert all(counts.values()), counts
