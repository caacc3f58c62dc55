"""Wide networks: particles compared with quadrature, the full ODE and exact solutions."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr
from scipy import integrate, special, stats

import sgdynamics as sgd
from sgdynamics.base.precision import float64
from sgdynamics.mean_field import particles
from sgdynamics.plotting import plot
from sgdynamics.problems.wide_starts import mean_field_start
from sgdynamics.problems.wide_starts import particles as wide_particles
from sgdynamics.solvers.mean_field import solve_mean_field
from tests.conftest import Z, same_law

FLOW = sgd.OnePassSGD(lr=0.0)
M3, Q3 = np.array([[0.3], [-0.2], [0.5]]), np.array([0.8, 1.0, 0.6])
HEAD = np.array([1.2, -0.7, 0.9])
TIMES = [0.0, 0.5, 2.0, 6.0]

# s, s' and s'' for the reference computations
REFERENCE = {
    "erf": (
        lambda x: special.erf(x / np.sqrt(2)),
        lambda x: np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2),
        lambda x: -x * np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2),
    ),
    "tanh": (np.tanh, lambda x: 1 / np.cosh(x) ** 2, lambda x: -2 * np.tanh(x) / np.cosh(x) ** 2),
}


def network(activation="erf", width=3, signals=1, **options):
    return sgd.TeacherStudent(width=width, teacher_width=signals, activation=activation, **options)


_velocity = partial(jax.jit, static_argnums=0)(particles._velocity)


@float64
def velocity(problem, a=None, expectations="series", dimension=None, T=M3, q=Q3):
    """Return d(T, q, a)/dt and the excess risk for a few particles, as the solver computes them."""
    perpendicular = None if dimension is None else dimension - problem.signals
    choice = particles.choose_expectations(problem, expectations, perpendicular)
    state = {"T": T, "q": q, "a": np.ones(len(q)) if a is None else a}
    states = {name: array[None] for name, array in state.items()}
    parameters, _ = particles._parameters(problem, FLOW, choice, states, 8.0, 40, perpendicular)
    rates = {name: np.asarray(rate) for name, rate in _velocity(choice, parameters, state).items()}
    trajectory = {name: array[None, None] for name, array in state.items()}
    risk = particles._risk_of(choice, parameters, trajectory)[0]
    return rates, float(risk[0, 0])


@pytest.mark.parametrize("expectations", ["series", "pairs"])
def test_reference_values(expectations):
    """Rates and risk at p = infinity, k = 1, erf, from an independent computation."""
    rates, risk = velocity(network(head="trained"), expectations=expectations)
    np.testing.assert_allclose(
        rates["T"][:, 0], [0.249892595526, 0.245502455845, 0.235745225619], atol=2e-12
    )
    np.testing.assert_allclose(
        rates["q"], [-0.066638025473, 0.049100491169, -0.088404459607], atol=2e-12
    )
    assert abs(risk - 0.106084184729) < 2e-12


def quadrature(activation, teacher, a):
    """Return dt, dq, da and the excess risk by plain quadrature over (zeta, xi).

    For ReLU the mean over xi has a closed form.
    """
    zeta, weight = special.roots_hermitenorm(120)
    weight = weight / weight.sum()
    mean, spread = M3 * zeta, np.sqrt(Q3)[:, None]
    if activation == "relu":
        ratio = mean / spread
        density = np.exp(-(ratio**2) / 2) / np.sqrt(2 * np.pi)
        s = [mean * special.ndtr(ratio) + spread * density, special.ndtr(ratio), density / spread]
    else:
        s = [f(mean[..., None] + spread[..., None] * zeta) @ weight for f in REFERENCE[activation]]
    y = teacher(zeta)
    residual = weight * (y - (a @ s[0]) / 3)
    excess = np.sum(residual**2 / weight) / 2
    return a * (s[1] @ (residual * zeta)), 2 * a * Q3 * (s[2] @ residual), s[0] @ residual, excess


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_any_activation_agrees_with_quadrature(activation):
    """The teacher is erf, because plain quadrature of a ReLU teacher is not accurate enough."""
    problem = network(activation, teacher_activation="erf", head="trained")
    rates, risk = velocity(problem, HEAD)
    dT, dq, da, excess = quadrature(activation, REFERENCE["erf"][0], HEAD)
    np.testing.assert_allclose(rates["T"][:, 0], dT, atol=1e-9)
    np.testing.assert_allclose(rates["q"], dq, atol=1e-9)
    np.testing.assert_allclose(rates["a"], da, atol=1e-9)
    assert abs(risk - excess) < 1e-9


def test_finite_dimension_agrees_with_quadrature():
    """At p = infinity and d = 3 the output depends on |x_perp|.

    The quadrature is over the signal, the radius and the angle of the unit.
    """
    rates, risk = velocity(network(head="trained"), HEAD, dimension=3)
    s, ds, _ = REFERENCE["erf"]
    zeta, signal_weight = special.roots_hermitenorm(60)
    half_square, radial = special.roots_laguerre(60)
    r = np.sqrt(2 * half_square)
    angles = np.cos(2 * np.pi * (np.arange(64) + 0.5) / 64)
    weight = (signal_weight / signal_weight.sum())[:, None] * radial
    xi = r[:, None] * angles
    fields = M3[:, :, None, None] * zeta[:, None, None] + np.sqrt(Q3)[:, None, None, None] * xi
    residual = weight * (
        s(zeta)[:, None] - np.einsum("i,izr->zr", HEAD, s(fields).mean(axis=-1)) / 3
    )
    assert abs(risk - np.sum(residual**2 / weight) / 2) < 1e-10
    slopes = ds(fields)
    dT = HEAD * np.einsum("izrc,zr,z->i", slopes / 64, residual, zeta)
    dq = 2 * HEAD * np.sqrt(Q3) * np.einsum("izrc,zr,rc->i", slopes / 64, residual, xi)
    np.testing.assert_allclose(rates["T"][:, 0], dT, atol=1e-10)
    np.testing.assert_allclose(rates["q"], dq, atol=1e-10)
    # The gap to d = infinity shrinks like 1/d.
    infinite = velocity(network(head="trained"), HEAD)[1]
    gaps = [velocity(network(head="trained"), HEAD, dimension=d)[1] - infinite for d in (101, 201)]
    assert abs(gaps[0] / gaps[1] - 2) < 0.05
    assert gaps[1] > 0


def erf_flow(M, q, times):
    """Return the excess risk of the full gradient flow of an erf network in the time t/p, k = 1.

    The perpendicular parts of the units are orthogonal. The pair functions are those of Saad and
    Solla.
    """
    p = len(q)
    c = np.append(np.full(p, -1 / p), 1.0)

    def omega(y):
        m, Q = y[:p], y[p:].reshape(p, p)
        return np.block([[Q, m[:, None]], [m[None], np.ones((1, 1))]])

    def rate(t, y):
        full = omega(y)
        al = 1 + np.diag(full)
        root = np.sqrt(np.outer(al, al) - full**2)[:p]
        G = 2 / np.pi * ((c / root) @ full - ((full[:p] / root) @ c / al[:p])[:, None] * full[:p])
        return np.concatenate([G[:, p], (G[:, :p] + G[:, :p].T).ravel()])

    start = np.concatenate([M[:, 0], (M @ M.T + np.diag(q)).ravel()])
    solution = integrate.solve_ivp(
        rate, (0, times[-1]), start, "DOP853", times, rtol=1e-9, atol=1e-12
    )
    risks = []
    for y in solution.y.T:
        full = omega(y)
        al = 1 + np.diag(full)
        risks.append(c @ np.arcsin(full / np.sqrt(np.outer(al, al))) @ c / np.pi)
    return np.array(risks)


@pytest.mark.slow
def test_the_full_ode_comes_closer_like_one_over_p():
    """Gradient flow of width p = 3n, with n units of three kinds each, approaches three particles.

    The perpendicular parts of all units are orthogonal.
    """
    problem = network(head="trained")
    fixed = sgd.OnePassSGD(lr=0.0, head_rate=0.0)
    limit = solve_mean_field(
        problem, fixed, mean_field_start(problem, M=M3, q=Q3), times=TIMES, expectations="series"
    )
    gaps = [
        erf_flow(np.repeat(M3, n, axis=0), np.repeat(Q3, n), TIMES) - limit["excess_risk"].values[0]
        for n in (8, 16)
    ]
    assert np.all(np.abs(gaps[0] / gaps[1] - 2) < 0.06)
    assert np.all(gaps[1] > 5e-5)
    # At p = 3 the flow differs by 43% at the first time and by 8% at the last.
    assert np.all(erf_flow(M3, Q3, TIMES) > 1.05 * limit["excess_risk"].values[0])


@pytest.mark.slow
def test_relu_with_a_trained_head_conserves_and_descends():
    """Since s(c x) = c s(x) for c > 0, each unit conserves a^2 - head_rate |w|^2.

    Gradient flow decreases the risk.
    """
    problem = network("relu", head="trained", noise=0.2)
    algorithm = sgd.OnePassSGD(lr=0.3, head_rate=0.5)
    start = mean_field_start(problem, M=M3, q=Q3, a=HEAD)
    result = solve_mean_field(
        problem, algorithm, start, times=np.linspace(0, 2, 4), expectations="series"
    )
    conserved = result["a"] ** 2 - 0.5 * ((result["M"] ** 2).sum("signal") + result["q"])
    assert float(np.abs(conserved - conserved.isel(time=0)).max()) < 1e-7
    assert float(np.abs(result["a"].isel(time=-1) - result["a"].isel(time=0)).max()) > 0.1
    assert np.all(np.diff(result["risk"].values) < 0)
    np.testing.assert_allclose(result["risk"] - result["excess_risk"], 0.1)
    # Another lr, noise, head_rate or activation does not compile another program.
    programs = particles._integrate._cache_size()
    other = network("tanh", head="trained", noise=0.1)
    other_result = solve_mean_field(
        other, sgd.OnePassSGD(lr=0.1), start, times=np.linspace(0, 3, 4)
    )
    assert particles._integrate._cache_size() == programs
    assert np.all(np.diff(other_result["risk"].values) < 0)
    for name in ("error_quadrature", "error_integrator", "error_particles"):
        assert 0 <= other_result.attrs[name] < (1e-6 if name != "error_particles" else np.inf)


@pytest.mark.slow
def test_error_of_particles_is_relative_to_the_largest_risk():
    """The error compares with every other particle alone, here solved as a network of its own.

    At the end, where both risks are small, that of the smaller network is many times larger.
    """
    algorithm, times = sgd.OnePassSGD(lr=0.3), np.linspace(0, 40, 4)
    full, half = (
        solve_mean_field(
            network("erf", head="trained", width=len(M3[::step])),
            algorithm,
            mean_field_start(
                network("erf", head="trained", width=len(M3[::step])),
                M=M3[::step],
                q=Q3[::step],
                a=HEAD[::step],
            ),
            times=times,
            expectations="series",
        )
        for step in (1, 2)
    )
    excess, other = full["excess_risk"].values, half["excess_risk"].values
    assert full.attrs["error_particles"] == pytest.approx(
        np.abs(other - excess).max() / excess.max(), rel=1e-3
    )
    assert np.max(np.abs(other - excess) / excess) > 5 * full.attrs["error_particles"]


@pytest.mark.slow
def test_linear_networks_have_an_exact_solution():
    """For s(x) = x and a = 1, d<m> = 1 - <m> - wd <m> and q = q0 exp(-2 wd t).

    Here wd = width * weight_decay, and lr does not enter.
    """
    # An activation without the name "linear" is solved by the general series, whose program other
    # tests have compiled. head_rate = 0 fixes the head.
    problem = network(sgd.Activation(lambda x: 1.0 * x), weight_decay=0.1, head="trained")
    start = mean_field_start(problem, M=M3, q=Q3)
    result = solve_mean_field(
        problem,
        sgd.OnePassSGD(lr=0.7, head_rate=0.0),
        start,
        times=[0.0, 0.2, 0.5, 1.5],
        expectations="series",
    )
    t, decay, rate = result["t"].values, 0.3, 1.3
    mean = 1 / rate + (M3.mean() - 1 / rate) * np.exp(-rate * t)
    np.testing.assert_allclose(result["M"].mean("unit").values[0, :, 0], mean, atol=1e-7)
    deviations = (M3 - M3.mean())[None, :, 0] * np.exp(-decay * t)[:, None]
    np.testing.assert_allclose(
        (result["M"] - result["M"].mean("unit")).values[0, :, :, 0], deviations, atol=1e-7
    )
    np.testing.assert_allclose(
        result["q"].values[0], Q3 * np.exp(-2 * decay * t)[:, None], atol=1e-7
    )
    np.testing.assert_allclose(result["excess_risk"].values[0], (1 - mean) ** 2 / 2, atol=1e-7)
    np.testing.assert_allclose(result["t_sgd"], 3 * t)


@pytest.mark.slow
def test_two_signals_targets_and_the_sphere():
    """A committee and a function with the same labels have the same rates.

    The signals are not orthogonal. On the sphere the component of the rates that changes the norm
    is removed.
    """
    gram = np.array([[1.0, 0.4], [0.4, 1.0]])
    teacher = network(width=4, signals=2, teacher_gram=gram)
    sphere = network(width=4, signals=2, teacher_gram=gram, constraint="sphere")
    target = sgd.MultiIndex(lambda z: jnp.mean(jax.lax.erf(z / np.sqrt(2))), 2, 4, "erf", gram=gram)
    start = sgd.random_start(sphere, dimension=6, seed=3, wide=True)
    T, q, _ = (array[0] for array in wide_particles(sphere, start))
    free, risk = velocity(teacher, T=T, q=q)
    on_sphere, closed_risk = velocity(sphere, expectations="pairs", T=T, q=q)
    of_target, target_risk = velocity(target, T=T, q=q)
    for name in ("T", "q"):
        np.testing.assert_allclose(free[name], of_target[name], atol=1e-9)
    assert abs(risk - closed_risk) + abs(risk - target_risk) < 1e-9
    growth = np.sum(T * free["T"], axis=1) + free["q"] / 2
    assert np.abs(growth).max() > 1e-2
    np.testing.assert_allclose(
        np.sum(T * on_sphere["T"], axis=1) + on_sphere["q"] / 2, 0, atol=1e-12
    )
    np.testing.assert_allclose(on_sphere["T"], free["T"] - T * growth[:, None], atol=1e-10)
    np.testing.assert_allclose(on_sphere["q"], free["q"] - 2 * q * growth, atol=1e-10)
    # A full start with Q = M P^-1 M^T + diag(q) has the same rows.
    M = start.M[0]
    full = sgd.start(sphere, M=M, Q=M @ np.linalg.inv(gram) @ M.T + np.diag(q))
    np.testing.assert_allclose(wide_particles(sphere, full)[1][0], q, atol=1e-12)


@pytest.mark.parametrize("sampling", ["independent", "sobol"])
def test_random_starts_have_the_law_of_random_rows(sampling):
    problem = network(width=1024, signals=2)
    start = sgd.random_start(
        problem, dimension=30, seed=5, runs=2, scale=1.3, sampling=sampling, wide=True
    )
    exact = stats.chi2(28).rvs(4096, random_state=np.random.default_rng(1)) * 1.69 / 30
    same_law(start.q[0], exact, "q")
    same_law(
        start.M[0].ravel(), np.random.default_rng(2).standard_normal(4096) * 1.3 / np.sqrt(30), "m"
    )
    error = abs(start.M[1].mean()) / (1.3 / np.sqrt(30 * 2048))
    assert error < (Z if sampling == "independent" else 0.3)
    assert abs(start.q[1, ::2].mean() - 1.69 * 28 / 30) < (
        0.1 if sampling == "independent" else 1e-3
    )
    alone = sgd.random_start(problem, dimension=30, seed=5, scale=1.3, sampling=sampling, wide=True)
    np.testing.assert_array_equal(start.q[:1], alone.q)


def test_density():
    problem = network(width=200)
    start = sgd.random_start(problem, dimension=30, wide=True)
    result = solve_mean_field(problem, FLOW, start, times=[0.0])
    fig, ax = plot.density(result, bins=20)
    mesh = ax.collections[0]
    heights = np.ma.filled(mesh.get_array(), 0.0)
    corners = mesh.get_coordinates()
    cell = np.ptp(corners[0, :2, 0]) * np.ptp(corners[:2, 0, 1])
    assert abs(heights.sum() * cell - 1) < 1e-9
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("$m$", "$q$")
    assert plot.density(result, ax=ax)[0] is fig


def test_bad_input():
    problem = network()
    start = mean_field_start(problem, M=M3, q=Q3)
    solve = partial(solve_mean_field, problem, FLOW)
    for message, call in {
        "q = -0.25": lambda: mean_field_start(problem, M=M3, q=[1.0, -0.25, 1.0]),
        "M has shape": lambda: mean_field_start(problem, M=M3.T, q=Q3),
        "runs: give the same number": lambda: mean_field_start(problem, M=[M3, M3], q=[Q3] * 3),
        "length 0": lambda: mean_field_start(problem, M=M3 * 0, q=Q3 * 0),
        "constraint='sphere'": lambda: mean_field_start(network(constraint="sphere"), M=M3, q=Q3),
        "dimension = 1": lambda: sgd.random_start(problem, dimension=1, wide=True),
        "did you mean 'sobol'": lambda: sgd.random_start(
            problem, dimension=9, sampling="soboll", wide=True
        ),
        "scale = 2": lambda: sgd.random_start(
            network(constraint="sphere"), dimension=9, scale=2, wide=True
        ),
        "loss='squared'": lambda: mean_field_start(network(loss="correlation"), M=M3, q=Q3),
        "covariance = ": lambda: mean_field_start(
            network(covariance=[(1, 0.5), (2, 0.5)]), M=M3, q=Q3
        ),
        "dependent": lambda: mean_field_start(
            network(signals=2, teacher_gram=np.ones((2, 2))), M=np.ones((3, 2)) * [1, 0.5], q=Q3
        ),
        "start was made for": lambda: solve_mean_field(network(width=4), FLOW, start, times=[1.0]),
        "start = 3": lambda: solve(3, times=[1.0]),
        "algorithm = 3": lambda: solve_mean_field(problem, 3, start, times=[1.0]),
        "times = ": lambda: solve(start, times=[1.0, 0.5]),
        "rtol = 0": lambda: solve(start, times=[1.0], rtol=0),
        "dimension = 0": lambda: solve(start, times=[1.0], dimension=0),
        "expectations = 'pair'": lambda: solve(start, times=[1.0], expectations="pair"),
        "closed pairs need": lambda: solve(start, times=[1.0], expectations="pairs", dimension=9),
        "signals = 9": lambda: solve_mean_field(
            network("tanh", 3, 9),
            FLOW,
            mean_field_start(network("tanh", 3, 9), M=np.ones((3, 9)), q=Q3),
            times=[1.0],
        ),
        "signals = 5": lambda: solve_mean_field(
            sgd.MultiIndex(jnp.sum, 5, 3, "tanh"),
            FLOW,
            mean_field_start(sgd.MultiIndex(jnp.sum, 5, 3, "tanh"), M=np.ones((3, 5)), q=Q3),
            times=[1.0],
        ),
        "gradient flow makes no steps": lambda: solve(start, alpha=[1.0]),
        "received none of them": lambda: solve(start),
        "use the result of sgd.solve_mean_field": lambda: plot.density(xr.Dataset({"Q": 1.0})),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.slow
def test_gaps_of_finite_networks_have_the_size_of_the_slides():
    """The gap of the risk shrinks like 1/p: 4.7% at p = 50, 2.5% at 100, 1.3% at 200, 0.64% at 400.

    erf, k = 2, random m and q at d = 500, orthogonal perpendicular parts, t = 50.
    """
    gaps, widths = [], (50, 100, 200, 400)
    for p in widths:
        problem = network(width=p, signals=2)
        start = sgd.random_start(
            problem, dimension=500, seed=1, runs=3 if p < 400 else 1, wide=True
        )
        Q = start.M @ np.swapaxes(start.M, 1, 2) + np.eye(p) * start.q[:, None]
        full = sgd.solve_ode(problem, FLOW, sgd.start(problem, M=start.M, Q=Q), times=[p * 50.0])
        limit = solve_mean_field(problem, FLOW, start, times=[50.0])
        gaps.append(
            float(np.abs(full["excess_risk"].values / limit["excess_risk"].values - 1).mean())
        )
    assert 0.02 < gaps[0] < 0.1
    assert np.all(np.abs(np.array(gaps[:-1]) / gaps[1:] - 2) < 0.5)
    exponent = np.polyfit(np.log(widths), np.log(gaps), 1)[0]
    assert abs(exponent + 1) < 0.15, (exponent, gaps)


@pytest.mark.slow
def test_ten_thousand_particles():
    """Risks of p and 4p evenly spread particles differ by about error_particles."""
    results = []
    for p in (2500, 10000):
        problem = network("tanh", width=p)
        start = sgd.random_start(problem, dimension=100, sampling="sobol", wide=True)
        results.append(solve_mean_field(problem, FLOW, start, times=[1.0, 5.0]))
    risks = [result["excess_risk"].values for result in results]
    difference = np.abs(risks[0] - risks[1]).max() / risks[1].max()
    assert difference < 3 * results[0].attrs["error_particles"]
    assert results[1].attrs["error_particles"] < 1e-3


@pytest.mark.slow
def test_finite_dimension_against_the_full_ode():
    """At d = 4 and k = 2 the perpendicular parts are in a plane.

    24 units of each kind at equal angles represent infinitely many, up to the error of a sum over
    24 angles.
    """
    M = np.array([[0.3, -0.1], [0.2, 0.4]])
    q, angles = np.array([0.7, 1.1]), 2 * np.pi * np.arange(24) / 24
    small, wide = network(width=2, signals=2), network(width=48, signals=2)
    limit = solve_mean_field(
        small, FLOW, mean_field_start(small, M=M, q=q), times=TIMES, dimension=4, rtol=1e-8
    )
    perpendicular = (
        np.sqrt(q)[:, None, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    ).reshape(48, 2)
    rows = np.repeat(M, 24, axis=0)
    full = sgd.solve_ode(
        wide,
        FLOW,
        sgd.start(wide, M=rows, Q=rows @ rows.T + perpendicular @ perpendicular.T),
        times=48 * np.array(TIMES),
    )
    np.testing.assert_allclose(full["excess_risk"], limit["excess_risk"], rtol=1e-6)
    np.testing.assert_allclose(full["M"].values[0, :, ::24], limit["M"].values[0], atol=1e-7)


@pytest.mark.slow
def test_rows_that_shrink_or_grow_far_widen_the_table():
    """Without forces |w| decays exponentially, by a factor of 100; the table is widened twice."""
    problem = network("tanh", weight_decay=0.4)
    start = mean_field_start(problem, M=M3, q=Q3, a=np.zeros(3))
    result = solve_mean_field(problem, FLOW, start, times=[0.0, 2.0, 4.0])
    np.testing.assert_allclose(
        result["q"].values[0], Q3 * np.exp(-2.4 * result["t"].values)[:, None], rtol=1e-5
    )


@pytest.mark.slow
def test_public_functions_support_wide_networks():
    """sgd.start accepts q, and sgd.start_from a result of solve_mean_field."""
    problem = sgd.TeacherStudent(width=3, activation="erf")
    start = sgd.start(problem, M=[[0.3], [-0.2], [0.5]], q=[0.8, 1.0, 0.6])
    result = sgd.solve_mean_field(problem, sgd.OnePassSGD(lr=0.1), start, times=[0.0, 1.0])
    continuation = sgd.start_from(result)
    np.testing.assert_allclose(continuation.q, result.q.values[:, -1])
    with pytest.raises(ValueError, match="received Q"):
        sgd.start(problem, M=[[0.3], [-0.2], [0.5]], q=[0.8, 1.0, 0.6], Q=np.eye(3))


@pytest.mark.slow  # tests/algorithms/test_schedules.py tests a learning rate that changes
def test_parameters_that_depend_on_alpha():
    """Parameters that change at alpha = 20 give the result of two successive solutions."""
    problem = sgd.TeacherStudent(width=8, activation="erf", head="trained")
    start = sgd.random_start(problem, dimension=50, wide=True)
    pieces = {
        name: sgd.piecewise_rate([20.0], values)
        for name, values in {"decay": [0.01, 0.05], "head": [1.0, 3.0], "lr": [1.0, 2.0]}.items()
    }
    noise = sgd.piecewise_rate([20.0], [1.0, 0.0])
    changing = (
        problem.replace(weight_decay=pieces["decay"], noise=noise),
        sgd.OnePassSGD(lr=pieces["lr"], head_rate=pieces["head"]),
    )
    result = sgd.solve_mean_field(*changing, start, alpha=[10.0, 20.0, 30.0])
    first = sgd.solve_mean_field(
        problem.replace(weight_decay=0.01), sgd.OnePassSGD(lr=1.0), start, alpha=[10.0, 20.0]
    )
    later = problem.replace(weight_decay=0.05), sgd.OnePassSGD(lr=2.0, head_rate=3.0)
    second = sgd.solve_mean_field(*later, sgd.start_from(first), alpha=[10.0])
    np.testing.assert_allclose(
        result.excess_risk[0],
        [*first.excess_risk.values[0], *second.excess_risk.values[0]],
        rtol=1e-5,
    )
    np.testing.assert_allclose(result.risk - result.excess_risk, [[0.5, 0.0, 0.0]], atol=1e-12)
    with pytest.raises(ValueError, match="gradient flow uses no samples"):
        sgd.solve_mean_field(changing[0], sgd.OnePassSGD(lr=0.0), start, times=[1.0])
