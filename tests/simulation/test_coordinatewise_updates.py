"""Direct runs of coordinatewise updates approach their ODE, where weights and signals are spread over all coordinates."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from tests.conftest import Z as SIGMAS
from tests.conftest import full_optimisation
from tests.simulation.test_more_updates import COORDINATEWISE, S_M, S_Q

U = sgd.updates


def limit_and_runs(
    update, dimensions, runs, covariance=None, lr=0.5, batch=1, times=(0.0, 0.5), **options
):
    """The ODE at the start S of the reference values, and direct runs at each d."""
    problem = sgd.TeacherStudent(
        width=2, teacher_width=1, activation="erf", noise=0.25, covariance=covariance, **options
    )
    begin = sgd.start(problem, M=S_M, Q=S_Q)
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch, update=update)
    theory = sgd.solve_ode(problem, algorithm, begin, times=list(times))
    ask = partial(
        sgd.simulate, problem, algorithm, begin, times=list(times), runs=runs, method="direct"
    )
    with full_optimisation():
        return theory, [ask(dimension=d, seed=d) for d in dimensions]


def gaps(theory, result):
    """Of M, Q and squares at the end, (runs, n)."""
    names = [name for name in ("M", "Q", "update_squares") if name in theory]
    return np.concatenate(
        [
            (result[name].values[:, -1] - theory[name].values[0, -1]).reshape(len(result.run), -1)
            for name in names
        ],
        axis=1,
    )


def means_agree(theory, result, slack):
    """Means of runs are the ODE, to 4.9 standard errors, its own error, and what finite d adds."""
    gap = gaps(theory, result)
    own = max(
        theory.attrs.get("error_quadrature") or 0.0, theory.attrs.get("error_integrator") or 0.0
    )
    error = gap.std(axis=0, ddof=1) / np.sqrt(len(gap))
    assert np.all(np.abs(gap.mean(axis=0)) <= SIGMAS * error + own + slack), (
        gap.mean(axis=0),
        error,
        own,
    )


@pytest.mark.slow
def test_adam_is_the_ode_at_large_d():
    theory, (runs,) = limit_and_runs(COORDINATEWISE["adam"], (400,), 40)
    means_agree(theory, runs, 3 / 400)
    assert float(np.abs(theory.M[0, -1] - theory.M[0, 0]).max()) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("name", COORDINATEWISE)
def test_coordinatewise_runs_approach_the_ode(name, blocks):
    """The rms gap of single runs shrinks like d^(-1/2), from d = 250 to 4000: 40 runs know its log to .1, over a factor of 16."""
    covariance = [(2.0, 0.4), (0.5, 0.6)] if blocks else None
    dimensions = (250, 1000, 4000)
    theory, found = limit_and_runs(COORDINATEWISE[name], dimensions, 40, covariance)
    rms = [np.sqrt(np.mean(gaps(theory, runs) ** 2)) for runs in found]
    exponent = np.polyfit(np.log(dimensions), np.log(rms), 1)[0]
    assert abs(exponent + 0.5) < 0.12, (rms, exponent)
    means_agree(theory, found[-1], 4 / 4000)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sign", "adam"])
def test_coordinatewise_batches_are_the_ode(name):
    theory, (runs,) = limit_and_runs(COORDINATEWISE[name], (2000,), 60, batch=3)
    means_agree(theory, runs, 4 / 2000 + 2e-3)  # and what Sobol points are good for


@pytest.mark.slow
def test_a_teacher_along_an_axis_is_another_problem():
    """Sign SGD is no function of overlaps: with the signal along an axis M grows faster. The library's runs lie in random directions."""
    d, runs, lr, generator = 1000, 60, 0.5, np.random.default_rng(0)
    frame = np.linalg.cholesky(np.block([[np.ones((1, 1)), S_M.T], [S_M, S_Q]]))

    def erf_slope(x):
        return np.sqrt(2 / np.pi) * np.exp(-(x**2) / 2)

    def simulated(localised):
        ends = []
        for _ in range(runs):
            axes = (
                np.eye(d)[:3] if localised else np.linalg.qr(generator.standard_normal((d, 3)))[0].T
            )
            rows = frame @ axes
            signal, W = rows[0], rows[1:].copy()
            for _ in range(d):
                x = generator.standard_normal(d)
                fields = W @ x
                error = (
                    special.erf(fields / np.sqrt(2)).mean()
                    - special.erf(signal @ x / np.sqrt(2))
                    - 0.5 * generator.standard_normal()
                )
                W -= lr / d * np.sign(np.outer(error * erf_slope(fields) / 2, x))
            ends.append(W @ signal)
        return np.mean(ends, axis=0), np.std(ends, axis=0, ddof=1) / np.sqrt(runs)

    theory, (found,) = limit_and_runs(U.sign(), (d,), runs, lr=lr, times=(0.0, lr))
    limit = theory.M.values[0, -1, :, 0]
    means_agree(theory, found, 4 / d)
    (along, error), (turned, other) = simulated(True), simulated(False)
    assert np.all(np.abs(turned - limit) <= SIGMAS * other + 4 / d)
    assert along[0] - limit[0] > 0.015 + SIGMAS * error[0], (along, limit, error)
    # known: .595 against .5666
    assert limit[0] == pytest.approx(0.5666, abs=2e-3)
    assert along[0] == pytest.approx(0.595, abs=SIGMAS * error[0] + 4 / d)
