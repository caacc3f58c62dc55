"""Sign SGD and Adam with teachers of few coordinates: the closed ODE and runs in d dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.results.records import algorithm_from
from tests.conftest import Z

LINEAR = sgd.TeacherStudent(width=1, activation="linear", noise=0.25)
ALPHA = [0.5, 1.0, 2.0]
# u on the axis, and the squared norm of the bulk (issue 48's references, which are exact)
REFERENCES = {
    "sign": (sgd.updates.sign(axes=True), [-0.7576, -0.5761, -0.3331], [0.2541, 0.4048, 0.5351]),
    "adam": (
        sgd.updates.adam(2.0, axes=True),
        [-0.7931, -0.6134, -0.3280],
        [0.2198, 0.3066, 0.3199],
    ),
}


def axis_and_bulk(result):
    """w* - w on the axes, negative, and the squared norm of all other weights."""
    M = result.M.values[:, :, 0]
    return M - 1 / M.shape[-1], result.Q.values[:, :, 0, 0] - (M**2).sum(axis=-1)


@pytest.mark.parametrize("name", REFERENCES)
def test_reference_values(name):
    update, axis, bulk = REFERENCES[name]
    start = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
    algorithm = sgd.OnePassSGD(lr=0.8, update=update)
    result = sgd.solve_ode(LINEAR, algorithm, start, alpha=ALPHA)
    u, B = axis_and_bulk(result)
    assert np.allclose(u[0, :, 0], axis, atol=6e-5)
    assert np.allclose(B[0], bulk, atol=6e-5)
    assert np.allclose(2 * result.excess_risk[0], u[0, :, 0] ** 2 + B[0])
    assert sgd.algorithm_of(result) == algorithm
    assert algorithm_from(algorithm.describe()) == algorithm


def numpy_runs(runs, dimension, steps, seed):
    """Sign SGD in NumPy: a teacher on two axes, from a random bulk of norm 1/2."""
    generator = np.random.default_rng(seed)
    teacher = np.zeros(dimension)
    teacher[:2] = 0.5
    w = 0.5 * generator.standard_normal((runs, dimension)) / np.sqrt(dimension)
    w[:, :2] = [0.3, -0.2]
    for _ in range(steps):
        x = generator.standard_normal((runs, dimension))
        noise = 0.5 * generator.standard_normal(runs)
        error = np.sum((w - teacher) * x, axis=1) - noise
        w -= 0.8 / dimension * np.sign(error[:, None] * x)
    return w[:, :2], np.sum(w[:, 2:] ** 2, axis=1)


def test_two_axes_against_numpy():
    problem = sgd.TeacherStudent(width=1, teacher_width=2, activation="linear", noise=0.25)
    start = sgd.start(problem, M=[[0.3, -0.2]], Q=[[0.09 + 0.04 + 0.25]])
    algorithm = sgd.OnePassSGD(lr=0.8, update=sgd.updates.sign(axes=True))
    result = sgd.solve_ode(problem, algorithm, start, alpha=[1.0])
    M = result.M.values[0, 0, 0]
    bulk = result.Q.values[0, 0, 0, 0] - np.sum(M**2)
    axes, bulk_squares = numpy_runs(200, 200, 200, 0)
    for value, expected in ((axes[:, 0], M[0]), (axes[:, 1], M[1]), (bulk_squares, bulk)):
        error = Z * value.std(ddof=1) / np.sqrt(len(value)) + 2 / 200
        assert abs(value.mean() - expected) < error


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_direct_runs(name):
    update, axis, bulk = REFERENCES[name]
    start = sgd.start(LINEAR, M=[[0.0]], Q=[[0.0]])
    runs = sgd.simulate(
        LINEAR,
        sgd.OnePassSGD(lr=0.8, update=update),
        start,
        alpha=ALPHA,
        dimension=800,
        runs=40,
        method="direct",
        progress=False,
    )
    u, B = axis_and_bulk(runs)
    for values, expected in ((u[..., 0], axis), (B, bulk)):
        # Adam forgets its velocity in 10 steps of 800.
        error = Z * values.std(axis=0, ddof=1) / np.sqrt(40) + 12 / 800
        assert np.all(np.abs(values.mean(axis=0) - expected) < error)


def test_a_start_has_a_random_bulk_beyond_the_axes():
    update = sgd.updates.sign(axes=True)
    algorithm = sgd.OnePassSGD(lr=0.1, update=update)
    start = sgd.start(LINEAR, M=[[0.4]], Q=[[1.0]])
    runs = sgd.simulate(
        LINEAR, algorithm, start, steps=[0, 1], dimension=30, runs=3, method="direct"
    )
    assert np.allclose(runs.M[:, 0, 0, 0], 0.4)
    assert np.allclose(runs.Q[:, 0, 0, 0], 1.0)
    # One step moves the coordinate of the teacher by lr/d.
    assert np.allclose(np.abs(runs.M[:, 1, 0, 0] - 0.4), 0.1 / 30)


def test_unsupported_combinations_raise():
    algorithm = sgd.OnePassSGD(lr=0.1, update=sgd.updates.sign(axes=True))
    start = sgd.start(LINEAR, M=[[0.4]], Q=[[1.0]])
    erf = LINEAR.replace(activation="erf")
    decaying = LINEAR.replace(weight_decay=0.1)
    cases = [
        (erf, algorithm, "axes = True: activation = 'erf'"),
        (decaying, algorithm, "axes = True: weight_decay"),
        (LINEAR, algorithm.replace(batch=2), "batch = 2"),
    ]
    for problem, chosen, message in cases:
        with pytest.raises(ValueError, match=message):
            sgd.solve_ode(problem, chosen, start, times=[1.0])
    with pytest.raises(ValueError, match="axes = 3"):
        sgd.updates.sign(axes=3)  # type: ignore[arg-type]
