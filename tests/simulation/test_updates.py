"""Updates other than plain SGD: each against its definition in NumPy, and the exact chain against direct simulation in law."""

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
from sgdynamics.algorithms.updates.update import count_row_sets as copies_of
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
MADE = {
    "momentum": updates.momentum(0.7),
    "reuse": updates.reuse(3),
    "normalised": updates.normalised(),
    "clipped": updates.clipped(0.2),
    "sam": updates.sam(0.3),
}
LR, HEAD_RATE, D = 0.6, 0.8, 13


def later(chosen):
    """Pairs of which the chosen ones run always, the others with the slow tests (each is a program of its own to compile)."""
    every = [(kind, other) for kind in KINDS for other in ("trained", "sphere")]
    return [pytest.param(*pair, marks=() if pair in chosen else pytest.mark.slow) for pair in every]


# ---------------------------------------------------------------------------------------------- against the definition


def reference(update, problem, W, a, batches):
    """Phase retrieval by each update's definition, in d dimensions: weights, head and length of the last step, in NumPy."""
    p, decay, trained = problem.width, problem.weight_decay, problem.head == "trained"
    numbers = dict(update.numbers) if update else {}
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
        for _ in range(int(numbers.get("times", 1))):
            G, g = gradient(W, a, x, y)
            if kind == "normalised":
                G, g = np.sqrt(D) * G / norm(G, g), np.sqrt(D) * g / norm(G, g)
            if kind == "clipped" and norm(G, g) > numbers["threshold"] * np.sqrt(D):
                G, g = (numbers["threshold"] * np.sqrt(D) / norm(G, g) * part for part in (G, g))
            if kind == "sam":
                step = numbers["radius"] / norm(G, g)
                G, g = gradient(W + step * G, a + trained * step * g, x, y)
            G, g = G + decay * W, g + decay * a
            if kind == "momentum":
                V, v = numbers["beta"] * V + G, numbers["beta"] * v + g
                G, g = V, v
            W, a = move(W, a, G, g)
    return W, a


@pytest.mark.parametrize(
    ("kind", "other"),
    later(
        [
            ("momentum", "trained"),
            ("reuse", "sphere"),
            ("normalised", "trained"),
            ("clipped", "sphere"),
            ("sam", "trained"),
        ]
    ),
)
def test_pathwise_against_the_definition(kind, other):
    """A block of steps on given inputs, in d dimensions and in the compressed frame, to 1e-12; also where it is plain SGD."""
    batch = (
        3 if kind in ("reuse", "sam") else 2
    )  # 3 > 2 units: these keep a column for every sample
    options = (
        {"constraint": "sphere"} if other == "sphere" else {"head": "trained", "weight_decay": 0.3}
    )
    problem = sgd.TeacherStudent(width=2, activation="square", noise=0.2, **options)
    begin = sgd.random_start(problem, dimension=40, seed=5)
    T, L = (part[0] for part in compressed_rows(problem, begin))
    layout = Layout(problem.structure, batch, update=MADE[kind].law)
    inside, copies = layout.inside, copies_of(layout.update)
    generator = np.random.default_rng(3)
    x, noise = (
        generator.standard_normal((layout.steps, batch, D)),
        generator.standard_normal((layout.steps, batch)),
    )
    assert layout.steps == 8 // batch
    W, a = np.zeros((2, D)), begin.a[0]
    W[:, :1], W[:, 1:3] = T[0], L[0]

    # the other blocks of the span are not active: nothing may happen there
    parts = (
        (layout.steps, batch, 1, inside),
        (layout.steps, batch, 1),
        (1, layout.columns, layout.columns),
    )
    draws = SpanDraws(*(np.ones((layout.folds, *shape)) for shape in parts))
    draws.inside[0, :, :, 0], draws.noise[0] = x[..., :inside], noise[..., None]
    # what lies outside, up to a rotation: the lower-triangular factor of its Gram matrix
    draws.outside[0, 0] = np.linalg.qr(x[..., inside:].reshape(layout.columns, -1).T, mode="r").T

    @jax.jit
    def chain(algorithm, end):
        rows = compressed.initial_rows(layout, jnp.asarray(T), jnp.asarray(L), jnp.asarray(a))
        given = (problem.parameters, algorithm, np.float64(D))
        state, _ = run_span(layout, given, rows, draws, (0, 0, end), None, None)
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
                place,
                layout.update,
            )

        place = place_signals(problem, np.array([D]))
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
    for update, meant in ((MADE[kind], MADE[kind]), (plain.get(kind), None)):
        if update is None:
            continue
        algorithm = sgd.OnePassSGD(lr=LR, head_rate=HEAD_RATE, update=update).parameters
        for end in (1, layout.steps):
            after, head = reference(meant, problem, W, a, list(zip(x, noise, strict=True))[:end])
            with jax.enable_x64(True):
                found = chain(algorithm, end)
                weights, found_head = (np.asarray(part) for part in direct(algorithm, end)[:2])
            np.testing.assert_allclose(weights[:2], after, atol=1e-12)
            np.testing.assert_allclose(found_head[:2], head, atol=1e-12)
            np.testing.assert_allclose(found["M"][0], after[:, :1], atol=1e-12)
            np.testing.assert_allclose(found["Q"][0], after @ after.T, atol=1e-12)
            np.testing.assert_allclose(found["a"], head, atol=1e-12)
    assert chain._cache_size() == direct._cache_size() == 1  # numbers are traced


