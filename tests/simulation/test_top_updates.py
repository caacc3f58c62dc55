"""Steps of optimisers on a top, against NumPy in d dimensions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.algorithms.updates.initial_state import update_start
from sgdynamics.algorithms.updates.update import count_row_sets
from sgdynamics.problems.frames import place_signals
from sgdynamics.simulation.direct import direct_step
from tests.conftest import Z
from tests.problems.linear_top import LABELS, SHAPES, TOP, linear_top, linear_top_start

U = sgd.updates
LR, D, STEPS, BATCH, P = 0.6, 11, 4, 2, 2
RATES = {"V": 0.7, "u": 1.3, "b": 0.5}
DECAY = {"rows": 0.2, "V": 0.1, "b": 0.4}


def gradients(weights, top, x, noise):
    """dloss/dW and dloss/dtop of the mean loss of a batch, written out."""
    V, u, b = (top[name] for name in "Vub")
    fields = x @ weights.T
    hidden = fields @ V.T
    errors = hidden * u + b - np.outer(x[:, 0], LABELS) - 0.3 * noise[:, None]
    G = (errors * u @ V).T @ x / len(x)
    by_leaf = {
        "V": (errors * u).T @ fields / len(x),
        "u": np.mean(errors * hidden, axis=0),
        "b": errors.sum(axis=1).mean(),
    }
    return {"W": G, **by_leaf}


def polar_factor(matrix):
    left, s, right = np.linalg.svd(np.atleast_2d(matrix), full_matrices=False)
    rank = np.sum(s > 1e-9 * s[0])
    return (left[:, :rank] @ right[:rank]).reshape(np.shape(matrix))


class Adam:
    def __init__(self, c, eps, beta=0.9, c1=None):
        self.c, self.eps, self.beta = c / D, eps, beta if c1 is None else 1 - c1 / D
        self.V = self.S = 0.0

    def __call__(self, G, number):
        self.V = self.beta * self.V + (1 - self.beta) * G
        self.S = (1 - self.c) * self.S + self.c * G**2
        corrected = self.S / (1 - (1 - self.c) ** number)
        return self.V / (1 - self.beta**number) / (np.sqrt(corrected) + self.eps)


class Muon:
    def __init__(self, size, c=None, beta=None):
        self.size, self.c, self.beta, self.V = size, c, beta, 0.0

    def __call__(self, G, number):
        self.V = G if self.c is None else (1 - self.c / D) * self.V + self.c / D * G
        return self.size * polar_factor(self.V)


class Squares:
    def __init__(self, start, keep, share, eps):
        self.S, self.keep, self.share, self.eps = start, keep, share, eps

    def __call__(self, G, number):
        self.S = self.keep * self.S + self.share * G**2
        return G / (np.sqrt(self.S) + self.eps)


class Momentum:
    """A velocity whose gradient contains the weight decay."""

    decay_inside = True

    def __init__(self, beta):
        self.beta, self.V = beta, 0.0

    def __call__(self, G, number):
        self.V = self.beta * self.V + G
        return self.V


def plain(G, number):
    return G


def sign(G, number):
    return np.sign(G)


def everywhere(make):
    return {name: make() for name in ("W", "V", "u", "b")}


# The update, and the direction of each parameter by its definition.
CASES = {
    "adam": (U.adam(4.0, eps=0.02), lambda: everywhere(lambda: Adam(4.0, 0.02))),
    "slow adam": (
        U.adam(4.0, eps=0.02, velocity_memory=3.0),
        lambda: everywhere(lambda: Adam(4.0, 0.02, c1=3.0)),
    ),
    "sign": (U.sign(), lambda: everywhere(lambda: sign)),
    "rmsprop": (
        U.rmsprop(4.0, eps=0.1),
        lambda: everywhere(lambda: Squares(0.0, 1 - 4 / D, 4 / D, 0.1)),
    ),
    "adagrad": (
        U.adagrad(0.5, eps=0.01),
        lambda: everywhere(lambda: Squares(0.5, 1.0, 1 / D, 0.01)),
    ),
    "muon": (U.muon(), lambda: everywhere(lambda: Muon(1.0)) | {"W": Muon(np.sqrt(D))}),
    "slow muon": (U.muon(memory=3.0), lambda: everywhere(lambda: Muon(1.0, c=3.0))),
    "momentum": (U.momentum(0.6), lambda: everywhere(lambda: Momentum(0.6))),
    "separate": (
        U.separate(head=U.adam(4.0, eps=0.02)),
        lambda: everywhere(lambda: Adam(4.0, 0.02)) | {"W": plain},
    ),
    "by leaf": (
        U.separate(
            rows=U.momentum(0.6), head={"V": U.muon(memory=3.0), "b": U.adam(4.0, eps=0.02)}
        ),
        lambda: {
            "W": Momentum(0.6),
            "V": Muon(1.0, c=3.0),
            "u": plain,
            "b": Adam(4.0, 0.02),
        },
    ),
    "slow head": (
        U.separate(rows=U.sign(), head=U.momentum(memory=3.0)),
        lambda: everywhere(lambda: SlowMomentum(3.0)) | {"W": sign},
    ),
}


class SlowMomentum(Momentum):
    """A velocity that is an average over D/c steps."""

    def __init__(self, c):
        self.c, self.V = c, 0.0

    def __call__(self, G, number):
        self.V = (1 - self.c / D) * self.V + self.c / D * G
        return self.V


def definition(directions, weights, x, noise):
    """Rows and top after the steps, with rates and weight decay by leaf."""
    values = {"W": weights, **{name: np.asarray(TOP[name], float) for name in SHAPES}}
    rates, decays = {"W": 1.0, **RATES}, {"W": DECAY["rows"], "u": 0.0, **DECAY}
    for number in range(1, STEPS + 1):
        G = gradients(values["W"], values, x[number - 1], noise[number - 1])
        moved = {}
        for name, value in values.items():
            decay = decays[name] * value
            inside = getattr(directions[name], "decay_inside", False)
            step = directions[name](G[name] + decay * inside, number) + decay * (not inside)
            moved[name] = value - rates[name] * LR / D * step
        values = moved
    return values


@pytest.mark.parametrize("name", CASES)
def test_steps_agree_with_their_definition(name):
    """Steps in d dimensions agree with the definition to 1e-12, leaf by leaf."""
    update, make = CASES[name]
    problem = linear_top(weight_decay=DECAY)
    generator = np.random.default_rng(4)
    W = 0.5 * generator.standard_normal((P, D))
    x, noise = generator.standard_normal((STEPS, BATCH, D)), generator.standard_normal((STEPS, 2))
    algorithm = sgd.OnePassSGD(lr=LR, batch=BATCH, head_rate=RATES, update=update).on(problem)
    start = update_start(update, linear_top_start(problem), trained=True)
    sets, size = count_row_sets(update.law), problem.structure.head_size
    with jax.enable_x64(True):
        state = Rows(
            jnp.pad(W, ((0, P * (sets - 1)), (0, 0))),
            jnp.pad(jnp.asarray(start.a[0]), (0, size * (sets - 1))),
            tuple(jnp.asarray(scalar) for scalar in start.scalars[0]),
            tuple(jnp.asarray(np.repeat(square[:, None], D, 1)) for square in start.squares[0]),
            vectors=tuple(jnp.asarray(vector) for vector in start.vectors[0]),
        )
        for index in range(STEPS):
            state = direct_step(
                problem.structure,
                (problem.parameters, algorithm.parameters),
                LR / D,
                state,
                jnp.asarray(x[index]),
                jnp.asarray(noise[index]),
                place_signals(problem, np.array([D])),
                update.law,
                index,
            )
        assert problem.structure.top is not None
        top = problem.structure.top.leaves_by_name(np.asarray(state.head[:size]))
    expected = definition(make(), W, x, noise)
    assert np.abs(expected["V"] - TOP["V"]).max() > 1e-2
    np.testing.assert_allclose(state.rows[:P], expected["W"], atol=1e-12)
    for leaf, values in top.items():
        np.testing.assert_allclose(values, expected[leaf], atol=1e-12)


@pytest.mark.slow
def test_the_chain_has_the_law_of_direct_runs():
    """Adam on the top alone commutes with rotations of the inputs."""
    problem = linear_top()
    update = U.separate(head={"V": U.muon(memory=3.0), "u": U.adam(2.0, eps=0.05)})
    algorithm = sgd.OnePassSGD(lr=0.5, head_rate=RATES, update=update)
    common = {"times": [1.0], "dimension": 60, "runs": 600}
    start = linear_top_start(problem)
    exact = sgd.simulate(problem, algorithm, start, seed=1, **common)
    direct = sgd.simulate(problem, algorithm, start, method="direct", seed=2, **common)
    for name in ("M", "Q", "top.V", "top.u", "top.b", "update_vectors"):
        first, second = (runs[name].values[:, -1].reshape(600, -1) for runs in (exact, direct))
        error = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 600)
        difference = np.abs(first.mean(axis=0) - second.mean(axis=0))
        assert np.all(difference < Z * error + 1e-12), name
