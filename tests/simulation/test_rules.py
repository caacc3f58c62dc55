"""Losses that read overlaps, and learning rules that are not the gradient of a loss.

The exact chain, direct runs, the ODE with its exact mean at finite d, and the SDE agree.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy import integrate, stats

import sgdynamics as sgd
from sgdynamics.simulation.exact import ExactChain
from sgdynamics.simulation.running import RunSetting, run
from tests.conftest import Z, same_law

BETA = 3.0


def erf(x):
    return jax.scipy.special.erf(x / np.sqrt(2))


def spike(draws):
    return jnp.sqrt(BETA) * draws["g"][None]


def autoencoder(fields, signals, head, draws, overlaps):
    """Loss -s v + s^2 |V|^2/2 of an autoencoder with rows W, V, s = erf(w) and v = V.x.

    The constant |x|^2/2 of the squared reconstruction error is omitted.
    """
    s = erf(fields[0])
    return -s * fields[1] + s**2 * overlaps.Q[1, 1] / 2


def autoencoder_rule(fields, signals, head, draws, overlaps):
    """The gradient of `autoencoder`, written by hand."""
    s, slope = erf(fields[0]), np.sqrt(2 / np.pi) * jnp.exp(-(fields[0] ** 2) / 2)
    inputs = jnp.stack([slope * (s * overlaps.Q[1, 1] - fields[1]), -s])
    return sgd.Move(inputs, rows=jnp.array([[0.0, 0.0], [0.0, s**2]]))


def penalised_loss(fields, signals, head, draws, overlaps, parameters):
    """A loss of two tokens with parameters that reads Q, M and P."""
    output = jnp.sum(jnp.tanh(fields[0])) + jnp.sum(head * fields[:, 0])
    penalty = jnp.sum(overlaps.Q**2) / 4 + jnp.sum(overlaps.M * overlaps.P[0, 0]) / 3
    return 0.5 * (output - jnp.sum(signals) - draws["z"]) ** 2 + parameters["weight"] * penalty * (
        1 + draws["z"] ** 2
    )


DATA = {"means": spike, "draws": {"g": "normal"}}
LOSS = sgd.Problem(autoencoder, width=2, signals=1, **DATA)
RULE = sgd.Rule(autoencoder_rule, groups={"W": 1, "V": 1}, risk=autoencoder, **DATA)
SEVERAL = sgd.Problem(
    penalised_loss,
    width=2,
    signals=1,
    tokens=2,
    token_correlation=[[1.0, 0.3], [0.3, 1.0]],
    means=[[0.5], [0.0]],
    draws={"z": "normal"},
    parameters={"weight": 0.2},
    covariance=[(0.5, 0.5), (1.5, 0.5)],
    head="trained",
)
M, Q = [[0.3], [0.4]], [[1.0, 0.2], [0.2, 0.8]]
SGD = sgd.OnePassSGD(lr=0.5)


def start_of(problem):
    return sgd.start(problem, M=M, Q=Q)


@pytest.mark.slow
def test_loss_and_rule_of_its_gradient_agree():
    """Runs of the chain and the drift at finite and infinite d agree to 1e-12."""
    runs = [
        sgd.simulate(problem, SGD, start_of(problem), steps=[0, 7], dimension=12, runs=3, seed=1)
        for problem in (LOSS, RULE)
    ]
    for name in ("M", "Q", "risk"):
        np.testing.assert_allclose(
            runs[0][name].values, runs[1][name].values, rtol=1e-12, atol=1e-13
        )
    with jax.enable_x64(True):
        state = sgd.functional.state(start_of(LOSS))
        quadrature = sgd.functional.quadrature(LOSS, start_of(LOSS))
        for finite in (None, sgd.functional.finite(LOSS, 20)):
            arguments = {"lr": 0.5, "quadrature": quadrature, "finite": finite}
            # Without jit every operation would be compiled on its own.
            drifts = [
                jax.jit(partial(sgd.functional.drift, problem.structure, **arguments))(
                    problem.parameters, state
                )
                for problem in (LOSS, RULE)
            ]
            for name in ("M", "Q"):
                np.testing.assert_allclose(
                    np.asarray(drifts[0][name]), np.asarray(drifts[1][name]), rtol=1e-12, atol=1e-13
                )


@pytest.mark.runs_long
@pytest.mark.slow  # fast tests in tests/contracts compare the ODE of a rule with the mean of runs
@pytest.mark.parametrize("kind", ["autoencoder", "several"])
def test_the_mean_of_one_step_is_that_of_the_chain(kind):
    """The drift at d = 12 is the mean of 1e5 first steps of the chain, for batch 1 and batch 2."""
    problem, batch = {"autoencoder": (LOSS, 1), "several": (SEVERAL, 2)}[kind]
    d, lr, runs = 12, 0.5, 100_000
    algorithm = sgd.OnePassSGD(lr=lr, batch=batch)
    start = start_of(problem)
    # The chain is run without sgd.simulate, which would sample the risks of 1e5 states for minutes.
    starts = sgd.start(
        problem, M=np.broadcast_to(M, (runs, 2, 1)), Q=np.broadcast_to(Q, (runs, 2, 2))
    )
    chain = ExactChain(problem, algorithm, RunSetting(starts, d, problem.block_dimensions(d)))
    overlaps, _ = run(chain, runs, np.array([0, 1]), 3, "one step", False)
    with jax.enable_x64(True):
        arguments = {
            "lr": lr,
            "batch": batch,
            "quadrature": sgd.functional.quadrature(problem, start),
            "finite": sgd.functional.finite(problem, d),
        }
        drift = jax.jit(partial(sgd.functional.drift, problem.structure, **arguments))(
            problem.parameters, sgd.functional.state(start)
        )
    for name in ("M", "Q", "a"):
        change = (overlaps[name][:, 1] - overlaps[name][:, 0]) / (lr / d)
        change = change if name == "a" else change.sum(axis=1)
        error = change.std(axis=0, ddof=1) / np.sqrt(runs)
        expected = np.asarray(drift[name])
        expected = expected.sum(axis=0) if name != "a" else expected
        # Here the expectations of the drift are sampled, with relative errors of a few 1e-3.
        assert np.all(
            np.abs(change.mean(axis=0) - expected)
            <= Z * error + 6e-3 * np.abs(expected).max() + 1e-12
        ), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["autoencoder", pytest.param("several", marks=pytest.mark.slow)])
def test_chain_and_direct_runs_have_one_law(kind):
    problem = (
        sgd.Rule(autoencoder_rule, groups={"W": 1, "V": 1}, **DATA)
        if kind == "autoencoder"
        else SEVERAL
    )
    shared = {"steps": [0, 6], "dimension": 8, "runs": 1000}
    exact, direct = (
        sgd.simulate(problem, SGD, start_of(problem), seed=seed, method=method, **shared)
        for seed, method in ((1, "exact"), (2, "direct"))
    )
    for name, entry in (("M", (0, 0)), ("M", (1, 0)), ("Q", (0, 0)), ("Q", (0, 1)), ("Q", (1, 1))):
        same_law(
            exact[name].values[(slice(None), 1, *entry)],
            direct[name].values[(slice(None), 1, *entry)],
            f"{name}{entry}",
        )


def loss_of_blocks(fields, signals, head, z, overlaps):
    """A loss of the overlaps in each covariance block and of those of the full rows."""
    b = overlaps.blocks
    penalty = jnp.sum(b.eigenvalues * b.Q[:, 0, 0] ** 2) + jnp.sum(
        b.M[:, 0, 0] * b.eigenvalues * b.fractions
    )
    penalty = penalty + overlaps.Q[0, 0] * overlaps.M[0, 0]
    return 0.5 * (fields[0] - signals[0] - 0.2 * z) ** 2 + 0.15 * penalty * (1 + 0.2 * z**2)


def rule_of_blocks(fields, signals, head, z, overlaps):
    """The gradient of `loss_of_blocks`, written by hand; coefficients have an axis of blocks."""
    b, weight = overlaps.blocks, 0.15 * (1 + 0.2 * z**2)
    rows = 4 * b.eigenvalues[:, None, None] * b.Q + 2 * overlaps.M[0, 0] * jnp.eye(1)
    along_signals = (b.eigenvalues * b.fractions)[:, None, None] + overlaps.Q[0, 0] * jnp.ones(
        (1, 1)
    )
    return sgd.Move(fields - signals - 0.2 * z, rows=weight * rows, signals=weight * along_signals)


BLOCKS = {"covariance": [(0.4, 0.5), (1.6, 0.5)]}


def start_in_blocks(problem):
    return sgd.start(problem, M=[[[0.1]], [[0.3]]], Q=[[[0.4]], [[0.7]]])


@pytest.mark.slow
def test_rules_and_losses_read_overlaps_by_block():
    """Chain and direct runs of a rule that reads blocks have one law.

    The drift of the rule equals that of the loss, in the limit and at d = 16, to 1e-12.
    """
    rule = sgd.Rule(rule_of_blocks, groups={"w": 1}, **BLOCKS)
    loss = sgd.Problem(loss_of_blocks, width=1, signals=1, **BLOCKS)
    shared = {"steps": [0, 20], "dimension": 16, "runs": 1000}
    runs = {}
    for method, seed in (("exact", 1), ("direct", 2)):
        runs[method] = sgd.simulate(
            rule, SGD, start_in_blocks(rule), seed=seed, method=method, **shared
        )
    for name in ("M", "Q"):
        same_law(
            runs["exact"][name].values[:, 1, 0, 0], runs["direct"][name].values[:, 1, 0, 0], name
        )
    with jax.enable_x64(True):
        state = sgd.functional.state(start_in_blocks(loss))
        quadrature = sgd.functional.quadrature(loss, start_in_blocks(loss))
        for finite in (None, sgd.functional.finite(loss, 16)):
            arguments = {"lr": 0.5, "quadrature": quadrature, "finite": finite}
            drifts = []
            for problem in (loss, rule):
                drifts.append(
                    jax.jit(partial(sgd.functional.drift, problem.structure, **arguments))(
                        problem.parameters, state
                    )
                )
            for name in ("M", "Q"):
                np.testing.assert_allclose(
                    np.asarray(drifts[0][name]), np.asarray(drifts[1][name]), rtol=1e-12, atol=1e-13
                )
    plain = sgd.Rule(autoencoder_rule, groups={"W": 1, "V": 1}, **DATA).structure.loss
    assert not plain.reads_blocks
    assert not plain.moves_by_block


@pytest.mark.slow
def test_the_mean_step_and_the_sde_of_a_rule_that_reads_blocks():
    """The drift at d = 16 is the mean of 2e5 first steps, and SDE and chain agree in mean."""
    rule = sgd.Rule(rule_of_blocks, groups={"w": 1}, **BLOCKS)
    start, d, runs = start_in_blocks(rule), 16, 200_000
    many = sgd.start(
        rule,
        M=np.broadcast_to(start.M_blocks, (runs, 2, 1, 1)),
        Q=np.broadcast_to(start.Q_blocks, (runs, 2, 1, 1)),
    )
    chain = ExactChain(rule, SGD, RunSetting(many, d, rule.block_dimensions(d)))
    overlaps, _ = run(chain, runs, np.array([0, 1]), 3, "one step", False)
    with jax.enable_x64(True):
        arguments = {
            "lr": SGD.lr,
            "quadrature": sgd.functional.quadrature(rule, start),
            "finite": sgd.functional.finite(rule, d),
        }
        drift = jax.jit(partial(sgd.functional.drift, rule.structure, **arguments))(
            rule.parameters, sgd.functional.state(start)
        )
    for name in ("M", "Q"):
        change = (overlaps[name][:, 1] - overlaps[name][:, 0]) / (SGD.lr / d)
        error = change.std(axis=0, ddof=1) / np.sqrt(runs)
        assert np.all(np.abs(change.mean(axis=0) - np.asarray(drift[name])) <= Z * error), name
    shared = {"times": [0, 0.5], "dimension": 400}
    paths = sgd.solve_sde(rule, SGD, start, runs=1000, seed=1, **shared)
    runs_of_chain = sgd.simulate(rule, SGD, start, runs=4000, seed=2, **shared)
    for name in ("M", "Q"):
        a, b = (result[name].values[:, 1, 0, 0] for result in (paths, runs_of_chain))
        error = np.hypot(a.std() / np.sqrt(len(a)), b.std() / np.sqrt(len(b)))
        assert abs(a.mean() - b.mean()) <= Z * error + 0.01 * abs(b.mean()), name


def towards_zero(fields, signals, head, z):
    """Squared loss of a linear unit whose labels are pure noise, so that it has no teacher."""
    return 0.5 * (fields[0] - z) ** 2


@pytest.mark.slow
def test_a_problem_without_signals(tmp_path):
    """Without signals dQ/dt = -2 Q + lr (Q + 1), and the mean of Q at finite d has a closed form.

    Results can be saved, loaded, continued and plotted.
    """
    problem = sgd.Problem(towards_zero, width=1, signals=0)
    start, lr, d, steps = sgd.start(problem, Q=[[2.0]]), 0.4, 12, 30
    assert start.M.shape == (1, 1, 0)
    path = sgd.solve_ode(problem, sgd.OnePassSGD(lr), start, times=[0, 1.5])
    fixed = lr / (2 - lr)
    np.testing.assert_allclose(
        path.Q.values[0, -1, 0, 0], fixed + (2 - fixed) * np.exp(-(2 - lr) * 1.5), rtol=1e-7
    )
    # The mean over one step is E[Q'] = Q (1 - 2 lr/d + lr^2 (d + 2)/d^2) + lr^2/d.
    mean = 2.0
    for _ in range(steps):
        mean = mean * (1 - 2 * lr / d + lr**2 * (d + 2) / d**2) + lr**2 / d
    shared = {"steps": [0, steps], "dimension": d, "runs": 4000}
    results = {}
    for method, seed in (("exact", 1), ("direct", 2)):
        results[method] = sgd.simulate(
            problem, sgd.OnePassSGD(lr), start, method=method, seed=seed, **shared
        )
        values = results[method].Q.values[:, -1, 0, 0]
        assert abs(values.mean() - mean) <= Z * values.std() / np.sqrt(len(values)), method
    sgd.save(results["exact"], tmp_path / "result.nc")
    assert sgd.load(tmp_path / "result.nc").M.shape == (4000, 2, 1, 0)
    assert sgd.start_from(results["exact"]).M.shape == (4000, 1, 0)
    sgd.plot.overlaps(results["exact"])
    sgd.Rule(lambda f, s, a, z, overlaps: sgd.Move(f - z), groups={"w": 1}, signals=0)
    for argument, value in (("means", np.zeros(0)), ("clusters", [(1.0, [], 1.0)])):
        with pytest.raises(ValueError, match=f"{argument} = .*signals = 0"):
            sgd.Problem(towards_zero, width=1, signals=0, **{argument: value})
    with pytest.raises(ValueError, match=r"signals = 0: .*solve_ode"):
        sgd.fixed_points(problem, sgd.OnePassSGD(lr))


@pytest.mark.slow
def test_sde_and_fixed_data_without_signals():
    """SDE and chain agree in mean, and so do DMFT and runs of gradient descent on a data set."""
    problem = sgd.Problem(towards_zero, width=1, signals=0)
    start, steps = sgd.start(problem, Q=[[2.0]]), [0, 60]
    sde = sgd.solve_sde(problem, SGD, start, steps=steps, dimension=200, runs=1000, seed=1)
    chain = sgd.simulate(problem, SGD, start, steps=steps, dimension=200, runs=4000, seed=2)
    a, b = (result.Q.values[:, 1, 0, 0] for result in (sde, chain))
    assert (
        abs(a.mean() - b.mean())
        <= Z * np.hypot(a.std() / np.sqrt(len(a)), b.std() / np.sqrt(len(b))) + 0.01 * b.mean()
    )
    descent = sgd.GradientDescent(lr=0.2, samples_per_dimension=2.0)
    dmft = sgd.solve_dmft(problem, descent, start, steps=[0, 3], paths=4096, seed=1)
    runs = sgd.simulate(problem, descent, start, steps=[0, 3], dimension=400, runs=50, seed=2)
    np.testing.assert_allclose(
        dmft.Q.values[0, -1, 0, 0], runs.Q.values[:, -1, 0, 0].mean(), rtol=0.05
    )


def normalised_hebb(fields, signals, head, z, overlaps):
    """Hebbian learning with normalised inputs: each step is divided by the input's length."""
    return sgd.Move(-jnp.sign(signals[0]) / overlaps.lengths[0, 0] * jnp.ones_like(fields))


