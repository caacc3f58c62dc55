"""Momentum, reuse of batches, normalisation, clipping and SAM.

Each update agrees pathwise with its definition, written in NumPy. The exact chain and direct runs
have one law.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms import updates
from sgdynamics.algorithms.one_pass import Stride, take_step
from sgdynamics.algorithms.updates.gradient_source import GradientSource, Rows
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.problems.frames import compressed_rows, place_signals
from sgdynamics.results.records import algorithm_from
from sgdynamics.samples.inputs import Embedding
from sgdynamics.simulation import compressed
from sgdynamics.simulation.chain_steps import run_span
from sgdynamics.simulation.direct import direct_step
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.span_draws import SpanDraws
from tests.conftest import same_law, slow

KINDS = ("momentum", "reuse", "normalised", "clipped", "sam")
UPDATES = {
    "momentum": updates.momentum(0.7),
    "reuse": updates.reuse(3),
    "normalised": updates.normalised(),
    "clipped": updates.clipped(0.2),
    "sam": updates.sam(0.3),
}
LR, HEAD_RATE, D = 0.6, 0.8, 13


def kind_parameters(fast_pairs):
    """Pairs of an update and a setting, of which those in `fast_pairs` are fast tests.

    Each pair compiles a program of its own, so the others are slow tests.
    """
    pairs = [(kind, setting) for kind in KINDS for setting in ("trained", "sphere")]
    return [
        pytest.param(*pair, marks=() if pair in fast_pairs else pytest.mark.slow) for pair in pairs
    ]


# ------------------------------------------------------------------------------- pathwise agreement


def reference(update, problem, W, a, batches):
    """Weights and head after SGD in d dimensions, from the definition of each update.

    The problem is phase retrieval, f(x) = sum_i a_i (w_i.x)^2/p with labels (e_1.x)^2 + noise.
    """
    p, decay, trained = problem.width, problem.weight_decay, problem.head == "trained"
    hyperparameters = dict(update.numbers) if update else {}
    kind = update.kind if update else "plain"
    V, v = np.zeros_like(W), np.zeros_like(a)

    def gradient(W, a, x, y):
        fields = x @ W.T
        error = fields**2 @ a / p - y
        G = (2 / p) * (error[:, None] * a * fields).T @ x / len(x)
        return G, error @ fields**2 / p / len(x)

    def norm(G, g):
        return np.sqrt((G**2).sum() + trained * (g**2).sum())

    def move(W, a, G, g):
        W = W - LR / D * G
        if problem.constraint == "sphere":
            W = W / np.linalg.norm(W, axis=1, keepdims=True)
        return W, a - trained * HEAD_RATE * LR / D * g

    for x, noise in batches:
        y = x[:, 0] ** 2 + np.sqrt(problem.noise) * noise
        for _ in range(int(hyperparameters.get("times", 1))):
            G, g = gradient(W, a, x, y)
            if kind == "normalised":
                G, g = np.sqrt(D) * G / norm(G, g), np.sqrt(D) * g / norm(G, g)
            if kind == "clipped" and norm(G, g) > hyperparameters["threshold"] * np.sqrt(D):
                G, g = (
                    hyperparameters["threshold"] * np.sqrt(D) / norm(G, g) * array
                    for array in (G, g)
                )
            if kind == "sam":
                step = hyperparameters["radius"] / norm(G, g)
                G, g = gradient(W + step * G, a + trained * step * g, x, y)
            G, g = G + decay * W, g + decay * a
            if kind == "momentum":
                V, v = hyperparameters["beta"] * V + G, hyperparameters["beta"] * v + g
                G, g = V, v
            W, a = move(W, a, G, g)
    return W, a


@pytest.mark.parametrize(
    ("kind", "setting"),
    kind_parameters(
        [
            ("momentum", "trained"),
            ("reuse", "sphere"),
            ("normalised", "trained"),
            ("clipped", "sphere"),
            ("sam", "trained"),
        ]
    ),
)
def test_pathwise_against_the_definition(kind, setting):
    """Steps in d dimensions and in the compressed frame agree with the definition to 1e-12.

    Hyperparameters at which an update is plain SGD are compared with plain SGD.
    """
    # With 3 samples and 2 units, reuse and sam keep a column of the frame for every sample.
    batch = 3 if kind in ("reuse", "sam") else 2
    options = (
        {"constraint": "sphere"}
        if setting == "sphere"
        else {"head": "trained", "weight_decay": 0.3}
    )
    problem = sgd.TeacherStudent(width=2, activation="square", noise=0.2, **options)
    start = sgd.random_start(problem, dimension=40, seed=5)
    T, L = (array[0] for array in compressed_rows(problem, start))
    layout = Layout(problem.structure, batch, update=UPDATES[kind].law)
    inside, copies = layout.inside, count_row_sets(layout.update)
    generator = np.random.default_rng(3)
    x, noise = (
        generator.standard_normal((layout.steps, batch, D)),
        generator.standard_normal((layout.steps, batch)),
    )
    assert layout.steps == 8 // batch
    W, a = np.zeros((2, D)), start.a[0]
    W[:, :1], W[:, 1:3] = T[0], L[0]

    # Only the first segment of the span is active. The draws of the others have no effect.
    shapes = (
        (layout.steps, batch, 1, inside),
        (layout.steps, batch, 1),
        (1, layout.columns, layout.columns),
    )
    draws = SpanDraws(*(np.ones((layout.folds, *shape)) for shape in shapes))
    draws.inside[0, :, :, 0], draws.noise[0] = x[..., :inside], noise[..., None]
    # A rotation outside of the frame changes nothing, so the outside inputs are replaced by the
    # lower-triangular factor of their Gram matrix.
    draws.outside[0, 0] = np.linalg.qr(x[..., inside:].reshape(layout.columns, -1).T, mode="r").T

    @jax.jit
    def chain(algorithm, end):
        rows = compressed.initial_rows(layout, jnp.asarray(T), jnp.asarray(L), jnp.asarray(a))
        arguments = (problem.parameters, algorithm, np.float64(D))
        state, _ = run_span(layout, arguments, rows, draws, (0, 0, end), None, None)
        return compressed.overlaps(layout, problem.parameters, state)

    @jax.jit
    def direct(algorithm, end):
        def step(index, state):
            return direct_step(
                problem.structure,
                (problem.parameters, algorithm),
                LR / D,
                state,
                jnp.asarray(x)[index],
                jnp.asarray(noise)[index],
                embedding,
                layout.update,
            )

        embedding = place_signals(problem, np.array([D]))
        return jax.lax.fori_loop(
            0,
            end,
            step,
            Rows(jnp.pad(W, ((0, (copies - 1) * 2), (0, 0))), jnp.pad(a, (0, (copies - 1) * 2))),
        )

    plain = {
        "momentum": updates.momentum(0),
        "reuse": updates.reuse(1),
        "clipped": updates.clipped(1e6),
        "sam": updates.sam(0),
    }
    for update, defined_update in ((UPDATES[kind], UPDATES[kind]), (plain.get(kind), None)):
        if update is None:
            continue
        algorithm = sgd.OnePassSGD(lr=LR, head_rate=HEAD_RATE, update=update).parameters
        for end in (1, layout.steps):
            weights, head = reference(
                defined_update, problem, W, a, list(zip(x, noise, strict=True))[:end]
            )
            with jax.enable_x64(True):
                overlaps = chain(algorithm, end)
                direct_weights, direct_head = (
                    np.asarray(array) for array in direct(algorithm, end)[:2]
                )
            np.testing.assert_allclose(direct_weights[:2], weights, atol=1e-12)
            np.testing.assert_allclose(direct_head[:2], head, atol=1e-12)
            np.testing.assert_allclose(overlaps["M"][0], weights[:, :1], atol=1e-12)
            np.testing.assert_allclose(overlaps["Q"][0], weights @ weights.T, atol=1e-12)
            np.testing.assert_allclose(overlaps["a"], head, atol=1e-12)
    assert chain._cache_size() == direct._cache_size() == 1  # hyperparameters are traced


class KnownGradient(GradientSource):
    """A batch with the gradients that the test provides."""

    def __init__(self, G, g):
        self.gradients = G, g

    def mean(self, rows, head, shift, head_shift):
        return self.gradients


@pytest.mark.parametrize("trained", [False, True])
def test_length_of_a_step(trained):
    """A normalised step has length lr/sqrt(d), a clipped one at most threshold times this length.

    The length includes the step of a trained head.
    """
    W, G = np.random.default_rng(0).standard_normal((2, 2, D))
    a, g = np.ones(2), np.array([3.0, -2.0])
    size = np.sqrt((G**2).sum() + trained * (g**2).sum()) / np.sqrt(D)

    def length(update, scale=1.0):
        algorithm = sgd.OnePassSGD(lr=LR, update=update).parameters
        stride = Stride(
            LR / D,
            algorithm["head_rate"],
            0.0,
            sgd.TeacherStudent(head="trained" if trained else "fixed").structure,
        )
        with jax.enable_x64(True):
            moved, head = take_step(
                update.law, algorithm, Rows(W, a), KnownGradient(scale * G, scale * g), stride, D, 0
            )[:2]
        return (
            np.hypot(np.linalg.norm(np.asarray(moved) - W), np.linalg.norm(np.asarray(head) - a))
            * np.sqrt(D)
            / LR
        )

    for scale in (1.0, 1e-3, 1e3):
        assert length(updates.normalised(), scale) == pytest.approx(1.0)
        assert length(updates.clipped(0.5), scale) == pytest.approx(min(0.5, scale * size))
    assert length(updates.normalised(), 0.0) == length(updates.clipped(0.5), 0.0) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_float32_stays_float32(kind):
    problem = sgd.TeacherStudent(width=2, activation="square", head="trained")
    rows = 2 * count_row_sets(UPDATES[kind].law)
    cast = partial(np.asarray, dtype=np.float32)
    parameters = [
        jax.tree.map(cast, tree)
        for tree in (problem.parameters, sgd.OnePassSGD(update=UPDATES[kind]).parameters)
    ]
    arrays = [np.zeros(shape, np.float32) for shape in ((), (rows, D), (rows,), (1, D), (1,))]
    embedding = Embedding(
        *(
            cast(array) if array.dtype.kind == "f" else array
            for array in place_signals(problem, np.array([D]))
        )
    )

    def step(parameters, algorithm, rate, weights, head, x, noise):
        return direct_step(
            problem.structure,
            (parameters, algorithm),
            rate,
            Rows(weights, head),
            x,
            noise,
            embedding,
            UPDATES[kind].law,
        )

    with jax.enable_x64(True):
        state = jax.eval_shape(step, *parameters, *arrays)
    assert [array.dtype for array in state[:2]] == [np.float32, np.float32]


# --------------------------------------------------------------------------------- agreement in law


def network(**options):
    return sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, weight_decay=0.1, **{"head": "trained", **options}
    )


def simulate_network(update, method="exact", problem=None, start=None, steps=(1, 20), **options):
    """2000 runs of the network with an update; all tests share the shapes of compiled programs."""
    problem = problem or network()
    settings = {"lr": 1.5, "head_rate": 0.7, "batch": 1, "d": 10} | options
    algorithm = sgd.OnePassSGD(
        lr=settings["lr"], head_rate=settings["head_rate"], batch=settings["batch"], update=update
    )
    start = start or sgd.random_start(problem, dimension=60, seed=4)
    seed = 1 if method == "exact" else 2
    return sgd.simulate(
        problem,
        algorithm,
        start,
        steps=list(steps),
        dimension=settings["d"],
        runs=2000,
        seed=seed,
        method=method,
    )


def assert_same_law(exact, direct):
    for name in ("M", "Q", "a", "risk"):
        exact_sample, direct_sample = (np.asarray(result[name]) for result in (exact, direct))
        for index in np.ndindex(*exact_sample.shape[1:]):
            if name != "Q" or index[1] <= index[2]:
                same_law(
                    exact_sample[(slice(None), *index)],
                    direct_sample[(slice(None), *index)],
                    f"{name}{index}",
                )


# With d = 6 only one dimension is outside of the frame of momentum. A batch of 3 exceeds the 2
# units: some updates then keep a column of the frame for every sample, others combine samples.
CASES = {
    "momentum": {"d": 6},
    "reuse": {"batch": 3, "lr": 1.0},
    "normalised": {"batch": 3},
    "clipped": {"batch": 1},
    "sam": {"batch": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow(KINDS, KINDS[1:]))
def test_exact_and_direct_agree_in_law(kind):
    exact, direct = (
        simulate_network(UPDATES[kind], method, **CASES[kind]) for method in ("exact", "direct")
    )
    assert_same_law(exact, direct)
    assert sgd.algorithm_of(exact).update == UPDATES[kind]


SETTINGS = {
    "momentum, wide batch": (UPDATES["momentum"], {}, {"batch": 5}),
    "momentum, sphere": (
        UPDATES["momentum"],
        {"constraint": "sphere", "head": "fixed"},
        {"batch": 2, "d": 9},
    ),
    "momentum, blocks": (UPDATES["momentum"], {"covariance": [(0.5, 0.5), (2.0, 0.5)]}, {"d": 16}),
    "reuse, sphere": (UPDATES["reuse"], {"constraint": "sphere"}, {}),
    "reuse, batch beyond d": (UPDATES["reuse"], {}, {"batch": 9, "d": 5}),
    "normalised, blocks": (
        UPDATES["normalised"],
        {"covariance": [(0.5, 0.5), (2.0, 0.5)]},
        {"d": 12},
    ),
    "normalised, sphere": (UPDATES["normalised"], {"constraint": "sphere"}, {"lr": 1.0}),
    "clipped, wide batch": (UPDATES["clipped"], {"head": "fixed"}, {"batch": 4}),
    "sam, blocks": (UPDATES["sam"], {"covariance": [(0.5, 0.5), (2.0, 0.5)]}, {"d": 12}),
    "sam, sphere": (UPDATES["sam"], {"constraint": "sphere"}, {"batch": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_more_settings_agree_in_law(name):
    update, problem, options = SETTINGS[name]
    problem = network(**problem)
    assert_same_law(
        *(simulate_network(update, method, problem, **options) for method in ("exact", "direct"))
    )


@pytest.mark.slow
def test_a_mixture_agrees_in_law():
    problem = sgd.GaussianMixture(kind="xor", width=2, snr=5.0, weight_decay=0.1)
    start = sgd.random_start(problem, dimension=60, seed=4)
    for kind in ("momentum", "sam"):
        assert_same_law(
            *(
                simulate_network(UPDATES[kind], method, problem, start, lr=0.5)
                for method in ("exact", "direct")
            )
        )


@pytest.mark.slow
def test_updates_without_effect_give_the_runs_of_plain_sgd():
    """Reuse of one step and momentum zero give the runs of plain SGD with the same seed.

    Momentum is tested in direct runs only, because its chain has more columns and other draws.
    """
    for method, tested_updates in (
        ("exact", (updates.reuse(1),)),
        ("direct", (updates.momentum(0),)),
    ):
        plain = simulate_network(None, method, d=6)
        for update in tested_updates:
            updated = simulate_network(update, method, d=6)
            for name in ("M", "Q", "a"):
                np.testing.assert_allclose(updated[name], plain[name], atol=1e-12)


def test_save_points_do_not_change_a_run():
    """Momentum keeps its velocity at a save point inside of a segment of steps."""
    result, other_result = (
        simulate_network(UPDATES["momentum"], steps=steps, **CASES["momentum"])
        for steps in ((1, 20), (13, 20))
    )
    for name in ("M", "Q", "a"):
        np.testing.assert_allclose(result[name][:, -1], other_result[name][:, -1], atol=1e-12)


@pytest.mark.slow
def test_length_of_the_first_step():
    """From W = 0 the rows after one step are the step, so Q contains its length."""
    problem = network()
    start = sgd.start(problem, M=np.zeros((2, 1)), Q=np.zeros((2, 2)))
    for d in (10, 1000):
        Q = simulate_network(UPDATES["normalised"], start=start, batch=3, d=d).Q.values[:, 0]
        np.testing.assert_allclose(np.trace(Q, axis1=1, axis2=2), 1.5**2 / d, rtol=1e-12)
    plain, short = (
        simulate_network(updates.clipped(threshold), start=start).Q.values[:, 0]
        for threshold in (1e6, 0.2)
    )
    length, clipped_length = (
        np.sqrt(np.trace(Q, axis1=1, axis2=2) * 10) / 1.5 for Q in (plain, short)
    )
    assert 0.2 < np.mean(length > 0.2) < 0.8
    np.testing.assert_allclose(clipped_length, np.minimum(length, 0.2), rtol=1e-12)


@pytest.mark.slow
def test_exit_times_with_momentum():
    """Exit times of the exact chain and direct runs have one law; momentum halves their mean."""
    problem = sgd.TeacherStudent(width=2, activation="square", constraint="sphere")
    start = sgd.start(problem, M=[[0.3], [0.2]], Q=np.eye(2))
    common = dict(dimension=30, runs=1000, max_time=50.0)
    fast = sgd.OnePassSGD(lr=0.05, update=updates.momentum(0.5))
    exact = sgd.exit_time(problem, fast, start, method="exact", seed=1, **common)
    direct = sgd.exit_time(problem, fast, start, method="direct", seed=2, **common)
    same_law(exact.times, direct.times, "exit times")
    plain = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.05), start, method="exact", seed=3, **common)
    # Momentum with coefficient beta acts as a learning rate larger by 1/(1 - beta).
    assert abs(exact.mean / plain.mean - 0.5) < 0.1


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "update",
    [updates.sign(), updates.adam(3.0), updates.rmsprop(3.0, eps=0.1), updates.adagrad(0.5)],
    ids=lambda update: update.kind,
)
def test_coordinatewise_updates_have_no_chain(update):
    """The error of the exact method gives the reason."""
    problem = sgd.TeacherStudent(width=2, activation="erf")
    start = sgd.start(problem, M=[[0.1], [0.2]], Q=np.eye(2))
    with pytest.raises(
        ValueError,
        match=r"method = 'exact': .*does not commute with rotations.*"
        r"does not close on overlaps.*'direct'",
    ):
        sgd.simulate(problem, sgd.OnePassSGD(update=update), start, steps=[1], dimension=20)


def test_invalid_updates_raise():
    with pytest.raises(ValueError, match=r"update = 'momentun': did you mean 'momentum'"):
        sgd.OnePassSGD(update="momentun")
    with pytest.raises(ValueError, match=r"such as sgd\.updates\.sam\(\.\.\.\)"):
        sgd.OnePassSGD(update=updates.sam)
    with pytest.raises(ValueError, match=r"sgd\.updates\.own"):
        sgd.OnePassSGD(update=lambda gradient: gradient)
    with pytest.raises(ValueError, match=r"such as sgd\.updates\.adam\(\.\.\.\)"):
        sgd.OnePassSGD(update="AdamW")
    for make, name in (
        (lambda: updates.momentum(1.0), "beta"),
        (lambda: updates.momentum(-0.1), "beta"),
        (lambda: updates.reuse(0), "times"),
        (lambda: updates.reuse(1.5), "times"),
        (lambda: updates.clipped(0), "threshold"),
        (lambda: updates.sam(-1), "radius"),
        (lambda: updates.Update("adam"), "kind"),
    ):
        with pytest.raises(ValueError, match=f"^{name} = "):
            make()


def test_theory_of_plain_sgd_raises_for_updates():
    problem = network()
    start = sgd.start(problem, M=[[0.1], [0.2]], Q=np.eye(2))
    spiked = sgd.SpikedTensor(order=2, snr=1.2)
    algorithm = sgd.OnePassSGD(lr=0.1, update=updates.momentum(0.5))
    spiked_start = sgd.start(spiked, m=0.1, r2=1.0)
    for call in (
        lambda: sgd.solve_sde(problem, algorithm, start, times=[1.0], dimension=100),
        lambda: sgd.exit_time(problem, algorithm, start, method="sde", dimension=100),
        lambda: sgd.fixed_points(problem, algorithm),
        lambda: sgd.increment_covariance(problem, algorithm, start),
        lambda: sgd.simulate(spiked, algorithm, spiked_start, times=[1.0], dimension=100),
    ):
        with pytest.raises(ValueError, match=r"^update = momentum\(beta=0.5\): only plain SGD"):
            call()


def test_momentum_needs_enough_dimensions():
    problem = network()
    start = sgd.random_start(problem, dimension=60)
    algorithm = sgd.OnePassSGD(update=updates.momentum(0.5))
    for call in (
        lambda: sgd.simulate(problem, algorithm, start, steps=[1], dimension=4),
        lambda: sgd.exit_time(problem, algorithm, start, method="exact", dimension=4),
    ):
        with pytest.raises(ValueError, match=r"^dimension = 4.*signals \+ 2 width = 5"):
            call()


def test_records():
    for update in UPDATES.values():
        algorithm = sgd.OnePassSGD(lr=0.3, batch=2, update=update)
        assert algorithm_from(algorithm.describe()).update == update
    assert "update" not in sgd.OnePassSGD().describe()
    assert repr(updates.momentum(0.9)) == "momentum(beta=0.9)"
