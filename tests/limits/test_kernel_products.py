"""Products of a few rows as kernels: against those of NumPy, in interpret mode, and up to the language of the kernels' compiler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.limits import paths
from sgdynamics.limits.kernel_products import combined, summed
from sgdynamics.precision import float64
from tests.simulation.kernel_cases import verified


@pytest.mark.parametrize(
    ("m", "rows", "used", "inputs", "storage"), [(3, 70, 53, 512, "float64"), (1, 5, 0, 64, "float32"), (2, 64, 64, 1024, "float32")]
)
@float64
def test_products_are_those_of_matrices(m: int, rows: int, used: int, inputs: int, storage: str) -> None:
    """Also under two maps, one of them over the count of rows that are in use; what is not in use may hold anything."""
    draws = np.random.default_rng(0)
    known = draws.normal(size=(2, 2, rows, inputs)).astype(storage)
    known[..., used:, :] = np.nan
    one, weights = draws.normal(size=(2, 2, m, rows)), draws.normal(size=(2, 2, m, inputs))
    counts = np.array([used, used // 2])
    maps = [jax.vmap(jax.vmap(lambda x, y, n, f=f: f(x, y, n, interpret=True), (0, 0, None)), (0, 0, 0)) for f in (combined, summed)]
    made, sums = (np.asarray(f(jnp.asarray(x), jnp.asarray(known), jnp.asarray(counts))) for f, x in zip(maps, (one, weights), strict=True))
    for first in range(2):
        n = counts[first]
        part = known[first, :, :n].astype(np.float64)
        np.testing.assert_allclose(made[first], one[first, :, :, :n] @ part, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(sums[first, :, :, :n], weights[first] @ np.swapaxes(part, 1, 2), rtol=1e-12, atol=1e-12)
        assert np.all(sums[first, :, :, n:] == 0)


@float64
def test_the_compiler_of_kernels_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = verified(monkeypatch)
    known, one, weights = jnp.ones((2, 70, 1024)), jnp.ones((2, 3, 70)), jnp.ones((2, 3, 1024))
    both = jax.jit(
        lambda one, weights, known, n: (jax.vmap(combined, (0, 0, None))(one, known, n), jax.vmap(summed, (0, 0, None))(weights, known, n))
    )
    assert "xla.gpu.triton" in both.trace(one, weights, known, 50).lower(lowering_platforms=("cuda",)).as_text()
    assert kernels == [True, True]


@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.slow)])
def test_paths_are_those_of_other_products(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DMFT of multi-pass SGD whose products are these kernels, in interpret mode, beside the sums of a CPU."""
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.05)
    algorithm = sgd.MultiPassSGD(lr=0.3, samples_per_dimension=2.0, batch_fraction=0.5)
    begin, found = sgd.start(problem, M=[[0.5]], Q=[[1.0]]), []
    for mode in ("", "interpret"):
        monkeypatch.setattr(paths, "STREAMED", mode)
        paths.advanced.clear_cache()
        found.append(sgd.solve_dmft(problem, algorithm, begin, steps=[3, 12], paths=512, progress=False, dtype=dtype))
    paths.advanced.clear_cache()
    for name in ("M", "Q", "train_risk"):
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-10 if dtype == "float64" else 1e-5)
    assert float(found[0]["M"][0, -1, 0, 0]) > 0.51
