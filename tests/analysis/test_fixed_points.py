"""Fixed points: known ones each once, their stability against the Hessian and differences, and where the ODE ends."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.analysis.fixed_points import fixed_points
from sgdynamics.analysis.landscape import hessian_spectrum
from sgdynamics.solvers import functional
from tests.simulation.test_behaviour import count_compilations

FLOW = sgd.OnePassSGD(lr=0.0)


def real(point):
    np.testing.assert_allclose(
        point.eigenvalues.imag, 0.0, atol=1e-6
    )  # the root of rounding, where two of them meet
    return point.eigenvalues.real


def test_phase_retrieval_with_one_unit():
    """R = (3 q^2 - 2 q - 4 m^2 + 3)/2: w = 0, a saddle at m = 0 and q = 1/3, and w = +-w*, which count once."""
    problem = sgd.TeacherStudent(width=1, activation="square")
    learnt, saddle, zero = fixed_points(problem, FLOW, tries=32)
    assert [learnt.verdict, saddle.verdict, zero.verdict] == ["stable", "saddle", "saddle"]
    assert learnt.stable
    np.testing.assert_allclose([abs(learnt.M[0, 0]), learnt.Q[0, 0]], 1.0, atol=1e-12)
    np.testing.assert_allclose(
        [saddle.M[0, 0], saddle.Q[0, 0] - 1 / 3, zero.M[0, 0], zero.Q[0, 0]], 0.0, atol=1e-12
    )
    np.testing.assert_allclose([learnt.risk, saddle.risk, zero.risk], [0.0, 4 / 3, 1.5], atol=1e-12)
    # d(m, q)/dt = (6 m (1 - q), 4 q (1 - 3 q) + 8 m^2), differentiated by hand
    for point in (learnt, saddle, zero):
        m, q = point.M[0, 0], point.Q[0, 0]
        by_hand = np.linalg.eigvals([[6 * (1 - q), -6 * m], [16 * m, 4 - 24 * q]])
        np.testing.assert_allclose(real(point), np.sort(by_hand.real)[::-1], atol=1e-8)
        assert point.residual <= 1e-12
        assert point.physical
        assert point.manifold_dimension == 0
        assert point.error < 1e-12
    sphere = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    up, across = fixed_points(sphere, FLOW, tries=32)
    np.testing.assert_allclose(
        [abs(up.M[0, 0]), across.M[0, 0], up.Q[0, 0], across.Q[0, 0]], [1, 0, 1, 1], atol=1e-12
    )
    # dm/dt = 4 m (1 - m^2)
    np.testing.assert_allclose([real(up)[0], real(across)[0]], [-8.0, 4.0], atol=1e-8)
    assert [up.verdict, across.verdict] == ["stable", "saddle"]


def test_quadratic_networks_have_the_families_that_are_known():
    """r directions off the teacher's and s on them: 2 R = 2 kap^2/(r + s + 2) + 2 kap/p*, kap = 1 - s/p* (loss without 1/2 there)."""
    problem = sgd.TeacherStudent(width=2, activation="square")
    found = fixed_points(problem, FLOW, tries=48)
    risks = sorted(1 / (r + 2) + 1 for r in range(3))
    np.testing.assert_allclose([point.risk for point in found], [0.0, *risks], atol=1e-12)
    # s = 1 and r = 1 are families, rotated by O(2); rows of norm^2 1/2 and the origin stand alone
    assert [point.manifold_dimension for point in found] == [1, 0, 1, 0]
    # with more units than the teacher, what is left over decays as a power law
    assert [point.verdict for point in found] == ["marginal", "saddle", "saddle", "saddle"]
    np.testing.assert_allclose(found[0].M[:, 0] @ found[0].M[:, 0], 2.0, atol=1e-9)
    np.testing.assert_allclose(found[1].Q, np.eye(2) / 2, atol=1e-12)
    heavy = []
    decayed = sgd.TeacherStudent(width=2, activation="square", weight_decay=10.0)
    assert count_compilations(lambda: heavy.extend(fixed_points(decayed, FLOW, tries=48))) == 0
    (collapsed,) = heavy
    np.testing.assert_allclose(collapsed.Q, 0.0, atol=1e-12)
    assert collapsed.stable
    # at w = 0 the risk is - (1/2) sum_i w_i^T (I + 2 w* w*^T) w_i + const: rates 3 - al of M, 2 (1 - al) of Q
    np.testing.assert_allclose(real(collapsed), [-7.0, -7.0, -18.0, -18.0, -18.0], atol=1e-8)