class Fixed(GradientSource):
    """A batch whose gradient is known."""

    def __init__(self, G, g):
        self.known = G, g

    def mean(self, rows, head, shift, head_shift):
        return self.known


@pytest.mark.parametrize("trained", [False, True])
def test_length_of_a_step(trained):
    """Normalised steps have length lr/sqrt(d), clipped ones at most threshold times that, counting the head where it is trained."""
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
                update.law, algorithm, Rows(W, a), Fixed(scale * G, scale * g), stride, D, 0
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
    rows = 2 * copies_of(MADE[kind].law)
    cast = partial(np.asarray, dtype=np.float32)
    numbers = [
        jax.tree.map(cast, part)
        for part in (problem.parameters, sgd.OnePassSGD(update=MADE[kind]).parameters)
    ]
    arrays = [np.zeros(shape, np.float32) for shape in ((), (rows, D), (rows,), (1, D), (1,))]
    place = Embedding(
        *(
            cast(part) if part.dtype.kind == "f" else part
            for part in place_signals(problem, np.array([D]))
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
            place,
            MADE[kind].law,
        )

    with jax.enable_x64(True):
        found = jax.eval_shape(step, *numbers, *arrays)
    assert [part.dtype for part in found[:2]] == [np.float32, np.float32]


# ------------------------------------------------------------------------------------------------------------- in law


def network(**options):
    return sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, weight_decay=0.1, **{"head": "trained", **options}
    )


def runs_of(update, method="exact", problem=None, begin=None, steps=(1, 20), **options):
    """2000 runs of the network, always with the same shapes."""
    problem = problem or network()
    given = {"lr": 1.5, "head_rate": 0.7, "batch": 1, "d": 10} | options
    algorithm = sgd.OnePassSGD(
        lr=given["lr"], head_rate=given["head_rate"], batch=given["batch"], update=update
    )
    begin = begin or sgd.random_start(problem, dimension=60, seed=4)
    seed = 1 if method == "exact" else 2
    return sgd.simulate(
        problem,
        algorithm,
        begin,
        steps=list(steps),
        dimension=given["d"],
        runs=2000,
        seed=seed,
        method=method,
    )


def agree(exact, direct):
    for name in ("M", "Q", "a", "risk"):
        one, other = (np.asarray(result[name]) for result in (exact, direct))
        for index in np.ndindex(*one.shape[1:]):
            if name != "Q" or index[1] <= index[2]:
                same_law(one[(slice(None), *index)], other[(slice(None), *index)], f"{name}{index}")


