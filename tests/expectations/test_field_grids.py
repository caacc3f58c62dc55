"""Expectations over what a loss reads, on grids or points, against generic averages."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

import sgdynamics as sgd
from sgdynamics.expectations import field_grids
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.field_grids import REACHES, FewFields, _trapezoid_points, trapezoids
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.expectations.risk import overlaps_at, population_risk
from sgdynamics.expectations.sampled import SobolAverages
from sgdynamics.problems import loss_dependence
from sgdynamics.solvers import batch
from tests.conftest import FALSE_ALARM, slow

REPLICATES = 16
QUADRATURE = Quadrature(log2_points=10, replicates=REPLICATES)
SPREADS = float(stats.t.isf(FALSE_ALARM / 2, REPLICATES - 1))
CORRELATION = [[1.0, 0.4], [0.4, 0.8]]


def smooth(fields, signals, head, z):
    return 0.5 * (jnp.mean(head * jnp.tanh(fields)) - jnp.tanh(signals[0]) - 0.3 * z) ** 2


def token_loss(fields, signals, head, draws):
    return (
        0.5
        * (jnp.sum(jnp.tanh(fields[0]) * jnp.cos(fields[1])) - jnp.sum(signals) - draws["z"]) ** 2
    )


def adatron(fields, signals, head, z, overlaps):
    return sgd.Move(fields * (fields * jnp.sign(signals[0]) < 0), rows=overlaps.Q * fields[0] ** 2)


def contrastive(fields, signals, head, draws, overlaps):
    """A polynomial of two tokens that share a spike, read in the label too; and a penalty."""
    f = fields[0]
    return (
        -f[0] * f[1] * draws["g"] + (f[0] * f[1]) ** 2 / 4 + 0.1 * overlaps.Q[0, 0] ** 2 * f[0] ** 2
    )


def spike_means(draws):
    return 0.8 * draws["g"] * jnp.array([[1.0], [0.5]])


def sine_means(draws):
    return jnp.sin(draws["g"])[None] + 0.2


def group_means(draws):
    return (jnp.where(draws["group"] == 1, 1.0, -0.5) + 0.3 * draws["g"])[None]


def read_partly(fields, signals, head, draws):
    """The first unit through tanh, the second as it is; the signals not at all."""
    return 0.5 * (jnp.tanh(fields[0]) + fields[1] - draws["g"]) ** 2


def mask_loss(fields, signals, head, draws):
    """A loss of which nothing is left in the first case of the masks."""
    return (
        0.5
        * (jnp.sum(draws["mask"] * jnp.tanh(fields[0])) - jnp.sum(signals) - 0.1 * draws["noise"])
        ** 2
    )


BLOCKS = [(0.5, 0.25), (1.5, 0.75)]
PROBLEMS = {
    "a grid": lambda: sgd.Problem(smooth, width=1, signals=1, covariance=BLOCKS),
    "circles": lambda: sgd.Rule(adatron, groups={"w": 1}, kinks=(0.0,)),
    "points": lambda: sgd.Problem(
        token_loss,
        width=2,
        signals=1,
        tokens=2,
        token_correlation=CORRELATION,
        draws={"z": "normal"},
        means=[[0.3], [0.0]],
    ),
    "polynomials": lambda: sgd.Problem(
        contrastive,
        width=1,
        signals=1,
        tokens=2,
        token_correlation=CORRELATION,
        means=spike_means,
        draws={"g": "normal"},
        covariance=BLOCKS,
    ),
    "half of it": lambda: sgd.Problem(
        read_partly, width=2, signals=1, means=sine_means, draws={"g": "normal"}, covariance=BLOCKS
    ),
    "groups": lambda: sgd.Problem(
        read_partly,
        width=2,
        signals=1,
        means=group_means,
        draws={"g": "normal", "group": [0.3, 0.7]},
    ),
    "masks": lambda: sgd.Problem(
        mask_loss,
        1,
        1,
        tokens=2,
        token_correlation=CORRELATION,
        draws={"noise": "normal", "mask": ("bernoulli", 0.7, 2)},
    ),
    "attention": lambda: sgd.models.attention(
        noise=0.3, token_correlation=CORRELATION, covariance=BLOCKS
    ),
}


def moments(expectation, problem, quadrature):
    """(replicates, ...) of every moment at finite d."""
    p, k, blocks = problem.width, problem.signals, problem.structure.blocks
    M, Q = np.array([[0.3, 0.1], [-0.2, 0.4]])[:p, :k], np.array([[1.0, 0.2], [0.2, 0.8]])[:p, :p]
    shares = np.array([0.3, 0.7])[:, None, None] if blocks == 2 else np.ones((1, 1, 1))
    with jax.enable_x64(True):
        overlaps = overlaps_at(
            problem.structure, problem.parameters, {"M": M * shares, "Q": Q * shares}
        )
        nodes = expectation.nodes(quadrature, False)

        def replicate_moments(node):
            return expectation.moments(
                quadrature, node, problem.parameters, overlaps, np.ones(p), finite=True
            )

        values = jax.jit(lambda nodes: jax.lax.map(replicate_moments, nodes))(nodes)
    return {
        name: np.asarray(value) for name, value in values._asdict().items() if value is not None
    }


def generic(problem):
    return SobolAverages(
        replace(
            problem.structure, dependence=None, loss=replace(problem.structure.loss, smooth=False)
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(PROBLEMS, ("points", "groups", "half of it")))
def test_it_is_what_points_give(name):
    problem = PROBLEMS[name]()
    chosen = expectation_of(problem.structure)
    assert isinstance(chosen, FewFields) == (name != "points")
    assert (problem.structure.dependence is None) == (name == "circles")
    quadrature = QUADRATURE if name == "points" else chosen.quadrature(1.0)
    fast, plain = (
        moments(chosen, problem, quadrature),
        moments(generic(problem), problem, QUADRATURE),
    )
    assert set(fast) == set(plain)
    for moment, values in plain.items():
        if moment == "risk" and name == "circles":
            continue  # this rule has none
        error = [
            replicates.std(axis=0, ddof=1) / np.sqrt(len(replicates))
            if len(replicates) > 1
            else 0.0
            for replicates in (values, fast[moment])
        ]
        gap = np.abs(values.mean(axis=0) - fast[moment].mean(axis=0))
        assert np.all(gap <= SPREADS * np.hypot(*error) + 1e-12), moment
        if moment != "norms":  # the points say something
            assert np.all(error[0] <= 0.03 * np.abs(values.mean(axis=0)).max() + 1e-12), moment


@pytest.mark.slow
def test_it_reads_what_it_should():
    dependences = {
        name: make().structure.dependence for name, make in PROBLEMS.items() if name != "circles"
    }
    assert {
        name: (len(dependence.general), len(dependence.polynomial))
        for name, dependence in dependences.items()
    } == {
        "a grid": (2, 1),  # the noise enters linearly
        "points": (4, 3),  # two units in two tokens; the signal in both, and the noise, as they are
        "polynomials": (0, 3),  # two fields and the spike that is read
        "half of it": (2, 1),  # the first unit and, because of the means, the draw
        "groups": (1, 2),
        "masks": (2, 3),
        "attention": (2, 4),
    }
    assert dependences["polynomials"].means_are_affine
    assert not dependences["half of it"].means_are_affine
    # a number that happens to be 0 changes nothing
    gain = [
        sgd.Problem(
            lambda f, s, a, z, parameters: jnp.tanh(parameters["gain"] * f[0]) * s[0],
            1,
            1,
            parameters={"gain": value},
        )
        for value in (0.0, 1.0)
    ]
    assert gain[0].structure.dependence == gain[1].structure.dependence
    assert len(gain[0].structure.dependence.general) == 1

    def branching(fields, signals, head, z, parameters):
        on = 1.0 * (parameters["flag"] > 0.3)
        return (on * fields[0] + (1 - on) * jnp.tanh(fields[0])) * signals[0]

    for flag in (0.0, 1.0):
        problem = sgd.Problem(branching, 1, 1, parameters={"flag": flag})
        assert len(problem.structure.dependence.general) == (1 if flag == 0 else 0)


def softplus_far_away(fields, signals, head, z):
    return (fields[0] - signals[0]) ** 2 / 2 + jnp.log1p(jnp.exp(20 * (fields[0] - 5)))


def step_far_away(fields, signals, head, z):
    return (fields[0] - signals[0]) ** 2 / 2 + 1000 * jax.nn.sigmoid(50 * (fields[0] - 6))


def tiny_power(fields, signals, head, z):
    return (fields[0] - signals[0]) ** 2 / 2 + 1e-18 * fields[0] ** 8


FAR_AWAY = {
    softplus_far_away: lambda f: np.logaddexp(0.0, 20 * (f - 5)),
    step_far_away: lambda f: 1000 * special.expit(50 * (f - 6)),
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", FAR_AWAY, ids=lambda loss: loss.__name__)
def test_a_polynomial_near_zero_only_is_not_taken_for_one(loss):
    """Both losses are (f - s)^2/2 to rounding for |f| < 3.4.

    At Q = 4 the other term contributes 4% and 40% of the risk.
    """
    problem = sgd.Problem(loss, width=1, signals=1)
    assert len(problem.structure.dependence.general) == 1
    variances = np.array([1.0, 4.0, 9.0])
    states = {
        "M": np.full((3, 1, 1, 1), 0.5),
        "Q": variances.reshape(3, 1, 1, 1),
        "a": np.ones((3, 1)),
    }
    risks = []
    for row in range(3):
        risk, stated = population_risk(
            problem, {name: value[row : row + 1] for name, value in states.items()}
        )
        risks.append((float(risk[0]), stated))
    for variance, (risk, stated) in zip(variances, risks, strict=True):
        f = np.linspace(-12, 12, 200_001) * np.sqrt(variance)
        weights = np.exp(-(f**2) / (2 * variance))
        right = variance / 2 + weights @ FAR_AWAY[loss](f) / weights.sum()
        assert abs(risk - right) <= 5 * max(stated, 1e-12) * right
        assert abs(risk - right) <= 0.03 * right


def test_the_degree_of_a_polynomial_holds_far_away():
    """The last power is 1e-13 of the loss at |f| = 5.5, and most of it beyond |f| = 1e3."""
    assert sgd.Problem(tiny_power, width=1, signals=1).structure.dependence.node_counts == (8, 8)


def test_all_cases_are_tried_at_once(monkeypatch):
    """Each field is read in one of 64 cases only; tried one by one the cases would take seconds."""
    calls = []
    tried = loss_dependence.evaluate_moves

    def count_call(*arguments):
        calls.append(len(arguments[3]))
        return tried(*arguments)

    def rare(fields, signals, head, draws, parameters):
        all_on, all_off = jnp.prod(draws["mask"]), jnp.prod(1 - draws["mask"])
        sum_of_cases = all_on * jnp.tanh(fields[0]) + all_off * fields[1] ** 2
        return parameters["gain"] * (sum_of_cases + signals[0])

    monkeypatch.setattr(loss_dependence, "evaluate_moves", count_call)
    dependence = sgd.Problem(
        rare, 3, 1, draws={"mask": ("bernoulli", 0.5, 6)}, parameters={"gain": 1.0}
    ).structure.dependence
    assert dependence is not None
    assert np.array(dependence.general).tolist() == [[1, 0, 0, 0]]
    assert np.array(dependence.polynomial).tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
    assert len(calls) == 6  # three questions, with the numbers as they are and moved
    assert min(calls) >= 64


@pytest.mark.slow
def test_what_is_read_has_less_spread():
    problem = PROBLEMS["points"]()
    read, plain = (
        moments(expectation, problem, QUADRATURE)["stein"].std(axis=0, ddof=1).max()
        for expectation in (SobolAverages(problem.structure), generic(problem))
    )
    assert read < 0.5 * plain


def test_the_reach_of_a_grid_leaves_out_what_is_said():
    beyond = [
        stats.chi(dimensions).sf(reach) for dimensions, reach in enumerate(REACHES) if dimensions
    ]
    assert max(beyond[:3]) < 4e-12
    assert beyond[3] < 3e-7


@pytest.mark.parametrize(
    ("dimensions", "per_deviation"),
    [(0, 8), (1, 1), (1, 8), (2, 1), (2, 4), (3, 1), (3, 4), (4, 1), (4, 2)],
)
def test_points_are_counted_without_making_them(dimensions, per_deviation):
    assert _trapezoid_points(dimensions, per_deviation) == len(
        trapezoids(dimensions, per_deviation)[0]
    )


def attention_risk(M, Q, correlation):
    """E[(f - y)^2]/2 of softmax heads of two tokens, by NumPy.

    With D = x_1 - x_2 and S = x_1 + x_2, f = v.S/2 + tanh(q.D/2) v.D/2, and y alike. Given
    (q.D, q*.D), on a fine grid, v.D and v*.D are Gaussian, and the rest is their second moment.
    """
    line = np.arange(-9.0, 9.0, 1 / 30)
    z = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    weights = np.exp(-np.sum(z**2, axis=1) / 2)
    overlaps = np.block([[Q, M], [M.T, np.eye(2)]])
    covariance = 2 * (1 - correlation) * overlaps
    queries, values = [0, 2], [1, 3]
    root = np.linalg.cholesky(covariance[np.ix_(queries, queries)])
    slope = np.linalg.solve(root, covariance[np.ix_(queries, values)]).T
    left = covariance[np.ix_(values, values)] - slope @ slope.T
    reads = np.tanh(z @ root.T / 2) * [1, -1]
    squares = np.sum(reads * (z @ slope.T), axis=1) ** 2
    squares += np.einsum("ni,ij,nj->n", reads, left, reads)
    sums = 2 * (1 + correlation) * np.array([1, -1]) @ overlaps[np.ix_(values, values)] @ [1, -1]
    return (np.average(squares, weights=weights) + sums) / 8


@pytest.mark.slow
def test_risks_of_runs_on_grids_are_accurate_or_state_their_error(monkeypatch):
    """The quick grid has a point per standard deviation: where that is too few, another is used."""
    problem = sgd.models.attention(token_correlation=-0.5)
    draws = np.random.default_rng(0).normal(size=(6, 2, 4))
    rows = draws * np.sqrt([0.05, 0.08, 0.1, 0.12, 0.15, 0.2])[:, None, None]
    M, Q = rows[:, :, :2], rows @ rows.swapaxes(1, 2)
    right = [attention_risk(*overlaps, -0.5) for overlaps in zip(M, Q, strict=True)]
    states = {"M": M[:, None], "Q": Q[:, None], "a": np.ones((6, 2))}

    risk, stated = population_risk(problem, states)
    error = np.max(np.abs(risk / right - 1))
    assert error < 1e-4
    assert error < 2 * stated

    structure, parameters = problem.structure, problem.parameters
    state = {name: value[1] for name, value in states.items()}
    with jax.enable_x64(True):
        single = jax.jit(sgd.functional.risk, static_argnums=0)(structure, parameters, state)
    assert float(single) == pytest.approx(right[1], rel=1e-5)

    # with too many states for a finer grid, the error is stated
    monkeypatch.setattr("sgdynamics.expectations.risk.MOST_EVALUATIONS", 0)
    risk, stated = population_risk(problem, states)
    error = np.max(np.abs(risk / right - 1))
    assert 1e-3 < error < 2 * stated


def test_the_density_of_an_expensive_grid_follows_its_error_at_the_start(monkeypatch):
    problem = sgd.Problem(smooth, width=1, signals=1)
    expectation = expectation_of(problem.structure)
    densities = []

    def error(rate, quadrature):
        densities.append(quadrature.per_deviation)
        return np.exp(-rate * quadrature.per_deviation)

    assert expectation.fine_enough(Quadrature(per_deviation=2), lambda _: 1.0).per_deviation == 2
    monkeypatch.setattr(field_grids, "CHEAP_POINTS", 1000)
    for rate, density in ((12.0, 2), (8.0, 3), (6.0, 4), (1.0, 4)):
        chosen = expectation.fine_enough(Quadrature(per_deviation=2), partial(error, rate))
        assert chosen.per_deviation == density
    assert densities == [2] * 4


@pytest.mark.slow
def test_an_expensive_grid_is_integrated_once(monkeypatch):
    """Attention needs a finer grid than the first one: it is found before the integration."""
    calls, run = [], batch.run_cases
    monkeypatch.setattr(batch, "run_cases", lambda *case: calls.append(1) or run(*case))
    problem = sgd.models.attention()
    start = sgd.random_start(problem, dimension=1000, seed=0)
    result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=[0.0, 0.5])
    assert len(calls) == 1
    assert result.attrs["error_quadrature"] < 1e-9