@pytest.mark.slow
def test_a_rule_that_reads_lengths():
    rule = sgd.Rule(normalised_hebb, groups={"w": 1}, reads_lengths=True)
    start = sgd.start(rule, M=[[0.2]], Q=[[1.0]])
    shared = {"steps": [0, 5], "dimension": 6, "runs": 2000}
    exact, direct = (
        sgd.simulate(rule, SGD, start, seed=seed, method=method, **shared)
        for seed, method in ((1, "exact"), (2, "direct"))
    )
    for name in ("M", "Q"):
        same_law(exact[name].values[:, 1, 0, 0], direct[name].values[:, 1, 0, 0], name)


def perceptron(fields, signals, head, z, overlaps):
    label = jnp.sign(signals[0])
    return sgd.Move(-label * (fields * label < 0))


def hebb(fields, signals, head, z, overlaps):
    return sgd.Move(-jnp.sign(signals))


def adatron(fields, signals, head, z, overlaps):
    return sgd.Move(fields * (fields * jnp.sign(signals[0]) < 0))


# Rule, and generalisation errors at alpha = 5 and 100.
ERRORS = {
    "hebb": (hebb, 0.16794849, 0.03977669),
    "perceptron": (perceptron, 0.16696271, 0.05943050),
    "adatron": (adatron, 0.19841674, 0.01471771),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) for name in ("hebb", "perceptron", "adatron")],
)
def test_reference_values_of_discontinuous_rules(name):
    update, early, late = ERRORS[name]
    rule = sgd.Rule(update, groups={"w": 1}, kinks=(0.0,))
    path = sgd.solve_ode(
        rule, sgd.OnePassSGD(lr=1.0), sgd.start(rule, M=[[0.2]], Q=[[1.0]]), alpha=[0, 5.0, 100.0]
    )
    error = np.arccos(path.M.values[0, :, 0, 0] / np.sqrt(path.Q.values[0, :, 0, 0])) / np.pi
    np.testing.assert_allclose(error[1:], [early, late], atol=6e-9)
    assert path.attrs["error_quadrature"] < 1e-10
    assert np.isnan(path.risk.values).all()


