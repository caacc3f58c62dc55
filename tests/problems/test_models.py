"""The ready models: reference values, records, sweeps, problem files, own models, bad input."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.cli.problem_files import plan
from sgdynamics.problems.models.model import MODELS
from sgdynamics.results.records import problem_from
from tests.conftest import Z

ALL = {
    "attention": lambda: sgd.models.attention(
        3, noise=0.1, token_correlation=0.2, weight_decay=0.01
    ),
    "positional_semantic": lambda: sgd.models.positional_semantic(0.4, encoding=2.0),
    "sequence_single_index": lambda: sgd.models.sequence_single_index(
        "sum", 2, target="product", constraint=None
    ),
    "autoencoder": lambda: sgd.models.autoencoder(2, "tanh", spikes=(3.0, 1.0), tied=True),
    "perceptron": lambda: sgd.models.perceptron("hebb"),
    "gan": lambda: sgd.models.gan({"generator": 0.1}, noise=0.5),
}


def solve(problem, M, Q, lr, **save_points):
    return sgd.solve_ode(
        problem, sgd.OnePassSGD(lr=lr), sgd.start(problem, M=M, Q=Q), **save_points
    )


@pytest.mark.parametrize("name", ALL)
def test_records(name):
    """A problem of a model can be restored from its record, and `replace` changes its arguments."""
    problem = ALL[name]()
    record = problem.describe()
    assert record["kind"] == name
    assert problem_from(record) == problem
    assert sgd.models.__dict__[name] is MODELS[name]
    other = problem.replace(weight_decay=0.5)
    assert (other.weight_decay, other.kind) == (0.5, name)
    assert other != problem
    assert other.structure == problem.structure  # one compiled program for both
    assert repr(problem).startswith(f"{name}(")


@pytest.mark.slow
@pytest.mark.parametrize(
    "n", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_reference_values_of_sequences(n):
    """Overlaps agree with reference values to all digits; the drift agrees with its closed form.

    For the product of n tokens, free rows and label noise of variance v::

        dM/dt = n (M^(n-1) - Q^(n-1) M),      dQ/dt = 2 n (M^n - Q^n) + lr n E[h_1^2]
    """
    sphere, free = {
        1: (0.82344787, 0.70569645),
        2: (0.71097561, 0.52210605),
        3: (0.06386001, 0.13501889),
    }[n]
    if n != 1:
        result = solve(
            sgd.models.sequence_single_index(tokens=n), [[0.2]], [[1.0]], 0.1, times=[1.0]
        )
        np.testing.assert_allclose(result.M.values.ravel(), sphere, atol=6e-9)
    problem = sgd.models.sequence_single_index(tokens=n, constraint=None)
    result = solve(problem, [[0.2]], [[1.0]], 0.1, times=[1.0])
    np.testing.assert_allclose(result.M.values.ravel(), free, atol=6e-9)
    noisy, m, q, lr, v = problem.replace(noise=0.3), 0.2, 0.7, 0.1, 0.3
    state = {"M": np.full((1, 1, 1), m), "Q": np.full((1, 1, 1), q), "a": np.ones(1)}
    quadrature = sgd.functional.quadrature(noisy, sgd.start(noisy, M=[[m]], Q=[[q]]))
    with jax.enable_x64(True):
        drift = jax.jit(
            partial(sgd.functional.drift, noisy.structure, lr=lr, quadrature=quadrature)
        )(noisy.parameters, state)
    dm = -n * q ** (n - 1) * m + n * m ** (n - 1)
    noise = (
        3 ** (n - 1) * (q ** (2 * n - 1) - 2 * q ** (n - 1) * m**n)
        + (q + 2 * m**2) ** (n - 1)
        + v * q ** (n - 1)
    )
    dq = -2 * n * q**n + 2 * n * m**n + lr * n * noise
    np.testing.assert_allclose(
        [np.asarray(drift[name]).item() for name in ("M", "Q")], [dm, dq], rtol=1e-11
    )


@pytest.mark.slow
def test_reference_values_of_rules():
    """The perceptron and the GAN follow reference values; the perceptron's risk is acos(rho)/pi."""
    rule = sgd.models.perceptron()
    result = solve(rule, [[0.2]], [[1.0]], 1.0, alpha=[0, 5.0, 100.0])
    cosine = result.M.values[0, :, 0, 0] / np.sqrt(result.Q.values[0, :, 0, 0])
    np.testing.assert_allclose(result.risk.values[0], np.arccos(cosine) / np.pi, atol=1e-12)
    np.testing.assert_allclose(result.risk.values[0, 1:], [0.16696271, 0.05943050], atol=6e-9)
    gan = solve(sgd.models.gan(), [[0.3], [0.2]], [[1.0, 0.3], [0.3, 1.0]], 1.0, alpha=[20.0])
    np.testing.assert_allclose(gan.M.values.ravel(), [1.15041461, 0.31962460], atol=6e-9)
    np.testing.assert_allclose(
        gan.Q.values.ravel(), [1.92895863, 0.21245426, 0.21245426, 1.02769447], atol=6e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "late", "end"),
    [
        (
            "hebb",
            lambda a: 0.39894228 * a**-0.5,
            1e3,  # The row grows like alpha, and a Q beyond 1e6 counts as diverged.
        ),
        ("perceptron", lambda a: (2 / 3) ** (1 / 3) / np.pi * a ** (-1 / 3), 1e5),
        ("adatron", lambda a: 1.5 / a, 1e5),
    ],
    ids=["hebb", "perceptron", "adatron"],
)
def test_late_errors_of_rules(rule, late, end):
    alpha = np.array([end / 100, end])
    result = solve(sgd.models.perceptron(rule), [[0.2]], [[1.0]], 1.0, alpha=alpha)
    gap = np.abs(result.risk.values[0] / late(alpha) - 1)
    assert gap[1] < 0.02
    assert gap[1] < 0.5 * gap[0]


