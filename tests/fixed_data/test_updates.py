"""Updates on a fixed data set: closed least-squares means, the exact law, DMFT and direct runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import psi

import sgdynamics as sgd
from sgdynamics import updates as U
from sgdynamics.fixed_data.setup import Setup
from sgdynamics.papers.optimisers import least_squares
from sgdynamics.results.records import algorithm_from
from tests.conftest import Z

# Closed values of heavy ball and Nesterov at beta 0.8 from M 0.2, Q 0.5: alpha, lr, and for the
# label noise 0 and 0.25 the risk and train risk at steps 5 and 20.
HEAVY_BALL = [
    (0.5, 0.2, (0.320088637, 0.100186522, 0.276692420, 0.003455032)),
    (2.0, 0.4, (0.090177275, 0.100186522, 0.003384839, 0.003455032)),
    (5.0, 0.6, (0.111705992, 0.114429060, 0.003544861, 0.003681539)),
]
HEAVY_BALL_NOISE = [
    (0.5, 0.2, (0.584506007, 0.120681357, 0.528681236, 0.004224314)),
    (2.0, 0.4, (0.354594644, 0.172933939, 0.255373656, 0.066339673)),
    (5.0, 0.6, (0.291540866, 0.219506605, 0.160157383, 0.103842669)),
]
NESTEROV = [
    (0.5, 0.2, (0.284285869, 0.008568698, 0.275082430, 0.000029958)),
    (2.0, 0.4, (0.018571737, 0.008568698, 0.000164859, 0.000029958)),
    (5.0, 0.6, (0.010106021, 0.005540792, 0.000003049, 0.000001134)),
]
NESTEROV_NOISE = [
    (0.5, 0.2, (0.529989670, 0.012789547, 0.526962996, 0.000067426)),
    (2.0, 0.4, (0.264275539, 0.073179123, 0.252045425, 0.062548692)),
    (5.0, 0.6, (0.174937856, 0.106000157, 0.156309018, 0.100001273)),
]
# The same at alpha 2, noise 0.25, lr 0.4.
OTHERS = {
    "average": (U.average(0.1), (0.436222622, 0.345116537, 0.217086677, 0.081389380)),
    "decay inside": (
        U.weight_decay(0.1, of=U.momentum(0.8), decoupled=False),
        (0.311875425, 0.161966408, 0.215794662, 0.073852723),
    ),
    "decoupled decay": (
        U.weight_decay(0.1, of=U.momentum(0.8)),
        (0.320514911, 0.150772495, 0.235876922, 0.064660263),
    ),
}


def closed_means(update, alpha, lr, noise, **options):
    algorithm = sgd.GradientDescent(lr, alpha, update=update, **options)
    means = least_squares(algorithm, [5, 20], M=0.2, Q=0.5, noise=noise)
    return np.stack([means.risk, means.train_risk], axis=1).ravel()


@pytest.mark.parametrize(
    ("update", "cases", "noise"),
    [
        (U.momentum(0.8), HEAVY_BALL, 0.0),
        (U.momentum(0.8), HEAVY_BALL_NOISE, 0.25),
        (U.nesterov(0.8), NESTEROV, 0.0),
        (U.nesterov(0.8), NESTEROV_NOISE, 0.25),
    ],
)
def test_closed_least_squares_values(update, cases, noise):
    for alpha, lr, expected in cases:
        assert np.allclose(closed_means(update, alpha, lr, noise), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", OTHERS)
def test_closed_values_of_other_updates(name):
    update, expected = OTHERS[name]
    assert np.allclose(closed_means(update, 2.0, 0.4, 0.25), expected, rtol=0, atol=1e-8)


def make_schedules(lr, rate, factor=lambda number: number / (number + 3)):
    """lr/(1 + rate k) and the beta of step k as functions of t, the sum of the steps."""
    number = np.arange(64)
    t = lr / rate * (psi(number + 1 / rate) - psi(1 / rate))

    def interpolate(values):
        return lambda time: jnp.interp(time, jnp.asarray(t), jnp.asarray(values))

    return interpolate(lr / (1 + rate * number)), interpolate(factor(number))


def test_closed_values_of_schedules():
    lr, beta = make_schedules(0.4, 0.05)
    expected = (0.230130508, 0.077416364, 0.254677623, 0.062725153)
    assert np.allclose(closed_means(U.momentum(beta), 2.0, lr, 0.25), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("update", [U.sam(0.1), U.clipped(1.0), U.inertia(0.5, 0.1)])
def test_updates_without_closed_means_are_rejected(update):
    with pytest.raises(ValueError, match="update = "):
        least_squares(sgd.GradientDescent(0.1, update=update), [1], M=0.2, Q=0.5)


ERF = sgd.TeacherStudent(width=1, teacher_width=1, activation="erf", noise=0.05)
ERF_START = sgd.start(ERF, M=[[0.3]], Q=[[0.8]])
LINEAR = sgd.TeacherStudent(width=1, teacher_width=1, activation="linear", noise=0.25)
LINEAR_START = sgd.start(LINEAR, M=[[0.2]], Q=[[0.5]])


def values(result):
    """M, Q and train risk (run, ...)."""
    arrays = (result[name].values for name in ("M", "Q", "train_risk"))
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


def assert_same_law(problem, algorithm, start, steps, runs, dimension=40):
    """Means, second moments and mixed moments of the exact law and of direct runs agree."""
    arguments = {"steps": steps, "dimension": dimension, "runs": runs, "progress": False}
    samples = []
    for method, seed in (("exact", 3), ("direct", 4)):
        result = sgd.simulate(problem, algorithm, start, method=method, seed=seed, **arguments)
        x = values(result)
        samples.append(np.concatenate([x, x**2], axis=1))
    exact, direct = samples
    error = np.sqrt((exact.var(axis=0) + direct.var(axis=0)) / runs)
    z = (exact.mean(axis=0) - direct.mean(axis=0)) / np.maximum(error, 1e-12)
    assert np.all(np.abs(z) < Z), z


@pytest.mark.slow
def test_exact_law_of_momentum_is_that_of_direct_runs():
    algorithm = sgd.MultiPassSGD(0.8, 3.0, batch_fraction=0.5, update=U.momentum(0.7))
    assert_same_law(LINEAR, algorithm, LINEAR_START, [4], 1000, dimension=20)


E2 = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.05)
E2_START = sgd.start(E2, M=[[0.3, 0.1], [0.05, 0.4]], Q=[[0.8, 0.2], [0.2, 0.9]])
TRAINED = sgd.TeacherStudent(width=2, teacher_width=1, activation="erf", head="trained", noise=0.05)
TRAINED_START = sgd.start(TRAINED, M=[[0.3], [0.1]], Q=[[0.8, 0.2], [0.2, 0.9]], a=[1.0, 0.7])


def penalised_loss(fields, signals, head, noise_draw, overlaps):
    output, label = (jax.scipy.special.erf(field[0] / jnp.sqrt(2.0)) for field in (fields, signals))
    error = output - label - jnp.sqrt(0.05) * noise_draw
    return error**2 / 2 + 0.1 * (overlaps.Q[0, 0] - 1) ** 2


PENALISED = sgd.Problem(penalised_loss, width=1, signals=1)
PENALISED_START = sgd.start(PENALISED, M=[[0.3]], Q=[[0.8]])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "start", "algorithm"),
    [
        (ERF, ERF_START, sgd.GradientDescent(0.8, 3.0, update=U.momentum(0.7))),
        (ERF, ERF_START, sgd.GradientDescent(1.0, 3.0, update=U.sam(0.4))),
        (ERF, ERF_START, sgd.GradientDescent(0.8, 3.0, update=U.schedule_free(0.5))),
        (ERF, ERF_START, sgd.GradientDescent(0.8, 3.0, update=U.gradient_noise(0.3))),
        (ERF, ERF_START, sgd.GradientDescent(0.5, 3.0, update=U.inertia(0.5, 0.1))),
        (ERF, ERF_START, sgd.Langevin(0.8, 3.0, temperature=0.05, update=U.momentum(0.5))),
        (ERF, ERF_START, sgd.MultiPassSGD(1.0, 3.0, batch_fraction=0.3, update=U.sam(0.4))),
        (E2, E2_START, sgd.GradientDescent(0.1, 3.0, update=U.muon(beta=0.5))),
        (E2, E2_START, sgd.GradientDescent(0.1, 3.0, update=U.row_adam(2, memory=0.1, beta=0.8))),
        (TRAINED, TRAINED_START, sgd.GradientDescent(0.4, 3.0, update=U.nesterov(0.6))),
        (TRAINED, TRAINED_START, sgd.GradientDescent(0.4, 3.0, update=U.clipped(0.2))),
        (PENALISED, PENALISED_START, sgd.GradientDescent(0.5, 3.0, update=U.momentum(0.5))),
        (PENALISED, PENALISED_START, sgd.MultiPassSGD(0.5, 3.0, batch_fraction=0.5)),
    ],
)
def test_exact_law_is_that_of_direct_runs(problem, start, algorithm):
    assert_same_law(problem, algorithm, start, [3, 8], 3000)


def assert_close_to(result, expected, errors):
    """M, Q and train risk of the first entries, within the joint errors."""
    names = ("M", "Q", "train_risk")
    limits = np.array([result[name].values[0].reshape(len(result.t), -1)[:, 0] for name in names])
    own = [result[f"{name}_standard_error"].values[0] for name in names]
    own = np.array([error.reshape(len(result.t), -1)[:, 0] for error in own])
    z = (limits - expected) / np.hypot(own, errors)
    assert np.all(np.abs(z) < Z), (limits, z)
    # The errors are small enough for a comparison.
    assert np.all(own <= np.maximum(0.1 * np.abs(expected), 3 * np.asarray(errors))), own


@pytest.mark.slow
def test_limit_of_momentum_has_the_closed_means():
    algorithm = sgd.GradientDescent(0.4, 2.0, update=U.momentum(0.8))
    arguments = {"steps": [5, 12], "paths": 4096, "replicates": 4, "seed": 5, "progress": False}
    result = sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, **arguments)
    means = least_squares(algorithm, [5, 12], M=0.2, Q=0.5, noise=0.25)
    assert_close_to(result, np.array([means.M, means.Q, means.train_risk]), 0.0)


@pytest.mark.slow
def test_sets_of_few_paths_have_the_closed_mean_of_q():
    """128 sets of 256 paths: the bias of Q is below 0.8%; lengths d - K and n - K give -1.3%."""
    algorithm = sgd.GradientDescent(0.4, 2.0, update=U.momentum(0.8))
    options = {"steps": [12], "paths": 128 * 256, "replicates": 128, "seed": 5}
    result = sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, progress=False, **options)
    Q = least_squares(algorithm, [12], M=0.2, Q=0.5, noise=0.25).Q[0]
    assert abs(result.Q.values.ravel()[0] / Q - 1) < 0.008


PHASE = sgd.TeacherStudent(width=1, teacher_width=1, activation="square")
PHASE_START = sgd.start(PHASE, M=[[0.5]], Q=[[1.0]])
LR, BETA = make_schedules(1.0, 0.05)
# Conditioning of the formula file at 8190 paths: M, Q and train at two steps, with their errors.
NETWORKS = {
    "heavy ball": (
        (ERF, ERF_START, sgd.GradientDescent(0.8, 3.0, update=U.momentum(0.7))),
        [10, 40],
        [[1.337, 1.037], [1.990, 1.164], [0.0238, 0.0166]],
        [[0.005, 0.002], [0.014, 0.005], [0.0001, 0.0001]],
    ),
    "heavy ball, half batches": (
        (ERF, ERF_START, sgd.MultiPassSGD(0.8, 3.0, batch_fraction=0.5, update=U.momentum(0.7))),
        [10, 40],
        [[1.456, 1.072], [2.438, 1.264], [0.0342, 0.0199]],
        [[0.005, 0.003], [0.016, 0.007], [0.0001, 0.0001]],
    ),
    "phase retrieval": (
        (PHASE, PHASE_START, sgd.GradientDescent(0.01, 3.0, update=U.momentum(0.8))),
        [20, 40],
        [[0.827, 0.938], [0.865, 0.933], [0.120, 0.0191]],
        [[0.002, 0.001], [0.001, 0.001], [0.002, 0.0006]],
    ),
    "phase retrieval, half batches": (
        (
            PHASE,
            PHASE_START,
            sgd.MultiPassSGD(0.01, 3.0, batch_fraction=0.5, update=U.momentum(0.8)),
        ),
        [20, 40],
        [[0.817, 0.932], [0.859, 0.930], [0.141, 0.026]],
        [[0.003, 0.002], [0.002, 0.001], [0.003, 0.002]],
    ),
    "Nesterov": (
        (E2, E2_START, sgd.GradientDescent(1.5, 3.0, update=U.nesterov(0.8))),
        [10, 40],
        [[0.782, 0.911], [1.458, 2.469], [0.0152, 0.0084]],
        [[0.002, 0.005], [0.007, 0.018], [0.0001, 0.0001]],
    ),
    "SAM": (
        (ERF, ERF_START, sgd.GradientDescent(1.0, 3.0, update=U.sam(0.4))),
        [10, 40],
        [[1.121, 1.354], [1.415, 2.010], [0.0270, 0.0255]],
        [[0.002, 0.004], [0.004, 0.009], [0.0001, 0.0001]],
    ),
    "average of batches": (
        (ERF, ERF_START, sgd.MultiPassSGD(1.0, 3.0, batch_fraction=0.3, update=U.average(0.1))),
        [10, 40],
        [[0.661, 1.006], [0.676, 1.096], [0.0609, 0.0174]],
        [[0.001, 0.002], [0.001, 0.004], [0.0002, 0.0001]],
    ),
    "schedules and decay": (
        (
            ERF,
            ERF_START,
            sgd.GradientDescent(LR, 3.0, update=U.weight_decay(0.05, of=U.momentum(BETA))),
        ),
        [10, 40],
        [[0.891, 0.986], [0.856, 1.048], [0.0178, 0.0167]],
        [[0.002, 0.002], [0.004, 0.005], [0.0001, 0.0001]],
    ),
    "Muon": (
        (E2, E2_START, sgd.GradientDescent(0.05, 3.0, update=U.muon(beta=0.5))),
        [10, 40],
        [[0.475, 0.840], [0.936, 2.095], [0.0451, 0.0095]],
        [[0.002, 0.005], [0.003, 0.013], [0.0002, 0.0001]],
    ),
    "row Adam": (
        (E2, E2_START, sgd.GradientDescent(0.05, 3.0, update=U.row_adam(2, memory=0.1, beta=0.8))),
        [10, 40],
        [[0.481, 0.648], [0.748, 0.949], [0.0384, 0.0153]],
        [[0.001, 0.002], [0.001, 0.003], [0.0002, 0.0001]],
    ),
    "penalty on Q": (
        (PENALISED, PENALISED_START, sgd.GradientDescent(0.5, 3.0, update=U.momentum(0.5))),
        [10, 40],
        [[0.941, 0.970], [0.988, 1.013], [0.0198, 0.0168]],
        [[0.001, 0.001], [0.001, 0.001], [0.0001, 0.0001]],
    ),
    "inertia": (
        (ERF, ERF_START, sgd.GradientDescent(0.5, 3.0, update=U.inertia(0.5, 0.02))),
        [10, 40],
        [[1.087, 1.162], [1.445, 1.592], [0.0364, 0.0279]],
        [[0.003, 0.006], [0.007, 0.014], [0.0001, 0.0002]],
    ),
}


# The overlap M_12 of the cases with two units, with its errors.
SECOND_OVERLAPS = {
    "Nesterov": ([0.349, 0.393], [0.003, 0.005]),
    "Muon": ([0.160, 0.375], [0.001, 0.005]),
    "row Adam": ([0.224, 0.306], [0.001, 0.002]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_limit_of_networks(name):
    (problem, start, algorithm), steps, expected, errors = NETWORKS[name]
    arguments = {"steps": steps, "paths": 8192, "replicates": 4, "seed": 7, "progress": False}
    result = sgd.solve_dmft(problem, algorithm, start, **arguments)
    assert_close_to(result, np.array(expected), np.array(errors))
    if name in SECOND_OVERLAPS:
        second, second_errors = SECOND_OVERLAPS[name]
        own = result.M_standard_error.values[0, :, 0, 1]
        z = (result.M.values[0, :, 0, 1] - second) / np.hypot(own, second_errors)
        assert np.all(np.abs(z) < Z), z


@pytest.mark.parametrize(
    ("update", "passes"),
    [
        (U.momentum(0.8), 1),
        (U.nesterov(0.8), 1),
        (U.average(0.1), 1),
        (U.clipped(1.0), 1),
        pytest.param(U.muon(beta=0.5), 1, marks=pytest.mark.slow),
        pytest.param(U.row_adam(2, memory=0.1, beta=0.8), 1, marks=pytest.mark.slow),
        (U.sam(0.4), 2),
    ],
    ids=str,
)
def test_a_step_takes_one_pass_for_each_of_its_gradients(update, passes):
    """SAM evaluates two gradients, of which each takes a pass over the paths; all others one."""
    algorithm = sgd.GradientDescent(0.1, 3.0, update=update)
    assert Setup.from_algorithm(E2.structure, algorithm).passes == passes


def loop_step(state, gradient, lr, D, number):
    def move(_, shift):
        return shift - lr / D * gradient(state["weights"], shift)

    return {"weights": jax.lax.fori_loop(0, 2, move, jnp.zeros_like(state["weights"]))}


@pytest.mark.slow
def test_a_compiled_loop_over_gradients_needs_direct_runs():
    algorithm = sgd.GradientDescent(0.1, 2.0, update=U.own(loop_step))
    with pytest.raises(ValueError, match="compiled loop"):
        sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, steps=[1])
    with pytest.raises(ValueError, match="compiled loop"):
        sgd.simulate(LINEAR, algorithm, LINEAR_START, steps=[1], dimension=20)
    arguments = {"steps": [1], "dimension": 20, "method": "direct"}
    twice = sgd.simulate(LINEAR, algorithm, LINEAR_START, **arguments)
    plain = sgd.GradientDescent(0.1, 2.0)
    arguments["steps"] = [2]
    assert np.allclose(twice.M, sgd.simulate(LINEAR, plain, LINEAR_START, **arguments).M)


def test_updates_of_each_coordinate_have_direct_runs_only():
    algorithm = sgd.GradientDescent(0.1, 2.0, update=U.adam(memory=0.1))
    with pytest.raises(ValueError, match="commute with rotations"):
        sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, steps=[1])
    with pytest.raises(ValueError, match="commute with rotations"):
        sgd.simulate(LINEAR, algorithm, LINEAR_START, steps=[1], dimension=20)
    arguments = {"steps": [0, 10], "dimension": 20, "runs": 4, "method": "direct"}
    with pytest.raises(ValueError, match="shared_data"):
        sgd.simulate(LINEAR, algorithm, LINEAR_START, shared_data=True, **arguments)
    result = sgd.simulate(LINEAR, algorithm, LINEAR_START, **arguments)
    assert np.allclose(result.M[:, 0], 0.2)
    assert np.allclose(result.Q[:, 0], 0.5)
    assert np.all(result.train_risk[:, 1] < result.train_risk[:, 0])


@pytest.mark.parametrize(
    ("algorithm", "match"),
    [
        (sgd.GradientDescent(0.1, update=U.momentum(memory=1.5)), "less than one"),
        (sgd.GradientDescent(0.1, update=U.clipped(1.0, over="sample")), "one sample"),
        (sgd.Langevin(0.1, temperature=0.1, update=U.inertia(0.5, 0.1)), "thermal noise"),
        (sgd.Langevin(0.1, temperature=0.1, update=U.average(0.1)), "thermal noise"),
        (sgd.GradientDescent(0.1, update=U.row_adam(2, memory=0.1)), "has 1 units"),
    ],
)
def test_updates_that_do_not_suit_are_rejected(algorithm, match):
    with pytest.raises(ValueError, match=match):
        sgd.simulate(LINEAR, algorithm, LINEAR_START, steps=[1], dimension=20)


def test_an_update_is_stored_with_its_algorithm():
    algorithm = sgd.MultiPassSGD(0.1, 2.0, update=U.weight_decay(0.1, of=U.momentum(0.5)))
    assert algorithm_from(algorithm.describe()).describe() == algorithm.describe()
    assert "update" not in sgd.GradientDescent().describe()


@pytest.mark.slow
def test_epochs_with_a_slow_velocity():
    """Epochs of the formula file: M after 1, 2 and 4 epochs, in direct runs at d = 400."""
    algorithm = sgd.EpochSGD(1.5, 3.0, update=U.momentum(memory=2.0))
    options = {"cells": 48, "paths": 8192, "seed": 2, "progress": False}
    result = sgd.solve_dmft(ERF, algorithm, ERF_START, alpha=[3.0, 6.0, 12.0], **options)
    own = result.M_standard_error.values.ravel()
    z = (result.M.values.ravel() - [0.911, 0.999, 1.027]) / np.hypot(own, 0.003)
    assert np.all(np.abs(z) < Z), z
    assert np.all(own < 0.02)


def test_limits_of_epochs_that_are_not_known_are_rejected():
    for update in (U.clipped(1.0), U.average(1.0), U.sam(reach=0.3)):
        algorithm = sgd.EpochSGD(0.5, 2.0, update=update)
        with pytest.raises(ValueError, match="limit of epochs"):
            sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, alpha=[1.0])


def test_a_fixed_factor_in_epochs_is_a_larger_rate():
    algorithm = sgd.EpochSGD(0.1, 2.0, update=U.momentum(0.75))
    limit = algorithm.in_limit()
    assert limit.update is None
    assert limit.lr == pytest.approx(0.4)


@pytest.mark.slow
def test_two_times_of_momentum():
    """At beta = 0 C and R are those of plain steps; R(t, 0) of a linear student is closed."""
    options = {"steps": [0, 3], "paths": 1024, "two_time": True, "progress": False}

    def solve(update):
        algorithm = sgd.GradientDescent(0.4, 2.0, update=update)
        return sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, **options)

    plain, without_memory, momentum = solve(None), solve(U.momentum(0.0)), solve(U.momentum(0.8))
    for name in ("C", "R", "M", "train_risk"):
        assert np.allclose(plain[name], without_memory[name], rtol=0, atol=1e-9), name
    algorithm = sgd.GradientDescent(0.4, 2.0, update=U.momentum(0.8))
    means = least_squares(algorithm, [0, 3], M=0.2, Q=0.5)
    expected = (means.M - 1) / (0.2 - 1)
    response = momentum["R"].values.squeeze()[:, 0]
    error = np.maximum(momentum["R_standard_error"].values.squeeze()[:, 0], 1e-3)
    assert np.all(np.abs(response - expected) < Z * error)


@pytest.mark.slow
def test_bounded_memory_with_momentum():
    algorithm = sgd.MultiPassSGD(0.4, 3.0, batch_fraction=0.5, update=U.momentum(0.7))
    options = {"steps": [40], "paths": 4096, "seed": 3, "progress": False}
    full = sgd.solve_dmft(ERF, algorithm, ERF_START, **options)
    method = sgd.DMFT(memory_directions=32)
    bounded = sgd.solve_dmft(ERF, algorithm, ERF_START, method=method, **options)
    for name in ("M", "Q", "train_risk"):
        gap = np.abs(full[name] - bounded[name]).values
        errors = [result[f"{name}_standard_error"].values for result in (full, bounded)]
        assert np.all(gap < Z * np.hypot(*errors)), name


# Questions about trajectories of updates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("update", "lr", "overlap"),
    [(U.momentum(0.7), 0.01, 0.3), (U.sam(0.1), 0.04, 0.5)],
    ids=["momentum", "sam"],
)
def test_exit_times_of_theory_and_runs(update, lr, overlap):
    """The mean exit time of direct runs at d = 300 is that of DMFT, up to their errors."""
    problem = sgd.TeacherStudent(width=1, teacher_width=1, activation="square")
    start = sgd.start(problem, M=[[overlap]], Q=[[1.0]])
    algorithm = sgd.GradientDescent(lr, 4.0, update=update)
    options = {"threshold": 0.5, "max_time": 2.0, "progress": False}
    theory = sgd.exit_time(problem, algorithm, start, method="dmft", **options)
    runs = sgd.exit_time(
        problem, algorithm, start, method="direct", dimension=300, runs=60, seed=2, **options
    )
    assert np.all(np.isfinite(runs.times))
    error = np.hypot(runs.times.std() / np.sqrt(len(runs.times)), theory.errors[0])
    # An exit is observed at a step in runs, and between steps in DMFT.
    slack = lr + 10 / 300 * theory.times[0]
    assert abs(runs.times.mean() - theory.times[0]) < Z * error + slack


def test_exit_times_refuse_coordinatewise_updates_in_theory():
    algorithm = sgd.GradientDescent(0.1, 2.0, update=U.sign())
    with pytest.raises(ValueError, match=r"^update = .*commute with rotations"):
        sgd.exit_time(LINEAR, algorithm, LINEAR_START, method="dmft")


@pytest.mark.slow
def test_early_stopping_of_momentum():
    """The minimum of the closed mean risk, which heavy ball reaches before gradient descent."""
    times = []
    for update in (None, U.momentum(0.6)):
        algorithm = sgd.GradientDescent(0.2, 1.5, update=update)
        steps = np.arange(0, 31)
        result = sgd.solve_dmft(
            LINEAR, algorithm, LINEAR_START, steps=steps, paths=16384, progress=False
        )
        stopping = sgd.early_stopping(result)
        risk = least_squares(algorithm, steps, M=0.2, Q=0.5, noise=0.25).risk
        # The interval of the save points around the minimum contains that of the closed risk.
        best = 0.2 * int(np.argmin(risk))
        assert stopping.earliest[0] <= best <= stopping.latest[0]
        assert abs(stopping.risk[0] - risk.min()) < Z * stopping.risk_standard_error[0] + 1e-3
        times.append(best)
    assert times[1] < times[0]


@pytest.mark.slow
def test_worth_of_repeats_with_a_slow_velocity():
    """In the first epoch a sample is fresh: its worth is 1."""
    algorithm = sgd.EpochSGD(0.8, 2.0, update=U.momentum(memory=2.0))
    options = {"epochs": 2, "cells": 48, "paths": 16384, "progress": False}
    result = sgd.worth_of_repeats(LINEAR, algorithm, LINEAR_START, **options)
    worth, error = result.worth.values[0], result.worth_standard_error.values[0]
    assert error[0] < 0.05
    assert abs(worth[0] - 1) < Z * error[0]
    assert np.all(np.isfinite(worth))


@pytest.mark.slow
def test_a_sweep_over_a_hyperparameter_on_data():
    algorithm = sgd.GradientDescent(0.4, 2.0, update=U.momentum(0.5))
    options = {"steps": [5], "paths": 1024, "progress": False}
    swept = sgd.sweep(
        "solve_dmft",
        problem=LINEAR,
        algorithm=algorithm,
        start=LINEAR_START,
        over={"algorithm.update.beta": [0.5, 0.8]},
        **options,
    )
    single = sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, **options)
    assert np.allclose(swept.risk.values.ravel()[0], single.risk.values.ravel()[0], rtol=1e-9)
    assert not np.allclose(*swept.risk.values.ravel(), rtol=1e-2)
