"""Fixed points are compared with analytic ones, and with the states in which the ODE ends.

Their stability is compared with Hessians and with finite differences of the drift.
"""

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


def real_eigenvalues(point):
    """The eigenvalues of a point, after a check that they are real."""
    # Where two eigenvalues coincide, the error is the square root of the rounding error.
    np.testing.assert_allclose(point.eigenvalues.imag, 0.0, atol=1e-6)
    return point.eigenvalues.real


@pytest.mark.slow
def test_phase_retrieval_with_one_unit():
    """The risk is (3 q^2 - 2 q - 4 m^2 + 3)/2.

    Its stationary points are w = 0, a saddle at m = 0 and q = 1/3, and w = +-w*, which are one
    point up to symmetry.
    """
    problem = sgd.TeacherStudent(width=1, activation="square")
    learnt, saddle, zero = fixed_points(problem, FLOW, tries=32)
    assert [learnt.verdict, saddle.verdict, zero.verdict] == ["stable", "saddle", "saddle"]
    assert learnt.stable
    np.testing.assert_allclose([abs(learnt.M[0, 0]), learnt.Q[0, 0]], 1.0, atol=1e-12)
    np.testing.assert_allclose(
        [saddle.M[0, 0], saddle.Q[0, 0] - 1 / 3, zero.M[0, 0], zero.Q[0, 0]], 0.0, atol=1e-12
    )
    np.testing.assert_allclose([learnt.risk, saddle.risk, zero.risk], [0.0, 4 / 3, 1.5], atol=1e-12)
    # the Jacobian of d(m, q)/dt = (6 m (1 - q), 4 q (1 - 3 q) + 8 m^2)
    for point in (learnt, saddle, zero):
        m, q = point.M[0, 0], point.Q[0, 0]
        expected = np.linalg.eigvals([[6 * (1 - q), -6 * m], [16 * m, 4 - 24 * q]])
        np.testing.assert_allclose(real_eigenvalues(point), np.sort(expected.real)[::-1], atol=1e-8)
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
    np.testing.assert_allclose(
        [real_eigenvalues(up)[0], real_eigenvalues(across)[0]], [-8.0, 4.0], atol=1e-8
    )
    assert [up.verdict, across.verdict] == ["stable", "saddle"]


@pytest.mark.slow
def test_families_of_quadratic_networks():
    """Fixed points have r directions orthogonal to the teacher's and s along them.

    2 R = 2 kap^2/(r + s + 2) + 2 kap/p* with kap = 1 - s/p*, where the loss of the paper has no
    factor 1/2.
    """
    problem = sgd.TeacherStudent(width=2, activation="square")
    points = fixed_points(problem, FLOW, tries=48)
    risks = sorted(1 / (r + 2) + 1 for r in range(3))
    np.testing.assert_allclose([point.risk for point in points], [0.0, *risks], atol=1e-12)
    # s = 1 and r = 1 are families under O(2); rows of squared norm 1/2 and the origin are isolated
    assert [point.manifold_dimension for point in points] == [1, 0, 1, 0]
    # with more units than the teacher, the excess units decay as a power law
    assert [point.verdict for point in points] == ["marginal", "saddle", "saddle", "saddle"]
    np.testing.assert_allclose(points[0].M[:, 0] @ points[0].M[:, 0], 2.0, atol=1e-9)
    np.testing.assert_allclose(points[1].Q, np.eye(2) / 2, atol=1e-12)
    decayed_points = []
    decayed = sgd.TeacherStudent(width=2, activation="square", weight_decay=10.0)
    assert (
        count_compilations(lambda: decayed_points.extend(fixed_points(decayed, FLOW, tries=48)))
        == 0
    )
    (collapsed,) = decayed_points
    np.testing.assert_allclose(collapsed.Q, 0.0, atol=1e-12)
    assert collapsed.stable
    # at w = 0 the risk is - (1/2) sum_i w_i^T (I + 2 w* w*^T) w_i + const, with the rates
    # 3 - al of M and 2 (1 - al) of Q
    np.testing.assert_allclose(
        real_eigenvalues(collapsed), [-7.0, -7.0, -18.0, -18.0, -18.0], atol=1e-8
    )