@pytest.mark.slow
def test_reference_values_of_attention():
    """Risks and overlaps for two tokens, with and without correlation, agree with reference values.

    Direct runs agree with those of an independent simulation within their standard errors.
    """
    M, Q = [[0.3, 0.1], [-0.2, 0.4]], [[1.0, 0.2], [0.2, 0.8]]
    free = solve(sgd.models.attention(noise=0.1), M, Q, 1.0, times=[0, 1, 2, 10])
    np.testing.assert_allclose(
        free.excess_risk.values[0], [0.36354539, 0.23755718, 0.17765431, 0.06585732], atol=6e-9
    )
    problem = sgd.models.attention(noise=0.1, token_correlation=0.4)
    correlated = solve(problem, M, Q, 1.0, times=[0, 2])
    np.testing.assert_allclose(
        correlated.excess_risk.values[0], [0.39920166, 0.13783400], atol=6e-9
    )
    np.testing.assert_allclose(
        np.diag(correlated.Q.values[0, 1]), [0.95829417, 0.93543692], atol=6e-9
    )
    np.testing.assert_allclose(
        np.diag(correlated.M.values[0, 1]), [0.35448428, 0.82758116], atol=6e-9
    )
    runs = sgd.simulate(
        problem,
        sgd.OnePassSGD(lr=1.0),
        sgd.start(problem, M=M, Q=Q),
        times=[0, 2.0],
        dimension=2000,
        runs=200,
        seed=1,
    )
    direct = {"Q": ([0.9562, 0.9300], [0.0015, 0.0053]), "M": ([0.3550, 0.8251], [0.0015, 0.0029])}
    for name, (values, errors) in direct.items():
        diagonals = np.einsum("rii->ri", runs[name].values[:, 1])
        assert np.all(
            np.abs(diagonals.mean(axis=0) - values)
            <= Z * np.hypot(diagonals.std(axis=0, ddof=1) / np.sqrt(len(diagonals)), errors)
        )


