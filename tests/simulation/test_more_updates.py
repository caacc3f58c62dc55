"""Memories, Muon, adaptive steps, decay and noise: each against its definition in NumPy, and the exact chain against direct runs in law.

The definitions are those of the docstrings of ``sgd.updates``, written on Z = [W | a] with the head as one more column.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics import compressed
from sgdynamics.algorithms.updates.beginning import beginning
from sgdynamics.algorithms.updates.ground import Rows
from sgdynamics.algorithms.updates.law import MAKERS
from sgdynamics.algorithms.updates.law import copies as copies_of
from sgdynamics.algorithms.updates.matrices import newton_schulz_of, polar
from sgdynamics.problems.starts import factor, placed
from sgdynamics.records import algorithm_from
from sgdynamics.samples.sample import Place
from sgdynamics.simulation.direct import direct_step
from tests.conftest import Z as SIGMAS
from tests.simulation.test_updates import agree, network, runs_of

U = sgd.updates
LR, HEAD_RATE, D, DECAY = 0.6, 0.8, 13, 0.3
BOTH = ("fixed", "trained")

# name: the update, its heads, and whether the decay of a problem is part of its gradients
EQUIVARIANT = {
    "momentum": (U.momentum(memory=3.0), BOTH, True),
    "nesterov": (U.nesterov(0.7), BOTH, True),
    "nesterov, slow": (U.nesterov(memory=3.0), BOTH, True),
    "average": (U.average(2.0), BOTH, True),
    "polyak": (U.polyak(), BOTH, True),
    "schedule_free": (U.schedule_free(0.8), BOTH, True),
    "dana": (U.dana(1.5, delta=4.0, offset=0.5), BOTH, True),
    "clipped, row": (U.clipped(0.2, over="row"), BOTH, False),
    "clipped, sample": (U.clipped(0.2, over="sample"), BOTH, False),
    "sam, reach": (U.sam(reach=0.5), BOTH, False),
    "muon": (U.muon(), ("fixed",), False),
    "muon, newton_schulz": (U.muon(newton_schulz=True), ("fixed",), False),
    "muon, slow": (U.muon(memory=3.0), ("fixed",), False),
    "muon, slow newton_schulz": (U.muon(memory=3.0, newton_schulz=True), ("fixed",), False),
    "muon, fast": (U.muon(beta=0.6), ("fixed",), False),
    "adagrad_norm": (U.adagrad_norm(0.1), BOTH, False),
    "decay": (U.weight_decay(0.4), BOTH, False),
    "decay, momentum": (U.weight_decay(0.4, of=U.momentum(0.7)), BOTH, True),
    "decay inside, momentum": (U.weight_decay(0.4, of=U.momentum(0.7), decoupled=False), BOTH, True),
    "decay inside, clipped": (U.weight_decay(0.4, of=U.clipped(0.2), decoupled=False), BOTH, False),
    "decay, average": (U.weight_decay(0.4, of=U.average(2.0)), BOTH, True),
    "decay, schedule_free": (U.weight_decay(0.4, of=U.schedule_free(0.8)), BOTH, True),
    "noise": (U.gradient_noise(0.7), BOTH, False),
    "noise, clipped sample": (U.gradient_noise(0.7, of=U.clipped(0.2, over="sample")), BOTH, False),
}
COORDINATEWISE = {
    "sign": U.sign(),
    "adam": U.adam(4.0, eps=0.02),
    "adamw": U.adam(4.0, eps=0.02, weight_decay=0.3, beta=0.6),
    "rmsprop": U.rmsprop(4.0, eps=0.1),
    "adagrad": U.adagrad(0.5, eps=0.01),
}


# ---------------------------------------------------------------------------------------------- against the definition


class Batch:
    """Phase retrieval on one batch in d dimensions: gradients at Z = [W | a], the last column 0 where the head is not trained."""

    def __init__(self, problem, x, noise, kicks=None, spread=1.0):
        self.x, self.trained, self.p = x, problem.head == "trained", problem.width
        self.y = (x @ self.signal(x.shape[1])) ** 2 + np.sqrt(problem.noise) * noise
        self.kicks = None if kicks is None else np.pad(kicks, ((0, 0), (0, 1)))

    @staticmethod
    def signal(d):
        return np.eye(d)[0]

    def each(self, Z):
        fields, a = self.x @ Z[:, :-1].T, Z[:, -1]
        error = fields**2 @ a / self.p - self.y
        G = 2 / self.p * (error[:, None] * a * fields)[:, :, None] * self.x[:, None]
        g = error[:, None] * fields**2 / self.p * self.trained
        return np.concatenate([G, g[:, :, None]], axis=2)

    def __call__(self, Z):
        return self.each(Z).mean(axis=0)


def singular(G, function):
    """U f(s) V^T of the weights' columns."""
    left, s, right = np.linalg.svd(G[:, :-1], full_matrices=False)
    return np.pad((left * function(s)) @ right, ((0, 0), (0, 1)))


