"""The ODE: reference trajectories, closed matrix forms, and the mean increment of real steps."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.problems.frames import compressed_rows
from sgdynamics.simulation.direct import DirectSGD, direct_step
from sgdynamics.simulation.running import RunSetting
from sgdynamics.solvers import functional
from sgdynamics.solvers.batch import sampling_errors
from sgdynamics.solvers.ode import prepare_ode
from tests.conftest import S0_M, S0_Q, Z, s0, slow

# Times of the slides, which are t/p of the library.
TIMES = np.array([1.0, 10.0, 100.0])


def erf(noise=1e-3, **options):
    return sgd.TeacherStudent(width=4, teacher_width=2, activation="erf", noise=noise, **options)


@pytest.mark.parametrize(
    ("lr", "options", "expected"),
    [
        (0.0, {}, (0.058478258620, 0.004549293259, 0.001585178642)),
        pytest.param(
            0.1, {}, (0.058647745765, 0.004574356986, 0.001597380325), marks=pytest.mark.slow
        ),
        (1.0, {}, (0.060181598967, 0.004816718887, 0.001714940949)),
        (1.0, {"constraint": "sphere"}, (0.061640683083, 0.004839299689, 0.001982383825)),
    ],
)
def test_reference_trajectories(lr, options, expected):
    problem = erf(**options)
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=lr), s0(problem), times=4 * TIMES)
    np.testing.assert_allclose(result.excess_risk.values[0], expected, rtol=1e-8)
    assert result.attrs["error_integrator"] < 1e-6
    if lr == 1.0 and not options:
        point = result.isel(time=1, run=0)
        assert float(point.M[0, 0]) == pytest.approx(0.591237060997, rel=1e-9)
        assert float(point.Q[0, 0]) == pytest.approx(1.107834904078, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("erf", 0.106349151829),
        ("tanh", 0.126440913468),
        pytest.param("gelu", 0.113027320377, marks=pytest.mark.slow),
        ("relu", 0.111444781522),
    ],
)
def test_reference_risks_at_the_start(name, expected):
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation=name)
    start = s0(problem)
    with jax.enable_x64(True):
        quadrature = functional.quadrature(problem, start)
        risk = jax.jit(partial(functional.risk, problem.structure, quadrature=quadrature))
        initial_risk = risk(problem.parameters, functional.state(start))
    assert float(initial_risk) == pytest.approx(expected, rel=1e-11)
    # One activation is enough for the solver: each would be a program for a single number.
    if name == "tanh":
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.0), start, times=[0.0])
        assert float(result.risk[0, 0]) == pytest.approx(expected, rel=1e-11)
        assert result.attrs["error_quadrature"] < 1e-8


def test_reference_right_hand_side():
    problem = erf()
    rate = rates(problem, s0(problem), 1.0)
    # Rates per unit of the slides' time, which is t/p.
    assert 4 * float(rate["M"][0, 0, 0]) == pytest.approx(0.143275615737, rel=1e-10)
    assert 4 * float(rate["Q"][0, 0, 0]) == pytest.approx(-0.022956323747, rel=1e-9)
    assert 4 * float(rate["Q"][0, 0, 1]) == pytest.approx(-0.048360663719, rel=1e-10)


def rates(problem, start, lr, *, batch=1, **options):
    """The drift at a start."""
    with jax.enable_x64(True):
        drift = jax.jit(partial(functional.drift, problem.structure, batch=batch))
        values = drift(problem.parameters, functional.state(start), lr=lr, **options)
        return {name: np.asarray(value) for name, value in values.items()}


def test_point_A_of_escaping_mediocrity():
    # The paper's t is t/p of the library, gamma = lr, and p = 2.
    M, Q = [[0.3], [-0.2]], [[1, 0.4], [0.4, 0.8]]
    problem = sgd.TeacherStudent(width=2, activation="square", noise=0.5)
    rate = rates(problem, sgd.start(problem, M=M, Q=Q), 0.2)
    np.testing.assert_allclose(2 * rate["M"][0, :, 0], [0.82, -0.76], rtol=1e-12)
    np.testing.assert_allclose(
        2 * rate["Q"][0][[0, 0, 1], [0, 1, 1]], [-1.0712, -2.0208, -0.7392], rtol=1e-12
    )
    trained = sgd.TeacherStudent(width=2, activation="square", noise=0.5, head="trained")
    start = sgd.start(trained, M=M, Q=Q, a=[0.9, 1.2])
    # The paper's head moves by gamma/d per step, which is p times the rate of its first layer.
    rate = rates(trained, start, 0.2)
    np.testing.assert_allclose(2 * rate["a"], [-0.842, -0.776], rtol=1e-12)
    np.testing.assert_allclose(2 * rate["M"][0, :, 0], [0.8046, -0.792], rtol=1e-12)
    risk = sgd.solve_ode(trained, sgd.OnePassSGD(lr=0.2), start, times=[0.0]).risk
    assert float(risk[0, 0]) == pytest.approx(1.64275, rel=1e-12)
    sphere = sgd.TeacherStudent(width=2, activation="square", noise=0.1, constraint="sphere")
    rate = rates(sphere, sgd.start(sphere, M=[[0.1], [-0.05]], Q=[[1, 0.02], [0.02, 1]]), 0.2)
    np.testing.assert_allclose(2 * rate["M"][0, :, 0], [0.296508, -0.152754], rtol=1e-12)
    assert 2 * rate["Q"][0, 0, 1] == pytest.approx(-0.0893872, rel=1e-12)


def test_point_B_and_matrix_form_of_quadratic_networks():
    W = np.array([[0.5, -0.2, 0.3, 0.7], [0.1, 0.4, -0.6, 0.2], [-0.3, 0.8, 0.2, -0.1]])
    rho, Q, eta, p, k = W[:, :2], W @ W.T, 0.12, 3, 2
    problem = sgd.TeacherStudent(width=3, teacher_width=2, activation="square")
    start = sgd.start(problem, M=rho, Q=Q)
    # The loss has no factor 1/2: lr = 2 eta, and d/dalpha = lr d/dt.
    rate = rates(problem, start, 2 * eta)
    A, T = rho @ rho.T, np.trace(Q)
    d_rho = 4 * eta / p * ((1 + 2 / k - T / p) * rho - 2 / p * Q @ rho)
    linear = 8 * eta / p * ((1 - T / p) * Q + 2 / k * A - 2 / p * Q @ Q)
    FF = (16 * eta**2 / p**2) * (
        (1 + 2 / k - 2 * T / p + (T**2 + 2 * np.trace(Q @ Q)) / p**2 - 4 * np.trace(A) / (p * k))
        * Q
        + (4 / k + 8 / k**2 - 4 * T / (p * k)) * A
        + (4 * T / p**2 - 4 / p) * Q @ Q
        + 8 * Q @ Q @ Q / p**2
        - 8 / (p * k) * (A @ Q + Q @ A)
    )
    np.testing.assert_allclose(2 * eta * rate["M"][0], d_rho, rtol=1e-12)
    np.testing.assert_allclose(2 * eta * rate["Q"][0], linear + FF, rtol=1e-12)
    assert FF[0, 0] == pytest.approx(0.02392569173, rel=1e-9)
    assert FF[0, 1] == pytest.approx(0.0003009877333, rel=1e-9)
    assert d_rho[2, 1] == pytest.approx(0.08149333333, rel=1e-9)
    risk = sgd.solve_ode(problem, sgd.OnePassSGD(lr=2 * eta), start, times=[0.0]).risk
    assert 2 * float(risk[0, 0]) == pytest.approx(0.7075555556, rel=1e-9)


CASES = {
    "batch": (dict(activation="erf", noise=0.3, weight_decay=0.5), 3),
    "sphere": (dict(activation="square", noise=0.3, constraint="sphere"), 2),
    "sphere, batch": (dict(activation="erf", noise=0.3, constraint="sphere", weight_decay=0.4), 3),
    "head": (dict(activation="relu", noise=0.3, head="trained", weight_decay=0.3), 1),
    "blocks": (
        dict(activation="square", noise=0.3, covariance=[(0.5, 0.5), (1.5, 0.25), (3.0, 0.25)]),
        2,
    ),
    "sampled": (dict(activation="tanh", noise=0.3, weight_decay=0.5), 3),
}


# Slow cases are covered by "sphere, batch"; the contracts compare heads and sampled drifts with
# runs.
@pytest.mark.slow
@pytest.mark.parametrize("name", slow(CASES, ("batch", "sphere", "head", "sampled")))
@pytest.mark.runs_long
def test_finite_dimension_is_the_mean_increment_of_real_steps(name):
    """One step of SGD in d dimensions, averaged over fresh inputs.

    The dimension is so small that the terms of relative order 1/d are large.
    """
    options, batch = CASES[name]
    problem = sgd.TeacherStudent(width=2, teacher_width=1, **options)
    dimension, lr, count = 16, 1.5, 300_000
    if name == "sphere":
        # The drift has sixth moments of the fields: neither average converges at a larger rate.
        lr = 0.5
    M = np.array([[0.5], [-0.2]])
    Q = np.array([[1.0, 0.3], [0.3, 1.0]])
    start = sgd.start(problem, M=M, Q=Q, a=[1.2, 0.7])
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, head_rate=0.6)
    finite = functional.finite(problem, dimension, batch)
    rate = rates(problem, start, lr, head_rate=0.6, batch=batch, finite=finite)
    limit = rates(problem, start, lr, head_rate=0.6, batch=batch)
    sizes = problem.block_dimensions(dimension)
    with jax.enable_x64(True):
        direct = DirectSGD(problem, algorithm, RunSetting(start, dimension, sizes))
        initial = jax.tree.map(lambda leaf: leaf[0], direct.initial(np.array([0])))

        def step(key):
            data, noise = jax.random.split(key)
            x = jax.random.normal(data, (batch, dimension)) * direct.embedding.scale
            z = jax.random.normal(noise, (batch,))
            parameters = (direct.parameters, direct.algorithm)
            return direct_step(
                problem.structure, parameters, lr / dimension, initial, x, z, direct.embedding
            )

        keys = jax.random.split(jax.random.key(11), count)
        overlaps = direct.overlaps(jax.jit(jax.vmap(step))(keys))
    # Error of the library where it samples too: of its noise term, or of the remainder on the
    # sphere.
    accuracy = {"sampled": 0.004, "sphere": 0.03, "sphere, batch": 0.0005}.get(name, 1e-9)
    before = {"M": start.M_blocks[0], "Q": start.Q_blocks[0], "a": start.a[0]}
    for variable, value in before.items():
        samples = (overlaps[variable] - value) * dimension / lr
        mean, error = samples.mean(axis=0), samples.std(axis=0) / np.sqrt(count)
        slack = accuracy * (1 + np.abs(rate[variable]).max())
        gap = np.abs(mean - rate[variable])
        assert np.all(gap <= Z * error + slack), (variable, mean, rate[variable], error)
    # The test is able to fail: the limit d -> infinity is many standard errors away.
    gap = np.abs(limit["Q"] - rate["Q"]).max()
    assert gap > 3 * slack
    assert gap > 8 * samples_error(overlaps["Q"], start.Q_blocks[0], dimension / lr)
    assert problem.structure.blocks == rate["Q"].shape[0]


def samples_error(values, before, scale):
    samples = (values - before) * scale
    return samples.std(axis=0).max() / np.sqrt(len(samples))


@pytest.mark.slow
def test_many_starts_at_once_and_dense_output():
    problem = erf()
    start = sgd.random_start(problem, dimension=200, runs=5, seed=2)
    algorithm = sgd.OnePassSGD(lr=0.5)
    all_at_once = sgd.solve_ode(problem, algorithm, start, times=np.geomspace(0.01, 8, 33))
    alone = sgd.solve_ode(
        problem,
        algorithm,
        sgd.Start(start.M_blocks[3:4], start.Q_blocks[3:4], start.a[3:4]),
        times=[0.01, 8.0],
    )
    np.testing.assert_allclose(all_at_once.Q.values[3, [0, -1]], alone.Q.values[0], rtol=1e-8)
    assert all_at_once.sizes["run"] == 5
    assert "step" not in all_at_once.coords
    np.testing.assert_allclose(all_at_once.alpha, all_at_once.t / 0.5)


@pytest.mark.slow  # fast tests of the mean of one step: test_spectra and test_solve_linear
def test_steps_and_not_the_flow_give_the_mean_of_a_linear_network():
    """The mean of a linear network obeys a closed recursion in steps of lr/d.

    The recursion is the mean of the runs; the integrated drift differs by O(lr/d) (theory.md).
    """
    d, lr, runs = 40, 1.0, 40000
    problem, algorithm = (
        sgd.TeacherStudent(width=1, activation="linear", noise=0.5),
        sgd.OnePassSGD(lr=lr),
    )
    start = sgd.start(problem, M=[[0.0]], Q=[[1.0]])
    finite = functional.finite(problem, d)
    with jax.enable_x64(True):
        step = jax.jit(
            lambda s: jax.tree.map(
                lambda x, v: x + (lr / d) * v,
                s,
                functional.drift(problem.structure, problem.parameters, s, lr=lr, finite=finite),
            )
        )
        state = functional.state(start)
        for _ in range(d):
            state = step(state)
        risk = jax.jit(partial(functional.risk, problem.structure))
        exact = float(risk(problem.parameters, state))
    chain = sgd.simulate(
        problem, algorithm, start, steps=[d], dimension=d, runs=runs, seed=0
    ).risk.values[:, 0]
    flow = float(sgd.solve_ode(problem, algorithm, start, steps=[d], dimension=d).risk[0, 0])
    error = chain.std(ddof=1) / np.sqrt(runs)
    assert abs(chain.mean() - exact) < 4.9 * error  # one false alarm in a million
    assert abs(flow - exact) > 5 * error
    assert abs(flow - exact) < lr / d


def huber(output, label):
    error = jnp.abs(output - label)
    return jnp.where(error < 1, 0.5 * error**2, error - 0.5)


def tolerances(problem, algorithm, start, rtol):
    return prepare_ode(problem, algorithm, start, times=[1.0], rtol=rtol)[1].case.tolerance


def test_tolerance_follows_the_accuracy_of_the_expectations():
    """By default a sampled drift is not integrated beyond its own accuracy."""
    algorithm = sgd.OnePassSGD(lr=0.5)
    with jax.enable_x64(True):
        for loss, least, most in ((huber, 1e-7, 1e-5), ("squared", 0.0, 1.01e-11)):
            problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1, loss=loss)
            start = sgd.start(problem, M=[[0.2], [0.1]], Q=np.eye(2))
            assert least < float(tolerances(problem, algorithm, start, None)["rtol"]) < most
            explicit = tolerances(problem, algorithm, start, 1e-6)
            assert float(explicit["rtol"]) == pytest.approx(1e-9)
            assert float(explicit["atol"]) == pytest.approx(1e-11)
        longer = sgd.start(problem, M=[[0.2], [0.1]], Q=50 * np.eye(2))
        assert float(tolerances(problem, algorithm, longer, 1e-6)["atol"]) == pytest.approx(50e-11)


@pytest.mark.slow
def test_default_tolerance_of_a_loss_with_a_kink_is_within_its_error():
    """Huber loss: a tolerance a thousand times tighter changes the risk by less than the error."""
    problem, algorithm = (
        sgd.TeacherStudent(width=2, activation="erf", noise=0.1, loss=huber),
        sgd.OnePassSGD(lr=0.5),
    )
    start = sgd.random_start(problem, dimension=1000, seed=0)
    default, tight = (
        sgd.solve_ode(problem, algorithm, start, times=[2.0, 8.0], **tolerance)
        for tolerance in ({}, {"rtol": 1e-7})
    )
    assert default.attrs["error_integrator"] < 0.1 * default.attrs["error_quadrature"]
    np.testing.assert_allclose(default.risk, tight.risk, rtol=default.attrs["error_quadrature"])


def test_sampling_errors_are_relative_to_their_own_scales():
    """An error of 4% of M, and an error of the risk that is larger than the risk itself."""
    spread = np.array([-1.0, -1.0, 1.0, 1.0])
    M = 0.5 + 0.04 * spread[:, None, None, None, None, None] * np.ones((1, 2, 1, 1, 1))
    risks = np.array([0.3, 1e-3]) + 2e-3 * spread[:, None, None]
    share, of_risk = sampling_errors({"M": M}, risks, 1e-12, 1e-4)
    error = spread.std(ddof=1) / 2
    assert share == pytest.approx(0.04 * error / 0.5)
    assert of_risk == pytest.approx(2e-3 * error / 1e-3)
    # The error of pairs and grids is part of both.
    assert sampling_errors({"M": 0 * M + 1}, 0 * risks + 1, 1e-3, 1e-4) == (1e-3, 1e-3)


def test_divergence_is_marked_not_hidden():
    problem = sgd.TeacherStudent(width=1, activation="square")
    start = sgd.start(problem, M=[[[0.5]], [[0.1]]], Q=[[[3.0]], [[0.5]]])
    with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
        result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.14), start, times=np.linspace(0, 3, 31))
    assert np.isfinite(result.diverged_at[0])
    assert np.isnan(result.diverged_at[1])
    assert np.isnan(result.risk[0, -1])
    assert np.isfinite(result.risk[1]).all()


@pytest.mark.slow
def test_antisymmetric_rounding_errors_do_not_grow():
    """An overparametrised quadratic network: at late times the ODE has the risk of exact runs.

    The drift, extended to matrices Q that are not symmetric, has unstable antisymmetric modes here.
    Rounding errors used to grow along them, to a risk of 0.98 (and of -0.48 at lr = 1).
    """
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="square", noise=1e-3)
    algorithm = sgd.OnePassSGD(lr=0.5)
    start = sgd.random_start(problem, dimension=50, seed=0)
    late = {"times": [60.0, 190.0]}
    theory = sgd.solve_ode(problem, algorithm, start, **late)
    np.testing.assert_array_equal(theory.Q, np.swapaxes(theory.Q, -1, -2))
    assert theory.attrs["error_integrator"] < 1e-6
    runs = sgd.simulate(problem, algorithm, start, **late, dimension=500, runs=8)
    # The gap at d = 500 is 2%; the standard error of the mean of eight runs is below 1%.
    np.testing.assert_allclose(runs.excess_risk.mean("run"), theory.excess_risk[0], rtol=0.1)


@pytest.mark.parametrize(("error", "warns"), [(0.11, True), (0.09, False)])
def test_a_solution_that_depends_on_the_tolerance_is_reported(
    error, warns, monkeypatch, phase_retrieval, recwarn
):
    monkeypatch.setattr("sgdynamics.solvers.batch.largest_share", lambda *_: error)
    start = sgd.start(phase_retrieval, M=[[0.3], [0.1]], Q=np.eye(2))
    sgd.solve_ode(phase_retrieval, sgd.OnePassSGD(lr=0.2), start, times=[1.0, 2.0])
    messages = [
        str(warning.message) for warning in recwarn if "error_integrator = " in str(warning.message)
    ]
    assert len(messages) == warns


@pytest.mark.slow
def test_sampled_noise_states_its_error():
    problem = sgd.TeacherStudent(width=4, teacher_width=2, activation="tanh", noise=1e-3)
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), s0(problem), times=[4.0])
    assert 1e-7 < result.attrs["error_quadrature"] < 3e-3


def test_start_from_continues_a_solution(phase_retrieval):
    start = sgd.start(phase_retrieval, M=[[0.3], [0.1]], Q=np.eye(2))
    algorithm = sgd.OnePassSGD(lr=0.2)
    whole = sgd.solve_ode(phase_retrieval, algorithm, start, times=[1.0, 2.0])
    second = sgd.solve_ode(
        phase_retrieval, algorithm, sgd.start_from(whole, time=0), times=[0.5, 1.0]
    )
    np.testing.assert_allclose(second.Q[0, 1], whole.Q[0, 1], rtol=1e-8)
    by_time = sgd.start_from(whole, time=1.0)
    np.testing.assert_array_equal(by_time.Q, sgd.start_from(whole, time=0).Q)


def test_factors_of_a_start_have_its_overlaps():
    problem = sgd.TeacherStudent(
        width=4, teacher_width=2, activation="erf", teacher_gram=[[1.0, 0.4], [0.4, 0.7]]
    )
    start = sgd.start(problem, M=S0_M, Q=S0_Q)
    T, L = compressed_rows(problem, start)
    frame = problem.parameters["frame"]
    np.testing.assert_allclose(T @ np.swapaxes(frame, -1, -2), start.M_blocks, atol=1e-13)
    np.testing.assert_allclose(
        T @ np.swapaxes(T, -1, -2) + L @ np.swapaxes(L, -1, -2), start.Q_blocks, atol=1e-13
    )


def test_jnp_is_float32_outside():
    # The solvers have not changed the setting of the user.
    assert jnp.ones(1).dtype == jnp.float32