@pytest.mark.slow
def test_reference_values_of_a_gan():
    """Two tokens, two draws and learning rates by group.

    The rule is a polynomial, so its expectations have no sampling error.
    """

    def gan_rule(F, S, head, draws, overlaps):
        c, other = draws["c"], draws["other"]
        real, generated = c * overlaps.M[0, 0] + F[0, 0], other * overlaps.Q[0, 1] + F[0, 1]
        inputs = jnp.array([[-real, generated], [0.0, 0.0]])
        rows = jnp.array(
            [[overlaps.Q[0, 0] - 1, other * generated], [-other * generated, overlaps.Q[1, 1] - 1]]
        )
        return sgd.Move(inputs, rows=rows, signals=jnp.array([[-c * real], [0.0]]))

    rule = sgd.Rule(
        gan_rule,
        groups={"w": 1, "v": 1},
        rates={"w": 0.2, "v": 0.04},
        tokens=2,
        draws={"c": "normal", "other": "normal"},
    )
    start = sgd.start(rule, M=[[0.3], [0.2]], Q=[[1.0, 0.3], [0.3, 1.0]])
    path = sgd.solve_ode(rule, sgd.OnePassSGD(lr=1.0), start, alpha=[0, 20.0])
    np.testing.assert_allclose(path.M.values[0, -1, :, 0], [1.15041461, 0.31962460], atol=2e-8)
    np.testing.assert_allclose(
        path.Q.values[0, -1].ravel(), [1.92895863, 0.21245426, 0.21245426, 1.02769447], atol=2e-8
    )


