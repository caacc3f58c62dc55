"""Plateaus compared with closed forms, quadrature, and long runs of the ODE."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import optimize, special

import sgdynamics as sgd
from sgdynamics.analysis.plateaus import plateau
from sgdynamics.papers.dimension_free import plateau as slides_plateau
from sgdynamics.solvers import functional


def committee(p, k=2, activation="erf", noise=1e-3, **options):
    return sgd.TeacherStudent(
        width=p, teacher_width=k, activation=activation, noise=noise, **options
    )


def matched_committee(p, activation="erf", **options):
    return committee(p, p, activation, 0.1, **options)


def one_pass(lr, batch=1):
    return sgd.OnePassSGD(lr=lr, batch=batch)


def erf_moments(m, q):
    """Moments of an erf unit with fields u, u* of variances q, 1 and covariance m, by quadrature.

    With E0 = s(u*) - s(u) they are the means of s' u* E0, s' u E0, s'^2 E0^2, s'^2 and E0^2/2.
    """
    node, weight = special.roots_hermitenorm(160)
    weight = np.outer(weight, weight) / weight.sum() ** 2
    u = np.sqrt(q) * node[:, None] + 0 * node
    v = m / np.sqrt(q) * node[:, None] + np.sqrt(1 - m * m / q) * node
    slope = np.sqrt(2 / np.pi) * np.exp(-(u**2) / 2)
    gap = special.erf(v / np.sqrt(2)) - special.erf(u / np.sqrt(2))
    integrands = (slope * v * gap, slope * u * gap, slope**2 * gap**2, slope**2, gap**2 / 2)
    return [float(np.sum(weight * integrand)) for integrand in integrands]


@pytest.mark.parametrize("lr", [0.1, 2.0])
def test_one_erf_unit_free_and_on_the_sphere(lr):
    """The exact roots by quadrature: (m, q) of the free ODE, and m on the sphere.

    The free root satisfies m^2 = 1 + q - sqrt((1 + q)/2).
    """
    delta = 0.1

    def rates(y):
        towards_signal, growth, noise, slopes, _ = erf_moments(*y)
        return [towards_signal, 2 * growth + lr * (noise + delta * slopes)]

    m, q = optimize.root(rates, [1.0, 1.0 + lr * delta / 2], tol=1e-14).x
    end = plateau(matched_committee(1), one_pass(lr))
    assert end.excess_risk == pytest.approx(erf_moments(m, q)[4], rel=1e-9)
    assert (end.M[0, 0], end.Q[0, 0]) == pytest.approx((m, q), rel=1e-10)
    assert m**2 == pytest.approx(1 + q - np.sqrt((1 + q) / 2), rel=1e-10)

    def sphere_rate(m):
        rate_m, rate_q = rates([m, 1.0])
        return rate_m - m * rate_q / 2

    m = optimize.brentq(sphere_rate, 0.5, 1 - 1e-6, xtol=1e-15)
    end = plateau(matched_committee(1, constraint="sphere"), one_pass(lr))
    assert end.excess_risk == pytest.approx(erf_moments(m, 1.0)[4], rel=1e-8)
    assert end.M[0, 0] == pytest.approx(m, rel=1e-11)


def test_linear_plateau_in_closed_form():
    """(noise/2) c/(1 - c) for any heads, batch and covariance."""
    problem = matched_committee(
        2, "linear", teacher_head=[1.0, 2.0], covariance=[(1.0, 0.5), (3.0, 0.5)]
    )
    end = plateau(problem, one_pass(0.8, 2))
    c = 0.4 / 2 * 2.0 * (1 + 4) / 4
    assert end.closed == pytest.approx(0.05 * c / (1 - c))
    assert end.excess_risk == pytest.approx(end.closed, rel=1e-9)
    assert end.leading == pytest.approx(0.05 * c)


def test_quadratic_plateau_in_closed_form_up_to_its_end():
    problem = matched_committee(2, "square", constraint="sphere")
    for lr in (0.1, 0.4):
        end = plateau(problem, one_pass(lr))
        assert end.closed == pytest.approx(0.1 * lr / 2 / (1 - 2 * lr), rel=1e-12)
        assert end.excess_risk == pytest.approx(end.closed, rel=1e-8)
    with pytest.raises(ValueError, match=r"lr = 0\.6: .*smaller"):
        plateau(problem, one_pass(0.6))


def test_corrections_shrink_linearly():
    """Corrections are relative to (lr noise/4) sum_i (a_i/p)^2 E[s'_i^2], for any teacher."""
    rates = np.array([0.05, 0.1, 0.2])
    unequal = {"teacher_gram": [[1.0, 0.4], [0.4, 2.0]], "teacher_head": [1.0, -0.5]}
    for options in ({}, unequal):
        problem = matched_committee(2, **options)
        ends = [plateau(problem, one_pass(lr)) for lr in rates]
        norm, head = np.diag(problem.gram[0]), problem.teacher_head
        slopes = 2 / np.pi / np.sqrt(1 + 2 * norm)
        for lr, end in zip(rates, ends, strict=True):
            leading = lr * 0.1 / 4 * np.sum((head / 2) ** 2 * slopes)
            assert end.leading == pytest.approx(leading, rel=1e-12)
        shares = np.array([end.correction for end in ends]) / rates
        assert np.all(np.abs(shares) < 0.1)
        np.testing.assert_allclose(shares, shares[0], rtol=0.02)
        # The rows are at the distance lr noise/2 from their teachers, each in its own direction.
        M, Q = ends[0].M, ends[0].Q
        orthogonal_part = Q - M @ np.linalg.solve(problem.gram[0], M.T)
        np.testing.assert_allclose(orthogonal_part, 0.0025 * np.eye(2), atol=1e-4)
    assert float(plateau(problem, one_pass(0.0))) == 0.0
    assert plateau(committee(2, 2, noise=0.0), one_pass(0.1)).correction == 0.0


def final_excess_risks(problem, rates, spans):
    """Excess risks (rate, time) of the ODE from a start near the teacher.

    Times are the spans, in units of the plateau's slowest relaxation time.
    """
    p = problem.width
    M = 0.99 * np.eye(p) + 0.003
    start = sgd.start(problem, M=M, Q=M @ M + 0.004 * np.eye(p))
    quadrature = functional.quadrature(problem, start)
    structure, parameters = problem.structure, problem.parameters
    with jax.enable_x64(True):

        def solve(lr, times):
            states = functional.solve(
                structure, parameters, functional.state(start), times, lr=lr, quadrature=quadrature
            )

            def risk(state):
                return functional.risk(structure, parameters, state, quadrature=quadrature)

            return jax.vmap(risk)(states)

        compiled = jax.jit(solve)
        slowest = [plateau(problem, one_pass(lr)).rate for lr in rates]
        risks = [compiled(lr, spans / rate) for lr, rate in zip(rates, slowest, strict=True)]
        return np.array([np.asarray(risk) for risk in risks]) - problem.noise_floor


def assert_runs_end_on_the_plateau(problem, rates, rtol=1e-6):
    spans = np.array([8.0, 10.0, 22.0])
    activation = problem.activation.name
    risks = final_excess_risks(problem, rates, spans)
    for lr, (early, later, last) in zip(rates, risks, strict=True):
        end = plateau(problem, one_pass(lr))
        # The run uses the first of four replicates, which is within 3 standard errors of their
        # mean, as any one of four numbers is.
        assert abs(last - end.excess_risk) < rtol * last + 3 * end.error
        assert end.error < 1e-3 * last
        # The formula of the slides is its leading term.
        slides = slides_plateau(lr, problem.width, problem.noise, activation)
        assert slides == pytest.approx(end.leading, rel=1e-9)
        # Two relaxation times apart, distances differ by e^-2 (from this start the other
        # activations do not excite the slowest mode).
        if activation == "erf":
            assert (later - last) / (early - last) == pytest.approx(np.exp(-2), rel=0.05)


@pytest.mark.slow
def test_long_runs_of_two_units_end_on_the_plateau():
    assert_runs_end_on_the_plateau(matched_committee(2), (0.1, 0.4))


@pytest.mark.slow
@pytest.mark.parametrize(("p", "activation"), [(1, "erf"), (4, "erf"), (2, "relu"), (1, "gelu")])
def test_long_runs_end_on_the_plateau(p, activation):
    problem = matched_committee(p, activation)
    assert_runs_end_on_the_plateau(problem, (0.1, 0.4), 1e-5)
    shares = np.array([plateau(problem, one_pass(lr)).correction / lr for lr in (0.05, 0.1)])
    if activation == "relu":  # with a kink the correction starts as sqrt(lr)
        small = [plateau(problem, one_pass(lr)).correction for lr in (1e-5, 4e-5)]
        assert small[1] / small[0] == pytest.approx(2, rel=0.1)
    else:
        np.testing.assert_allclose(shares, shares[0], rtol=0.1)


@pytest.mark.parametrize(
    ("problem", "match"),
    [
        (committee(4), "width = 4: .*Use width = 2"),
        (matched_committee(1, teacher_activation="tanh"), "teacher_activation = 'tanh'"),
        (matched_committee(1, loss="correlation"), "loss = "),
        (matched_committee(1, head="trained"), "head = 'trained'"),
        (matched_committee(1, weight_decay=0.1), "weight_decay = 0.1"),
        (matched_committee(1, constraint="sphere", teacher_gram=[[2.0]]), "teacher_gram = "),
        (sgd.MultiIndex(lambda z: z[0], directions=1, width=1), "problem = "),
    ],
)
def test_plateaus_need_a_matched_teacher(problem, match):
    with pytest.raises(ValueError, match=match):
        plateau(problem, one_pass(0.1))


def test_plateaus_need_a_constant_rate():
    with pytest.raises(ValueError, match="constant learning rate"):
        plateau(matched_committee(1), sgd.OnePassSGD(lr=lambda alpha: 0.1 / (1 + alpha)))
