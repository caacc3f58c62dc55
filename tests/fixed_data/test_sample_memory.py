"""Updates that store values of single samples: SAGA, SVRG, PDHG, and updates from outside."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics import updates as U
from sgdynamics.algorithms.updates.primal_dual import dual_step
from sgdynamics.algorithms.updates.sample_memory import Sample
from sgdynamics.results.records import algorithm_from
from tests.conftest import Z
from tests.fixed_data.test_updates import (
    ERF,
    ERF_START,
    LINEAR,
    LINEAR_START,
    PENALISED,
    TRAINED,
    assert_same_law,
)

BATCHES = {"samples_per_dimension": 2.0, "batch_fraction": 0.3}
LOGISTIC = sgd.TeacherStudent(
    width=1, activation="linear", labels=sgd.labels.sign(), loss="logistic", weight_decay=0.1
)


def final_values(problem, start, algorithm, method="direct", **options):
    """M, Q and the training risk of runs on the same data sets at the last step (run, 3)."""
    arguments = {"steps": [60], "dimension": 20, "runs": 3, "seed": 7, "progress": False}
    result = sgd.simulate(problem, algorithm, start, method=method, **{**arguments, **options})
    names = ("M", "Q", "train_risk")
    return np.stack([result[name].values[:, -1].reshape(-1) for name in names], axis=1)


def saga_in_numpy(X, y, w, lr, selections):
    """The weights after steps of SAGA on least squares, sample by sample."""
    n, table = len(y), np.zeros(len(y))
    for selected in selections:
        h = X @ w - y
        b = 0.3
        g = np.where(selected, (h - table) / b, 0.0) + table
        table = np.where(selected, h, table)
        w = w - lr * X.T @ g / n
    return w


def test_steps_of_saga_are_those_of_plain_numpy():
    """The rule on 5 samples and the formula in NumPy agree."""
    generator = np.random.default_rng(0)
    X, y, w = (generator.standard_normal(size) for size in ((5, 3), 5, 3))
    selections = generator.random((4, 5)) < 0.3
    moved, table = w, np.zeros(5)
    for number, selected in enumerate(selections):
        g = np.zeros(5)
        for index in range(5):
            sample = Sample(
                fields=X[index] @ moved,
                slope=lambda field, index=index: field - y[index],
                selected=selected[index],
                weight=selected[index] / 0.3,
                memory={"table": table[index]},
                scalars={},
                number=number,
            )
            g[index], memory = U.saga().law.on_sample(sample)
            table[index] = memory["table"]
        moved = moved - 0.1 * X.T @ g / 5
    assert np.allclose(moved, saga_in_numpy(X, y, w, 0.1, selections), atol=1e-12)


@pytest.mark.slow
def test_full_batches_of_saga_and_svrg_are_gradient_descent():
    plain = final_values(LINEAR, LINEAR_START, sgd.GradientDescent(0.3, 2.0), steps=[4])
    for update in (U.saga(), U.svrg(3)):
        algorithm = sgd.GradientDescent(0.3, 2.0, update=update)
        same = final_values(LINEAR, LINEAR_START, algorithm, steps=[4])
        assert np.allclose(plain, same, atol=1e-10)


@pytest.mark.parametrize(
    "update", [U.saga(), U.svrg(5), U.pdhg(0.5), U.weight_decay(0.1, of=U.svrg(5))], ids=str
)
def test_records_restore_updates_of_samples(update):
    algorithm = sgd.MultiPassSGD(0.1, update=update, **BATCHES)
    assert algorithm_from(algorithm.describe()) == algorithm


@pytest.mark.slow
@pytest.mark.parametrize("update", [U.saga(), U.svrg(5)], ids=str)
def test_variance_reduced_batches_end_at_the_minimum(update):
    """On the same data sets SAGA and SVRG end where gradient descent does; plain batches do not."""
    options = {"steps": [400]}
    minimum = final_values(LINEAR, LINEAR_START, sgd.GradientDescent(0.3, 2.0), **options)
    reduced = sgd.MultiPassSGD(0.15, update=update, **BATCHES)
    plain = sgd.MultiPassSGD(0.15, **BATCHES)
    ends = final_values(LINEAR, LINEAR_START, reduced, **options)
    assert np.allclose(ends, minimum, rtol=1e-4)
    assert not np.allclose(final_values(LINEAR, LINEAR_START, plain, **options), minimum, rtol=1e-2)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_the_dual_step_is_the_proximal_operator(loss):
    """prox* by a fine grid: the minimum of loss(z) + sigma (z - v/sigma)^2/2."""
    grid, sigma, u, field, label = np.linspace(-8, 8, 320001), 0.6, 0.2, 1.3, -1.0
    values = {"squared": (grid - label) ** 2 / 2, "logistic": np.log1p(np.exp(-label * grid))}
    v = u + sigma * field
    z = grid[np.argmin(values[loss] + sigma * (grid - v / sigma) ** 2 / 2)]
    functions = {
        "squared": lambda f: (f[0] - label) ** 2 / 2,
        "logistic": lambda f: jnp.logaddexp(0.0, -label * f[0]),
    }
    slope = jax.grad(functions[loss])
    with jax.enable_x64(True):
        sample = Sample(jnp.array([field]), slope, True, 1.0, {}, {}, 0)
        assert dual_step(sample, jnp.array([u]), sigma)[0] == pytest.approx(v - sigma * z, abs=1e-4)


@pytest.mark.slow
def test_pdhg_ends_at_the_minimum_of_a_convex_loss():
    """On the same data sets PDHG and gradient descent end at the same weights."""
    start = sgd.start(LOGISTIC, M=[[0.2]], Q=[[0.5]])
    algorithm = sgd.GradientDescent(0.4, 2.0, update=U.pdhg(0.5))
    plain = sgd.GradientDescent(1.0, 2.0)
    ends = [
        final_values(LOGISTIC, start, choice, steps=[400])[:, :2] for choice in (plain, algorithm)
    ]
    assert np.allclose(*ends, rtol=1e-6)


LAWS = {
    "saga": (LINEAR, LINEAR_START, sgd.MultiPassSGD(0.2, update=U.saga(), **BATCHES)),
    "svrg, erf": (ERF, ERF_START, sgd.MultiPassSGD(0.8, update=U.svrg(3), **BATCHES)),
    "pdhg": (LINEAR, LINEAR_START, sgd.GradientDescent(0.4, 2.0, update=U.pdhg(0.7))),
    "decay": (
        LINEAR,
        LINEAR_START,
        sgd.MultiPassSGD(0.2, update=U.weight_decay(0.1, of=U.saga()), **BATCHES),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_exact_law_is_that_of_direct_runs(name):
    assert_same_law(*(LAWS[name][index] for index in (0, 2, 1)), [3, 8], 2000)


def assert_limit_of_runs(problem, start, algorithm, steps, runs=100, dimension=300):
    """DMFT agrees with direct runs at a large d, up to their errors and a bias of 3/d."""
    options = {"paths": 8192, "replicates": 4, "seed": 7, "progress": False}
    theory = sgd.solve_dmft(problem, algorithm, start, steps=steps, **options)
    arguments = {"steps": steps, "dimension": dimension, "runs": runs, "progress": False}
    result = sgd.simulate(problem, algorithm, start, method="direct", seed=3, **arguments)
    for name in ("M", "Q", "train_risk"):
        values, expected = result[name].values, theory[name].values[0]
        own = theory[f"{name}_standard_error"].values[0]
        error = np.hypot(values.std(axis=0) / np.sqrt(runs), own)
        gap = np.abs(values.mean(axis=0) - expected)
        assert np.all(gap < Z * error + 3 / dimension * np.abs(expected)), (name, gap / error)
        assert np.all(own <= 0.05 * np.abs(expected)), name


@pytest.mark.slow
@pytest.mark.parametrize("name", LAWS)
def test_limit_is_that_of_direct_runs(name):
    problem, start, algorithm = LAWS[name]
    assert_limit_of_runs(problem, start, algorithm, [3, 12])


# The drill: updates of single samples that are defined here, outside of the package.


def plain_step(state, gradient, lr, D, number, **hyperparameters):
    return {"weights": -lr / D * gradient(state["weights"])}


def message_step(state, gradient, lr, D, number, alpha, decay, first):
    """Message passing for ridge regression; the mean of 1/(1 + V) determines the next V."""
    G = gradient(state["weights"])
    L = alpha * gradient.means["slope"]
    moved = (alpha * G + L * state["weights"]) / (alpha * decay + L)
    return {
        "weights": moved - state["weights"],
        "V": 1 / (alpha * decay + L) - state["V"],
    }


def message(sample, alpha, decay, first):
    """g = (y - om)/(1 + V) at om = field - g_old V, from the residual of the sample."""
    V = jnp.where(sample.number == 0, first, sample.scalars["V"])
    om = sample.fields - sample.memory["g"] * V
    g = -sample.slope(om) / (1 + V)
    return g, {"g": g}, {"slope": 1 / (1 + V)}


@U.maker
def ridge_messages(alpha, decay, first):
    """Approximate message passing for the squared loss with weight decay."""
    return U.own(
        message_step,
        scalars=("V",),
        rereads=False,
        on_sample=message,
        samples=("g",),
        means=("slope",),
        numbers={"alpha": alpha, "decay": decay, "first": first},
    )


RIDGE = sgd.TeacherStudent(width=1, activation="linear", noise=0.25, weight_decay=0.3)
# The decay of the problem is part of `ridge_messages`.
RIDGE_FREE = RIDGE.replace(weight_decay=0.0)


@pytest.mark.slow
def test_message_passing_from_outside_is_amp():
    """The same direct and exact runs as `sgd.AMP`, and the same limit, to rounding."""
    start = sgd.start(RIDGE, M=[[0.3]], Q=[[0.3]])
    amp = sgd.AMP(2.0, estimator="erm", start="overlaps")
    first = 1.0 / (2.0 * 0.3)
    own = sgd.GradientDescent(1.0, 2.0, update=ridge_messages(2.0, 0.3, first))
    assert algorithm_from(own.describe()) == own
    options = {"steps": [1, 4], "dimension": 20}
    for method in ("direct", "exact"):
        expected, values = (
            final_values(problem, start, algorithm, method, **options)
            for problem, algorithm in ((RIDGE, amp), (RIDGE_FREE, own))
        )
        assert np.allclose(values[:, :2], expected[:, :2], atol=1e-10), method


@pytest.mark.slow
def test_the_limit_of_message_passing_from_outside_is_state_evolution():
    start = sgd.start(RIDGE, M=[[0.3]], Q=[[0.3]])
    amp = sgd.AMP(2.0, estimator="erm", start="overlaps")
    own = sgd.GradientDescent(1.0, 2.0, update=ridge_messages(2.0, 0.3, 1.0 / (2.0 * 0.3)))
    options = {"steps": [1, 4], "paths": 8192, "seed": 2, "progress": False}
    expected = sgd.solve_dmft(RIDGE, amp, start, **options)
    limit = sgd.solve_dmft(RIDGE_FREE, own, start, **options)
    for name in ("M", "Q"):
        gap = np.abs(limit[name] - expected[name]).values.ravel()
        assert np.all(gap < Z * limit[f"{name}_standard_error"].values.ravel() + 1e-9), name


def clip(sample, reach):
    """Residuals of bounded size, without stored values."""
    return sample.weight * jnp.clip(sample.slope(sample.fields), -reach, reach), {}


@pytest.mark.slow
def test_bounded_residuals_from_outside():
    update = U.own(plain_step, on_sample=clip, rereads=False, numbers={"reach": 0.5})
    algorithm = sgd.GradientDescent(0.5, 2.0, update=update)
    assert_same_law(LINEAR, algorithm, LINEAR_START, [3, 8], 1000)
    assert_limit_of_runs(LINEAR, LINEAR_START, algorithm, [3, 8])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"on_sample": lambda sample: sample.fields}, r"^on_sample = .*returns g"),
        ({"on_sample": lambda sample: (sample.fields[0], {})}, r"^on_sample = .*returns g"),
        ({"on_sample": lambda sample: (sample.fields, {"v": 0.0})}, r"^on_sample = .*returns g"),
        ({"on_sample": lambda sample: (sample.missing, {})}, r"^on_sample = .*failed"),
        ({"on_sample": 3.0}, r"^on_sample = 3"),
        ({"samples": ("table",)}, r"^samples = .*on_sample"),
        ({"means": ("slope",)}, r"^means = .*on_sample"),
        ({"samples": "table", "on_sample": clip}, r"^samples = "),
    ],
)
def test_invalid_rules_are_rejected(arguments, match):
    with pytest.raises(ValueError, match=match):
        U.own(plain_step, **arguments)


def test_unsupported_calls_are_rejected():
    saga = U.saga()
    for make in (sgd.OnePassSGD, sgd.EpochSGD):
        with pytest.raises(ValueError, match=r"^update = saga\(\): .*single samples"):
            make(0.1, update=saga)
    algorithm = sgd.MultiPassSGD(0.1, update=saga, **BATCHES)
    for problem, start in ((TRAINED, None), (PENALISED, None)):
        start = sgd.random_start(problem, dimension=20)
        with pytest.raises(ValueError, match=r"^update = saga"):
            sgd.solve_dmft(problem, algorithm, start, steps=[1])
    with pytest.raises(ValueError, match="two_time"):
        sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, steps=[1], two_time=True)
    method = sgd.DMFT(memory_directions=32)
    with pytest.raises(ValueError, match="memory_directions"):
        sgd.solve_dmft(LINEAR, algorithm, LINEAR_START, steps=[1], method=method)
    with pytest.raises(ValueError, match="period"):
        U.svrg(0)
    with pytest.raises(ValueError, match="dual_lr"):
        U.pdhg(0.0)
