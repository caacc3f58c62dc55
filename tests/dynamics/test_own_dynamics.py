"""Dynamics defined outside of the package, in all solvers that support them."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import expm

import sgdynamics as sgd
from tests.conftest import Z

NOISE, LR, D = 0.2, 0.4, 60


@dataclasses.dataclass(frozen=True)
class LinearStudent(sgd.Dynamics):
    """A linear student of a linear teacher, width 1, in closed form.

    The variables are m = w.w* and q = |w|^2. `TeacherStudent` has the same problem.
    """

    noise: float = NOISE
    variables: ClassVar = {"m": ("overlap", ()), "q": ("squared length", ())}

    @property
    def parameters(self):
        return {"noise": np.float64(self.noise)}

    def rate(self, values, state):
        m, q = state["m"], state["q"]
        lr, batch, d = values["algorithm"]["lr"], values["batch"], values["dimension"]
        error, noise = q - 2 * m + 1, values["problem"]["noise"]
        # E[e^2 |x|^2]/d for one sample, and the contribution of pairs of samples of a batch.
        second = ((1 + 2 / d) * error + noise) / batch + (1 - 1 / batch) * error / d
        return {"m": 1 - m, "q": -2 * (q - m) + lr * second}

    def step(self, values, state, key):
        m, q = state["m"], state["q"]
        step = values["algorithm"]["lr"] / values["dimension"]
        x, z = jax.random.normal(key, (2,)), jax.random.normal(jax.random.fold_in(key, 1))
        orthogonal_norm = jax.random.chisquare(jax.random.fold_in(key, 2), values["dimension"] - 2)
        field = m * x[0] + jnp.sqrt(jnp.maximum(q - m * m, 0.0)) * x[1]
        error = field - x[0] - jnp.sqrt(values["problem"]["noise"]) * z
        return {
            "m": m - step * error * x[0],
            "q": q
            - 2 * step * error * field
            + step**2 * error**2 * (jnp.sum(x * x) + orthogonal_norm),
        }

    def risk(self, values, state):
        return 0.5 * (state["q"] - 2 * state["m"] + 1 + values["problem"]["noise"])


TEACHER_STUDENT = sgd.TeacherStudent(width=1, activation="linear", noise=NOISE)
ALGORITHM = sgd.OnePassSGD(lr=LR)
START = {"m": 0.1, "q": 0.9}
TEACHER_STUDENT_START = sgd.start(TEACHER_STUDENT, M=[[0.1]], Q=[[0.9]])


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [D, pytest.param(None, marks=pytest.mark.slow)])
def test_the_ode_agrees_with_the_teacher_student(dimension):
    own = sgd.solve_ode(
        LinearStudent(), ALGORITHM, START, times=[0.0, 1.0, 3.0], dimension=dimension
    )
    reference = sgd.solve_ode(
        TEACHER_STUDENT,
        ALGORITHM,
        TEACHER_STUDENT_START,
        times=[0.0, 1.0, 3.0],
        dimension=dimension,
    )
    np.testing.assert_allclose(own.m, reference.M[:, :, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(own.q, reference.Q[:, :, 0, 0], rtol=1e-9)
    np.testing.assert_allclose(own.risk, reference.risk, rtol=1e-9)
    assert own.m.dims == ("run", "time")
    assert own.m.attrs["long_name"] == "overlap"
    assert own.attrs["error_integrator"] < 1e-8


@pytest.mark.slow
def test_runs_have_the_law_of_the_teacher_student():
    runs = 4000
    own = sgd.simulate(
        LinearStudent(), ALGORITHM, START, steps=[0, 40], dimension=D, runs=runs, seed=1
    )
    reference = sgd.simulate(
        TEACHER_STUDENT,
        ALGORITHM,
        TEACHER_STUDENT_START,
        steps=[0, 40],
        dimension=D,
        runs=runs,
        seed=2,
    )
    for values, reference_values in (
        (own.m, reference.M[..., 0, 0]),
        (own.q, reference.Q[..., 0, 0]),
        (own.risk, reference.risk),
    ):
        a, b = np.asarray(values)[:, 1], np.asarray(reference_values)[:, 1]
        assert abs(a.mean() - b.mean()) < Z * np.sqrt((a.var() + b.var()) / runs)
        # The standard error of a variance is estimated from fourth moments, without normality.
        variance_error = np.sqrt(
            ((a - a.mean()) ** 2).var() / runs + ((b - b.mean()) ** 2).var() / runs
        )
        assert abs(a.var() - b.var()) < Z * variance_error
    assert own.attrs["error_sampling"] > 0


@pytest.mark.slow
def test_the_exit_time_agrees_with_the_closed_solution():
    # error' = -(2 - lr) error + lr noise, from q - 2m + 1 = 1.7 to half of this value.
    own = sgd.exit_time(
        LinearStudent(),
        ALGORITHM,
        START,
        threshold=0.5,
        criterion=lambda s: s["q"] - 2 * s["m"] + 1,
    )
    stationary_error = LR * NOISE / (2 - LR)
    assert own.mean == pytest.approx(
        np.log((1.7 - stationary_error) / (0.85 - stationary_error)) / (2 - LR), rel=1e-9
    )
    runs = sgd.exit_time(
        LinearStudent(),
        ALGORITHM,
        START,
        threshold=0.3,
        method="exact",
        dimension=D,
        runs=20,
        max_time=10.0,
    )
    assert runs.left == 20


@pytest.mark.slow
def test_a_parameter_may_be_a_schedule():
    """Drift and risk use the label noise at the current alpha."""

    class DecreasingNoise(LinearStudent):
        @property
        def parameters(self):
            return {"noise": sgd.piecewise_rate([2.0], [0.5, 0.1])}

    result = sgd.solve_ode(DecreasingNoise(), ALGORITHM, START, alpha=[0.0, 1.0, 4.0])
    reference = sgd.solve_ode(
        TEACHER_STUDENT.replace(noise=sgd.piecewise_rate([2.0], [0.5, 0.1])),
        ALGORITHM,
        TEACHER_STUDENT_START,
        alpha=[0.0, 1.0, 4.0],
    )
    np.testing.assert_allclose(result.risk, reference.risk, rtol=1e-7)
    np.testing.assert_allclose(result.q, reference.Q[..., 0, 0], rtol=1e-7)


def test_sweeps_accept_it():
    options = {"times": [0.0, 1.0, 3.0], "dimension": D}  # as above, to share the program
    over = {"lr": [0.1, 0.4], "noise": [0.0, NOISE]}
    swept = sgd.sweep(
        "solve_ode", problem=LinearStudent(), algorithm=ALGORITHM, start=START, over=over, **options
    )
    single = sgd.solve_ode(LinearStudent(), ALGORITHM, START, **options)
    np.testing.assert_allclose(swept.risk.sel(lr=0.4, noise=NOISE), single.risk, rtol=1e-6)


@dataclasses.dataclass(frozen=True)
class OrnsteinUhlenbeck(sgd.Dynamics):
    """ds = -matrix s dt + sqrt(lr/d) B dW in two dimensions, with correlated noise.

    Its fields have the names of methods and attributes of the library's own classes.
    """

    start: float = 1.0
    initial_state: float = 0.5
    algorithm: str = "a field of the user"
    problem: float = 3.0
    definition: float = 2.0
    states: float = 7.0
    variables: ClassVar = {"s": ("position", ("axis",))}

    @property
    def parameters(self):
        return {"matrix": np.array([[self.start, self.initial_state], [0.0, 2.0]])}

    def rate(self, values, state):
        return {"s": -values["problem"]["matrix"] @ state["s"]}

    def step(self, values, state, key):
        length = values["algorithm"]["lr"] / values["dimension"]
        kick = jnp.sqrt(length) * (self.noise(values, state)["s"] @ jax.random.normal(key, (2,)))
        return {"s": state["s"] + length * self.rate(values, state)["s"] + kick}

    def noise(self, values, state):
        length = values["algorithm"]["lr"] / values["dimension"]
        return {"s": jnp.sqrt(length) * jnp.array(ROOT)}

    def risk(self, values, state):
        return 0.5 * jnp.sum(state["s"] ** 2)


ROOT = [[1.0, 0.0], [0.6, 0.8]]
POSITION = {"s": [1.0, -2.0]}


def gaussian_solution(problem, t):
    """Mean and covariance at time t: S = int_0^t G(u) G(u)^T du, G(u) = exp(-A u) B."""
    A, B = problem.parameters["matrix"], np.sqrt(LR / D) * np.array(ROOT)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    covariance = np.zeros((2, 2))
    for time, weight in zip(t * (nodes + 1) / 2, t * weights / 2, strict=True):
        propagator = expm(-A * time) @ B
        covariance += weight * propagator @ propagator.T
    return expm(-A * t) @ np.array(POSITION["s"]), covariance


@pytest.mark.slow
def test_the_sde_of_an_ornstein_uhlenbeck_process():
    """Mean and covariance agree with their closed form; false-alarm rate 1e-6 per entry."""
    problem, runs, t = OrnsteinUhlenbeck(), 20_000, 0.8
    arguments = {"times": [0.0, t], "dimension": D, "runs": runs, "seed": 3, "progress": False}
    paths = sgd.solve_sde(problem, ALGORITHM, POSITION, **arguments)
    mean, covariance = gaussian_solution(problem, t)
    s, variances = paths.s.values[:, 1], np.diag(covariance)
    assert np.all(np.abs(s.mean(axis=0) - mean) < Z * np.sqrt(variances / runs))
    # The estimate of a Gaussian covariance has the variance (S_ii S_jj + S_ij^2)/runs
    error = np.sqrt((np.outer(variances, variances) + covariance**2) / runs)
    assert np.all(np.abs(np.cov(s.T) - covariance) < Z * error)
    assert np.all(Z * error < 0.05 * np.sqrt(np.outer(variances, variances)))
    assert paths.attrs["error_integrator"] < 2e-3
    np.testing.assert_array_equal(paths.s.values[:, 0], np.broadcast_to(POSITION["s"], (runs, 2)))


class WithoutNoise(OrnsteinUhlenbeck):
    def noise(self, values, state):
        return {"s": jnp.zeros((2, 1))}


@pytest.mark.slow
def test_the_sde_without_noise_is_the_ode_under_a_schedule():
    """With a schedule of lr the variable of the integration is alpha."""
    algorithm = sgd.OnePassSGD(lr=sgd.piecewise_rate([1.0], [0.4, 0.1]))
    arguments = {"alpha": [0.5, 1.0, 3.0], "dimension": D, "progress": False}
    paths = sgd.solve_sde(WithoutNoise(), algorithm, POSITION, step=0.01, **arguments)
    theory = sgd.solve_ode(WithoutNoise(), algorithm, POSITION, **arguments)
    np.testing.assert_allclose(paths.s, theory.s, rtol=1e-5)
    np.testing.assert_allclose(paths.t, theory.t, rtol=1e-12)


@pytest.mark.slow
def test_fields_of_a_user_may_have_any_name():
    """The library wraps a user's object: fields may be called `start` or `initial_state`."""
    problem = OrnsteinUhlenbeck()
    theory = sgd.solve_ode(problem, ALGORITHM, POSITION, times=[1.0])
    mean = expm(-problem.parameters["matrix"]) @ np.array(POSITION["s"])
    np.testing.assert_allclose(theory.s[0, 0], mean, rtol=1e-7)
    runs = sgd.simulate(problem, ALGORITHM, POSITION, steps=[30], dimension=D, runs=3)
    assert np.isfinite(runs.risk).all()
    assert sgd.exit_time(problem, ALGORITHM, POSITION, threshold=0.5).left == 1
    arguments = {"problem": problem, "algorithm": ALGORITHM, "start": POSITION, "times": [1.0]}
    swept = sgd.sweep("solve_ode", over={"initial_state": [0.5, 0.0]}, **arguments)
    np.testing.assert_allclose(swept.s.sel(initial_state=0.5)[0, 0], mean, rtol=1e-6)
    methods = {"rate", "step", "risk", "noise", "describe", "replace"}
    public = {name for name in vars(sgd.Dynamics) if not name.startswith("_")}
    assert public == methods | {"kinds", "variables", "parameters"}