@pytest.mark.slow  # other tests compare its mean step with the chain
def test_reference_values_of_a_tied_autoencoder():
    """Expectations over two normal variables by quadrature have all digits of the reference."""

    def tied_autoencoder(fields, signals, head, draws, overlaps):
        s = erf(fields[0])
        return -s * fields[0] + s**2 * overlaps.Q[0, 0] / 2

    problem = sgd.Problem(tied_autoencoder, width=1, signals=1, **DATA)
    path = sgd.solve_ode(problem, SGD, sgd.start(problem, M=[[0.3]], Q=[[1.0]]), times=[0, 2.0])
    np.testing.assert_allclose(path.risk.values[0], [-0.48356390, -1.31109830], atol=3e-8)


@pytest.mark.slow
def test_reference_values_of_an_autoencoder():
    path = sgd.solve_ode(LOSS, SGD, start_of(LOSS), times=[0, 2.0, 10.0])
    error = 20 * path.attrs["error_quadrature"]
    np.testing.assert_allclose(
        path.risk.values[0], [-0.14536511, -1.34922497, -1.72824474], atol=error
    )
    np.testing.assert_allclose(path.M.values[0, 1, :, 0], [0.91318377, 1.56591531], atol=error)
    runs = sgd.simulate(LOSS, SGD, start_of(LOSS), times=[0, 2.0], dimension=500, runs=400, seed=1)
    for name, entry, expected, standard_error in (
        ("Q", (0, 0), 1.3170, 0.0020),
        ("Q", (1, 1), 3.035, 0.012),
        ("M", (1, 0), 1.5687, 0.0042),
    ):
        sample = runs[name].values[(slice(None), 1, *entry)]
        assert abs(sample.mean() - expected) <= Z * np.hypot(
            sample.std(ddof=1) / 20, standard_error
        )


