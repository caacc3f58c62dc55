"""Direct runs of coordinatewise updates approach their ODE as d grows.

The limit requires weights and signals that are spread over all coordinates.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from tests.conftest import Z, full_optimisation
from tests.simulation.test_more_updates import COORDINATEWISE, S_M, S_Q

U = sgd.updates


def theory_and_runs(
    update, dimensions, runs, covariance=None, lr=0.5, batch=1, times=(0.0, 0.5), **options
):
    """Solution of the ODE from the start (S_M, S_Q), and direct runs at each dimension."""
    problem = sgd.TeacherStudent(
        width=2, teacher_width=1, activation="erf", noise=0.25, covariance=covariance, **options
    )
    start = sgd.start(problem, M=S_M, Q=S_Q)
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, update=update)
    theory = sgd.solve_ode(problem, algorithm, start, times=list(times))
    simulate = partial(
        sgd.simulate, problem, algorithm, start, times=list(times), runs=runs, method="direct"
    )
    with full_optimisation():
        return theory, [simulate(dimension=d, seed=d) for d in dimensions]


def differences_from_theory(theory, result):
    """Final M, Q and update squares of each run minus those of the ODE, (runs, entries)."""
    names = [name for name in ("M", "Q", "update_squares") if name in theory]
    return np.concatenate(
        [
            (result[name].values[:, -1] - theory[name].values[0, -1]).reshape(len(result.run), -1)
            for name in names
        ],
        axis=1,
    )


def assert_means_agree(theory, result, slack):
    """Assert that means over runs agree with the ODE.

    The tolerance is the sum of 4.9 standard errors, the error estimate of the ODE, and `slack` for
    finite d.
    """
    gap = differences_from_theory(theory, result)
    own = max(
        theory.attrs.get("error_quadrature") or 0.0, theory.attrs.get("error_integrator") or 0.0
    )
    error = gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
    assert np.all(np.abs(gap.mean(axis=0)) <= Z * error + own + slack), (
        gap.mean(axis=0),
        error,
        own,
    )


@pytest.mark.slow
def test_adam_follows_the_ode_at_large_d():
    theory, (runs,) = theory_and_runs(COORDINATEWISE["adam"], (400,), 40)
    assert_means_agree(theory, runs, 3 / 400)
    assert float(np.abs(theory.M[0, -1] - theory.M[0, 0]).max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", COORDINATEWISE)
def test_coordinatewise_runs_approach_the_ode(name, blocks):
    """The rms difference of single runs from the ODE decreases as d^(-1/2) from d = 250 to 4000.

    With 40 runs the logarithm of each rms difference has a standard error of about 0.1.
    """
    covariance = [(2.0, 0.4), (0.5, 0.6)] if blocks else None
    dimensions = (250, 1000, 4000)
    theory, results = theory_and_runs(COORDINATEWISE[name], dimensions, 40, covariance)
    rms = [np.sqrt(np.mean(differences_from_theory(theory, runs) ** 2)) for runs in results]
    exponent = np.polyfit(np.log(dimensions), np.log(rms), 1)[0]
    assert abs(exponent + 0.5) < 0.12, (rms, exponent)
    assert_means_agree(theory, results[-1], 4 / 4000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sign", "adam"])
def test_coordinatewise_batches_follow_the_ode(name):
    theory, (runs,) = theory_and_runs(COORDINATEWISE[name], (2000,), 60, batch=3)
    # 2e-3 is the accuracy of the Sobol points with which the ODE averages over a batch.
    assert_means_agree(theory, runs, 4 / 2000 + 2e-3)


@pytest.mark.slow
def test_sign_sgd_learns_a_signal_along_an_axis_faster():
    """Sign SGD does not commute with rotations, so its overlaps depend on the signal's direction.

    With weights and signal along coordinate axes M grows faster than in the ODE. Runs of the
    library take random directions, for which the ODE holds.
    """
    d, runs, lr, generator = 1000, 60, 0.5, np.random.default_rng(0)
    frame = np.linalg.cholesky(np.block([[np.ones((1, 1)), S_M.T], [S_M, S_Q]]))

    def erf_derivative(x):
        return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)

    def simulate_sign_sgd(along_axes):
        final_overlaps = []
        for _ in range(runs):
            directions = (
                np.eye(d)[:3]
                if along_axes
                else np.linalg.qr(generator.standard_normal((d, 3)))[0].T
            )
            rows = frame @ directions
            signal, W = rows[0], rows[1:].copy()
            for _ in range(d):
                x = generator.standard_normal(d)
                fields = W @ x
                residual = (
                    special.erf(fields / np.sqrt(2)).mean()
                    - special.erf(signal @ x / np.sqrt(2))
                    - 0.5 * generator.standard_normal()
                )
                W -= lr / d * np.sign(np.outer(residual * erf_derivative(fields) / 2, x))
            final_overlaps.append(W @ signal)
        standard_errors = np.std(final_overlaps, axis=0, ddof=1) / np.sqrt(runs)
        return np.mean(final_overlaps, axis=0), standard_errors

    theory, (direct,) = theory_and_runs(U.sign(), (d,), runs, lr=lr, times=(0.0, lr))
    limit = theory.M.values[0, -1, :, 0]
    assert_means_agree(theory, direct, 4 / d)
    (axis_overlaps, axis_error), (random_overlaps, random_error) = (
        simulate_sign_sgd(True),
        simulate_sign_sgd(False),
    )
    assert np.all(np.abs(random_overlaps - limit) <= Z * random_error + 4 / d)
    assert axis_overlaps[0] - limit[0] > 0.015 + Z * axis_error[0], (
        axis_overlaps,
        limit,
        axis_error,
    )
    # Reference values: 0.595 along an axis, and 0.5666 in random directions.
    assert limit[0] == pytest.approx(0.5666, abs=2e-3)
    assert axis_overlaps[0] == pytest.approx(0.595, abs=Z * axis_error[0] + 4 / d)