@pytest.mark.slow
def test_reference_values_of_positions():
    """The estimated error of expectations on a coarse grid bounds the error of the overlaps.

    The loss depends on four fields and is not a polynomial. The attribute is the relative error of
    the expectations. An error of the drift at one time grows along the plateau as the overlap
    itself does, so that the error of the overlaps is at most the attribute times the elapsed time
    times that growth.
    """
    problem = sgd.models.positional_semantic(0.3)
    for start, lr, t, expected in (
        ([0.1, 0.1], 0.0, 10.0, [0.44227387, 0.03279580]),
        ([0.1, 0.1], 0.5, 10.0, [0.41227154, 0.03118536]),
        ([0.3, 0.3], 0.5, 4.0, [0.50204241, 0.16634666]),
    ):
        result = solve(problem, [start], [[1.0]], lr, times=[t])
        overlaps, error = result.M.values.ravel(), result.attrs["error_quadrature"]
        growth = np.max(overlaps) / start[0]
        assert np.all(np.abs(overlaps - expected) <= error * t * growth)
        assert error < 2e-3
        np.testing.assert_allclose(overlaps, expected, atol=3e-5)


@pytest.mark.slow
def test_growth_of_positions():
    """The drift at small overlaps has the two growth rates of the documented formulas."""
    problem, small = sgd.models.positional_semantic(0.9, encoding=2.0), 0.01
    start = sgd.start(problem, M=[[small, small]], Q=[[1.0]])
    with jax.enable_x64(True):
        quadrature = sgd.functional.quadrature(problem, start)
        compiled_drift = jax.jit(
            partial(sgd.functional.drift, problem.structure, lr=0.0, quadrature=quadrature)
        )
        drift = compiled_drift(problem.parameters, sgd.functional.state(start))
    rates = np.asarray(drift["M"]).ravel() / small
    np.testing.assert_allclose(
        rates, [0.2205022 * 0.1, 4 * (-0.1332601 + 0.1533972 * 0.9)], atol=1e-3
    )


def test_expectations_of_signals_that_the_loss_ignores():
    """`expect` of an autoencoder has the second moments of its signals, which its loss ignores."""
    problem = sgd.models.autoencoder(spikes=(3.0,))
    start = sgd.start(problem, M=[[0.3], [0.4]], Q=[[1.0, 0.2], [0.2, 0.8]])
    estimate = sgd.expect(
        start,
        lambda fields, signals, head, draws: jnp.array(
            [signals[0] ** 2, signals[0] * fields[1], draws["g"][0] ** 2]
        ),
        problem,
    )
    expected = [1 + 3.0, 0.4 * (1 + 3.0), 1.0]
    assert np.all(
        np.abs(estimate.values[0] - expected) <= 8 * estimate.standard_error.values[0] + 1e-9
    )
    assert np.all(estimate.standard_error.values < 0.05)


@pytest.mark.slow
def test_sequence_information_exponent():
    exponent = sgd.models.sequence_information_exponent
    assert [exponent("product", n) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 5]
    assert exponent(lambda x: jnp.tanh(x[0]) * x[1], 2) == 2
    assert exponent(lambda x: x[0] * x[1], 2, target=lambda x: x[0] ** 3 * x[1] + x[0]) == 2
    assert exponent(sgd.models.sequence_single_index("sum", 2)) == 1
    assert exponent(lambda x: x[0] ** 2 * x[1] - x[1], 2) == 3  # He_2 He_1
    with pytest.raises(
        ValueError, match="shares no Hermite coefficient with the target up to order 12"
    ):
        exponent("sum", 2, target="product")
    with pytest.raises(ValueError, match="up to order 4"):
        exponent("product", 6)
    with pytest.raises(ValueError, match="tokens = None: required"):
        exponent("product")
    with pytest.raises(ValueError, match="Use 6 or fewer"):
        exponent("product", 9)
    with pytest.raises(ValueError, match="independent tokens"):
        exponent(sgd.models.sequence_single_index(tokens=2, token_correlation=0.3))


@pytest.mark.slow
def test_no_warning_where_growth_is_of_higher_order():
    """Exit times of a product of three tokens give no warning.

    The overlap does not grow linearly at m = 0, yet the product is learned.
    """
    problem = sgd.models.sequence_single_index(tokens=3)
    exit_times = sgd.exit_time(
        problem,
        sgd.OnePassSGD(lr=0.01),
        sgd.start(problem, M=[[0.3]], Q=[[1.0]]),
        criterion="overlap",
        threshold=0.5,
    )
    assert 0.3 < exit_times.mean < 1.5