def test_invalid_arguments_raise():
    with pytest.raises(ValueError, match=r"update = .*sgd.Move"):
        sgd.Rule(lambda f, s, a, z, o: f, groups={"w": 1})
    with pytest.raises(ValueError, match=r"inputs of shape \(1,\): give \(2,\)"):
        sgd.Rule(lambda f, s, a, z, o: sgd.Move(f[:1]), groups={"w": 2})
    with pytest.raises(ValueError, match="must take"):
        sgd.Rule(lambda f, s: sgd.Move(f), groups={"w": 1})
    with pytest.raises(ValueError, match=r"groups = .*number of rows by group"):
        sgd.Rule(hebb, groups=3)
    with pytest.raises(ValueError, match="rates"):
        sgd.Rule(hebb, groups={"w": 1}, rates={"v": 1.0})
    rule = sgd.Rule(hebb, groups={"w": 1})
    for problem, algorithm in ((LOSS, sgd.EpochSGD()), (rule, sgd.GradientDescent())):
        with pytest.raises(ValueError, match="on a fixed data set the loss may read the fields"):
            sgd.simulate(problem, algorithm, start_of(LOSS), steps=[1], dimension=20)
    with pytest.raises(ValueError, match="this rule has no risk"):
        sgd.exit_time(rule, SGD, sgd.start(rule, M=[[0.2]], Q=[[1.0]]))


