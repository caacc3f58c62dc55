"""The exact chain equals SGD in d dimensions.

One step agrees pathwise. Runs agree in law for settings that cover all pairs of factors.
"""

from __future__ import annotations

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.gradient_source import Rows
from sgdynamics.problems.frames import compressed_rows, place_signals
from sgdynamics.simulation import compressed
from sgdynamics.simulation.chain_steps import chain_step
from sgdynamics.simulation.direct import direct_step
from sgdynamics.simulation.layout import Layout
from sgdynamics.simulation.sample_moves import sample_gradients
from sgdynamics.simulation.span_draws import draw_span
from tests.conftest import same_law

COVARIANCE = {1: None, 3: [(0.5, 0.4), (1.0, 0.3), (2.0, 0.3)]}
FACTORS = {
    "d": (6, 50),
    "p": (1, 3),
    "batch": (1, 4, 12),
    "constraint": (None, "sphere"),
    "head": ("fixed", "trained"),
    "kind": ("square", "erf", "relu", "target"),
    "blocks": (1, 3),
}


def fits_dimension(case):
    """Whether every block has at least signals + width coordinates."""
    signals = 2 if case["kind"] == "target" else 1
    smallest = case["d"] * (0.3 if case["blocks"] == 3 else 1.0)
    return np.floor(smallest) >= signals + case["p"]


def covering_cases():
    """Settings in which every possible pair of values of two factors occurs.

    The greedy choice is deterministic.
    """
    names = list(FACTORS)
    candidates = [
        case
        for values in itertools.product(*FACTORS.values())
        if fits_dimension(case := dict(zip(names, values, strict=True)))
    ]

    def pairs(case):
        return {((a, case[a]), (b, case[b])) for a, b in itertools.combinations(names, 2)}

    uncovered = set().union(*(pairs(case) for case in candidates))
    selected = []
    while uncovered:
        best = max(candidates, key=lambda case: len(pairs(case) & uncovered))
        selected.append(best)
        uncovered -= pairs(best)
    return selected


def problem_of(case):
    options = dict(
        width=case["p"],
        noise=0.1,
        weight_decay=0.1,
        head=case["head"],
        constraint=case["constraint"],
        covariance=COVARIANCE[case["blocks"]],
    )
    if case["kind"] == "target":
        # The risk of this student is closed given the signals; the test needs it for
        # thousands of states.
        return sgd.MultiIndex(
            lambda z: jnp.tanh(z[0]) + 0.5 * z[0] * z[1], directions=2, activation="relu", **options
        )
    return sgd.TeacherStudent(activation=case["kind"], **options)


def name_of(case):
    return "-".join(map(str, case.values()))


@pytest.mark.slow
@pytest.mark.parametrize("case", covering_cases(), ids=name_of)
@pytest.mark.runs_long
def test_exact_and_direct_agree_in_law(case):
    problem = problem_of(case)
    start = sgd.random_start(problem, dimension=60, seed=4)
    # The gradient of a squared activation is cubic in the fields. At small d runs without a
    # constraint diverge at a larger rate.
    lr = 0.004 * case["d"] if case["kind"] == "square" else 0.4
    algorithm = sgd.OnePassSGD(lr=lr, batch=case["batch"], head_rate=0.7)
    common = dict(steps=[1, 20], dimension=case["d"], runs=2000)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*runs diverged")
        exact = sgd.simulate(problem, algorithm, start, seed=1, **common)
        direct = sgd.simulate(problem, algorithm, start, seed=2, method="direct", **common)
    for name in ("M", "Q", "a", "risk"):
        exact_sample, direct_sample = (np.asarray(result[name]) for result in (exact, direct))
        converged = [np.isnan(result.diverged_at.values) for result in (exact, direct)]
        assert min(mask.mean() for mask in converged) > 0.99
        exact_sample, direct_sample = exact_sample[converged[0]], direct_sample[converged[1]]
        for index in np.ndindex(*exact_sample.shape[1:]):
            if name == "Q" and index[1] > index[2]:
                continue
            same_law(
                exact_sample[(slice(None), *index)],
                direct_sample[(slice(None), *index)],
                f"{name}{index}",
            )
    if case["blocks"] == 3:
        exact_sample, direct_sample = (
            np.asarray(result["Q_block"])[:, -1, :, 0, 0] for result in (exact, direct)
        )
        for block in range(3):
            same_law(
                exact_sample[converged[0], block],
                direct_sample[converged[1], block],
                f"Q of block {block}",
            )