@pytest.fixture(scope="module")
def soft_committee():
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf")
    return problem, fixed_points(problem, FLOW, tries=32)


def test_soft_committee_has_one_plateau_and_one_optimum(soft_committee):
    _, (learnt, plateau) = soft_committee
    assert learnt.stable
    np.testing.assert_allclose(np.sort(learnt.M, axis=None), [0, 0, 1, 1], atol=1e-10)
    assert plateau.verdict == "saddle"
    # Saad and Solla 1995: R = sqrt(Q/2), Q = 1/(2 K - 1) for K units, in the limit of small rates
    np.testing.assert_allclose(plateau.Q, 1 / 3, atol=1e-8)
    np.testing.assert_allclose(plateau.M, np.sqrt(1 / 6), atol=1e-8)
    assert np.sum(real_eigenvalues(plateau) > 1e-6) == 1
    assert plateau.excess_risk == plateau.risk


def test_stability_is_that_of_the_hessian(soft_committee):
    """The eigenvalues follow from the Hessian at an optimum whose rows span the K signals.

    M moves at the eigenvalues of the Hessian in this span, and the part of Q orthogonal to it at
    sums of two eigenvalues outside of it.
    """
    problem, (learnt, _) = soft_committee
    hessian = hessian_spectrum(problem, learnt.start, dimension=100)
    assert hessian.gradient_norm < 1e-12
    times = np.array(hessian.multiplicities)
    inside = np.repeat(hessian.eigenvalues, np.where(times < 90, times, 0))
    outside = np.repeat(hessian.eigenvalues, (times >= 90).astype(int))
    sums = [outside[i] + outside[j] for i in range(2) for j in range(i, 2)]
    np.testing.assert_allclose(
        np.sort(-real_eigenvalues(learnt)), np.sort([*inside, *sums]), atol=1e-9
    )


@pytest.mark.slow
def test_the_ode_with_noise_ends_at_the_stable_point():
    problem = sgd.TeacherStudent(width=1, activation="square", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.05)
    points = fixed_points(problem, algorithm, tries=32)
    (stable,) = [point for point in points if point.stable]
    assert stable.excess_risk > 1e-3
    assert stable.excess_risk == pytest.approx(stable.risk - 0.05, rel=1e-12)
    end = sgd.solve_ode(problem, algorithm, sgd.start(problem, M=[[0.3]], Q=[[0.8]]), times=[8.0])
    np.testing.assert_allclose(end.M[0, 0], np.abs(stable.M), rtol=1e-8)
    np.testing.assert_allclose(end.Q[0, 0], stable.Q, rtol=1e-8)
    # Jacobians by finite differences of the drift
    with jax.enable_x64(True):
        rate = jax.jit(
            lambda state: functional.drift(problem.structure, problem.parameters, state, lr=0.05)
        )
        for point in points:
            if point.Q[0, 0] < 1e-6:
                continue
            columns = []
            for varied in ("M", "Q"):
                ends = []
                for step in (1e-5, -1e-5):
                    state = functional.state(point.start)
                    ends.append(rate({**state, varied: state[varied] + step}))
                columns.append(
                    [
                        float(ends[0][name][0, 0, 0] - ends[1][name][0, 0, 0]) / 2e-5
                        for name in ("M", "Q")
                    ]
                )
            by_differences = np.linalg.eigvals(np.array(columns).T).real
            np.testing.assert_allclose(
                real_eigenvalues(point), np.sort(by_differences)[::-1], rtol=1e-6
            )
    # the search is reproducible, and a start alone finds the points to which it leads
    repeated = fixed_points(problem, algorithm, tries=32)
    assert [point.risk for point in repeated] == [point.risk for point in points]
    start = sgd.start(problem, M=[[0.3]], Q=[[0.8]])
    reached = fixed_points(problem, algorithm, starts=start, tries=0)
    assert any(abs(point.risk - stable.risk) < 1e-12 and point.stable for point in reached)


@pytest.mark.slow
def test_roots_without_rows_are_excluded_by_default():
    problem = sgd.TeacherStudent(width=2, teacher_width=2, activation="erf", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.5)
    roots = fixed_points(problem, algorithm, tries=96, unphysical=True)
    points = fixed_points(problem, algorithm, tries=96)
    assert {point.physical for point in roots} == {True, False}
    assert [point.risk for point in points] == [point.risk for point in roots if point.physical]
    assert sum(point.stable for point in points) == 1
    for point in roots:
        omega = np.block([[point.Q, point.M], [point.M.T, np.eye(2)]])
        assert (np.linalg.eigvalsh(omega)[0] > -2e-9) == point.physical