def optimal_perceptron(fields, signals, head, z, overlaps):
    """Optimal step of a perceptron (Kinouchi and Caticha 1992).

    The step follows the posterior mean of the teacher's signal, given the label and the field. It
    diverges at rho = M/sqrt(Q) = 0.
    """
    length = jnp.sqrt(overlaps.Q[0, 0])
    rho = overlaps.M[0, 0] / length
    scale = jnp.sqrt(1 - rho**2) / rho
    label = jnp.sign(signals[0])
    u = label * fields / (length * scale)
    return sgd.Move(-label * length * scale * jnp.exp(norm.logpdf(u) - norm.logcdf(u)))


def test_rule_with_a_singularity_at_zero_overlap():
    """The trial call of the rule avoids M = 0; a start at M = 0 raises a ValueError."""
    rule = sgd.Rule(optimal_perceptron, groups={"w": 1}, kinks=(0.0,))
    with pytest.raises(
        ValueError,
        match=r"update = .*its Move is not finite .*"
        r"overlaps.Q = \[\[1.\]\], overlaps.M = \[\[0.\]\].*start",
    ):
        sgd.simulate(rule, SGD, sgd.start(rule, M=[[0.0]], Q=[[1.0]]), steps=[0, 1], dimension=20)
    sgd.Problem(
        lambda f, s, a, z, overlaps: (f[0] - s[0]) ** 2 * jnp.log(overlaps.M[0, 0] ** 2),
        width=1,
        signals=1,
    )
    never_finite = r"its value is not finite .*overlaps.M = \[\[0.*at all other overlaps tried"
    with pytest.raises(ValueError, match="loss = .*" + never_finite):
        sgd.Problem(
            lambda f, s, a, z, overlaps: f[0] * jnp.log(-overlaps.Q[0, 0]), width=1, signals=1
        )
    with pytest.raises(ValueError, match="risk = .*" + never_finite):
        sgd.Rule(
            hebb, groups={"w": 1}, risk=lambda f, s, a, z, overlaps: jnp.log(-overlaps.Q[0, 0])
        )