@pytest.mark.slow
@pytest.mark.parametrize(
    "batch", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(7, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "options", [{}, {"constraint": "sphere"}, {"head": "trained", "weight_decay": 0.3}], ids=str
)
def test_one_step_pathwise(batch, options):
    """A step on the same inputs gives equal overlaps in d dimensions and in the frame, to 1e-12."""
    problem = sgd.TeacherStudent(
        width=3,
        teacher_width=2,
        activation="erf",
        noise=0.2,
        teacher_gram=[[1.0, 0.3], [0.3, 0.8]],
        **options,
    )
    d, p, k = 15, 3, 2
    start = sgd.random_start(problem, dimension=40, seed=5)
    T, L = (array[0] for array in compressed_rows(problem, start))
    generator = np.random.default_rng(batch)
    x = generator.standard_normal((batch, d))
    noise = generator.standard_normal(batch)
    layout = Layout(problem.structure, batch, single_step=True)
    weights = np.zeros((p, d))
    weights[:, :k], weights[:, k : k + p] = T[0], L[0]
    rate = 0.8 / d
    algorithm = {"lr": 0.8, "head_rate": 0.6}
    with jax.enable_x64(True):
        args = (
            problem.structure,
            (problem.parameters, algorithm),
            rate,
            Rows(weights, start.a[0]),
            x,
            noise,
            place_signals(problem, np.array([d])),
        )
        after, head = (np.asarray(array) for array in direct_step(*args)[:2])
        # A rotation outside of the frame changes nothing, so the outside inputs X are replaced by
        # the lower-triangular factor of their Gram matrix. A batch wider than the number of units
        # is first reduced to the combinations Q^T X that enter the gradient.
        frame_inputs, outside = x[:, : k + p], x[:, k + p :]
        if layout.wide_batch:
            fields = x @ weights.T
            signals = frame_inputs[:, :k] @ problem.parameters["frame"][0].T
            h, _ = sample_gradients(
                problem.structure, problem.parameters, fields, signals, start.a[0], noise
            )
            outside = np.linalg.qr(np.asarray(h))[0].T @ outside
        lower = np.linalg.qr(outside.T, mode="r").T
        rows = compressed.initial_rows(
            layout, jnp.asarray(T), jnp.asarray(L), jnp.asarray(start.a[0])
        )
        outside_inputs = np.zeros((batch, layout.columns)) if layout.wide_batch else lower
        inputs = np.concatenate([frame_inputs, outside_inputs], axis=1)
        sample = (jnp.asarray(inputs), noise, jnp.asarray(lower)[None])
        moved = chain_step(layout, (problem.parameters, algorithm), rate, rows, sample)
        folded = moved._replace(rows=compressed.fold(layout, moved.rows))
        for state in (moved, folded):
            overlaps = compressed.overlaps(layout, problem.parameters, state)
            np.testing.assert_allclose(
                overlaps["M"][0], after[:, :k] @ problem.parameters["frame"][0].T, atol=1e-12
            )
            np.testing.assert_allclose(overlaps["Q"][0], after @ after.T, atol=1e-12)
            np.testing.assert_allclose(overlaps["a"], head, atol=1e-12)


def test_random_numbers_have_their_laws():
    """Inputs, noise, and the Bartlett factor with its chi variables have their distributions.

    The degrees of freedom of the chi variables are 0, below 2, small and huge.
    """
    from scipy import stats

    problem = sgd.TeacherStudent(width=2, activation="square")
    layout = Layout(problem.structure, 1)
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(0), 3000)
        draw = jax.jit(
            jax.vmap(lambda key, sizes: draw_span(layout, key, sizes), in_axes=(0, None))
        )
        for size in (3, 4, 7, 10**9):
            draws = draw(keys, jnp.array([float(size)]))
            outside = np.asarray(draws.outside)[:, 0, 0]
            for column in range(min(3, layout.columns)):
                free = size - 3 - column
                chi = outside[:, column, column]
                if free <= 0:
                    assert np.all(chi == 0)
                    assert np.all(outside[:, column + 1 :, column] == 0)
                else:
                    assert stats.kstest(chi**2, stats.chi2(free).cdf).pvalue > 1e-6, (size, column)
                    assert stats.kstest(outside[:, -1, column], stats.norm.cdf).pvalue > 1e-6
        assert stats.kstest(np.asarray(draws.inside)[:50].ravel(), stats.norm.cdf).pvalue > 1e-6
        assert stats.kstest(np.asarray(draws.noise)[:200].ravel(), stats.norm.cdf).pvalue > 1e-6