def quintic(s):
    s = s / np.sqrt(np.sum(s**2))
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return s


def ones(s):
    return (s > 1e-9 * s[0]).astype(float)


def norm(G, axis=None):
    return np.sqrt(np.sum(G**2, axis=axis, keepdims=axis is not None))


def reference(name, problem, Z, iterate, batches):
    """Z after each update's definition; the head moves head_rate times as fast."""
    rate = np.r_[np.ones(D), HEAD_RATE * (problem.head == "trained")] / D
    decay = problem.weight_decay
    V, b2, theta = np.zeros_like(Z), D**2 * 0.1, 0.2 * np.sqrt(D)
    for n, batch in enumerate(batches, start=1):

        def inside(Z, batch=batch, more=0.0):
            return batch(Z) + (decay + more) * Z

        def clip(G, axis=None):
            return G * np.minimum(1, theta / norm(G, axis))

        match name:
            case "momentum":
                V = (1 - 3 / D) * V + 3 / D * inside(Z)
                Z = Z - LR * rate * V
            case "nesterov":
                G = inside(Z)
                V = 0.7 * V + G
                Z = Z - LR * rate * (G + 0.7 * V)
            case "nesterov, slow":
                G = inside(Z)
                V = (1 - 3 / D) * V + 3 / D * G
                Z = Z - LR * rate * (3 / D * G + (1 - 3 / D) * V)
            case "average":
                iterate = iterate - LR * rate * inside(iterate)
                Z = Z + 2 / D * (iterate - Z)
            case "polyak":
                iterate = iterate - LR * rate * inside(iterate)
                Z = ((n - 1) * Z + iterate) / n
            case "schedule_free":
                iterate = iterate - LR * rate * inside(0.2 * iterate + 0.8 * Z)
                Z = ((n - 1) * Z + iterate) / n
            case "dana":
                G = inside(Z)
                V = (1 - 4 / (D * 0.5 + n - 1)) * V + G / D
                Z = Z - LR * rate * G - 1.5 * rate * V
            case "clipped, row":
                Z = Z - LR * rate * (clip(batch(Z), 1) + decay * Z)
            case "clipped, sample":
                Z = Z - LR * rate * (np.mean([clip(G) for G in batch.each(Z)], axis=0) + decay * Z)
            case "sam, reach":
                G = batch(Z)
                Z = Z - LR * rate * (batch(Z + 0.5 / np.sqrt(D) * G / norm(G)) + decay * Z)
            case "muon" | "muon, newton_schulz":
                G = singular(batch(Z), ones if name == "muon" else quintic)
                Z = Z - LR * rate * (np.sqrt(D) * G + decay * Z)
            case "muon, slow" | "muon, slow newton_schulz":
                V = (1 - 3 / D) * V + 3 / D * batch(Z)
                Z = Z - LR * rate * (singular(V, ones if name == "muon, slow" else quintic) + decay * Z)
            case "muon, fast":
                V = 0.6 * V + batch(Z)
                Z = Z - LR * rate * (np.sqrt(D) * singular(V, ones) + decay * Z)
            case "adagrad_norm":
                G = batch(Z)
                b2 = b2 + norm(G) ** 2
                Z = Z - LR * rate * (D * G / np.sqrt(b2) + decay * Z)
            case "decay":
                Z = Z - LR * rate * (batch(Z) + (decay + 0.4) * Z)
            case "decay, momentum":
                V = 0.7 * V + inside(Z)
                Z = Z - LR * rate * (V + 0.4 * Z)
            case "decay inside, momentum":
                V = 0.7 * V + inside(Z, more=0.4)
                Z = Z - LR * rate * V
            case "decay inside, clipped":
                Z = Z - LR * rate * (clip(batch(Z) + 0.4 * Z) + decay * Z)
            case "decay, average":
                iterate = iterate - LR * rate * (inside(iterate) + 0.4 * iterate)
                Z = Z + 2 / D * (iterate - Z)
            case "decay, schedule_free":
                iterate = iterate - LR * rate * (inside(0.2 * iterate + 0.8 * Z) + 0.4 * iterate)
                Z = ((n - 1) * Z + iterate) / n
            case "noise":
                Z = Z - LR * rate * (batch(Z) + 0.7 * batch.kicks + decay * Z)
            case "noise, clipped sample":
                Z = Z - LR * rate * (np.mean([clip(G) for G in batch.each(Z)], axis=0) + 0.7 * batch.kicks + decay * Z)
            case _:
                raise AssertionError(name)
    return Z


