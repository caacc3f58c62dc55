"""Samples with several inputs and named draws: one step in d dimensions, and quadrature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.expectations.choice import expectation_of
from sgdynamics.expectations.interface import Quadrature
from sgdynamics.ode.drift import drift, finite_dimension_inputs
from sgdynamics.solvers import functional
from tests.conftest import Z, slow

D, COUNT, LR = 8, 400_000, 0.7
CORRELATION = np.array([[1.0, 0.4], [0.4, 0.8]])
BLOCKS = [(0.5, 0.5), (2.0, 0.5)]


def attention(fields, signals, head, draws):
    """Rows q, v: f = sum_l softmax(q.x)_l v.x_l against the same of the signals."""
    out = [jnp.sum(jax.nn.softmax(rows[0]) * rows[1]) for rows in (fields, signals)]
    return (out[0] - out[1] - 0.3 * (1 + draws["group"]) * draws["noise"]) ** 2 / 2


def attention_gradient(F, S, draws):
    weights, outputs = [], []
    for rows in (F, S):
        e = np.exp(rows[:, 0])
        weights.append(e / e.sum(axis=1, keepdims=True))
        outputs.append(np.sum(weights[-1] * rows[:, 1], axis=1, keepdims=True))
    error = outputs[0] - outputs[1] - 0.3 * ((1 + draws["group"]) * draws["noise"])[:, None]
    return error**2 / 2, np.stack(
        [error * weights[0] * (F[:, 1] - outputs[0]), error * weights[0]], axis=1
    )


def kinked_loss(fields, signals, head, draws):
    return (
        jnp.sum(jnp.abs(fields)) / 2 - signals[0, 0] * signals[1, 1] - 0.3 * draws["noise"]
    ) ** 2 / 2


def kinked_gradient(F, S, draws):
    error = np.abs(F).sum(axis=(1, 2)) / 2 - S[:, 0, 0] * S[:, 1, 1] - 0.3 * draws["noise"]
    return error[:, None] ** 2 / 2, error[:, None, None] * np.sign(F) / 2


def moving(draws):
    """Means of both inputs on both signals: of a normal draw, and of a categorical draw."""
    return jnp.stack(
        [jnp.stack([0.5 * draws["noise"], 0.4 * draws["group"]]), jnp.array([0.3, -0.2])]
    )


CASES = {
    "attention, draws in the means": (attention, attention_gradient, {"means": moving}),
    "kinks": (kinked_loss, kinked_gradient, {"kinks": [0.0]}),
    "kinks, means": (kinked_loss, kinked_gradient, {"kinks": [0.0], "means": moving}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(CASES, ["kinks", "kinks, means"]))
def test_mean_of_one_step_in_d_dimensions(name):
    """The drift at finite d is the mean of one step of SGD in d dimensions, with second order."""
    loss, gradient, options = CASES[name]
    draws = {"noise": "normal", "group": [0.3, 0.7]}
    generator = np.random.default_rng(5)
    W, S = (
        generator.standard_normal((2, D)) / np.sqrt(D),
        generator.standard_normal((2, D)) / np.sqrt(D),
    )
    blocks = [(slice(0, 4)), (slice(4, 8))]
    M, Q, P = (
        np.stack([left[:, block] @ right[:, block].T for block in blocks])
        for left, right in ((W, S), (W, W), (S, S))
    )
    problem = sgd.Problem(
        loss,
        2,
        2,
        gram=P,
        covariance=BLOCKS,
        tokens=2,
        token_correlation=CORRELATION,
        draws=draws,
        **options,
    )
    quadrature = Quadrature(log2_points=8, log2_circles=6, replicates=16)
    finite = finite_dimension_inputs(problem, D, 1)
    state = {"M": M, "Q": Q, "a": np.ones(2)}
    with jax.enable_x64(True):

        @jax.jit
        def replicate_drifts(nodes, parameters):
            algorithm = {"lr": LR, "head_rate": 1.0}
            return jax.vmap(
                lambda node: drift(
                    problem.structure,
                    quadrature,
                    node,
                    parameters,
                    algorithm,
                    state,
                    finite=finite,
                )
            )(nodes)

        drifts = {
            key: np.asarray(value)
            for key, value in replicate_drifts(
                expectation_of(problem.structure).nodes(quadrature, False), problem.parameters
            ).items()
        }

    group, noise = (generator.random(COUNT) < 0.7).astype(float), generator.standard_normal(COUNT)
    values, vectors = np.linalg.eigh(CORRELATION)
    z = np.einsum(
        "lm,nmd->nld",
        (vectors * np.sqrt(values)) @ vectors.T,
        generator.standard_normal((COUNT, 2, D)),
    )
    X = z * np.sqrt(np.repeat([0.5, 2.0], 4))
    if "means" in options:
        c = np.zeros((COUNT, 2, 2))
        c[:, 0, 0], c[:, 0, 1], c[:, 1] = 0.5 * noise, 0.4 * group, [0.3, -0.2]
        X = X + c @ S
    F, signals = (np.einsum("pd,nld->npl", rows, X) for rows in (W, S))
    _, h = gradient(F, signals, {"noise": noise, "group": group})
    move = -(LR / D) * np.einsum("npl,nld->npd", h, X)
    for b, block in enumerate(blocks):
        dM = move[..., block] @ S[:, block].T
        cross = np.einsum("npd,qd->npq", move[..., block], W[:, block])
        dQ = (
            cross
            + np.swapaxes(cross, 1, 2)
            + np.einsum("npd,nqd->npq", move[..., block], move[..., block])
        )
        for key, samples in (("M", dM), ("Q", dQ)):
            rate = samples / (LR / D)
            mean, error = rate.mean(axis=0), rate.std(axis=0) / np.sqrt(COUNT)
            theirs = drifts[key][:, b].mean(axis=0)
            spread = drifts[key][:, b].std(axis=0, ddof=1) / 4
            assert np.all(np.abs(mean - theirs) <= Z * np.hypot(error, 1.5 * spread)), (
                name,
                key,
                b,
                mean,
                theirs,
                error,
                spread,
            )
            assert np.all(spread <= 0.03 * np.abs(theirs).max()), (name, key, spread)


def plain_attention(fields, signals, head, draw):
    return attention(fields, signals, head, {"group": 0.0, "noise": draw * np.sqrt(0.1) / 0.3})


# Rows q, v, lr 1, noise 0.1, by quadrature to 3e-8: correlation of the two inputs, excess risks
# by time, overlaps at t = 2.
REFERENCE = {
    0.0: ({0.0: 0.36354539, 1.0: 0.23755718, 2.0: 0.17765431, 10.0: 0.06585732}, {}),
    0.4: (
        {0.0: 0.39920166, 2.0: 0.13783400},
        {"Q11": 0.95829417, "Q22": 0.93543692, "M11": 0.35448428, "M22": 0.82758116},
    ),
}


def attending(correlation):
    matrix = None if correlation == 0 else [[1.0, correlation], [correlation, 1.0]]
    problem = sgd.Problem(plain_attention, 2, 2, tokens=2, token_correlation=matrix)
    return problem, sgd.start(problem, M=[[0.3, 0.1], [-0.2, 0.4]], Q=[[1.0, 0.2], [0.2, 0.8]])


@pytest.mark.slow
def test_attention_from_few_points():
    problem, start = attending(0.4)
    quadrature = Quadrature(log2_points=10)
    with jax.enable_x64(True):
        last = functional.solve(
            problem.structure,
            problem.parameters,
            functional.state(start),
            [2.0],
            lr=1.0,
            quadrature=quadrature,
            last=True,
            rtol=1e-3,
        )
        risk = float(functional.risk(problem.structure, problem.parameters, last)) - 0.05
    risks, overlaps = REFERENCE[0.4]
    assert risk == pytest.approx(risks[2.0], abs=3e-3)
    for name, value in overlaps.items():
        assert float(last[name[0]][0, int(name[1]) - 1, int(name[2]) - 1]) == pytest.approx(
            value, abs=0.01
        ), name


@pytest.mark.slow
@pytest.mark.parametrize("correlation", REFERENCE)
def test_attention_against_quadrature(correlation):
    problem, start = attending(correlation)
    risks, overlaps = REFERENCE[correlation]
    result = sgd.solve_ode(problem, sgd.OnePassSGD(1.0), start, times=list(risks))
    # Four replicates determine their spread up to a factor: three standard errors, and half a
    # percent in any case.
    for time, risk in risks.items():
        computed = float(result.risk.sel(time=list(risks).index(time)).item()) - 0.05
        assert computed == pytest.approx(
            risk, abs=3 * result.attrs["error_quadrature"] * 0.42 + 1e-5
        ), time
        assert computed == pytest.approx(risk, rel=5e-3)
    for name, value in overlaps.items():
        value_at_end = float(result[name[0]][0, -1, int(name[1]) - 1, int(name[2]) - 1])
        assert value_at_end == pytest.approx(
            value, abs=3 * result.attrs["error_quadrature"] + 1e-5
        ), name
