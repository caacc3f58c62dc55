"""Covariance blocks with fewer coordinates than signals and rows.

The exact chain, fixed data and the SDE are compared with direct runs in d dimensions, in law.
Blocks that are too small to be compressed keep their coordinates.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.fixed_data.exact import ExactFixedData
from sgdynamics.simulation.direct import DirectSGD
from sgdynamics.simulation.exact import ExactChain
from tests.conftest import Z
from tests.simulation.test_rules import DATA, autoencoder_rule, normalised_hebb
from tests.simulation.test_tokens import assert_same_law
from tests.simulation.test_tokens import problem_of as token_problem_of

D = 12
COVARIANCE = [(4.0, 1 / D), (2.0, 2 / D), (0.5, 9 / D)]
GRAM = np.array([[[0.3, 0.0], [0.0, 0.0]], [[0.3, 0.2], [0.2, 0.3]], [[0.4, 0.1], [0.1, 0.9]]])


def problem_of(**changes):
    arguments = {
        "width": 2,
        "teacher_width": 2,
        "activation": "erf",
        "noise": 0.1,
        "covariance": COVARIANCE,
        "teacher_gram": GRAM,
    }
    return sgd.TeacherStudent(**(arguments | changes))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_chain_against_direct(batch):
    """Blocks of one and of two coordinates, where two signals and two rows would need four."""
    assert_same_law(
        problem_of(head="trained"),
        sgd.OnePassSGD(lr=4.0, batch=batch),
        (ExactChain, DirectSGD),
        d=D,
        steps=10,
    )


@pytest.mark.slow
def test_momentum():
    assert_same_law(
        problem_of(),
        sgd.OnePassSGD(lr=1.0, update=sgd.updates.momentum(0.6)),
        (ExactChain, DirectSGD),
        d=D,
        steps=10,
    )


@pytest.mark.slow
@pytest.mark.parametrize("has_noise", [False, True])
def test_fixed_data(has_noise):
    algorithm = (sgd.Langevin if has_noise else sgd.GradientDescent)(
        lr=0.2, samples_per_dimension=0.75
    )

    def exact(problem, algorithm, setting):
        return ExactFixedData(problem, algorithm, replace(setting, seed=3))

    def direct(problem, algorithm, setting):
        return DirectFixedData(problem, algorithm, replace(setting, seed=4))

    assert_same_law(problem_of(), algorithm, (exact, direct), d=D, runs=3000, steps=5)


def test_start():
    """Random rows in a small block b have E[Q_b] = d_b/d and overlaps of rank at most d_b."""
    problem = problem_of()
    start = sgd.random_start(problem, dimension=D, runs=4000)
    for block, size in enumerate((1, 2, 9)):
        squares = start.Q_blocks[:, block, 0, 0]
        assert abs(squares.mean() - size / D) < Z * squares.std() / np.sqrt(len(squares))
        whole = np.block(
            [
                [start.Q_blocks[0, block], start.M_blocks[0, block]],
                [start.M_blocks[0, block].T, GRAM[block]],
            ]
        )
        assert np.linalg.matrix_rank(whole, tol=1e-9) == min(size, 4)


@pytest.mark.slow
def test_simulation_with_a_block_of_one_coordinate():
    """The overlaps of this block keep rank one; the other block has 399 coordinates."""
    problem = sgd.TeacherStudent(
        width=2, activation="erf", covariance=[(4.0, 1 / 400), (1.0, 399 / 400)]
    )
    start = sgd.random_start(problem, dimension=400, runs=2)
    result = sgd.simulate(problem, sgd.OnePassSGD(lr=0.5), start, steps=[0, 100], dimension=400)
    np.testing.assert_allclose(result.Q_block[:, 0, 0].values, start.Q_blocks[:, 0], atol=1e-12)
    assert np.linalg.matrix_rank(result.Q_block[0, 1, 0].values, tol=1e-9) == 1


def test_starts_that_do_not_fit_the_blocks_raise():
    problem = problem_of()
    algorithm = sgd.OnePassSGD(lr=0.5)
    spread = sgd.start(problem, M=np.zeros((2, 2)), Q=np.eye(2))
    for method in ("exact", "direct"):
        with pytest.raises(
            ValueError,
            match="start has overlaps of rank 2 or more in block 0, which has 1 coordinates",
        ):
            sgd.simulate(problem, algorithm, spread, steps=[1], dimension=D, method=method)
    with pytest.raises(
        ValueError, match=r"gram = .*block 0 has 1 coordinates, and the signals have rank 2"
    ):
        sgd.random_start(problem_of(teacher_gram=None), dimension=D)
    with pytest.raises(ValueError, match="dimension = 5: a covariance block has no coordinate"):
        sgd.random_start(problem, dimension=5)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_a_spectrum_against_direct(batch):
    """Chain and direct runs have one law on spectra with blocks of many sizes.

    One signal and two rows span three coordinates. The sizes are below, equal to and above three,
    and below, equal to and above the eleven columns of a compressed block.
    """
    for sizes in ([1, 1, 3, 40], [2, 3, 4], [1, 2, 4, 6, 11, 12]):
        eigenvalues = np.geomspace(4.0, 0.3, len(sizes))
        spectrum = sgd.Spectrum(eigenvalues, sizes, target=np.linspace(0.2, 0.5, len(sizes)))
        problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1, covariance=spectrum)
        algorithm = sgd.OnePassSGD(lr=1.5, per="trace", batch=batch).on(problem)
        assert_same_law(problem, algorithm, (ExactChain, DirectSGD), d=None, runs=20_000, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sphere", "momentum", "clipped", "trained head"])
def test_other_runs_on_a_spectrum(kind):
    """Six blocks, of which only the largest is compressed."""
    sizes = [1, 2, 4, 6, 11, 25]
    spectrum = sgd.Spectrum(np.geomspace(4.0, 0.3, 6), sizes, target=np.linspace(0.2, 0.5, 6))
    options = {
        "sphere": {"constraint": "sphere"},
        "trained head": {"head": "trained", "weight_decay": 0.2},
    }.get(kind, {})
    update = {"momentum": sgd.updates.momentum(0.6), "clipped": sgd.updates.clipped(0.05)}.get(kind)
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, covariance=spectrum, **options
    )
    algorithm = sgd.OnePassSGD(lr=1.5, per="trace", update=update).on(problem)
    assert_same_law(
        problem, algorithm, (ExactChain, DirectSGD), d=None, runs=10_000, steps=20, scale=1.0
    )


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_tokens_on_a_spectrum(batch):
    """Two correlated tokens with means and draws; one or two blocks are compressed."""
    grams = np.array([[[1.0, 0.2], [0.2, 0.8]]]) * np.linspace(0.1, 0.4, 6)[:, None, None]
    spectrum = sgd.Spectrum(np.geomspace(3.0, 0.3, 6), [2, 2, 4, 6, 9, 20], target=grams)
    problem = token_problem_of(covariance=spectrum, gram=None)
    algorithm = sgd.OnePassSGD(lr=1.5, per="trace", batch=batch).on(problem)
    assert_same_law(problem, algorithm, (ExactChain, DirectSGD), d=None, steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", ["overlaps", "lengths"])
def test_rules_on_a_spectrum(kind, batch):
    """Rules that read overlaps or the lengths of inputs, with one to three compressed blocks."""
    spectrum = sgd.Spectrum(
        np.geomspace(3.0, 0.3, 6), [1, 2, 4, 6, 9, 20], target=np.linspace(0.2, 0.5, 6)
    )
    if kind == "overlaps":
        problem = sgd.Rule(autoencoder_rule, groups={"W": 1, "V": 1}, covariance=spectrum, **DATA)
    else:
        problem = sgd.Rule(
            normalised_hebb, groups={"w": 2}, reads_lengths=True, covariance=spectrum
        )
    algorithm = sgd.OnePassSGD(lr=1.0, per="trace", batch=batch).on(problem)
    assert_same_law(problem, algorithm, (ExactChain, DirectSGD), d=None, steps=10, scale=0.7)


@pytest.mark.slow
@pytest.mark.parametrize("constraint", [None, "sphere"])
def test_paths_of_the_sde(constraint):
    """SDE paths and the chain agree in mean and standard deviation, up to the order of one step."""
    spectrum = sgd.Spectrum([4.0, 2.0, 1.0, 0.3], [1, 1, 3, 40], target=[0.03, 0.26, 0.3, 1.2])
    problem = sgd.TeacherStudent(
        width=2, activation="erf", noise=0.1, covariance=spectrum, constraint=constraint
    )
    start, algorithm = sgd.random_start(problem, seed=3), sgd.OnePassSGD(lr=0.2, per="trace")
    chain = sgd.simulate(problem, algorithm, start, steps=[200], runs=8000)
    paths = sgd.solve_sde(problem, algorithm, start, steps=[200], runs=8000, progress=False)
    for name in ("risk", "M_block", "Q_block"):
        chain_sample, path_sample = (
            result[name].values[:, 0].reshape(8000, -1) for result in (chain, paths)
        )
        spread = chain_sample.std(axis=0)
        # The relative error of the SDE is of the order of lr times the largest eigenvalue over
        # the trace, 0.04; the tolerance is twice that.
        np.testing.assert_array_less(
            np.abs(chain_sample.mean(axis=0) - path_sample.mean(axis=0)),
            (2 * Z / np.sqrt(8000) + 0.08) * spread + 1e-12,
        )
        np.testing.assert_allclose(
            path_sample.std(axis=0), spread, rtol=0.08 + 2 * Z / np.sqrt(8000), atol=1e-12
        )


@pytest.mark.slow
def test_a_large_spectrum_against_direct():
    """Mean risks agree at d = 2000, where the chain has single coordinates and bins of many."""
    problem = sgd.TeacherStudent(
        width=2,
        activation="erf",
        noise=0.01,
        covariance=sgd.power_law(1.0, 2000, target=0.3, bins=30),
    )
    start, algorithm = sgd.random_start(problem, seed=3), sgd.OnePassSGD(lr=1.0, per="trace")
    chain, direct = (
        sgd.simulate(
            problem, algorithm, start, steps=[100, 1000], runs=runs, method=method, seed=seed
        )
        for method, runs, seed in (("exact", 1000, 1), ("direct", 300, 2))
    )
    error = np.sqrt(chain.risk.var("run") / 1000 + direct.risk.var("run") / 300)
    assert np.all(np.abs(chain.risk.mean("run") - direct.risk.mean("run")) <= Z * error)
