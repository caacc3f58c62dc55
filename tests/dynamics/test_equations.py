"""`problem.equations(algorithm)` for every kind of problem, algorithm and update."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.law import hyperparameter_symbol
from sgdynamics.base.support import why_not
from sgdynamics.dynamics.equations import SOLVERS
from tests.algorithms.bounded_momentum import bounded_momentum
from tests.contracts import kinds
from tests.latex import evaluate

U = sgd.updates


def check_latex(formula: str) -> None:
    """Braces and delimiters are balanced, and nothing is left of a format string."""
    assert formula.count("{") == formula.count("}"), formula
    assert formula.count(r"\left") - formula.count(r"\leftarrow") == formula.count(r"\right"), (
        formula
    )
    assert formula.count(r"\begin") == formula.count(r"\end"), formula
    for left_over in ("None", "<function", "0x", "array("):
        assert left_over not in formula, formula


@pytest.mark.parametrize("of", SOLVERS)
@pytest.mark.parametrize("kind", kinds.PROBLEMS)
def test_every_kind_has_equations_where_the_solver_supports_it(kind, of):
    problem, solver = kinds.PROBLEMS[kind](), SOLVERS[of]
    algorithm = kinds.algorithm_of(kind, solver)
    names = (*problem.kinds, *algorithm.kinds)
    reasons = [reason for name in names if (reason := why_not(solver, name)) is not None]
    if reasons:  # not supported, by the support table
        with pytest.raises(ValueError, match=re.escape(reasons[0])):
            problem.equations(algorithm, of)
        return
    equations = problem.equations(algorithm, of)
    assert equations[of.upper()]
    for section in equations.sections:
        check_latex(section.rows)
    for text in (equations._repr_latex_(), equations._repr_markdown_()):
        assert equations.sections[-1].rows in text
    assert str(equations).count(r"\begin{align*}") == len(equations.sections)


# Updates of single samples of a data set
OF_SAMPLES = [U.saga(), U.svrg(5), U.pdhg(0.5)]
UPDATES = [
    U.momentum(0.9),
    U.momentum(memory=2.0),
    U.nesterov(0.9),
    U.nesterov(memory=2.0),
    U.average(2.0),
    U.polyak(),
    U.schedule_free(0.7),
    U.dana(1.0, delta=4.0, offset=0.5),
    U.adagrad_norm(0.1),
    U.sign(),
    U.adam(4.0, eps=0.02),
    U.rmsprop(4.0, eps=0.1),
    U.adagrad(0.5),
    U.normalised(),
    U.clipped(0.8),
    U.clipped(0.8, over="row"),
    U.clipped(0.8, over="sample"),
    U.reuse(2),
    U.sam(reach=0.5),
    U.muon(),
    U.muon(memory=2.0, newton_schulz=True),
    U.inertia(0.5, temperature=0.2),
    U.row_adam(2, memory=4.0, eps=0.02),
    *OF_SAMPLES,
    U.delayed(per_dimension=0.5),
    U.sparse(share=0.2),
    U.sparse(share=0.2, feedback=False),
    U.sparse(per_step=2.0),
    U.separate(rows=U.momentum(0.9)),
    U.weight_decay(0.1, of=U.momentum(0.9)),
    U.weight_decay(0.1, of=U.polyak()),
    U.weight_decay(0.1, of=U.rmsprop(2.0, eps=0.1), decoupled=False),
    U.gradient_noise(0.3, of=U.clipped(1.0)),
    U.state_rate(lambda overlaps: overlaps.Q[0, 0]),
    bounded_momentum(2.0),
]


@pytest.mark.parametrize("update", UPDATES, ids=str)
def test_every_update_has_equations(update):
    problem = sgd.TeacherStudent(width=2, activation="linear", noise=0.1, weight_decay=0.2)
    algorithm = sgd.GradientDescent if update in OF_SAMPLES else sgd.OnePassSGD
    equations = problem.equations(algorithm(lr=0.1, update=update))
    for section in equations.sections:
        check_latex(section.rows)
    steps, parameters = "\n".join(equations["Algorithm"]), "\n".join(equations["Parameters"])
    for name, value in update.numbers.items():
        if not isinstance(value, U.Update):
            symbol = hyperparameter_symbol(name)
            assert symbol in steps, name
            assert f"{symbol} = " in parameters, name


def test_the_list_of_updates_is_complete():
    kinds_of_updates = {update.kind for update in UPDATES}
    assert set(U.__all__) - kinds_of_updates == {"Update", "maker", "own"}


KICK = np.random.default_rng(1).normal(size=(2, 5))  # noise of a step, N in the formulas


class TrialGradient:
    """The gradient of one batch as a step reads it: the same matrix at all rows."""

    trained = False

    def __init__(self, G, lr, D, decay=0.0, pull=0.0):
        self.G, self.lr, self.D, self.decay, self.pull = G, lr, D, decay, pull

    def __call__(self, rows, shift=0.0):
        return self.G + self.decay * rows

    def with_decay(self, decay):
        return TrialGradient(self.G, self.lr, self.D, decay=decay)

    def with_pull(self, pull):
        return TrialGradient(self.G, self.lr, self.D, pull=pull)

    def per_sample(self, rows):
        return self.G[None]

    def squares(self, G):
        return G**2

    def sign(self, G):
        return np.sign(G)

    def noise(self):
        return KICK

    def plain_step(self, G):
        return -self.lr / self.D * (G + self.pull)


STATE_SYMBOLS = {
    "weights": "W",
    "velocity": "V",
    "iterate": "X",
    "squares": "S",
    "sum": "b",
}
# These call functions, draw noise or masks, use a batch several times, or read earlier gradients.
NOT_EVALUATED = {
    "delayed",
    "sparse",
    "separate",  # its parts are evaluated by themselves
    "reuse",
    "sam",
    "muon",
    "gradient_noise",
    "state_rate",
    "bounded_momentum",
    "sign",
}
NOT_EVALUATED |= {update.kind for update in OF_SAMPLES}


@pytest.mark.parametrize(
    "update", [update for update in UPDATES if update.kind not in NOT_EVALUATED], ids=str
)
def test_printed_steps_are_the_steps_of_the_code(update):
    generator = np.random.default_rng(0)
    lr, D, number = 0.3, 17.0, 3
    law = update.law
    G = generator.normal(size=(2, 5)) * np.sqrt(D)
    state = {name: generator.normal(size=(2, 5)) for name in ("weights", *law.rows)}
    state |= {name: generator.uniform(0.5, 1.0, (2, 5)) for name in law.squares}
    state |= {name: generator.uniform(0.5, 1.0) for name in law.scalars}
    if "age" in state:
        state["age"] = np.float64((number - 1) / D)
    with jax.enable_x64(True):
        step = law.step(state, TrialGradient(G, lr, D), lr, D, number, **update.parameters)
        expected = state["weights"] + np.asarray(step["weights"])
    values = {symbol: state[name] for name, symbol in STATE_SYMBOLS.items() if name in state}
    squares = [value for name, value in state.items() if name.startswith("square_")]
    if squares:  # one number per row
        values["S"] = np.array(squares)[:, None]
    if law.name in (
        "adam",
        "row_adam",
    ):  # they store V/(1 - beta^n), so that the velocity is corrected
        beta = update.numbers["beta"]
        values["V"] = values["V"] * (1 - beta ** (number - 1))
    hyperparameters = dict(update.numbers)
    inner = hyperparameters.pop("of", None)
    hyperparameters |= {} if inner is None else inner.numbers
    values |= {
        hyperparameter_symbol(name): np.float64(value) for name, value in hyperparameters.items()
    }
    values |= {
        "G": G,
        "N": KICK,
        "D": D,
        "n": float(number),
        r"\mathrm{lr}": lr,
        "B": 1.0,
        "Y": 0.0,
    }
    values["norm"] = lambda x: np.sqrt(np.sum(x**2))
    for line in law.equations:
        if "at the start" in line:
            continue
        line = line.replace(r"\hat V", "U").replace(r"\hat S", "T").replace("b^2", "b")
        line = line.replace(r"^{\circ 2}", "^2").replace(r"^{(\mu)}", "")
        line = line.replace(r"\sum_{\mu=1}^{B}", "")
        for point in "XY":
            line = line.replace(rf"G\left({point}\right)", "G")
        left, _, right = line.replace(r"\leftarrow", "=").partition(" = ")
        if left.endswith("_i"):  # row by row, with the norm of each row
            left = left.removesuffix("_i")
            values["norm"] = lambda x: np.sqrt(np.sum(x**2, axis=-1, keepdims=True))
        values[left] = evaluate(right, values)
    np.testing.assert_allclose(values["W"], expected, rtol=1e-10)


def test_hyperparameters_that_are_functions_are_named():
    def cooling(alpha):
        return 1 / (1 + alpha)

    problem = sgd.TeacherStudent(width=1, activation="erf")
    lines = problem.equations(sgd.OnePassSGD(lr=cooling))["Parameters"]
    assert r"\mathrm{lr} = \operatorname{cooling}(\alpha)" in ",".join(lines)


def test_invalid_arguments_name_the_argument():
    problem = sgd.TeacherStudent(width=1)
    with pytest.raises(ValueError, match="of = 'pde'"):
        problem.equations(sgd.OnePassSGD(lr=0.1), "pde")
    with pytest.raises(ValueError, match="algorithm = 3"):
        problem.equations(3)
    with pytest.raises(ValueError, match="dimension = "):
        problem.equations(sgd.OnePassSGD(lr=0.1, update=U.sign()), dimension=10)
    with pytest.raises(ValueError, match="it has no ODE"):
        problem.equations(sgd.OnePassSGD(lr=0.1, update=U.sam(0.05)))
    with pytest.raises(KeyError, match="the sections are"):
        problem.equations(sgd.OnePassSGD(lr=0.1))["PDE"]