@pytest.mark.slow
def test_optimal_perceptron_has_its_published_rate():
    """The error times alpha approaches 0.883, and rho agrees with SciPy's solution of its ODE."""
    rule = sgd.Rule(optimal_perceptron, groups={"w": 1}, kinks=(0.0,))
    start = sgd.start(rule, M=[[0.1]], Q=[[1.0]])
    path = sgd.solve_ode(rule, sgd.OnePassSGD(lr=1.0), start, alpha=[0, 50.0, 200.0])
    rho = path.M.values[0, :, 0, 0] / np.sqrt(path.Q.values[0, :, 0, 0])

    def rate(alpha, rho):
        """d rho/d alpha = rho E[F^2]/2 with F = sqrt(1 - rho^2)/rho phi/Phi, the optimal step."""
        rho = rho[0]
        scale = np.sqrt(1 - rho**2) / rho
        z = np.linspace(-40, 40, 20001) / max(1.0, scale)
        u = z / scale
        weight = 2 * stats.norm.pdf(z) * stats.norm.cdf(u)  # density of label times field
        step = scale * np.exp(stats.norm.logpdf(u) - stats.norm.logcdf(u))
        return [rho / 2 * np.trapezoid(weight * step**2, z)]

    expected = integrate.solve_ivp(
        rate, [0, 200], [0.1], t_eval=[50.0, 200.0], rtol=1e-9, atol=1e-12
    ).y[0]
    np.testing.assert_allclose(np.arccos(rho[1:]), np.arccos(expected), rtol=3e-3)
    assert 0.86 < 200 * np.arccos(rho[2]) / np.pi < 0.883


@pytest.mark.slow
def test_the_sde_of_a_loss_of_overlaps_has_the_mean_and_spread_of_the_chain():
    """Mean and variance of M and Q agree for a tied autoencoder at d = 400.

    At this dimension the overlaps are nearly Gaussian.
    """
    problem = sgd.models.autoencoder(tied=True)
    start = sgd.start(problem, M=[[0.3]], Q=[[1.0]])
    shared = {"times": [0, 0.5], "dimension": 400}
    sde = sgd.solve_sde(problem, SGD, start, runs=1500, seed=1, **shared)
    chain = sgd.simulate(problem, SGD, start, runs=6000, seed=2, **shared)
    for name in ("M", "Q"):
        paths, runs = (result[name].values[:, 1, 0, 0] for result in (sde, chain))
        for moment in (lambda x: x, lambda x: (x - x.mean()) ** 2):
            a, b = moment(paths), moment(runs)
            error = np.hypot(a.std() / np.sqrt(len(a)), b.std() / np.sqrt(len(b)))
            # The step of the SDE and higher cumulants change the variance by a few percent.
            assert abs(a.mean() - b.mean()) <= Z * error + 0.03 * abs(b.mean()), name