@pytest.mark.slow
def test_trained_head_with_decay_and_covariance_blocks():
    """The optimum is stationary for the penalised risk, risk + (al/2)(|w|^2 + a^2), in the rows."""
    al, covariance = 0.02, [(0.5, 0.5), (1.5, 0.5)]
    problem = sgd.TeacherStudent(
        width=1, activation="erf", head="trained", weight_decay=al, covariance=covariance
    )
    points = fixed_points(problem, FLOW, tries=24)
    assert [point.verdict for point in points] == ["stable", "saddle"]
    learnt = points[0]
    assert len(learnt.eigenvalues) == 5  # M and Q in two blocks, and the head

    def penalised_risk(rows, head):
        # two columns per block: along the signal, and orthogonal to it
        M = (rows[:, 0] * np.sqrt(0.5))[:, None, None]
        Q = jnp.sum(rows**2, axis=1)[:, None, None]
        risk = functional.risk(problem.structure, problem.parameters, {"M": M, "Q": Q, "a": head})
        return risk + al / 2 * (jnp.sum(rows**2) + jnp.sum(head**2))

    with jax.enable_x64(True):
        parallel = learnt.M_blocks[:, 0, 0] / np.sqrt(0.5)
        square = learnt.Q_blocks[:, 0, 0] - parallel**2
        orthogonal = np.where(square > 1e-12, np.sqrt(np.abs(square)), 0.0)
        gradient = jax.jit(jax.grad(penalised_risk, argnums=(0, 1)))(
            jnp.stack([parallel, orthogonal], axis=1), jnp.asarray(learnt.a)
        )
    np.testing.assert_allclose(
        np.concatenate([np.ravel(component) for component in gradient]), 0.0, atol=1e-10
    )


@pytest.mark.slow
def test_targets_and_own_losses():
    """A square learns the target z^2 - 1 at m^2 = q = 2/3 with rates -8, -8.

    (R = (3 q^2 - 4 m^2 + 2)/2.) The loss of phase retrieval, passed as the user's own, is a
    polynomial, so that its expectations and fixed points are exact.
    """
    target = sgd.MultiIndex(lambda z: z[0] ** 2 - 1, directions=1, width=1, activation="square")
    learnt = fixed_points(target, FLOW, tries=8)[0]
    np.testing.assert_allclose([learnt.M[0, 0] ** 2, learnt.Q[0, 0]], 2 / 3, atol=1e-10)
    np.testing.assert_allclose(real_eigenvalues(learnt), -8.0, atol=1e-6)
    own = sgd.Problem(
        lambda f, s, a, z: 0.5 * (jnp.mean(a * f**2) - s[0] ** 2) ** 2, width=1, signals=1
    )
    points = fixed_points(own, FLOW, tries=8)
    assert [point.verdict for point in points] == ["stable", "saddle", "saddle"]
    for point, Q, rates in zip(
        points, (1.0, 1 / 3, 0.0), ((-8, -12), (4, -4), (6, 4)), strict=True
    ):
        assert abs(point.Q[0, 0] - Q) <= 5 * point.error + 1e-9
        np.testing.assert_allclose(real_eigenvalues(point), rates, rtol=1e-6)
    assert points[1].error < 1e-9
    assert np.isnan(points[0].excess_risk)


def test_messages_of_invalid_arguments():
    problem = sgd.TeacherStudent(width=1, activation="square")
    with pytest.raises(ValueError, match=r"algorithm = 'sgd': use sgd\.OnePassSGD"):
        fixed_points(problem, "sgd")
    with pytest.raises(ValueError, match=r"tries = 0: give starts"):
        fixed_points(problem, FLOW, tries=0)
    with pytest.raises(ValueError, match=r"start = 3: give what sgd\.start"):
        fixed_points(problem, FLOW, starts=3)
    with pytest.raises(ValueError, match=r"tolerance = 0"):
        fixed_points(problem, FLOW, tolerance=0)