@pytest.fixture(scope="module")
def soft_committee():
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf")
    return problem, fixed_points(problem, FLOW, tries=32)


def test_soft_committee_has_its_plateau_and_its_optimum_once(soft_committee):
    _, (learnt, plateau) = soft_committee
    assert learnt.stable
    np.testing.assert_allclose(np.sort(learnt.M, axis=None), [0, 0, 1, 1], atol=1e-10)
    assert plateau.verdict == "saddle"
    # Saad and Solla 1995: R = sqrt(Q/2), Q = 1/(2 K - 1) for K units, in the limit of small rates
    np.testing.assert_allclose(plateau.Q, 1 / 3, atol=1e-8)
    np.testing.assert_allclose(plateau.M, np.sqrt(1 / 6), atol=1e-8)
    assert np.sum(real(plateau) > 1e-6) == 1
    assert plateau.excess_risk == plateau.risk


def test_stability_is_that_of_the_hessian(soft_committee):
    """At an optimum where rows and signals span the same K directions: M moves with the Hessian on the span, Q outside of it with sums."""
    problem, (learnt, _) = soft_committee
    hessian = hessian_spectrum(problem, learnt.start, dimension=100)
    assert hessian.gradient_norm < 1e-12
    times = np.array(hessian.multiplicities)
    inside = np.repeat(hessian.eigenvalues, np.where(times < 90, times, 0))
    outside = np.repeat(hessian.eigenvalues, (times >= 90).astype(int))
    sums = [outside[i] + outside[j] for i in range(2) for j in range(i, 2)]
    np.testing.assert_allclose(np.sort(-real(learnt)), np.sort([*inside, *sums]), atol=1e-9)


@pytest.mark.slow
def test_noise_shifts_them_and_the_ode_ends_at_the_stable_one():
    problem = sgd.TeacherStudent(width=1, activation="square", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.05)
    found = fixed_points(problem, algorithm, tries=32)
    (stable,) = [point for point in found if point.stable]
    assert stable.excess_risk > 1e-3
    assert stable.excess_risk == pytest.approx(stable.risk - 0.05, rel=1e-12)
    end = sgd.solve_ode(problem, algorithm, sgd.start(problem, M=[[0.3]], Q=[[0.8]]), times=[8.0])
    np.testing.assert_allclose(end.M[0, 0], np.abs(stable.M), rtol=1e-8)
    np.testing.assert_allclose(end.Q[0, 0], stable.Q, rtol=1e-8)
    # every Jacobian by differences of the drift
    with jax.enable_x64(True):
        rate = jax.jit(
            lambda state: functional.drift(problem.structure, problem.parameters, state, lr=0.05)
        )
        for point in found:
            if point.Q[0, 0] < 1e-6:
                continue
            columns = []
            for part in ("M", "Q"):
                ends = []
                for step in (1e-5, -1e-5):
                    state = functional.state(point.start)
                    ends.append(rate({**state, part: state[part] + step}))
                columns.append(
                    [
                        float(ends[0][name][0, 0, 0] - ends[1][name][0, 0, 0]) / 2e-5
                        for name in ("M", "Q")
                    ]
                )
            by_differences = np.linalg.eigvals(np.array(columns).T).real
            np.testing.assert_allclose(real(point), np.sort(by_differences)[::-1], rtol=1e-6)
    # the same seed, the same list; given starts alone are enough for what they lead to
    again = fixed_points(problem, algorithm, tries=32)
    assert [point.risk for point in again] == [point.risk for point in found]
    led = fixed_points(problem, algorithm, starts=sgd.start(problem, M=[[0.3]], Q=[[0.8]]), tries=0)
    assert any(abs(point.risk - stable.risk) < 1e-12 and point.stable for point in led)


