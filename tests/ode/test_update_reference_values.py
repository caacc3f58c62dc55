"""ODEs of updates compared with values that independent programs computed.

The values are overlaps at tau = 2, mean steps at the start, overlaps in two covariance blocks, and
mean steps on two samples.
"""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import slow
from tests.ode.test_update_step import Q0, lattice, points_of, rates, setting

U = sgd.updates

# Update, lr, and M11, Q11 and the excess risk at tau = 2, by closed moments in another program.
AT_TWO = {
    "plain": (U.momentum(0.0), 2.0, (0.75928290752, 1.27425190067, 0.08488224376)),
    "momentum": (U.momentum(memory=1.5), 2.0, (0.69774848259, 1.1987805445, 0.09719438925)),
    "nesterov": (U.nesterov(memory=1.5), 2.0, (0.69774848259, 1.1987805445, 0.09719438925)),
    "average": (U.average(2.0), 2.0, (0.68696329311, 1.16486478966, 0.09563314085)),
    "schedule_free": (U.schedule_free(0.9), 2.0, (0.62007630169, 1.09834820633, 0.11136022251)),
    "dana": (U.dana(1.0, delta=4.0, offset=0.5), 2.0, (0.80082738239, 1.3676074117, 0.08256248803)),
    "muon, slow": (U.muon(memory=3.0), 0.5, (0.61053163203, 1.21365984075, 0.10740096103)),
    "adagrad_norm": (U.adagrad_norm(0.1), 1.0, (0.80314052263, 1.38117588649)),
}


@pytest.mark.parametrize("name", slow(AT_TWO, [name for name in AT_TWO if name != "average"]))
def test_reference_values_at_two(name):
    """Agreement to 1e-9, the accuracy of closed moments and of the integrator here."""
    update, lr, expected = AT_TWO[name]
    problem, start = setting()
    algorithm, times = sgd.OnePassSGD(lr=lr, update=update), [0, 2 * lr]
    solution = sgd.solve_ode(problem, algorithm, start, times=times, rtol=1e-11, atol=1e-13)
    end = solution.isel(run=0, time=-1)
    values = [float(end.M[0, 0]), float(end.Q[0, 0]), float(end.excess_risk)]
    np.testing.assert_allclose(values[: len(expected)], expected, atol=1e-9)
    if name == "momentum":
        Q, M = end.rows_Q.values, end.rows_M.values
        expected = [0.04212050574, -0.04749965584, -0.04697129394, -0.08510595323]
        np.testing.assert_allclose([Q[2, 2], Q[0, 2], Q[0, 3], M[2, 0]], expected, atol=1e-9)
    if name == "adagrad_norm":
        assert float(end.update_scalars[0]) == pytest.approx(0.27887168308, abs=1e-9)


# Update, lr, and d/dtau of M1, M2, Q11, Q12 and Q22 at the start, with an error of 1e-9.
AT_START = {
    "clipped": (
        U.clipped(0.2),
        2.0,
        (0.113545995, 0.119748535, 0.010654657, -0.044379911, -0.033906487),
    ),
    "normalised": (
        U.normalised(),
        0.5,
        (0.150438079, 0.159959598, 0.058597309, -0.022236696, 0.003074598),
    ),
    "sam": (
        U.sam(reach=0.5),
        2.0,
        (0.317055617, 0.303650425, 0.338443776, 0.095381389, 0.217522225),
    ),
}


