"""Direct simulation on fixed data sets against NumPy loops on the same data, and its options."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.base import checks
from sgdynamics.base.random import normals_and_uniforms, run_keys
from sgdynamics.fixed_data import direct, direct_steps, sample_stability
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.simulation import running
from sgdynamics.simulation.running import Resources, RunSetting, run, run_until
from tests.conftest import Z
from tests.simulation.test_behaviour import count_compilations

SPHERE = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
COMMITTEE = sgd.TeacherStudent(
    width=3,
    teacher_width=2,
    activation="square",
    teacher_head=[1.0, 0.5],
    noise=0.3,
    head="trained",
    weight_decay=0.2,
    covariance=[(0.5, 0.4), (1.5, 0.6)],
)
MIXTURE = sgd.GaussianMixture("binary", width=2, snr=4.0, weight_decay=0.1)
PERSISTENT = sgd.PersistentSGD(
    lr=0.02, samples_per_dimension=3.0, batch_fraction=0.4, persistence_time=0.5
)
D, STEPS, SEED = 24, 12, 5


def make_simulator(problem, algorithm, start, d=D, together=None, **options):
    setting = RunSetting(start, d, problem.block_dimensions(d), seed=SEED, **options)
    simulator = DirectFixedData(problem, algorithm, setting)
    if together is not None:
        simulator.options = simulator.options._replace(together=together)
    return simulator


def sphere_start(runs, m=0.3):
    return sgd.start(SPHERE, M=np.full((runs, 1, 1), m), Q=np.ones((runs, 1, 1)))


@partial(jax.jit, static_argnums=(1, 2))
def _draw_numbers(key, normals, uniforms):
    steps = jax.vmap(
        lambda step: normals_and_uniforms(
            direct_steps.step_random_key(key, step), normals, uniforms
        )
    )
    return *steps(jax.numpy.arange(STEPS)), normals_and_uniforms(
        jax.random.fold_in(key, 2), 0, uniforms
    )[1]


def draw_numbers(key, normals, uniforms):
    """Random numbers of the library at each step, and of the first selection."""
    with jax.enable_x64(True):
        return tuple(np.asarray(leaf) for leaf in _draw_numbers(key, normals, uniforms))


def committee_slopes(problem, fields, signals, head, noise):
    """Loss, dloss/dfields, dloss/dhead of (1/p) sum a lambda^2 against a noisy committee."""
    f = (fields**2 @ head) / problem.width
    y = (signals**2 @ problem.teacher_head) / problem.teacher_width + np.sqrt(problem.noise) * noise
    r = (f - y)[:, None]
    return r[:, 0] ** 2 / 2, r * 2 * fields * head / problem.width, r * fields**2 / problem.width


def mixture_slopes(problem, fields, signals, head, label):
    """The same of a ReLU classifier with the cross-entropy."""
    f = np.maximum(fields, 0) @ head
    r = (1 / (1 + np.exp(-f)) - label)[:, None]
    return np.log1p(np.exp(f)) - label * f, r * head * (fields > 0), r * np.maximum(fields, 0)


def numpy_run(problem, algorithm, x, signals, noise, rows, head, key, slopes, temperature=None):
    """One run of any of the four algorithms as the papers write it; x (n, d), rows (p, d)."""
    n, d = x.shape
    p, lr = problem.width, algorithm.lr
    s, b, on = np.ones(n, dtype=bool), algorithm.fraction, algorithm.fraction
    if algorithm.has_thermal_noise or algorithm.selects:
        normals, uniforms, first = draw_numbers(
            key, p * (d + 1) if algorithm.has_thermal_noise else 0, n if algorithm.selects else 0
        )
    if algorithm.selects:
        s = first < b
        on = lr / algorithm.persistence_time if isinstance(algorithm, sgd.PersistentSGD) else b
    rows, head, risks = rows.copy(), head.copy(), []
    for step in range(STEPS):
        loss, slope, head_slope = slopes(problem, x @ rows.T, signals, head, noise)
        risks.append(loss.mean())
        size = n * (b if getattr(algorithm, "rescale", False) else 1.0)
        rows = rows - lr * ((s[:, None] * slope).T @ x / size + problem.weight_decay * rows)
        if algorithm.has_thermal_noise:
            rows = rows + np.sqrt(2 * temperature(step * lr) * lr / d) * normals[
                step, : p * d
            ].reshape(p, d)
        if problem.constraint == "sphere":
            rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        if problem.head == "trained":
            head = head - algorithm.head_rate * lr * (
                (s[:, None] * head_slope).sum(axis=0) / size + problem.weight_decay * head
            )
        if algorithm.selects:
            s = np.where(s, uniforms[step] >= on * (1 - b) / b, uniforms[step] < on)
    risks.append(slopes(problem, x @ rows.T, signals, head, noise)[0].mean())
    return rows, head, np.array(risks)


CASES = {
    "gradient descent": (SPHERE, sgd.GradientDescent(lr=0.02), committee_slopes, {}),
    "persistent": (SPHERE, PERSISTENT, committee_slopes, {}),
    "persistent, shared data": (SPHERE, PERSISTENT, committee_slopes, {"shared_data": True}),
    "Langevin": (
        SPHERE,
        sgd.Langevin(lr=0.02, temperature=sgd.piecewise_rate([0.11], [2.0, 0.5])),
        committee_slopes,
        {},
    ),
    "committee, not rescaled": (
        COMMITTEE,
        sgd.MultiPassSGD(lr=0.02, head_rate=0.7, batch_fraction=0.6, rescale=False),
        committee_slopes,
        {},
    ),
    "mixture": (MIXTURE, sgd.GradientDescent(lr=0.3, head_rate=0.5), mixture_slopes, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_numpy_loop_on_the_same_data_gives_the_same_runs(name):
    problem, algorithm, slopes, options = CASES[name]
    start = sgd.random_start(problem, dimension=D, runs=3, seed=1)
    simulator = make_simulator(problem, algorithm, start, **options)
    saved, last = run(simulator, 3, np.arange(STEPS + 1), SEED, name, False)
    assert np.all(last == -1)
    with jax.enable_x64(True):
        keys = run_keys(SEED, np.arange(3))
        state = simulator.initial(np.arange(3))
    for index in range(3):
        x, signals, noise = (
            np.asarray(leaf if simulator.options.shared else leaf[index]) for leaf in simulator.data
        )
        np.testing.assert_allclose(
            signals, x[:, simulator.placement.axes] @ simulator.placement.signals.T, atol=1e-13
        )
        rows, head = np.asarray(state.rows)[index], np.asarray(state.head)[index]
        np.testing.assert_allclose(saved["Q"][index, 0].sum(axis=0), start.Q[index], atol=1e-12)
        np.testing.assert_allclose(saved["M"][index, 0].sum(axis=0), start.M[index], atol=1e-12)

        def temperature(t):
            return 2.0 if t < 0.11 else 0.5

        rows, head, risks = numpy_run(
            problem, algorithm, x, signals, noise, rows, head, keys[index], slopes, temperature
        )
        np.testing.assert_allclose(saved["train_risk"][index], risks, rtol=1e-10)
        np.testing.assert_allclose(
            saved["Q"][index, -1].sum(axis=0), rows @ rows.T, rtol=1e-10, atol=1e-12
        )
        np.testing.assert_allclose(saved["a"][index, -1], head, rtol=1e-10)
        M = rows[:, simulator.placement.axes] @ simulator.placement.signals.T
        np.testing.assert_allclose(saved["M"][index, -1].sum(axis=0), M, rtol=1e-10, atol=1e-12)


def test_the_data_have_their_law():
    """Blocks, clusters and label noise; every run its own data, or all of them one."""
    blocks = make_simulator(
        COMMITTEE,
        CASES["committee, not rescaled"][1],
        sgd.random_start(COMMITTEE, dimension=D, runs=3),
    )
    with jax.enable_x64(True):
        blocks.initial(np.arange(3))
    x, noise = np.asarray(blocks.data.inputs).reshape(-1, D), np.asarray(blocks.data.draws).ravel()
    split = COMMITTEE.block_dimensions(D)[0]
    for leaf, variance in ((x[:, :split], 0.5), (x[:, split:], 1.5), (noise, 1.0)):
        assert abs(leaf.var() / variance - 1) < Z * np.sqrt(2 / leaf.size)
        assert abs(leaf.mean()) < Z * np.sqrt(variance / leaf.size)
    assert np.abs(
        np.corrcoef(np.column_stack([x, noise]).T) - np.eye(D + 1)
    ).max() < 1.3 * Z / np.sqrt(len(x))
    mixture = make_simulator(
        MIXTURE, sgd.GradientDescent(), sgd.random_start(MIXTURE, dimension=D, runs=3)
    )
    with jax.enable_x64(True):
        mixture.initial(np.arange(3))
    x, labels = np.asarray(mixture.data.inputs), np.asarray(mixture.data.draws)
    assert set(labels.ravel()) == {0.0, 1.0}
    assert abs((x[..., 0] * (2 * labels - 1)).mean() - 1) < Z * 0.5 / np.sqrt(labels.size)
    assert np.abs(x[0] - x[1]).max() > 1


def selections(algorithm, steps):
    """The selection of 20000 samples at each step."""
    problem = sgd.TeacherStudent(width=1, activation="square", constraint="sphere")
    simulator = make_simulator(problem, algorithm, sphere_start(1), d=2)
    with jax.enable_x64(True):
        state, keys, selections_per_step = (
            simulator.initial(np.array([0])),
            run_keys(SEED, np.array([0])),
            [],
        )
        for step in range(steps):
            selections_per_step.append(np.asarray(state.selected[0]))
            state = simulator.advance(state, keys, step, step + 1)[0]
    return np.array(selections_per_step, dtype=float)


def test_persistent_selection_keeps_its_share_and_forgets_at_the_stated_rate():
    b, lr, tau = 0.3, 0.01, 0.1
    s = selections(
        sgd.PersistentSGD(lr=lr, samples_per_dimension=1e4, batch_fraction=b, persistence_time=tau),
        31,
    )
    n = s.shape[1]
    assert np.abs(s.mean(axis=1) - b).max() < Z * np.sqrt(b * (1 - b) / n)
    rate = 1 - lr / tau / b  # 1 - on - off: the correlation decays in b tau
    for lag in (1, 3, 10, 30):
        correlation = np.mean((s[0] - b) * (s[lag] - b)) / (b * (1 - b))
        assert abs(correlation - rate**lag) < Z * np.sqrt((1 - b) / b / n), lag
    # a sample that is out comes in with probability lr/tau a step
    gone = s[:-1] == 0
    assert abs(s[1:][gone].mean() - lr / tau) < Z * np.sqrt(lr / tau / gone.sum())


def test_multi_pass_selection_has_no_memory():
    b = 0.3
    s = selections(sgd.MultiPassSGD(lr=0.01, samples_per_dimension=1e4, batch_fraction=b), 4)
    n = s.shape[1]
    assert np.abs(s.mean(axis=1) - b).max() < Z * np.sqrt(b * (1 - b) / n)
    for lag in (1, 3):
        assert abs(np.mean((s[0] - b) * (s[lag] - b))) < Z * b * (1 - b) / np.sqrt(n)


# (alpha, m0, batch fraction l) -> m after one step of eta = 0.01,
# m0/sqrt(1 - 4 eta al (1 - m0^2) + eta^2 (1 - m0^2) (4 al^2 + 12 al/l))
FIRST_STEPS = [(2.0, 0.5, 1.0, 0.514890), (3.0, 0.2, 0.5, 0.211387)]


@pytest.mark.slow
@pytest.mark.parametrize(("al", "m0", "fraction", "expected"), FIRST_STEPS)
@pytest.mark.runs_long
def test_first_step_in_the_papers_units(al, m0, fraction, expected):
    eta = 0.01
    common = {"lr": al * eta / 2, "samples_per_dimension": al}
    algorithm = (
        sgd.PersistentSGD(**common, batch_fraction=fraction, persistence_time=al / 2)
        if fraction < 1
        else sgd.GradientDescent(**common)
    )
    simulator = make_simulator(SPHERE, algorithm, sphere_start(12, m0), d=1000, dtype="float32")
    saved, _ = run(simulator, 12, np.array([0, 1]), SEED, "first step", False)
    m = saved["M"][:, 1, 0, 0, 0]
    error = m.std(ddof=1) / np.sqrt(len(m))
    assert error < abs(expected - m0) / 8
    assert abs(m.mean() - expected) < Z * error
    loss = saved["train_risk"][:, 0] / 2
    assert abs(loss.mean() - (1 - m0**2)) < Z * loss.std(ddof=1) / np.sqrt(len(loss))


SELECT_RUNS = DirectFixedData.select_runs


@pytest.mark.parametrize("together", [False, True])
def test_early_stop_and_smaller_batches_change_no_number(together, monkeypatch):
    """Runs in sequence, or together in a shrinking batch, equal those that never stop."""
    runs, steps, stop_at = 3, np.array([0, 50, 100, 250, 300, 400, 600]), 3e-4
    start = sgd.start(SPHERE, M=np.array([0.9, 0.8, 0.995])[:, None, None], Q=np.ones((runs, 1, 1)))
    check_steps = np.arange(0, 601, 100)
    algorithm = CASES["gradient descent"][1]
    free, last = run(make_simulator(SPHERE, algorithm, start), runs, check_steps, SEED, "", False)
    assert np.all(last == -1)
    below = free["train_risk"] < stop_at
    expected = np.where(below.any(axis=1), check_steps[below.argmax(axis=1)], -1)
    assert len(set(expected)) == runs, f"they should stop at different times, not at {expected}"
    sizes = []
    if together:
        monkeypatch.setattr(running, "COMPILE_SECONDS", -1.0)  # a smaller batch always pays
        monkeypatch.setattr(
            DirectFixedData,
            "select_runs",
            lambda self, state, index: sizes.append(len(index)) or SELECT_RUNS(self, state, index),
        )
    saved, _, stopped = run_until(
        make_simulator(SPHERE, algorithm, start, together=together),
        runs,
        steps,
        SEED,
        "",
        False,
        stop_at,
    )
    assert sizes == ([2, 1] if together else [])
    np.testing.assert_array_equal(stopped, expected)
    for index in range(runs):
        frozen = np.minimum(steps, stopped[index] if stopped[index] >= 0 else 600)
        for name in ("M", "Q", "train_risk"):
            for save_point, step in enumerate(frozen):
                if step % 100 == 0:
                    np.testing.assert_allclose(
                        saved[name][index, save_point], free[name][index, step // 100], rtol=1e-10
                    )


def test_run_i_does_not_depend_on_the_other_runs(monkeypatch):
    start = sphere_start(3)
    whole, _ = run(make_simulator(SPHERE, PERSISTENT, start), 3, np.array([3, 40]), SEED, "", False)
    other, _ = run(
        make_simulator(SPHERE, PERSISTENT, start), 3, np.array([40]), SEED + 1, "", False
    )
    assert np.abs(other["M"][:, 0] - whole["M"][:, 1]).max() > 1e-3
    monkeypatch.setattr(DirectFixedData, "resources", lambda *_: Resources(largest_group=2))
    pieces, _ = run(make_simulator(SPHERE, PERSISTENT, start), 3, np.array([40]), SEED, "", False)
    np.testing.assert_allclose(pieces["M"][:, 0], whole["M"][:, 1], rtol=1e-12)


def test_the_front_door(tmp_path):
    start = sphere_start(1)
    arguments = {"dimension": D, "runs": 3, "seed": SEED, "method": "direct"}
    result = sgd.simulate(SPHERE, PERSISTENT, start, steps=[0, STEPS], **arguments)
    np.testing.assert_allclose(result.t, [0, STEPS * PERSISTENT.lr])
    np.testing.assert_allclose(result.alpha, [0, STEPS * 0.4 * 3.0])
    assert result.train_risk.dims == ("run", "time")
    assert result.attrs["samples"] == 72
    np.testing.assert_allclose(result.risk[:, 0], 2 * (1 - 0.3**2), rtol=1e-9)
    assert "stopped_at" not in result.coords
    repeated = sgd.load(sgd.save(result, tmp_path / "runs.nc"))
    assert sgd.algorithm_of(repeated) == PERSISTENT
    # float32 sees the same data; all runs stop at once where the threshold is above
    single = sgd.simulate(
        SPHERE, PERSISTENT, start, steps=[0, STEPS], **arguments, dtype="float32", stop_at=0.01
    )
    np.testing.assert_allclose(single.M, result.M, rtol=1e-4)
    np.testing.assert_allclose(single.train_risk, result.train_risk, rtol=1e-4)
    assert np.isnan(single.stopped_at).all()
    at_once = sgd.simulate(SPHERE, PERSISTENT, start, steps=[0, 250], **arguments, stop_at=100.0)
    assert np.all(at_once.stopped_at == 0)
    np.testing.assert_array_equal(at_once.M[:, 0], at_once.M[:, 1])
    # one data set: the same overlaps at first, other directions, so another train risk
    shared = sgd.simulate(
        SPHERE, PERSISTENT, start, steps=[0, STEPS], **arguments, shared_data=True
    )
    np.testing.assert_allclose(shared.M[:, 0], 0.3)
    assert np.unique(shared.train_risk[:, 0]).size == 3


def test_changing_numbers_never_compiles_again():
    def simulate(index):
        algorithm = sgd.PersistentSGD(
            lr=0.02 + 0.001 * index, batch_fraction=0.4 + 0.01 * index, persistence_time=0.5
        )
        run(
            make_simulator(SPHERE, algorithm, sphere_start(3, 0.3 + 0.01 * index)),
            3,
            np.array([3 + index, 20]),
            SEED,
            "",
            False,
        )

    simulate(0)
    assert count_compilations(lambda: [simulate(index) for index in range(1, 4)]) == 0


def test_divergence_is_reported_and_the_others_go_on():
    start = sgd.random_start(COMMITTEE, dimension=D, runs=3, seed=1)
    far = sgd.Start(
        start.M_blocks, start.Q_blocks * np.array([1.0, 400.0, 1.0])[:, None, None, None], start.a
    )
    simulator = make_simulator(COMMITTEE, CASES["committee, not rescaled"][1], far)
    saved, last = run(simulator, 3, np.array([0, STEPS]), SEED, "", False)
    assert 0 <= last[1] < STEPS
    assert last[0] == last[2] == -1
    assert np.isfinite(saved["train_risk"][[0, 2]]).all()
    assert np.isfinite(saved["train_risk"][1, 0])
    assert np.isnan(saved["train_risk"][1, 1])
    assert np.isnan(saved["M"][1, 1]).all()
    # on the sphere rows stay of length 1: a sample that holds the row is what counts
    steep = sgd.GradientDescent(lr=1.2)
    with (
        pytest.warns(UserWarning, match="3 of 3 runs diverged"),
        pytest.warns(UserWarning, match="beyond the stability limit"),
    ):
        result = sgd.simulate(
            SPHERE,
            steep,
            sphere_start(3),
            steps=[0, STEPS, 30],
            dimension=D,
            seed=SEED,
            method="direct",
            stop_at=1e-9,
        )
    assert np.all(result.diverged_at < 30 * 1.2)
    assert np.isnan(result.stopped_at).all()
    assert np.isnan(result.M[:, -1]).all()


def test_stability_limit():
    """2 b/eta in the paper's units, and the share beyond it against a Monte Carlo average."""
    eta, b, al = 0.0025, 0.01, 3.0
    algorithm = sgd.MultiPassSGD(lr=al * eta / 2, samples_per_dimension=al, batch_fraction=b)
    assert sample_stability.stability_limit(SPHERE, algorithm) == pytest.approx(2 * b / eta)
    scaled = sgd.TeacherStudent(width=1, activation="square", covariance=[(0.5, 0.5), (2.5, 0.5)])
    assert sample_stability.stability_limit(scaled, algorithm) == pytest.approx(2 * b / eta / 1.5)
    assert sample_stability.stability_limit(COMMITTEE, algorithm) is None
    generator = np.random.default_rng(0)
    z = generator.standard_normal((2, 1_000_000))
    for q, m in ((1.0, 0.2), (2.5, -1.4)):
        h = m * z[0] + np.sqrt(q - m * m) * z[1]
        free = sgd.TeacherStudent(width=1, activation="square")
        share = sample_stability.unstable_share(free, algorithm, sgd.start(free, M=[[m]], Q=[[q]]))
        counted = np.mean(h**2 - z[0] ** 2 > 8.0)
        assert abs(share[0] - counted) < Z * np.sqrt(counted / z.shape[1])
    # Gradient descent on one sample leaves residual 0 just above the limit, and returns just below.
    x, lr = generator.standard_normal(D), 0.01
    for excess, leaves in ((1.02, True), (0.98, False)):
        free = sgd.TeacherStudent(width=1, activation="square", covariance=[(x @ x / D, 1.0)])
        limit = sample_stability.stability_limit(
            free, sgd.GradientDescent(lr=lr, samples_per_dimension=1 / D)
        )
        y, h = 0.0, np.sqrt(limit * excess)
        for _ in range(5):
            h = h - lr * (h * h - y) * 2 * h * (x @ x)
        assert (abs(h) > np.sqrt(limit * excess)) == leaves


