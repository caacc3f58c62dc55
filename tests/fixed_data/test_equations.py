"""The printed DMFT equations, solved for linear students, give the risk of `solve_dmft`.

For a linear student all two-time functions are finite matrices, so the equations need no sampling:
with e_t = lambda_t - lambda* - sqrt(noise) z the residual follows the linear recursion
e_t = eta_t - lambda* - sqrt(noise) z - memory sum_u R(t, u + 1) s_u e_u.
"""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd

LR, STEPS, NOISE, DECAY, ALPHA = 0.15, 6, 0.3, 0.2, 1.7
M0, Q0 = 0.2, 0.9


def solve_printed_equations(temperature: float) -> np.ndarray:
    """M and Q of the printed equations of gradient descent or Langevin dynamics, width 1."""
    memory, noise, keep = LR / ALPHA, LR**2 / ALPHA, 1 - LR * DECAY
    n = STEPS + 1
    R, C, overlap = np.eye(n), np.zeros((n, n)), np.zeros(n)
    C[0, 0], overlap[0] = Q0, M0
    K, K_star = np.zeros((n, n)), np.zeros(n)
    V = np.zeros((n, n))
    for t in range(STEPS):
        # h_t = sum_u G[t, u] (eta_u - lambda* - sqrt(noise) z), the solution of the recursion
        response = np.zeros((t + 1, t + 1))
        for later in range(t + 1):
            for u in range(later):
                response[later, u] = R[later, u + 1]
        G = np.linalg.inv(np.eye(t + 1) + memory * response)
        K[t, : t + 1], K_star[t] = G[t], -G[t].sum()
        drive = C[: t + 1, : t + 1] - overlap[: t + 1, None] - overlap[None, : t + 1] + 1 + NOISE
        V[: t + 1, : t + 1] = G @ drive @ G.T
        overlap[t + 1] = keep * overlap[t] - LR * (K[t, : t + 1] @ overlap[: t + 1] + K_star[t])
        for first in range(t + 1):
            R[t + 1, first] = (
                keep * R[t, first] - LR * K[t, first : t + 1] @ R[first : t + 1, first]
            )
        for other in range(t + 2):
            row = np.array([C[u, other] for u in range(t + 1)])
            value = keep * C[t, other] - LR * (K[t, : t + 1] @ row + K_star[t] * overlap[other])
            value += noise * sum(V[t, u] * R[other, u + 1] for u in range(other))
            value += 2 * temperature * LR * R[other, t + 1]
            C[t + 1, other] = C[other, t + 1] = value
    return np.stack([overlap, np.diag(C)])


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_printed_equations_of_a_linear_student(temperature):
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=NOISE, weight_decay=DECAY)
    if temperature:
        algorithm = sgd.Langevin(lr=LR, samples_per_dimension=ALPHA, temperature=temperature)
    else:
        algorithm = sgd.GradientDescent(lr=LR, samples_per_dimension=ALPHA)
    start = sgd.start(problem, M=[[M0]], Q=[[Q0]])
    result = sgd.solve_dmft(problem, algorithm, start, steps=range(STEPS + 1), paths=20_000)
    overlap, norm = solve_printed_equations(temperature)
    np.testing.assert_allclose(result.M.values.ravel(), overlap, atol=2e-3)
    np.testing.assert_allclose(result.Q.values.ravel(), norm, atol=4e-3)
    # the equations above are those that are printed
    printed = problem.equations(algorithm)["DMFT"]
    noise = r"\qquad + \frac{\mathrm{lr}^2}{\alpha} \sum_{u < t'} V(t, u) R(t', u + 1)^\top"
    thermal = r" + 2 T \mathrm{lr} R(t', t + 1)^\top" if temperature else ""
    decay = r"\left(1 - \mathrm{lr} \, \mathrm{al}\right)"
    drift = r"\left(\sum_{u \le t} K(t, u) C(u, t') + K^*(t) M(t')^\top\right)"
    assert noise + thermal in printed
    assert rf"C(t + 1, t') = {decay} C(t, t') - \mathrm{{lr}} {drift}" in printed