# d = 6 leaves momentum one dimension outside the frame; 3 > 2 units: batches whose samples all keep a column, or only combinations
CASES = {
    "momentum": {"d": 6},
    "reuse": {"batch": 3, "lr": 1.0},
    "normalised": {"batch": 3},
    "clipped": {"batch": 1},
    "sam": {"batch": 3},
}


@pytest.mark.parametrize("kind", slow(KINDS, KINDS[1:]))
def test_exact_and_direct_agree_in_law(kind):
    exact, direct = (runs_of(MADE[kind], method, **CASES[kind]) for method in ("exact", "direct"))
    agree(exact, direct)
    assert sgd.algorithm_of(exact).update == MADE[kind]


MORE = {
    "momentum, wide batch": (MADE["momentum"], {}, {"batch": 5}),
    "momentum, sphere": (
        MADE["momentum"],
        {"constraint": "sphere", "head": "fixed"},
        {"batch": 2, "d": 9},
    ),
    "momentum, blocks": (MADE["momentum"], {"covariance": [(0.5, 0.5), (2.0, 0.5)]}, {"d": 16}),
    "reuse, sphere": (MADE["reuse"], {"constraint": "sphere"}, {}),
    "reuse, batch beyond d": (MADE["reuse"], {}, {"batch": 9, "d": 5}),
    "normalised, blocks": (MADE["normalised"], {"covariance": [(0.5, 0.5), (2.0, 0.5)]}, {"d": 12}),
    "normalised, sphere": (MADE["normalised"], {"constraint": "sphere"}, {"lr": 1.0}),
    "clipped, wide batch": (MADE["clipped"], {"head": "fixed"}, {"batch": 4}),
    "sam, blocks": (MADE["sam"], {"covariance": [(0.5, 0.5), (2.0, 0.5)]}, {"d": 12}),
    "sam, sphere": (MADE["sam"], {"constraint": "sphere"}, {"batch": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_more_settings_agree_in_law(name):
    update, problem, options = MORE[name]
    problem = network(**problem)
    agree(*(runs_of(update, method, problem, **options) for method in ("exact", "direct")))


@pytest.mark.slow
def test_a_mixture_agrees_in_law():
    problem = sgd.GaussianMixture(kind="xor", width=2, snr=5.0, weight_decay=0.1)
    begin = sgd.random_start(problem, dimension=60, seed=4)
    for kind in ("momentum", "sam"):
        agree(
            *(runs_of(MADE[kind], method, problem, begin, lr=0.5) for method in ("exact", "direct"))
        )


@pytest.mark.slow
def test_where_they_are_plain_sgd():
    """The same seed gives the numbers of plain SGD where an update has no effect (the chain with momentum has other columns)."""
    for method, pairs in (("exact", (updates.reuse(1),)), ("direct", (updates.momentum(0),))):
        plain = runs_of(None, method, d=6)
        for update in pairs:
            other = runs_of(update, method, d=6)
            for name in ("M", "Q", "a"):
                np.testing.assert_allclose(other[name], plain[name], atol=1e-12)


def test_save_points_do_not_change_a_run():
    """A run that is stopped inside a block of steps keeps its velocity."""
    one, other = (
        runs_of(MADE["momentum"], steps=steps, **CASES["momentum"]) for steps in ((1, 20), (13, 20))
    )
    for name in ("M", "Q", "a"):
        np.testing.assert_allclose(one[name][:, -1], other[name][:, -1], atol=1e-12)


@pytest.mark.slow
def test_length_of_the_first_step():
    """From W = 0 the first step is all there is: normalised it has length lr/sqrt(d), clipped at most threshold times that."""
    problem = network()
    begin = sgd.start(problem, M=np.zeros((2, 1)), Q=np.zeros((2, 2)))
    for d in (10, 1000):
        Q = runs_of(MADE["normalised"], begin=begin, batch=3, d=d).Q.values[:, 0]
        np.testing.assert_allclose(np.trace(Q, axis1=1, axis2=2), 1.5**2 / d, rtol=1e-12)
    plain, short = (
        runs_of(updates.clipped(threshold), begin=begin).Q.values[:, 0] for threshold in (1e6, 0.2)
    )
    length, found = (np.sqrt(np.trace(Q, axis1=1, axis2=2) * 10) / 1.5 for Q in (plain, short))
    assert 0.2 < np.mean(length > 0.2) < 0.8
    np.testing.assert_allclose(found, np.minimum(length, 0.2), rtol=1e-12)


@pytest.mark.slow
def test_exit_times_take_updates():
    """The exact chain and direct simulation leave at the same time in law, with momentum earlier than without."""
    problem = sgd.TeacherStudent(width=2, activation="square", constraint="sphere")
    begin = sgd.start(problem, M=[[0.3], [0.2]], Q=np.eye(2))
    common = dict(dimension=30, runs=1000, max_time=50.0)
    fast = sgd.OnePassSGD(lr=0.05, update=updates.momentum(0.5))
    exact = sgd.exit_time(problem, fast, begin, method="exact", seed=1, **common)
    direct = sgd.exit_time(problem, fast, begin, method="direct", seed=2, **common)
    same_law(exact.times, direct.times, "exit times")
    plain = sgd.exit_time(problem, sgd.OnePassSGD(lr=0.05), begin, method="exact", seed=3, **common)
    # a velocity that forgets at rate 1 - beta is a learning rate 1/(1 - beta) times as large
    assert abs(exact.mean / plain.mean - 0.5) < 0.1


# ----------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "update",
    [updates.sign(), updates.adam(3.0), updates.rmsprop(3.0, eps=0.1), updates.adagrad(0.5)],
    ids=lambda update: update.kind,
)
def test_coordinatewise_updates_have_no_chain(update):
    """The reason is given; so it is for a trained head, which they do not train."""
    problem = sgd.TeacherStudent(width=2, activation="erf")
    begin = sgd.start(problem, M=[[0.1], [0.2]], Q=np.eye(2))
    with pytest.raises(
        ValueError,
        match=r"method = 'exact': .*does not commute with rotations.*does not close on overlaps.*'direct'",
    ):
        sgd.simulate(problem, sgd.OnePassSGD(update=update), begin, steps=[1], dimension=20)
    with pytest.raises(ValueError, match=r"update = .*does not train a head"):
        sgd.solve_ode(network(), sgd.OnePassSGD(update=update), begin, times=[1.0])


def test_what_is_no_update_is_refused():
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


def test_theory_of_plain_sgd_refuses_updates():
    problem = network()
    begin = sgd.start(problem, M=[[0.1], [0.2]], Q=np.eye(2))
    spiked = sgd.SpikedTensor(order=2, snr=1.2)
    algorithm = sgd.OnePassSGD(lr=0.1, update=updates.momentum(0.5))
    spike = sgd.start(spiked, m=0.1, r2=1.0)
    for ask in (
        lambda: sgd.solve_sde(problem, algorithm, begin, times=[1.0], dimension=100),
        lambda: sgd.exit_time(problem, algorithm, begin, method="sde", dimension=100),
        lambda: sgd.fixed_points(problem, algorithm),
        lambda: sgd.increment_covariance(problem, algorithm, begin),
        lambda: sgd.simulate(spiked, algorithm, spike, times=[1.0], dimension=100),
    ):
        with pytest.raises(ValueError, match=r"^update = momentum\(beta=0.5\): only plain SGD"):
            ask()


def test_momentum_needs_room():
    problem = network()
    begin = sgd.random_start(problem, dimension=60)
    algorithm = sgd.OnePassSGD(update=updates.momentum(0.5))
    for ask in (
        lambda: sgd.simulate(problem, algorithm, begin, steps=[1], dimension=4),
        lambda: sgd.exit_time(problem, algorithm, begin, method="exact", dimension=4),
    ):
        with pytest.raises(ValueError, match=r"^dimension = 4.*signals \+ 2 width = 5"):
            ask()


def test_records():
    for update in MADE.values():
        algorithm = sgd.OnePassSGD(lr=0.3, batch=2, update=update)
        assert algorithm_from(algorithm.describe()).update == update
    assert "update" not in sgd.OnePassSGD().describe()
    assert repr(updates.momentum(0.9)) == "momentum(beta=0.9)"
