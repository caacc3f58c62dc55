"""ODEs of updates at the reference values of other programs: overlaps after a while, mean steps at the start, blocks, two samples."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import slow
from tests.ode.test_update_step import Q0, lattice, points_of, rates, setting

U = sgd.updates

# M11, Q11 and, where stated, excess risk at tau = 2, by closed moments in another program
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
    """To 1e-9: what closed moments and the integrator, at these tolerances, are good for."""
    update, lr, expected = AT_TWO[name]
    problem, begin = setting()
    result = sgd.solve_ode(
        problem,
        sgd.OnePassSGD(lr=lr, update=update),
        begin,
        times=[0, 2 * lr],
        rtol=1e-11,
        atol=1e-13,
    ).isel(run=0, time=-1)
    found = [float(result.M[0, 0]), float(result.Q[0, 0]), float(result.excess_risk)]
    np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-9)
    if name == "momentum":
        Q, M = result.rows_Q.values, result.rows_M.values
        expected = [0.04212050574, -0.04749965584, -0.04697129394, -0.08510595323]
        np.testing.assert_allclose([Q[2, 2], Q[0, 2], Q[0, 3], M[2, 0]], expected, atol=1e-9)
    if name == "adagrad_norm":
        assert float(result.update_scalars[0]) == pytest.approx(0.27887168308, abs=1e-9)


# dM1, dM2, dQ11, dQ12, dQ22 over tau at the start, known to 1e-9
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


@pytest.mark.slow
@pytest.mark.parametrize("name", AT_START)
def test_reference_rates_at_the_start(name):
    """Label noise by hand, a lattice of three dimensions 1.8 times as fine as that of a solve: 1e-8."""
    update, lr, expected = AT_START[name]
    problem, begin = setting()
    found = rates(
        update, lr, problem, begin, points=points_of(problem, quiet=True, fine=1.8), by_noise=True
    )
    Q = found["rows_Q"][0]
    np.testing.assert_allclose(
        [*found["rows_M"][0, :, 0], Q[0, 0], Q[0, 1], Q[1, 1]], expected, atol=1e-8
    )


@pytest.mark.slow
def test_reference_rates_of_reuse():
    problem, begin = setting(noise=0.0)
    found = rates(U.reuse(2), 1.0, problem, begin, points=points_of(problem, quiet=True, fine=1.8))
    Q = found["rows_Q"][0]
    expected = (0.223022944, 0.233534316, 0.012188138, -0.078287461, -0.071270467)
    np.testing.assert_allclose(
        [*found["rows_M"][0, :, 0], Q[0, 0], Q[0, 1], Q[1, 1]], expected, atol=1e-8
    )


def third_hermite(x):
    return x**3 - 3 * x


@pytest.mark.slow
def test_reuse_leaves_where_plain_sgd_stays():
    """He3 teacher, M = 0: no plain drift; a batch that is read twice gives one of order lr^2 in t, for erf and unit rows -3.857238 lr^2."""
    problem = sgd.TeacherStudent(
        width=2, teacher_width=1, activation="erf", teacher_activation=third_hermite, noise=0.0
    )
    begin = sgd.start(problem, M=np.zeros((2, 1)), Q=Q0)
    # the lattice of a solve ends at 6.5, which a cubic teacher feels in the seventh digit
    zeta, weights = lattice(0.3)
    points = {"fields": zeta[None], "noise": np.zeros((1, len(zeta), 1)), "weights": weights[None]}
    found = rates(U.reuse(2), 0.1, problem, begin, points=points)["rows_M"][0, :, 0] / 0.1  # d/dt
    np.testing.assert_allclose(found, [-0.0257022862, -0.0283754299], atol=1e-8)
    plain = rates(U.reuse(1), 0.1, problem, begin, points=points)["rows_M"][0, :, 0]
    np.testing.assert_allclose(plain, 0.0, atol=1e-8)
    unit = sgd.start(problem, M=np.zeros((2, 1)), Q=np.eye(2))
    small = rates(U.reuse(2), 1e-2, problem, unit, points=points)["rows_M"][0, :, 0]
    np.testing.assert_allclose(small / 1e-6, -3.857238, rtol=0.02)  # what is of order lr beside it


@pytest.mark.slow
def test_reference_values_in_blocks():
    problem, begin = setting(blocks=True)
    found = rates(
        U.sign(),
        0.5,
        problem,
        begin,
        points=points_of(problem, quiet=True, fine=1.8),
        by_noise=True,
    )["rows_M"]
    np.testing.assert_allclose(found[..., 0], [[0.0925259052] * 2, [0.0790763048] * 2], atol=1e-8)
    end = sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=0.5, update=U.sign()), begin, times=[0, 0.75]
    ).isel(run=0, time=-1)
    # known to 1e-5
    assert float(end.M_block[0, 0, 0]) == pytest.approx(0.315073, abs=2e-5)
    assert float(end.Q_block[0, 0, 0]) == pytest.approx(0.537689, abs=2e-5)
    adam = U.adam(4.0, eps=0.02)
    end = sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=0.5, update=adam), begin, times=[0, 0.75], rtol=1e-10, atol=1e-12
    ).isel(run=0, time=-1)
    M = end.M_block.values[..., 0]
    np.testing.assert_allclose(
        M, [[0.3395326584, 0.2028430849], [0.3351719747, 0.1927818760]], atol=1e-8
    )
    assert float(end.Q_block[0, 0, 0]) == pytest.approx(0.5280499362, abs=1e-8)
    np.testing.assert_allclose(
        end.update_squares.values[0], [0.0397436095, 0.0423184812], atol=1e-8
    )


@pytest.mark.slow
def test_reference_values_of_two_samples():
    """Known to .001; 2^17 points are good for about that."""
    problem, begin = setting()
    points = points_of(problem, 2, fine=16.0)
    for update, expected in (
        (U.muon(), (-0.470, -0.514)),
        (U.muon(newton_schulz=True), (-0.330, -0.366)),
        (U.sign(), (-0.554, -0.563)),
    ):
        found = rates(update, 1.0, problem, begin, 2, points)
        np.testing.assert_allclose(-found["rows_M"][0, :, 0], expected, atol=2e-3)
        if update.kind == "sign":
            # dQ12 is lr a + lr^2 (2/pi) E[asin]12: from two learning rates
            twice = rates(update, 2.0, problem, begin, 2, points)["rows_Q"][0, 0, 1]
            assert (twice - 2 * found["rows_Q"][0, 0, 1]) / 2 == pytest.approx(0.8462, abs=2e-3)