def test_missing_methods_and_invalid_arguments_raise():
    with pytest.raises(ValueError, match="LinearStudent has no method noise"):
        sgd.solve_sde(LinearStudent(), ALGORITHM, START, times=[1.0], dimension=D)

    class WrongNoise(OrnsteinUhlenbeck):
        def noise(self, values, state):
            return {"s": jnp.ones(3)}

    with pytest.raises(ValueError, match=r"noise = .*one more axis at the end"):
        sgd.solve_sde(WrongNoise(), ALGORITHM, POSITION, times=[1.0], dimension=D)
    with pytest.raises(ValueError, match=r"start = .*m, q"):
        sgd.solve_ode(LinearStudent(), ALGORITHM, {"m": 0.1}, times=[1.0])
    with pytest.raises(ValueError, match=r"m = .*give 0 axes"):
        sgd.solve_ode(LinearStudent(), ALGORITHM, {"m": [[0.1]], "q": 1.0}, times=[1.0])
    with pytest.raises(ValueError, match=r"runs = 3.*2 runs"):
        sgd.simulate(
            LinearStudent(), ALGORITHM, {"m": [0.1, 0.2], "q": 1.0}, steps=[1], dimension=D, runs=3
        )
    with pytest.raises(ValueError, match="criterion = 'overlap'"):
        sgd.exit_time(LinearStudent(), ALGORITHM, START, threshold=0.2, criterion="overlap")
    with pytest.raises(ValueError, match="method = 'direct'"):
        sgd.simulate(LinearStudent(), ALGORITHM, START, steps=[1], dimension=D, method="direct")

    class WithoutMethods(sgd.Dynamics):
        variables: ClassVar = {"m": ("overlap", ())}

    for call in (
        lambda: sgd.solve_ode(WithoutMethods(), ALGORITHM, {"m": 0.1}, times=[1.0]),
        lambda: sgd.simulate(WithoutMethods(), ALGORITHM, {"m": 0.1}, steps=[1], dimension=D),
        lambda: sgd.exit_time(WithoutMethods(), ALGORITHM, {"m": 0.1}),
    ):
        with pytest.raises(ValueError, match=r"WithoutMethods has no method (rate|step|risk)"):
            call()
