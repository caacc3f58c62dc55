"""Inputs that are not Gaussian, as in docs/howto/data.md, compared with SGD written in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from tests.conftest import Z, same_law, slow

LR = 0.8


def majority(fields, signals, head, draws):
    return 0.5 * (jnp.tanh(fields[0]) - jnp.sign(jnp.sum(signals))) ** 2


def bits(draws):
    return 2 * draws["bits"] - 1


def hypercube(d):
    """Return a problem whose label reads three coordinates of +-1; all others are Gaussian.

    The three coordinates are a block of variance 0, whose means are random.
    """
    gram = np.stack([np.eye(3), np.zeros((3, 3))])
    inputs = sgd.Spectrum([0.0, 1.0], [3, d - 3], target=gram)
    draws = {"bits": ("bernoulli", 0.5, 3)}
    return sgd.Problem(majority, width=1, signals=3, covariance=inputs, means=bits, draws=draws)


def fourth_power(fields, signals, head, draws):
    return fields[0] ** 4 / 24


def sign_of_s(draws):
    return 2 * draws["s"][None] - 1


def spin_direction(d):
    """Return a problem with one coordinate of +-1; all others are Gaussian.

    All have mean 0 and variance 1, so that only fourth cumulants differ from those of a Gaussian.
    """
    inputs = sgd.Spectrum([0.0, 1.0], [1, d - 1], target=[1.0, 0.0])
    draws = {"s": ("bernoulli", 0.5)}
    return sgd.Problem(
        fourth_power, 1, 1, constraint="sphere", covariance=inputs, means=sign_of_s, draws=draws
    )


SPREADS = (0.5, 1.5)


def two_spreads(fields, signals, head, draws):
    """Logistic loss of a linear unit on two clusters of different variance.

    The first input of the sample is standard normal, and the second is the mean of the cluster.
    """
    spread = jnp.where(draws["cluster"] == 0, *SPREADS)
    label = jnp.where(draws["cluster"] == 0, 1.0, -1.0)
    return jax.nn.softplus(-label * (spread * fields[0, 0] + fields[0, 1]))


def centre(draws):
    return jnp.where(draws["cluster"] == 0, 1.0, -1.0) * jnp.array([[0.0], [1.0]])


def unequal_clusters():
    return sgd.Problem(
        two_spreads,
        1,
        1,
        tokens=2,
        token_correlation=np.diag([1.0, 0.0]),
        means=centre,
        draws={"cluster": [0.3, 0.7]},
    )


def numpy_runs(kind, rows, steps, generator):
    """Return the rows (runs, d) after steps of SGD; the signals are along the first axes."""
    w = rows.copy()
    runs, d = w.shape
    for _ in range(steps):
        x = generator.standard_normal((runs, d))
        if kind == "hypercube":
            x[:, :3] = generator.choice([-1.0, 1.0], (runs, 3))
            t = np.tanh(np.sum(w * x, axis=1))
            slope = (t - np.sign(x[:, :3].sum(axis=1))) * (1 - t**2)
        elif kind == "whitened":
            x[:, 0] = generator.choice([-1.0, 1.0], runs)
            slope = np.sum(w * x, axis=1) ** 3 / 6
        else:
            first = generator.random(runs) < 0.3
            label = np.where(first, 1.0, -1.0)
            x = np.where(first, *SPREADS)[:, None] * x
            x[:, 0] += label
            slope = -label / (1 + np.exp(label * np.sum(w * x, axis=1)))
        w = w - LR / d * slope[:, None] * x
        if kind == "whitened":
            w /= np.linalg.norm(w, axis=1, keepdims=True)
    return w


def reference_case(kind, d):
    """Return a problem, its start, and a row in d dimensions with the overlaps of that start."""
    if kind == "hypercube":
        problem, coordinates, orthogonal_norm = hypercube(d), np.array([0.3, 0.1, -0.2]), 0.6
        blocks = (
            np.stack([coordinates[None], np.zeros((1, 3))]),
            np.array([[[coordinates @ coordinates]], [[orthogonal_norm**2]]]),
        )
    elif kind == "whitened":
        problem, coordinates, orthogonal_norm = spin_direction(d), np.array([0.6]), 0.8
        blocks = np.array([[[0.6]], [[0.0]]]), np.array([[[0.36]], [[0.64]]])
    else:
        problem, coordinates, orthogonal_norm = unequal_clusters(), np.array([0.6]), 0.8
        blocks = np.array([[0.6]]), np.array([[1.0]])
    row = np.concatenate([coordinates, [orthogonal_norm], np.zeros(d - len(coordinates) - 1)])
    return problem, sgd.start(problem, M=blocks[0], Q=blocks[1]), row


KINDS = ("hypercube", "whitened", "clusters")


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow(KINDS, ("hypercube", "clusters")))
def test_chains_have_the_law_of_sgd_in_numpy(kind):
    d, steps, runs = 20, 60, 1000
    problem, start, row = reference_case(kind, d)
    chain = sgd.simulate(
        problem, sgd.OnePassSGD(lr=LR), start, steps=[0, steps], dimension=d, runs=runs, seed=1
    )
    w = numpy_runs(kind, np.broadcast_to(row, (runs, d)), steps, np.random.default_rng(2))
    same_law(chain.M.values[:, 1, 0, 0], w[:, 0], "M")
    if kind != "whitened":
        same_law(chain.Q.values[:, 1, 0, 0], np.sum(w**2, axis=1), "Q")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_theory_has_the_mean_of_sgd_in_numpy(kind):
    """At d = 800 the ODE agrees with the mean of 200 runs to 4.9 standard errors and 5/d."""
    d, runs, alpha = 800, 200, 2.0
    problem, start, row = reference_case(kind, d)
    path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=LR), start, alpha=[0, alpha])
    w = numpy_runs(kind, np.broadcast_to(row, (runs, d)), int(alpha * d), np.random.default_rng(2))
    for name, values in (("M", w[:, 0]), ("Q", np.sum(w**2, axis=1))):
        expected = path[name].values[0, -1, 0, 0]
        assert abs(values.mean() - expected) <= Z * values.std() / np.sqrt(runs) + 5 / d, name


def test_a_spectrum_may_have_eigenvalue_zero():
    spectrum = sgd.Spectrum([0.0, 1.0], [2, 5])
    assert (spectrum.trace, spectrum.dimension) == (5.0, 7)
    with pytest.raises(ValueError, match=r"eigenvalues = .*0 or more, at least one above 0"):
        sgd.Spectrum([0.0, 0.0], [1, 2])
    with pytest.raises(ValueError, match="eigenvalues = "):
        sgd.Spectrum([-1.0, 1.0], [1, 2])
