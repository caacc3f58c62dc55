"""Epochs: the two-time equations against closed forms and a plain loop, and the verdict on each figure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from sgdynamics import gallery
from sgdynamics.papers import epochs as paper
from tests.conftest import FALSE_ALARM


def replacement(gamma, alpha, noise, last):
    """|w - w*|^2 with replacement by the Volterra equation on the Marchenko-Pastur spectrum of X^T X/n, at s = samples/d = 0 .. last."""
    low, high = (1 - alpha**-0.5) ** 2, (1 + alpha**-0.5) ** 2
    angle = (np.arange(400) + 0.5) * math.pi / 400
    x = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    weight = alpha * ((high - low) / 2 * np.sin(angle)) ** 2 / (2 * math.pi * x) * math.pi / 400
    weight = weight / weight.sum()  # of alpha >= 1: no atom at 0
    s = np.linspace(0, last, 801)
    decay = np.exp(-2 * gamma * x * s[:, None])
    F = decay @ (weight * x) + noise * (1 - 1 / alpha + decay @ weight / alpha)
    G = decay @ weight + noise / alpha * ((1 - np.sqrt(decay)) ** 2 @ (weight / x))
    kernels = [gamma**2 * (decay @ (weight * x**power)) for power in (2, 1)]
    P, h = np.zeros(len(s)), s[1]
    for i in range(len(s)):
        past = h * (np.dot(kernels[0][i:0:-1], P[:i]) - kernels[0][i] * P[0] / 2) if i else 0.0
        P[i] = (F[i] + past) / (1 - (h / 2 * kernels[0][0] if i else 0.0))
    inside = [integrate.trapezoid(kernels[1][: i + 1][::-1] * P[: i + 1], dx=h) for i in range(len(s))]
    return G + np.array(inside), s


@pytest.mark.parametrize("noise", [0.0, 0.25])
def test_with_replacement_it_is_a_volterra_equation(noise):
    known, s = replacement(0.8, 2.0, noise, 6.0)
    found, _ = paper.linear_epochs(0.8, 2.0, noise, 3, "replacement")
    np.testing.assert_allclose(found, np.interp([0, 2, 4, 6], s, known), atol=5e-4)


@pytest.mark.parametrize("order", ["reshuffle", "fixed"])
def test_a_plain_loop_has_these_distances(order):
    rng, d, runs, lr, noise = np.random.default_rng(0), 200, 40, 0.8, 0.25
    n, distances = 2 * d, np.zeros((runs, 3))
    X, z = rng.normal(size=(runs, n, d)), math.sqrt(noise) * rng.normal(size=(runs, n))
    apart = np.full((runs, d), 1 / math.sqrt(d))  # w* - w
    for epoch in range(3):
        for place in range(n):
            x = X[:, place]
            apart -= lr / d * x * (np.sum(x * apart, axis=1) + z[:, place])[:, None]
        if order == "reshuffle":
            mixed = rng.permutation(n)
            X, z = X[:, mixed], z[:, mixed]
        distances[:, epoch] = np.sum(apart**2, axis=1)
    known = paper.linear_epochs(lr, 2.0, noise, 3, order)[0][1:]
    error = distances.std(axis=0, ddof=1) / math.sqrt(runs)
    assert np.all(np.abs(distances.mean(axis=0) - known) < stats.t.isf(FALSE_ALARM / 6, runs - 1) * error + 4 / d * known)
    assert np.all(error < 0.03 * known)  # so that a few percent would be seen


def test_fresh_samples_of_the_first_epoch_are_its_samples():
    for noise in (0.0, 0.25):
        distance, _ = paper.linear_epochs(0.8, 2.0, noise, 1)
        np.testing.assert_allclose(paper.fresh_samples(distance, 0.8, noise), [0.0, 2.0], atol=2e-3)
    assert np.isnan(paper.fresh_samples(0.1, 0.8, 0.25))
    assert np.all(np.isnan(paper.linear_epochs(0.8, 2.0, 0.0, 1, "fixed", cells=4)[1]))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: paper.linear_epochs(0.0, 2.0, 0.1, 2), "lr = 0.0"),
        (lambda: paper.linear_epochs(0.8, -1.0, 0.1, 2), "samples_per_dimension = -1.0"),
        (lambda: paper.linear_epochs(0.8, 2.0, -0.1, 2), "noise = -0.1"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 0), "epochs = 0"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 2, "shuffle"), "order = 'shuffle'"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 2, cells=6), "cells = 6: .*multiple of 4"),
        (lambda: paper.linear_epochs(0.8, 2.0, 0.1, 1000), "epochs = 1000: times 40 cells"),
        (lambda: paper.fresh_samples(0.5, 2.0, 0.1), "lr = 2.0: .*below 2"),
        (lambda: paper.fresh_samples("far", 0.8, 0.1), "distance = 'far'"),
    ],
)
def test_bad_numbers_are_named(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("number", ["1", "2", "3"])
def test_figures_are_reproduced(number, tmp_path):
    found = gallery.make(gallery.find("epochs", number), tmp_path)
    assert not found["error"]
    assert found["verdict"].startswith("reproduced"), found["verdict"]
    assert (tmp_path / f"epochs-{number}.png").stat().st_size > 20_000