def test_roots_that_belong_to_no_rows_are_left_out():
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.5)
    every = fixed_points(problem, algorithm, tries=96, unphysical=True)
    found = fixed_points(problem, algorithm, tries=96)
    assert {point.physical for point in every} == {True, False}
    assert [point.risk for point in found] == [point.risk for point in every if point.physical]
    assert sum(point.stable for point in found) == 1
    for point in every:
        omega = np.block([[point.Q, point.M], [point.M.T, np.eye(2)]])
        assert (np.linalg.eigvalsh(omega)[0] > -2e-9) == point.physical


def test_trained_head_with_decay_and_covariance_blocks():
    """Stationary for the penalised risk: the gradient of risk + (al/2)(|w|^2 + a^2) in the rows themselves vanishes."""
    al, covariance = 0.02, [(0.5, 0.5), (1.5, 0.5)]
    problem = sgd.TeacherStudent(
        width=1, activation="erf", head="trained", weight_decay=al, covariance=covariance
    )
    found = fixed_points(problem, FLOW, tries=24)
    assert [point.verdict for point in found] == ["stable", "saddle"]
    learnt = found[0]
    assert len(learnt.eigenvalues) == 5  # M and Q in two blocks, and the head

    def penalised(rows, head):
        # two columns a block: along the signal, and off it
        M = (rows[:, 0] * np.sqrt(0.5))[:, None, None]
        Q = jnp.sum(rows**2, axis=1)[:, None, None]
        risk = functional.risk(problem.structure, problem.parameters, {"M": M, "Q": Q, "a": head})
        return risk + al / 2 * (jnp.sum(rows**2) + jnp.sum(head**2))

    with jax.enable_x64(True):
        along = learnt.M_blocks[:, 0, 0] / np.sqrt(0.5)
        rest = learnt.Q_blocks[:, 0, 0] - along**2
        off = np.where(rest > 1e-12, np.sqrt(np.abs(rest)), 0.0)
        gradient = jax.jit(jax.grad(penalised, argnums=(0, 1)))(
            jnp.stack([along, off], axis=1), jnp.asarray(learnt.a)
        )
    np.testing.assert_allclose(
        np.concatenate([np.ravel(part) for part in gradient]), 0.0, atol=1e-10
    )


@pytest.mark.slow
def test_targets_and_own_losses():
    """z^2 - 1 by a square: m^2 = q = 2/3 with rates -8, -8 (R = (3 q^2 - 4 m^2 + 2)/2); and the loss of phase retrieval as an own one,
    which is a polynomial: its expectations, and so its points, are exact."""
    target = sgd.MultiIndex(lambda z: z[0] ** 2 - 1, directions=1, width=1, activation="square")
    learnt = fixed_points(target, FLOW, tries=8)[0]
    np.testing.assert_allclose([learnt.M[0, 0] ** 2, learnt.Q[0, 0]], 2 / 3, atol=1e-10)
    np.testing.assert_allclose(real(learnt), -8.0, atol=1e-6)
    own = sgd.Problem(
        lambda f, s, a, z: 0.5 * (jnp.mean(a * f**2) - s[0] ** 2) ** 2, width=1, signals=1
    )
    found = fixed_points(own, FLOW, tries=8)
    assert [point.verdict for point in found] == ["stable", "saddle", "saddle"]
    for point, Q, rates in zip(found, (1.0, 1 / 3, 0.0), ((-8, -12), (4, -4), (6, 4)), strict=True):
        assert abs(point.Q[0, 0] - Q) <= 5 * point.error + 1e-9
        np.testing.assert_allclose(real(point), rates, rtol=1e-6)
    assert found[1].error < 1e-9
    assert np.isnan(found[0].excess_risk)


def test_bad_input_says_what_would_be_right():
    problem = sgd.TeacherStudent(width=1, activation="square")
    with pytest.raises(ValueError, match=r"algorithm = 'sgd': use sgd\.OnePassSGD"):
        fixed_points(problem, "sgd")
    with pytest.raises(ValueError, match=r"tries = 0: give starts"):
        fixed_points(problem, FLOW, tries=0)
    with pytest.raises(ValueError, match=r"start = 3: give what sgd\.start"):
        fixed_points(problem, FLOW, starts=3)
    with pytest.raises(ValueError, match=r"tolerance = 0"):
        fixed_points(problem, FLOW, tolerance=0)
