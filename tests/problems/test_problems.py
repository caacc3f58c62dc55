"""Problems, activations and starts: exact laws, and messages with argument, value and fix."""

from __future__ import annotations

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import sgdynamics as sgd
from sgdynamics.problems import trial
from sgdynamics.problems.activations import NAMED
from tests.conftest import same_law


def test_kinks_are_measured():
    assert NAMED["relu"].jumps(1) == pytest.approx((1.0,))
    assert NAMED["abs"].jumps(1) == pytest.approx((2.0,))
    assert NAMED["sign"].jumps(0) == pytest.approx((2.0,))
    assert NAMED["relu"].jumps(0) == (0.0,)
    leaky = sgd.Activation(
        lambda x: jnp.where(x > 0.5, jnp.exp(x), jnp.exp(0.5) - 0.2 * (0.5 - x)), kinks=[0.5]
    )
    assert leaky.jumps(1) == pytest.approx((np.exp(0.5) - 0.2,), rel=1e-9)


def test_very_wide_networks_are_tried_on_fewer_samples(monkeypatch):
    shapes = []
    compiled = trial._compiled

    def record_shape(structure, parameters, fields, *arguments):
        shapes.append(fields.shape)
        return compiled(structure, parameters, fields, *arguments)

    monkeypatch.setattr(trial, "_compiled", record_shape)
    monkeypatch.setattr(trial, "MOST_NORMALS", 640)
    trial._normals.cache_clear()
    for width in (5, 100):
        sgd.Problem(
            lambda fields, signals, head, z: (jnp.mean(fields) - signals[0]) ** 2,
            width=width,
            signals=1,
            kinks=[0.0],
        )
    trial._normals.cache_clear()
    assert shapes == [(trial.SAMPLES, 5), (640 // 102, 100)]


@pytest.mark.slow
def test_random_start_has_the_law_of_random_rows():
    """The overlaps of `random_start` have the law of those of explicit Gaussian rows at d = 9.

    The rows are free, on the sphere or orthonormal.
    """
    d, runs = 9, 4000
    generator = np.random.default_rng(0)
    for constraint, orthogonal in ((None, False), ("sphere", False), (None, True)):
        problem = sgd.TeacherStudent(
            width=3, teacher_width=2, constraint=constraint, teacher_gram=[[1.0, 0.5], [0.5, 2.0]]
        )
        drawn = sgd.random_start(problem, dimension=d, runs=runs, seed=3, orthogonal=orthogonal)
        rows = generator.standard_normal((runs, 3, d)) / np.sqrt(d)
        if constraint:
            rows /= np.linalg.norm(rows, axis=2, keepdims=True)
        if orthogonal:
            rows = np.swapaxes(np.linalg.qr(np.swapaxes(rows, 1, 2))[0], 1, 2)
            # QR fixes the signs of the rows; in the uniform law they are random.
            rows *= generator.choice([-1.0, 1.0], size=(runs, 3, 1))
        teacher = np.zeros((2, d))
        teacher[:, :2] = np.linalg.cholesky(problem.gram[0])
        M, Q = rows @ teacher.T, rows @ np.swapaxes(rows, 1, 2)
        for i in range(3):
            for r in range(2):
                same_law(drawn.M[:, i, r], M[:, i, r], f"M{i}{r}")
            for j in range(i + 1):
                same_law(drawn.Q[:, i, j], Q[:, i, j], f"Q{i}{j}")
        # a statistic of all overlaps together
        volume = np.linalg.det(drawn.Q + drawn.M @ np.swapaxes(drawn.M, 1, 2))
        same_law(volume, np.linalg.det(Q + M @ np.swapaxes(M, 1, 2)), "volume")


def test_random_start_runs_do_not_depend_on_their_number():
    problem = sgd.TeacherStudent(width=3)
    six_runs, two_runs = (
        sgd.random_start(problem, dimension=10**9, runs=runs, seed=5) for runs in (6, 2)
    )
    np.testing.assert_array_equal(six_runs.Q[:2], two_runs.Q)
    np.testing.assert_allclose(np.diagonal(six_runs.Q, axis1=1, axis2=2), 1.0, atol=3e-4)
    overlaps = sgd.random_start(problem, dimension=10**9, runs=400, seed=1).M[:, :, 0].ravel()
    assert stats.kstest(overlaps * np.sqrt(1e9), "norm").pvalue > 1e-6


def test_random_start_scale_and_blocks():
    problem = sgd.TeacherStudent(width=2, covariance=[(1.0, 0.25), (2.0, 0.75)])
    drawn = sgd.random_start(problem, dimension=40_000, scale=2.0, seed=1)
    np.testing.assert_allclose(np.diagonal(drawn.Q[0]), 4.0, rtol=0.05)
    np.testing.assert_allclose(
        drawn.Q_blocks[0, 0].diagonal() / drawn.Q[0].diagonal(), 0.25, rtol=0.05
    )
    assert problem.block_dimensions(10).tolist() in ([3, 7], [2, 8])
    assert problem.block_dimensions(41).sum() == 41


def test_a_problem_does_not_change():
    problem = sgd.TeacherStudent(width=2)
    with pytest.raises(
        AttributeError, match=r"problems are immutable. Use problem.replace\(noise=...\)"
    ):
        problem.noise = 0.5


ARGUMENTS = dict(width=2, activation="square")


def make_start(**options):
    return sgd.start(
        sgd.TeacherStudent(**ARGUMENTS), **{"M": [[0.1], [0.1]], "Q": np.eye(2), **options}
    )


BAD = {
    "width 0": (lambda: sgd.TeacherStudent(width=0), r"width = 0: give a whole number, 1 or more"),
    "width 1.5": (lambda: sgd.TeacherStudent(width=1.5), "width = 1.5"),
    "negative noise": (
        lambda: sgd.TeacherStudent(noise=-1),
        r"noise = -1: give a number, 0 or more",
    ),
    "nan decay": (lambda: sgd.TeacherStudent(weight_decay=float("nan")), "weight_decay = nan"),
    "misspelt activation": (
        lambda: sgd.TeacherStudent(activation="rellu"),
        r"did you mean 'relu'\?",
    ),
    "sign for a student": (lambda: sgd.TeacherStudent(activation="sig"), r"silu, abs, he2"),
    "sign for a teacher": (
        lambda: sgd.TeacherStudent(teacher_activation="sgn"),
        r"did you mean 'sign'\?",
    ),
    "sign student": (
        lambda: sgd.TeacherStudent(activation="sign"),
        "use it as teacher_activation only",
    ),
    "polynomial without coefficients": (
        lambda: sgd.TeacherStudent(activation="polynomial"),
        r"sgd.polynomial\(\[c0, c1",
    ),
    "constant polynomial": (lambda: sgd.polynomial([1.0]), "non-constant"),
    "activation of two numbers": (
        lambda: sgd.Activation(lambda x, y: x),
        r"must take the arguments \(x\)",
    ),
    "misspelt head": (lambda: sgd.TeacherStudent(head="trainned"), r"did you mean 'trained'\?"),
    "misspelt loss": (lambda: sgd.TeacherStudent(loss="square"), r"did you mean 'squared'\?"),
    "unknown constraint": (
        lambda: sgd.TeacherStudent(constraint="ball"),
        "choose one of None, 'sphere'",
    ),
    "teacher gram": (
        lambda: sgd.TeacherStudent(teacher_width=2, teacher_gram=[[1, 2], [2, 1]]),
        "not a Gram matrix",
    ),
    "teacher head": (
        lambda: sgd.TeacherStudent(teacher_width=2, teacher_head=[1.0]),
        r"has shape \(1,\): give shape \(2,\)",
    ),
    "covariance": (
        lambda: sgd.TeacherStudent(covariance=[(1.0, 0.5), (2.0, 0.4)]),
        "add up to 0.9",
    ),
    "loss arguments": (
        lambda: sgd.Problem(lambda a, b: a, 2, 1),
        r"must take the arguments \(fields, signals, head, noise_draw\)",
    ),
    "loss shape": (lambda: sgd.Problem(lambda f, s, a, z: f, 2, 1), r"returned shape \(2,\)"),
    "target shape": (lambda: sgd.MultiIndex(lambda z: z, directions=2), r"returned shape \(2,\)"),
    "lr": (lambda: sgd.OnePassSGD(lr=-0.1), "lr = -0.1"),
    "batch": (lambda: sgd.OnePassSGD(batch=0), "batch = 0"),
    "M and Q that do not fit": (
        lambda: make_start(M=[[2.0], [0.1]]),
        r"Omega = \[\[Q, M\], \[M\^T, P\]\] is not a Gram matrix",
    ),
    "Q not symmetric": (lambda: make_start(Q=[[1.0, 0.2], [0.1, 1.0]]), "not symmetric"),
    "M shape": (lambda: make_start(M=[[0.1, 0.1]]), r"M has shape \(1, 2\): give \(2, 1\)"),
    "a shape": (lambda: make_start(a=[1.0]), r"a has shape \(1,\): give shape \(2,\)"),
    "off the sphere": (
        lambda: sgd.start(
            sgd.TeacherStudent(**ARGUMENTS, constraint="sphere"), M=[[0.1], [0.1]], Q=2 * np.eye(2)
        ),
        "keeps rows of norm 1",
    ),
    "d too small": (
        lambda: sgd.random_start(sgd.TeacherStudent(**ARGUMENTS), dimension=2),
        r"dimension = 2.*Use 3 or more",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_names_argument_value_and_fix(name):
    make, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        make()


CALLS = {
    "no times": (dict(), "exactly one of times=, alpha=, steps="),
    "two times": (dict(times=[1.0], alpha=[1.0]), "received times, alpha"),
    "not increasing": (dict(times=[1.0, 0.5]), r"times = \[1.0, 0.5\]: give increasing numbers"),
    "negative": (dict(times=[-1.0]), "0 or more"),
    "fractional steps": (dict(steps=[1.5]), "whole numbers"),
    "method": (dict(times=[1.0], method="exakt"), r"did you mean 'exact'\?"),
    "float32 chain": (dict(times=[1.0], dtype="float32"), "biased at large d"),
    "seed": (dict(times=[1.0], seed=-1), "seed = -1"),
    "runs": (dict(times=[1.0], runs=0), "runs = 0"),
    "dimension": (dict(times=[1.0], dimension=2), "Use 3 or more"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_calls_raise_before_anything_compiles(name):
    options, message = CALLS[name]
    problem = sgd.TeacherStudent(**ARGUMENTS)
    with pytest.raises(ValueError, match=message):
        sgd.simulate(problem, sgd.OnePassSGD(), make_start(), **{"dimension": 50, **options})


def test_more_bad_calls():
    problem = sgd.TeacherStudent(**ARGUMENTS)
    with pytest.raises(ValueError, match="gradient flow makes no steps"):
        sgd.simulate(problem, sgd.OnePassSGD(lr=0), make_start(), times=[1.0], dimension=50)
    with pytest.raises(ValueError, match="steps= needs a dimension"):
        sgd.solve_ode(problem, sgd.OnePassSGD(), make_start(), steps=[1])
    with pytest.raises(ValueError, match="make it from the same problem"):
        sgd.solve_ode(sgd.TeacherStudent(width=3), sgd.OnePassSGD(), make_start(), times=[1.0])
    with pytest.raises(ValueError, match="give what sgd"):
        sgd.solve_ode(problem, sgd.OnePassSGD(), {"M": 1}, times=[1.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda z: z[1] * z[2],
        lambda z: z[0] + z[..., 0] ** 2 + z[-3],
        lambda z: jnp.sum(z) * z[2, ...],
    ],
)
def test_indices_out_of_bounds_raise(function):
    """JAX would silently use the last entry instead, which states a different problem."""
    with pytest.raises(
        ValueError, match=r"target = .*index (2|-3) is out of bounds for axis 0 with size 2"
    ):
        sgd.MultiIndex(function, directions=2, width=2, activation="erf")
    with pytest.raises(
        ValueError, match=r"loss = .*index (2|-3) is out of bounds for axis 0 with size 2"
    ):
        sgd.Problem(
            lambda fields, signals, head, noise: (jnp.mean(head * fields) - function(signals)) ** 2,
            width=2,
            signals=2,
        )


def test_array_functions_work_while_indices_are_checked():
    for target in (
        lambda z: (
            2 * z[0]
            - z[-1] ** 2
            + z @ z
            - jnp.dot(z, jnp.ones(2)) / (1 + abs(z[1]))
            + sum(entry for entry in z)
        ),
        lambda z: (
            jnp.where(z > 0, z, -z)[0]
            + jax.nn.relu(z).sum()
            + len(z)
            + z.sum()
            + (-z).T[1]
            + z[1:].mean()
            + 3.0 ** z[0]
        ),
        lambda z: z.at[0].set(1.0)[1],
    ):
        problem = sgd.MultiIndex(target, directions=2, width=2, activation="erf")
        start = sgd.random_start(problem, dimension=50, seed=0)
        assert start.M.shape == (1, 2, 2)


def quartic(fields, signals, head, noise_draw, parameters):
    return parameters["scale"] * jnp.mean(head * fields) ** 4 - signals[0]


def product(z):
    return z[0] * z[1]


REPLACED = [
    (
        sgd.TeacherStudent,
        {"width": 3, "noise": 0.1, "teacher_width": 2, "activation": "erf"},
        {"noise": 0.2},
    ),
    (
        sgd.TeacherStudent,
        {"width": 3, "noise": 0.1},
        {"activation": "relu", "constraint": "sphere"},
    ),
    (
        sgd.MultiIndex,
        {"target": product, "directions": 2, "width": 2},
        {"noise": 0.3, "kinks": [0.0]},
    ),
    (sgd.GaussianMixture, {"kind": "xor", "snr": 50.0}, {"snr": float("inf")}),
    (
        sgd.Problem,
        {"loss": quartic, "width": 2, "signals": 1, "parameters": {"scale": 1.0}},
        {"parameters": {"scale": 2.0}},
    ),
    (sgd.SpikedTensor, {"order": 3, "snr": 2.0}, {"ridge": 0.1}),
    (sgd.OnePassSGD, {"lr": 0.2, "batch": 4}, {"batch": 2}),
    (sgd.OnePassSGD, {"lr": sgd.piecewise_rate([1.0], [0.1, 0.2])}, {"head_rate": 0.5}),
    (sgd.PersistentSGD, {"lr": 0.1, "persistence_time": 2.0}, {"batch_fraction": 0.25}),
    (sgd.Langevin, {"lr": 0.1, "temperature": 2.0}, {"lr": 0.2}),
]


@pytest.mark.parametrize(("kind", "arguments", "changes"), REPLACED)
def test_replace_equals_construction_with_the_changed_arguments(kind, arguments, changes):
    original = kind(**arguments)
    copy = kind(**arguments)
    assert original == copy
    assert hash(original) == hash(copy)
    changed = original.replace(**changes)
    assert type(changed) is kind
    assert changed == kind(**{**arguments, **changes})
    assert changed != original
    assert original == copy  # `replace` did not change the original
    unpickled = pickle.loads(pickle.dumps(original)) if kind is not sgd.Problem else original
    assert unpickled == original
    assert unpickled.replace(**changes) == changed
    with pytest.raises(ValueError, match="has no 'nosie'"):
        original.replace(nosie=0.1)


def test_replace_checks_and_suggests():
    problem = sgd.TeacherStudent(4, 2, "erf", noise=0.1)  # also with positional arguments
    assert problem.replace(width=3).teacher_width == 2
    with pytest.raises(ValueError, match=r"TeacherStudent has no 'nosie': did you mean 'noise'"):
        problem.replace(nosie=0.1)
    with pytest.raises(ValueError, match="noise = -1"):
        problem.replace(noise=-1)
    with pytest.raises(AttributeError, match=r"problem.replace\(noise=...\)"):
        problem.noise = 0.2
    assert problem != sgd.MultiIndex(product, directions=2, width=4, activation="erf", noise=0.1)
    assert sgd.OnePassSGD(lr=0.1) != sgd.GradientDescent(lr=0.1)


def test_scheduled_parameters_have_double_precision():
    """In JAX's default precision too, in which 1/6 would be wrong by 1e-9."""
    problem = sgd.TeacherStudent(width=2, noise=lambda alpha: 0.1 + 0.05 * alpha)
    noise = problem.at(4 / 3).parameters["noise"]
    assert noise.dtype == np.float64
    assert float(noise) == pytest.approx(1 / 6, rel=1e-14)
