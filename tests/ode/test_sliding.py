"""The flow at snr = infinity compared with smoothed fields and with SGD, and its laws."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy import integrate, special

from sgdynamics.ode.sliding import (
    infinite_snr_accuracy,
    infinite_snr_drift,
    infinite_snr_risk,
    infinite_snr_sides,
)
from sgdynamics.ode.sliding_solver import solve_infinite_snr

AL = 0.1
# All calls have at most 8 times, so that they share one program.
TIMES = np.array([0.0, 0.5, 2.0, 4.0, 8.0])
# (weight, direction, sign, label) of each cluster.
CLUSTERS = {
    "binary": [(0.5, 0, 1, 1.0), (0.5, 0, -1, 0.0)],
    "xor": [(0.25, 0, 1, 1.0), (0.25, 0, -1, 1.0), (0.25, 1, 1, 0.0), (0.25, 1, -1, 0.0)],
}
WIDTH = {"binary": 2, "xor": 4}


def starts(kind, runs, seed=0, size=0.6):
    """Random starts (M, Q, a) with overlaps of the size of the head.

    Heads then change sign, and surfaces are met late. The part R of Q is not diagonal.
    """
    rng = np.random.default_rng(seed)
    K, q = WIDTH[kind], len(CLUSTERS[kind]) // 2
    rows = rng.normal(size=(runs, K, q + 3)) * size
    return rows[..., :q], rows @ np.swapaxes(rows, 1, 2), rng.normal(size=(runs, K))


def solve(kind, M, Q, a, times=TIMES, **options):
    return solve_infinite_snr(kind, M, Q, a, times=times, **{"weight_decay": AL, **options})


def solve_smooth(kind, M, a, times, eps, decay=AL):
    """M and a of smoothed fields, by a stiff integrator.

    1{h > 0} becomes Phi(h/eps), and relu its mean over N(h, eps^2).
    """
    K, q = M.shape

    def rate(t, y):
        m, v = y[: K * q].reshape(K, q), y[K * q :]
        dm, dv = -decay * m, -decay * v
        for weight, direction, sign, label in CLUSTERS[kind]:
            h = sign * m[:, direction]
            active = special.ndtr(h / eps)
            relu = h * active + eps * np.exp(-0.5 * (h / eps) ** 2) / np.sqrt(2 * np.pi)
            e = special.expit(v @ relu) - label
            dm[:, direction] -= weight * sign * v * active * e
            dv -= weight * relu * e
        return np.concatenate([dm.ravel(), dv])

    solution = integrate.solve_ivp(
        rate,
        (0, times[-1]),
        np.concatenate([M.ravel(), a]),
        "LSODA",
        t_eval=times,
        rtol=1e-8,
        atol=1e-10,
    )
    return solution.y[: K * q].T.reshape(-1, K, q), solution.y[K * q :].T


def gaps(kind, M, a, widths, times=TIMES):
    """Largest distance between the flow and the smoothed flow, for each width of the layer."""
    Q = M @ M.T + np.eye(len(a))
    flow = solve(kind, M[None], Q[None], a[None], times=times)
    distances = []
    for eps in widths:
        m, v = solve_smooth(kind, M, a, times, eps)
        distances.append(max(np.abs(m - flow["M"][0]).max(), np.abs(v - flow["a"][0]).max()))
    return np.array(distances), flow


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_limit_of_smoothed_fields(kind):
    # A start that meets surfaces, with two coordinates exactly on theirs: one surface attracts, one
    # repels (binary: is crossed).
    M, _, a = (x[0] for x in starts(kind, 1, seed=3))
    a = np.array([0.9, -0.7, 0.8, -0.6])[: len(a)]
    M[0] = np.abs(M[0])
    if kind == "xor":
        M[1], M[2, 0], M[3] = [0.3, -0.2], 0.0, [0.0, 0.4]
    else:
        M[0], M[1] = 0.0, 0.4
    distances, flow = gaps(kind, M, a, (4e-3, 2e-3, 1e-3))
    assert flow["met"][0] >= 1
    assert distances[-1] < 5e-3
    np.testing.assert_allclose(distances[:-1] / distances[1:], 2.0, rtol=0.15)


@pytest.mark.slow
def test_tie_on_a_repelling_surface_is_decided_by_its_rate():
    # f_+ = f_- on mu at the start only. Unit 2, at exactly 0, leaves to the side that the smoothed
    # fields choose: at the start d(f_+)/dt - d(f_-)/dt = (w/2)(0.04 + 1 - 0.01 - 4) < 0.
    M = np.array([[0.2, 0.0], [-0.1, 0.0], [0.0, 0.0], [0.0, 0.0]])
    a = np.array([1.0, 2.0, 0.7, -0.5])
    distances, flow = gaps("xor", M, a, (4e-4, 2e-4, 1e-4), times=TIMES[:4])
    assert flow["M"][0, -1, 2, 0] > 0.05
    assert distances[-1] < 2e-3
    assert distances[0] / distances[-1] > 2.5  # the distance is of order eps log(1/eps)


@pytest.mark.slow
def test_mirror_symmetric_starts_stay_on_the_surface():
    # XOR at M = 0 does not move, and a mirror pair of units does not move a third unit.
    M = np.zeros((2, 4, 2))
    a = np.array([[1.0, -1.0, 0.5, -0.3], [1.0, 1.0, 0.7, -0.5]])
    M[1, 0], M[1, 1] = [0.2, 0.1], [-0.2, -0.1]
    flow = solve("xor", M, M @ np.swapaxes(M, 1, 2) + np.eye(4), a)
    assert np.all(flow["M"][0] == 0)
    np.testing.assert_allclose(flow["a"][0], a[0] * np.exp(-AL * TIMES)[:, None], rtol=1e-9)
    assert np.all(flow["M"][1, :, 2:] == 0)
    np.testing.assert_allclose(flow["M"][1, :, 0, 0], -flow["M"][1, :, 1, 0], rtol=1e-12)
    assert flow["M"][1, -1, 0, 0] > 0.4
    assert np.all(flow["M"][1, -1, :2, 1] == 0)  # two surfaces met at the same time
    # In the binary case at M = 0 every unit takes the side of its head.
    flow = solve("binary", np.zeros((1, 2, 1)), np.eye(2)[None], np.array([[1.0, -0.5]]))
    assert flow["M"][0, -1, 0, 0] > 0.1 > -0.1 > flow["M"][0, -1, 1, 0]


def simulate(kind, M, a, N, time, runs, rng):
    """SGD at snr = infinity: steps of size 1/N on the cluster means."""
    m, v = np.repeat(M[None], runs, 0), np.repeat(a[None], runs, 0)
    means = np.array(
        [
            [sign * (direction == q) for q in range(M.shape[1])]
            for _, direction, sign, _ in CLUSTERS[kind]
        ],
        float,
    )
    labels = np.array([label for *_, label in CLUSTERS[kind]])
    for c in rng.integers(len(labels), size=(round(N * time), runs)):
        x = means[c]
        h = np.einsum("riq,rq->ri", m, x)
        e = (special.expit(np.sum(v * np.maximum(h, 0), axis=1)) - labels[c])[:, None]
        dv, dm = e * np.maximum(h, 0) + AL * v, (e * v * (h > 0))[..., None] * x[:, None] + AL * m
        v, m = v - dv / N, m - dm / N
    return m, v


def test_sgd_approaches_the_flow():
    kind, runs, rng = "xor", 100, np.random.default_rng(5)
    M, Q, a = starts(kind, 12, seed=2)
    flow = solve(kind, M, Q, a, times=[3.0])
    chosen = int(np.argmax(flow["met"]))  # the run that meets the most surfaces
    assert flow["met"][chosen] >= 3
    rms, bias = [], []
    for N in (150, 1200):
        m, v = simulate(kind, M[chosen], a[chosen], N, 3.0, runs, rng)
        difference = np.concatenate(
            [(m - flow["M"][chosen, 0]).reshape(runs, -1), v - flow["a"][chosen, 0]], axis=1
        )
        rms.append(np.sqrt(np.mean(difference**2)))
        error = difference.std(axis=0) / np.sqrt(runs)
        bias.append(np.abs(difference.mean(axis=0)) - 4.9 * error)
    # Each run differs by O(N^(-1/2)), the law of large numbers, and the mean by O(1/N).
    assert rms[1] < 0.02
    np.testing.assert_allclose(rms[0] / rms[1], np.sqrt(8), rtol=0.25)
    assert np.all(bias[1] < 2 / 1200)


@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_laws_of_the_flow(kind):
    M, Q, a = starts(kind, 200, seed=1)
    flow = solve(kind, M, Q, a, error=True)
    assert np.all(flow["M"][:, 0] == M)
    assert np.all(flow["a"][:, 0] == a)
    # Head and row grow together: v_i^2 - |m_i|^2 only decays, also across surfaces.
    balance = (flow["a"] ** 2 - np.sum(flow["M"] ** 2, axis=-1)) * np.exp(2 * AL * TIMES)[:, None]
    np.testing.assert_allclose(balance, np.broadcast_to(balance[:, :1], balance.shape), atol=1e-8)
    # The part of the rows outside of the means only decays.
    R = flow["Q"] - np.einsum("rtiq,rtjq->rtij", flow["M"], flow["M"])
    decayed = np.exp(-2 * AL * TIMES)[:, None, None] * (Q - M @ np.swapaxes(M, 1, 2))[:, None]
    np.testing.assert_allclose(R, decayed, atol=1e-12)
    # The penalised loss decreases.
    loss = infinite_snr_risk(kind, flow["M"], flow["a"]) + AL / 2 * (
        np.sum(flow["M"] ** 2, axis=(2, 3)) + np.sum(flow["a"] ** 2, axis=2)
    )
    assert np.all(np.diff(loss, axis=1) < 0)
    assert flow["error"].max() < 1e-6
    if kind == "xor":
        zero = flow["M"] == 0.0
        assert zero[:, -1].sum() == flow["met"].sum() > 300
        assert np.all(zero[:, 1:] >= zero[:, :-1])  # a sliding coordinate stays at exactly 0
        assert flow["met"].max() == 4  # a unit meets one surface at most
        assert np.all(zero[:, -1].sum(axis=2) <= 1)
        # mu slides with a negative head, nu with a positive one.
        run, unit, direction = np.nonzero(zero[:, -1])
        assert np.all(np.where(direction == 0, -1, 1) * flow["a"][:, -1][run, unit] > 0)
    else:
        crossed = np.sum(np.sign(flow["M"][:, -1, :, 0]) != np.sign(M[..., 0]), axis=1)
        assert np.all(crossed == flow["met"])
        assert crossed.sum() > 50


def test_solutions_do_not_depend_on_other_runs_save_points_and_idle_units():
    M, Q, a = starts("xor", 140, seed=4)  # more than one batch of lanes
    flow = solve("xor", M, Q, a)
    for run in (0, 139):
        alone = solve("xor", M[run : run + 1], Q[run : run + 1], a[run : run + 1])
        np.testing.assert_array_equal(alone["M"][0], flow["M"][run])
    # Other save points, and a solution that is continued: sliding coordinates start on their
    # surfaces.
    np.testing.assert_allclose(
        solve("xor", M, Q, a, times=[2.0, 3.0, 8.0])["M"][:, [0, 2]],
        flow["M"][:, [2, 4]],
        atol=1e-7,
    )
    continued = solve("xor", flow["M"][:, 2], flow["Q"][:, 2], flow["a"][:, 2], times=[2.0, 6.0])
    for name in ("M", "Q", "a"):
        np.testing.assert_allclose(continued[name], flow[name][:, 3:], atol=1e-7)
    np.testing.assert_array_equal(continued["M"] == 0, flow["M"][:, 3:] == 0)
    assert np.all(solve("xor", M, Q, a, times=[0.0])["M"][:, 0] == M)
    # A unit of length 0 changes nothing.
    with_idle = M[:5].copy(), Q[:5].copy(), a[:5].copy()
    for array in with_idle:
        array[:, 3] = 0
    with_idle[1][:, :, 3] = 0
    wide, narrow = solve("xor", *with_idle), solve("xor", M[:5, :3], Q[:5, :3, :3], a[:5, :3])
    np.testing.assert_array_equal(wide["a"][..., :3], narrow["a"])
    assert np.all(wide["M"][:, :, 3] == 0)


def test_error_follows_the_tolerance():
    M, Q, a = starts("xor", 100, seed=6)
    exact = solve("xor", M, Q, a, rtol=1e-13, atol=1e-15)
    errors = []
    for rtol in (1e-5, 1e-7, 1e-9):
        flow = solve("xor", M, Q, a, rtol=rtol, atol=rtol / 100, error=True)
        errors_by_name = [
            np.abs(flow[name] - exact[name]).reshape(100, -1).max(axis=1) for name in ("M", "a")
        ]
        error = np.maximum(*errors_by_name)
        errors.append(np.median(error))
        # The estimate has the order of magnitude of the error.
        assert np.mean(error < 3 * flow["error"] + 1e-12) > 0.95
    # The error is nearly proportional to the tolerance.
    assert errors[0] < 1e-3
    assert errors[0] / errors[1] > 20
    assert errors[1] / errors[2] > 20


def test_head_rate_and_no_decay():
    M, Q, a = starts("xor", 20, seed=7)
    flow = solve("xor", M, Q, a, weight_decay=0.0, head_rate=0.3)
    balance = flow["a"] ** 2 / 0.3 - np.sum(flow["M"] ** 2, axis=-1)
    np.testing.assert_allclose(balance, np.broadcast_to(balance[:, :1], balance.shape), atol=1e-8)
    frozen = solve("xor", M, Q, a, weight_decay=0.0, head_rate=0.0)
    np.testing.assert_allclose(
        frozen["a"], np.broadcast_to(a[:, None], frozen["a"].shape), rtol=1e-12
    )


@pytest.mark.parametrize("kind", ["binary", "xor"])
def test_drift_is_the_gradient_of_the_penalised_loss(kind):
    M, _, a = (x[0] for x in starts(kind, 1, seed=8))

    def loss(M, a):
        return infinite_snr_risk(kind, M, a) + AL / 2 * (np.sum(M**2) + np.sum(a**2))

    @jax.jit
    def drift_and_sides(M, a):
        return *infinite_snr_drift(kind, AL, M, a), infinite_snr_sides(kind, AL, M, a)

    with jax.enable_x64(True):
        dM, da, sides = (np.asarray(x) for x in drift_and_sides(M, a))
        dM_at_zero, da_at_zero, sides_at_zero = (np.asarray(x) for x in drift_and_sides(M * 0, a))
    np.testing.assert_array_equal(sides, np.sign(M))
    step = 1e-5
    for index in np.ndindex(M.shape):
        up = step * (np.indices(M.shape) == np.reshape(index, (-1, 1, 1))).all(axis=0)
        assert abs(dM[index] + (loss(M + up, a) - loss(M - up, a)) / (2 * step)) < 1e-9
    for unit in range(len(a)):
        up = step * (np.arange(len(a)) == unit)
        assert abs(da[unit] + (loss(M, a + up) - loss(M, a - up)) / (2 * step)) < 1e-9
    # On all surfaces at once the binary mixture takes the side of the head, at the rate |a|/4, and
    # XOR stays.
    expected_sides = np.sign(a)[:, None] if kind == "binary" else 0 * M
    np.testing.assert_array_equal(sides_at_zero, expected_sides)
    expected_dM = a[:, None] / 4 if kind == "binary" else 0 * M
    np.testing.assert_allclose(dM_at_zero, expected_dM, rtol=1e-12)
    np.testing.assert_allclose(da_at_zero, -AL * a, rtol=1e-12)


def test_risk_and_accuracy_of_a_state():
    M, a = np.array([[[0.5], [-1.0]], [[0.5], [1.0]]]), np.array([[2.0, -3.0], [2.0, -3.0]])
    # Clusters +mu, -mu: f = (1, -3) is right twice; f = (-2, 0) is wrong, and a tie.
    np.testing.assert_allclose(infinite_snr_accuracy("binary", M, a), [1.0, 0.25])
    expected = [
        (np.log1p(np.exp(-1)) + np.log1p(np.exp(-3))) / 2,
        (np.log1p(np.exp(2)) + np.log(2)) / 2,
    ]
    np.testing.assert_allclose(infinite_snr_risk("binary", M, a), expected)
    assert infinite_snr_accuracy("xor", np.zeros((3, 2)), np.ones(3)) == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "xnor"}, "kind = 'xnor'.*'xor'"),
        ({"M": np.zeros((1, 4, 1))}, r"M has shape \(1, 4, 1\).*\(run, K, 2\)"),
        ({"a": np.zeros((1, 3))}, r"a has shape \(1, 3\)"),
        ({"Q": -np.eye(4)[None]}, "Q is not a Gram matrix"),
        ({"M": np.ones((1, 4, 2))}, r"Q - M M\^T is not a Gram matrix"),
        ({"times": [1.0, 1.0]}, "times = .*increasing"),
        ({"times": []}, "times = .*increasing"),
        ({"weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"rtol": 0.0}, "rtol = 0.0"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {
        "kind": "xor",
        "M": np.zeros((1, 4, 2)),
        "Q": np.eye(4)[None],
        "a": np.ones((1, 4)),
        "times": [1.0],
        **change,
    }
    with pytest.raises(ValueError, match=message):
        solve_infinite_snr(**arguments)