def overlap_rates(step):
    """d/dtau of M1, M2, Q11, Q12 and Q22."""
    Q = step["rows_Q"][0]
    return [*step["rows_M"][0, :, 0], Q[0, 0], Q[0, 1], Q[1, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_START)
def test_reference_rates_at_the_start(name):
    """Agreement to 1e-8, with label noise integrated piece by piece.

    The lattice in three dimensions is 1.8 times finer than that of a solution.
    """
    update, lr, expected = AT_START[name]
    problem, start = setting()
    points = points_of(problem, quiet=True, fine=1.8)
    step = rates(update, lr, problem, start, points=points, sums_noise=True)
    np.testing.assert_allclose(overlap_rates(step), expected, atol=1e-8)


@pytest.mark.slow
def test_reference_rates_of_reuse():
    problem, start = setting(noise=0.0)
    step = rates(U.reuse(2), 1.0, problem, start, points=points_of(problem, quiet=True, fine=1.8))
    expected = (0.223022944, 0.233534316, 0.012188138, -0.078287461, -0.071270467)
    np.testing.assert_allclose(overlap_rates(step), expected, atol=1e-8)


def third_hermite(x):
    return x**3 - 3 * x


@pytest.mark.slow
def test_reuse_leaves_where_plain_sgd_stays():
    """A third Hermite teacher at M = 0, where plain SGD has no drift.

    A batch that is read twice has a drift of order lr^2 in t: -3.857238 lr^2 for erf and unit rows.
    """
    problem = sgd.TeacherStudent(
        width=2, teacher_width=1, activation="erf", teacher_activation=third_hermite, noise=0.0
    )
    start = sgd.start(problem, M=np.zeros((2, 1)), Q=Q0)
    # The lattice of a solution ends at 6.5, which changes the seventh digit for a cubic teacher.
    zeta, weights = lattice(0.3)
    points = {"fields": zeta[None], "noise": np.zeros((1, len(zeta), 1)), "weights": weights[None]}

    def signal_rates(update, lr, start):
        return rates(update, lr, problem, start, points=points)["rows_M"][0, :, 0]

    # d/dt = (1/lr) d/dtau
    reuse = signal_rates(U.reuse(2), 0.1, start) / 0.1
    np.testing.assert_allclose(reuse, [-0.0257022862, -0.0283754299], atol=1e-8)
    np.testing.assert_allclose(signal_rates(U.reuse(1), 0.1, start), 0.0, atol=1e-8)
    unit_rows = sgd.start(problem, M=np.zeros((2, 1)), Q=np.eye(2))
    small = signal_rates(U.reuse(2), 1e-2, unit_rows) / 1e-6
    np.testing.assert_allclose(small, -3.857238, rtol=0.02)  # up to terms of relative order lr


@pytest.mark.slow
def test_reference_values_in_blocks():
    problem, start = setting(blocks=True)
    points = points_of(problem, quiet=True, fine=1.8)
    step = rates(U.sign(), 0.5, problem, start, points=points, sums_noise=True)
    expected = [[0.0925259052] * 2, [0.0790763048] * 2]
    np.testing.assert_allclose(step["rows_M"][..., 0], expected, atol=1e-8)
    algorithm, times = sgd.OnePassSGD(lr=0.5, update=U.sign()), [0, 0.75]
    end = sgd.solve_ode(problem, algorithm, start, times=times).isel(run=0, time=-1)
    # These two values have an error of 1e-5.
    assert float(end.M_block[0, 0, 0]) == pytest.approx(0.315073, abs=2e-5)
    assert float(end.Q_block[0, 0, 0]) == pytest.approx(0.537689, abs=2e-5)
    algorithm = sgd.OnePassSGD(lr=0.5, update=U.adam(4.0, eps=0.02))
    solution = sgd.solve_ode(problem, algorithm, start, times=times, rtol=1e-10, atol=1e-12)
    end = solution.isel(run=0, time=-1)
    expected = [[0.3395326584, 0.2028430849], [0.3351719747, 0.1927818760]]
    np.testing.assert_allclose(end.M_block.values[..., 0], expected, atol=1e-8)
    assert float(end.Q_block[0, 0, 0]) == pytest.approx(0.5280499362, abs=1e-8)
    squares = end.update_squares.values[0]
    np.testing.assert_allclose(squares, [0.0397436095, 0.0423184812], atol=1e-8)


@pytest.mark.slow
def test_reference_values_of_two_samples():
    """Agreement to 2e-3: both the values and the average over 2^17 points have errors of 1e-3."""
    problem, start = setting()
    points = points_of(problem, 2, fine=16.0)
    for update, expected in (
        (U.muon(), (-0.470, -0.514)),
        (U.muon(newton_schulz=True), (-0.330, -0.366)),
        (U.sign(), (-0.554, -0.563)),
    ):
        step = rates(update, 1.0, problem, start, 2, points)
        np.testing.assert_allclose(-step["rows_M"][0, :, 0], expected, atol=2e-3)
        if update.kind == "sign":
            # dQ12 = lr a + lr^2 (2/pi) E[asin]_12, whose second term two learning rates separate.
            double = rates(update, 2.0, problem, start, 2, points)["rows_Q"][0, 0, 1]
            second_order = (double - 2 * step["rows_Q"][0, 0, 1]) / 2
            assert second_order == pytest.approx(0.8462, abs=2e-3)