@pytest.mark.slow
def test_sweeps_and_files():
    """Arguments of a model vary in sweeps, also in dictionaries, and problem files name models."""
    start = {"M": [[0.3], [0.2]], "Q": [[1.0, 0.3], [0.3, 1.0]]}
    swept = sgd.sweep(
        "solve_ode",
        problem=sgd.models.gan({"discriminator": 0.2, "generator": 0.04}),
        algorithm=sgd.OnePassSGD(lr=1.0),
        start=start,
        alpha=[5.0],
        over={"noise": [0.5, 1.0], "problem.rates.generator": [0.04, 0.1]},
    )
    single = solve(
        sgd.models.gan({"generator": 0.1}, noise=0.5), start["M"], start["Q"], 1.0, alpha=[5.0]
    )
    np.testing.assert_allclose(
        swept.M.sel(noise=0.5, generator=0.1).values.ravel(), single.M.values.ravel(), rtol=1e-7
    )
    assert len(np.unique(np.round(swept.M.values, 6))) == 8
    run = plan(
        {
            "problem": {"kind": "attention", "tokens": 3, "noise": 0.1, "token_correlation": 0.2},
            "algorithm": {"kind": "OnePassSGD", "lr": 1.0},
            "start": {"M": [[0.3, 0.1], [-0.2, 0.4]], "Q": [[1.0, 0.2], [0.2, 0.8]]},
            "run": {"methods": ["exact"], "times": [0, 1], "dimension": 20, "runs": 2},
        }
    )
    assert run.problem == sgd.models.attention(3, noise=0.1, token_correlation=0.2)


def gain_loss(fields, signals, head, noise_draw, parameters):
    return 0.5 * (fields[0] - parameters["gain"] * signals[0]) ** 2


@sgd.models.model
def amplifier(gain=2.0):
    return sgd.Problem(gain_loss, width=1, signals=1, parameters={"gain": gain})


@pytest.mark.slow
def test_a_user_defined_model():
    problem = amplifier(3.0)
    assert problem_from({"kind": "amplifier", "gain": 3.0}) == problem
    assert problem.replace(gain=1.0).describe() == {"kind": "amplifier", "gain": 1.0}
    result = solve(problem, [[0.0]], [[1.0]], 0.0, times=[2.0])
    np.testing.assert_allclose(result.M.values.ravel(), 3 * (1 - np.exp(-2)), rtol=1e-7)
    assert sgd.problem_of(result) == problem
    MODELS.pop("amplifier")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sgd.models.attention(1), "tokens = 1"),
        (lambda: sgd.models.attention(noise=-1.0), "noise = -1.0"),
        (lambda: sgd.models.attention(3, token_correlation=-0.8), "token_correlation = -0.8"),
        (lambda: sgd.models.attention(3, token_correlation=1.5), "between -0.5 and 1"),
        (lambda: sgd.models.positional_semantic(1.5), "omega = 1.5: give a share"),
        (lambda: sgd.models.sequence_single_index("prod"), "link = 'prod': did you mean 'product'"),
        (lambda: sgd.models.sequence_single_index(lambda x: x, 2), "link = .*must return a scalar"),
        (lambda: sgd.models.autoencoder(spikes=3.0), "spikes = 3.0: give a list"),
        (lambda: sgd.models.autoencoder(activation="sign"), "activation = 'sign'"),
        (lambda: sgd.models.perceptron("hebbian"), "rule = 'hebbian': did you mean 'hebb'"),
        (lambda: sgd.models.gan({"critic": 1.0}), "rates"),
        (lambda: sgd.models.gan(noise="loud"), "noise = 'loud'"),
        (lambda: problem_from({"kind": "atention"}), "did you mean 'attention'"),
        (lambda: problem_from({"kind": "attention", "token": 2}), "tokens"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()
