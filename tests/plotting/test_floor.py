"""The Bayes-optimal risk in pictures of risks."""

from __future__ import annotations

import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import pytest

import sgdynamics as sgd

mpl.use("Agg")


def floor_of(ax):
    return next(line for line in ax.get_lines() if line.get_label() == "Bayes-optimal")


def test_floor_of_one_pass():
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    start = sgd.start(problem, M=[[0.0]], Q=[[0.01]])
    path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, alpha=[0, 0.5, 1, 2, 4])
    _, ax = sgd.plot.risk(path, x="alpha", floor=True)
    line = floor_of(ax)
    alpha, excess = line.get_xdata(), line.get_ydata()
    # linear labels: u^2 + (alpha - 1 + noise) u = noise for u = 1 - q, and the excess is u/2
    b = alpha - 1 + 0.1
    u = 0.5 * (-b + np.sqrt(b**2 + 0.4))
    np.testing.assert_allclose(excess, u / 2, rtol=1e-6)
    assert np.all(excess <= np.interp(alpha, path.alpha, path.excess_risk[0]) + 1e-9)
    # in t = lr alpha
    _, ax = sgd.plot.risk(path, x="t", excess=False, floor=True)
    line = floor_of(ax)
    np.testing.assert_allclose(line.get_xdata()[-1], path.t.values[-1])
    np.testing.assert_allclose(line.get_ydata()[-1], u[-1] / 2 + 0.05, rtol=1e-6)


def test_floor_of_a_fixed_data_set():
    problem = sgd.TeacherStudent(width=1, activation="linear", noise=0.1)
    path = sgd.solve_dmft(problem, sgd.AMP(1.0), None, steps=[0, 1, 2, 30])
    _, ax = sgd.plot.risk(path, excess=True, floor=problem)
    floor = floor_of(ax).get_ydata()[0]
    assert floor == pytest.approx((1 - 0.729843788) / 2, rel=1e-7)
    assert path.excess_risk.values[0, -1] == pytest.approx(floor, rel=1e-6)


@pytest.mark.slow
def test_where_there_is_no_floor():
    problem = sgd.MultiIndex(lambda z: jnp.tanh(z[0]), 1, 1, "linear", loss="logistic")
    start = sgd.start(problem, M=[[0.0]], Q=[[0.01]])
    path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, alpha=[0, 1])
    with pytest.raises(ValueError, match=r"floor = .*squared loss"):
        sgd.plot.risk(path, floor=problem)
    with pytest.raises(ValueError, match=r"function"):
        sgd.plot.risk(path, floor=True)
    with pytest.raises(ValueError, match=r"floor = 3"):
        sgd.plot.risk(path, floor=3)