def problem_of(head):
    return sgd.TeacherStudent(width=2, activation="square", noise=0.2, head=head, weight_decay=DECAY)


@pytest.mark.parametrize(("name", "head"), [(name, head) for name, (_, heads, _) in EQUIVARIANT.items() for head in heads[-1:]])
@pytest.mark.parametrize("batch", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_pathwise_against_the_definition(name, head, batch):
    """Three steps on given inputs, in d dimensions and in the compressed frame, to 1e-12; not compiled, as each is a program of its own."""
    update, (_, _, decay_inside), problem = EQUIVARIANT[name][0], EQUIVARIANT[name], problem_of(head)
    assert update.law.decay_inside == decay_inside
    begin = beginning(update, sgd.random_start(problem, dimension=40, seed=5))
    T, L = (part[0] for part in factor(problem, begin))
    steps, p = 3, 2
    grouping = compressed.Grouping(problem.structure, batch, update=update.law)
    kicked, inside, columns = grouping.kicks, grouping.inside, grouping.columns
    generator = np.random.default_rng(3)
    x, noise = generator.standard_normal((grouping.steps, batch, D)), generator.standard_normal((grouping.steps, batch))
    kicks = generator.standard_normal((grouping.steps, kicked, D)) if kicked else None
    together = x if kicks is None else np.concatenate([x, kicks], axis=1)
    # what lies outside, up to a rotation: the lower-triangular factor of its Gram matrix
    outside = np.linalg.qr(np.pad(together[..., inside:].reshape(columns, -1), ((0, 0), (0, max(0, columns - D + inside)))).T, mode="r").T
    algorithm = sgd.OnePassSGD(lr=LR, batch=batch, head_rate=HEAD_RATE, update=update).parameters
    numbers, place = (problem.parameters, algorithm), placed(problem, np.array([D]))
    given = [Batch(problem, *one) for one in zip(x, noise, kicks if kicked else [None] * len(x), strict=True)]

    W = np.zeros((len(begin.a[0]), D))
    W[:, : T.shape[-1] + L.shape[-1]] = np.concatenate([T[0], L[0]], axis=1)
    for later in W[p:].reshape(-1, p, D):
        # what is not at rest starts as the weights; the root of a singular Gram matrix is known to that of rounding
        np.testing.assert_allclose(later, W[:p], atol=1e-7)
        np.testing.assert_allclose(later @ W[:p].T, W[:p] @ W[:p].T, atol=1e-14)
    sets = copies_of(update.law) * p
    rest = sets - len(W)
    with jax.enable_x64(True):
        scalars = tuple(jnp.asarray(one) for one in begin.scalars[0])
        direct = Rows(jnp.pad(W, ((0, rest), (0, 0))), jnp.pad(jnp.asarray(begin.a[0]), (0, rest)), scalars)
        chain = compressed.initial_rows(grouping, jnp.asarray(T), jnp.asarray(L), jnp.asarray(begin.a[0]), scalars)
        part = compressed.SpanDraws(x[:, :, None, :inside], noise[..., None], outside[None])
        if kicked:
            part = part._replace(kicks=kicks[:, :, None, :inside])
        seen, labels = compressed.block_inputs(grouping, problem.parameters, part)
        own = compressed.block_kicks(grouping, part)
        made = min(steps, grouping.steps)
        for n in range(made):
            mine = None if own is None else own[n]
            direct = direct_step(
                problem.structure, numbers, LR / D, direct, jnp.asarray(x[n]), jnp.asarray(noise[n]), place, update.law, n,
                kicks=None if kicks is None else jnp.asarray(kicks[n]),
            )  # fmt: skip
            chain = compressed.one_step(grouping, numbers, LR / D, chain, (seen[n], labels[n], part.outside, mine), float(D), n)
        found = compressed.overlaps_of_sets(grouping, problem.parameters, chain)
    after = reference(name, problem, np.c_[W[:p], begin.a[0, :p]], np.c_[W[-p:], begin.a[0, -p:]], given[:made])
    assert np.abs(after[:, :-1] - W[:p]).max() > 1e-3
    np.testing.assert_allclose(direct.rows[:p], after[:, :-1], atol=1e-12)
    np.testing.assert_allclose(direct.head[:p], after[:, -1], atol=1e-12)
    rows = np.asarray(direct.rows)
    for name_, meant in (("M", rows[:p, :1]), ("Q", rows[:p] @ rows[:p].T), ("rows_M", rows[:, :1]), ("rows_Q", rows @ rows.T)):
        if name_ in found:
            np.testing.assert_allclose(found[name_][0], meant, atol=1e-12)
    np.testing.assert_allclose(found["a"], after[:, -1], atol=1e-12)
    for one, other in zip(chain.scalars, direct.scalars, strict=True):
        assert float(one) == pytest.approx(float(other), abs=1e-13)