@pytest.mark.parametrize(
    ("paces", "sizes"), [((1.0, 0.5, 0.25), [8, 4, 2]), ((1.0, 0.95, 0.95), [8, 8, 8])]
)
def test_a_batch_shrinks_as_long_as_that_saves_time(paces, sizes):
    """The batch is not reduced if half of the runs take nearly as long as all of them."""
    group = running._Group.__new__(running._Group)
    group.simulator = type("Kept", (), {"select_runs": staticmethod(lambda state, index: state)})
    group.batch, group.keys, group.state, group.larger = np.arange(16), np.arange(16), None, None
    group.stopped, group.diverged, group.now = np.full(16, -1), np.full(16, -1), 0
    saved = []
    for pace, lively in zip(paces, (8, 4, 2), strict=True):
        group.stopped[lively:], group.paces = 0, [100.0, pace]
        group.shrink(30.0)
        saved.append(len(group.batch))
    assert saved == sizes


BAD = {
    "method": ({"method": "chain"}, "method = 'chain'.*choose one of"),
    "dtype": ({"dtype": "bfloat16"}, "dtype = 'bfloat16'"),
    "exact in float32": (
        {"method": "exact", "dtype": "float32"},
        "Use float64, or method='direct'",
    ),
    "shared exact": (
        {"method": "exact", "shared_data": True},
        "shared_data = True.*method='direct'",
    ),
    "shared_data": ({"shared_data": 3}, "shared_data = 3"),
    "stop_at": ({"stop_at": 0.0}, "stop_at = 0.0.*above 0"),
    "times": ({"steps": None}, "exactly one of"),
    "dimension": ({"dimension": 1}, "dimension = 1.*Use 2 or more"),
    "samples": (
        {"algorithm": sgd.GradientDescent(samples_per_dimension=0.01)},
        "samples_per_dimension = 0.01.*Use a larger value",
    ),
    "one pass, shared": (
        {"algorithm": sgd.OnePassSGD(), "shared_data": True},
        "shared_data = True.*fixed data set",
    ),
    "one pass, stop": (
        {"algorithm": sgd.OnePassSGD(), "stop_at": 0.1},
        "stop_at = 0.1.*fixed data set",
    ),
    "no algorithm": ({"algorithm": "GD"}, "algorithm = 'GD'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    changed, message = BAD[name]
    arguments = {
        "algorithm": sgd.GradientDescent(),
        "steps": [1],
        "dimension": D,
        "method": "direct",
    } | changed
    start = sphere_start(1)
    checks.require_outside_jit(
        "simulate"
    )  # the first in a process compiles a program, of one number

    def simulate_with_bad_input():
        with pytest.raises(ValueError, match=message):
            sgd.simulate(SPHERE, start=start, **arguments)

    assert count_compilations(simulate_with_bad_input) == 0


def test_bad_input_of_algorithms_and_starts():
    for fraction in (0.0, -0.1, 1.5):
        with pytest.raises(ValueError, match="batch_fraction"):
            sgd.MultiPassSGD(batch_fraction=fraction)
    with pytest.raises(ValueError, match=r"persistence_time = 0.005.*use 0.09 or more"):
        sgd.PersistentSGD(lr=0.01, batch_fraction=0.1, persistence_time=0.005)
    with pytest.raises(ValueError, match="not a Gram matrix"):
        sgd.start(SPHERE, M=[[1.5]], Q=[[1.0]])


def test_memory_is_known_beforehand(monkeypatch):
    monkeypatch.setattr(direct, "available_bytes", lambda: 2.0**30)
    with pytest.raises(
        ValueError, match=r"90000 x 30000 numbers in float64 needs 40.\d GiB .* 1 GiB are free"
    ):
        sgd.simulate(
            SPHERE,
            sgd.GradientDescent(),
            sphere_start(1),
            steps=[1],
            dimension=30000,
            method="direct",
        )
    small, large = (
        make_simulator(SPHERE, sgd.GradientDescent(), sphere_start(1), d=d) for d in (100, 1000)
    )
    assert large.resources().largest_group < small.resources().largest_group
    for simulator in (small, large):
        largest = simulator.resources().largest_group
        assert largest == 1 or simulator.bytes_of(largest) < direct.CPU_GROUP_BYTES
    assert direct.available_bytes() > 0


def test_free_memory_is_a_plausible_number():
    assert 2**20 < direct.available_bytes() < 2**60


# eta = .01: m and loss at the paper's t = .1, .5, 1, with the standard errors of the last digit
REFERENCE = {
    0.1: (0.6056, 1e-4, 0.32056, 4e-5),
    0.5: (0.7482, 2e-4, 0.0993, 2e-4),
    1.0: (0.8051, 4e-4, 0.0543, 1e-4),
}


@pytest.mark.slow
def test_gradient_descent_of_a_thousand_dimensions_follows_the_limit():
    al, eta, runs = 2.0, 0.01, 40
    algorithm = sgd.GradientDescent(lr=al * eta / 2, samples_per_dimension=al)
    result = sgd.simulate(
        SPHERE,
        algorithm,
        sphere_start(1, 0.5),
        times=[al / 2 * t for t in REFERENCE],
        dimension=1000,
        runs=runs,
        method="direct",
    )
    for index, (m, m_error, loss, loss_error) in enumerate(REFERENCE.values()):
        for saved, expected, error in (
            (result.M[:, index, 0, 0], m, m_error),
            (result.train_risk[:, index] / 2, loss, loss_error),
        ):
            spread = float(saved.std(ddof=1)) / np.sqrt(runs)
            assert abs(float(saved.mean()) - expected) < 4 * np.hypot(spread, error), (
                index,
                float(saved.mean()),
                expected,
                spread,
            )
