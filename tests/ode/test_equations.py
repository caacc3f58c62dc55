"""The printed ODE, evaluated by quadrature, is the drift of the solver."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from scipy import special

import sgdynamics as sgd
from tests.conftest import slow
from tests.latex import definitions, evaluate

M = np.array([[0.3, -0.2], [0.1, 0.4]])
Q = np.array([[1.0, 0.3], [0.3, 0.8]])


def normal_nodes(count: int, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Hermite nodes (points, dimensions) and weights of standard normals."""
    x, w = special.roots_hermitenorm(count)
    grid = np.array(list(itertools.product(x, repeat=dimensions)))
    weights = np.array([np.prod(ws) for ws in itertools.product(w / w.sum(), repeat=dimensions)])
    return grid, weights


def samples(problem, state: dict[str, Any], count: int) -> dict[str, Any]:
    """The variables of the printed formulas on the nodes of a quadrature."""
    p, K = problem.width, problem.signals
    eigenvalues = np.asarray(problem.parameters["eigenvalues"])
    blocks = len(eigenvalues)
    nodes, weights = normal_nodes(count, blocks * (p + K) + 1)
    values: dict[str, Any] = {"z": nodes[:, -1][:, None, None]}
    total = np.zeros((len(nodes), p + K))
    for block, eigenvalue in enumerate(eigenvalues):
        P = np.asarray(problem.gram)[block]
        overlaps = np.block([[state["Q"][block], state["M"][block]], [state["M"][block].T, P]])
        normals = nodes[:, block * (p + K) : (block + 1) * (p + K)]
        fields = np.sqrt(eigenvalue) * normals @ np.linalg.cholesky(overlaps).T
        total += fields
        suffix = "_b" if blocks > 1 else ""
        values |= {
            f"fields{block}": {
                rf"\lambda{suffix}": fields[:, :p, None],
                rf"\lambda{suffix}*": fields[:, p:, None],
                f"Q{suffix}": state["Q"][block],
                f"M{suffix}": state["M"][block],
                "l_b": eigenvalue,
                "l": eigenvalue,
                "f_b": float(np.asarray(problem.parameters["fractions"])[block]),
                # the component of the input in the span of rows and signals
                f"x{suffix}": np.sqrt(eigenvalue) * normals[:, :, None],
            }
        }
    values |= {r"\lambda": total[:, :p, None], r"\lambda*": total[:, p:, None]}
    values["mean"] = lambda value: np.tensordot(weights, value, axes=1)
    return values


def add_activation(values: dict[str, Any], loss: dict[str, str], symbol: str) -> None:
    """Add an activation and its derivative as functions, from their printed formulas."""
    for prime in ("", "'"):
        formula = loss.get(rf"{symbol}{prime}\left(x\right)")
        if formula is not None:
            values[symbol + prime] = lambda x, formula=formula: evaluate(formula, {"x": x}) + 0 * x


def printed_drift(
    problem, algorithm, state: dict[str, Any], count: int = 5, dimension: int | None = None
) -> dict[str, np.ndarray]:
    """The rates that the printed equations give at one state."""
    equations = problem.equations(algorithm, dimension=dimension)
    loss = definitions(equations["Loss of one sample"])
    values = samples(problem, state, count)
    p = problem.width
    values |= {
        "p": float(p),
        "k": float(problem.signals),
        "K": float(problem.signals),
        "a": np.asarray(state["a"]).reshape(p, 1),
        "a*": np.asarray(problem.parameters["teacher_head"])[:, None],
        r"\Delta": float(problem.noise),
        r"\mathrm{lr}": float(algorithm.lr),
        "B": float(algorithm.batch),
        r"\mathrm{al}": float(problem.weight_decay),
        r"\mathrm{head\_rate}": float(algorithm.head_rate),
    }
    for symbol in (r"\sigma", r"\sigma_*"):
        add_activation(values, loss, symbol)
    values["f"] = evaluate(loss["f"], values)
    values["y"] = evaluate(loss["y"], values)
    values["h"] = evaluate(loss["h_i"], values)
    ode = equations["ODE"]
    rates = definitions(ode)
    index = "_b" if len(np.asarray(problem.parameters["eigenvalues"])) > 1 else ""
    drift: dict[str, Any] = {"M": [], "Q": []}
    for block in range(len(np.asarray(problem.parameters["eigenvalues"]))):
        local = values | values[f"fields{block}"]
        for name in ("M", "Q"):
            drift[name].append(evaluate(rates[rf"\frac{{d{name}{index}}}{{dt}}"], local))
        if dimension is not None:
            drift["Q"][-1] = drift["Q"][-1] + finite_terms(ode, local, index, dimension)
    drift = {name: np.array(value) for name, value in drift.items()}
    if problem.head == "trained":
        # dloss/da_i = (1/p) sigma(lambda_i) (f - y), the only derivative that is not printed
        gradient = values[r"\sigma"](values[r"\lambda"]) * (values["f"] - values["y"]) / p
        formula = rates[r"\frac{da}{dt}"].replace(r"\frac{\partial \ell}{\partial a}", "g")
        drift["a"] = evaluate(formula, values | {"g": gradient})[:, 0]
    return drift


def finite_terms(ode, values: dict[str, Any], index: str, dimension: int) -> np.ndarray:
    """The printed terms of relative order 1/d."""
    (line,) = (line for line in ode if r"\left\{" in line)
    inside = line.partition(r"\left\{")[2].partition(r"\right\}")[0]
    condition = definitions(ode)[rf"\delta{index}"]
    x = values[f"x{index}"]
    squared_length = np.sum(x**2, axis=1, keepdims=True)
    length = condition.replace(rf"\left|\Pi x{index}\right|^2", "s")
    delta = evaluate(length, values | {"s": squared_length})
    correction = evaluate(inside, values | {rf"\delta{index}": delta})
    return float(values[r"\mathrm{lr}"]) / dimension * correction


def solver_drift(problem, algorithm, state, dimension: int | None = None):
    f = sgd.functional
    finite = None if dimension is None else f.finite(problem, dimension, algorithm.batch)
    with jax.enable_x64(True):
        rates = f.drift(
            problem.structure,
            problem.parameters,
            state,
            lr=algorithm.lr,
            head_rate=algorithm.head_rate,
            batch=algorithm.batch,
            finite=finite,
        )
    return {name: np.asarray(value) for name, value in rates.items()}


LINEAR = sgd.TeacherStudent(width=2, teacher_width=2, activation="linear", noise=0.3)
SQUARE = sgd.TeacherStudent(
    width=2,
    teacher_width=2,
    activation="square",
    teacher_gram=[[1.0, 0.2], [0.2, 1.0]],
    teacher_head=[1.0, -0.5],
    noise=0.1,
    weight_decay=0.05,
    head="trained",
)
BLOCKS = sgd.TeacherStudent(
    width=1,
    teacher_width=1,
    activation="he2",
    teacher_activation=sgd.polynomial([0.2, 1.0, 0.5]),
    covariance=[(0.5, 0.4), (2.0, 0.6)],
    noise=0.2,
    weight_decay=0.1,
)
CASES = {
    "linear at finite d": (LINEAR.replace(weight_decay=0.2), sgd.OnePassSGD(lr=0.7, batch=3), 40),
    "square, trained head": (SQUARE, sgd.OnePassSGD(lr=0.4, head_rate=0.6), None),
    "two blocks at finite d": (BLOCKS, sgd.OnePassSGD(lr=0.4, batch=2), 50),
    "one eigenvalue": (LINEAR.replace(covariance=[(2.0, 1.0)]), sgd.OnePassSGD(lr=0.3), None),
}


def state_of(problem) -> dict[str, Any]:
    p, K = problem.width, problem.signals
    head = [1.5, -0.5][:p] if problem.head == "trained" else None
    return sgd.functional.state(sgd.start(problem, M=M[:p, :K], Q=Q[:p, :p], a=head))


@pytest.mark.slow
@pytest.mark.parametrize("name", slow(CASES, ("two blocks at finite d", "linear at finite d")))
def test_printed_drift_is_the_drift_of_the_solver(name):
    problem, algorithm, dimension = CASES[name]
    state = state_of(problem)
    expected = solver_drift(problem, algorithm, state, dimension)
    printed = printed_drift(problem, algorithm, state, dimension=dimension)
    for variable, rates in printed.items():
        np.testing.assert_allclose(
            rates, expected[variable], rtol=1e-9, atol=1e-11, err_msg=variable
        )


@pytest.mark.slow
def test_printed_drift_of_an_erf_network():
    problem = sgd.TeacherStudent(width=1, activation="erf", noise=0.1)
    algorithm, state = sgd.OnePassSGD(lr=0.5), state_of(problem)
    expected = solver_drift(problem, algorithm, state)
    printed = printed_drift(problem, algorithm, state, count=40)
    for variable, rates in printed.items():
        np.testing.assert_allclose(rates, expected[variable], rtol=1e-7)


def slope_of_solution(problem, algorithm, time: float = 1e-4) -> dict[str, np.ndarray]:
    """The rates of the overlaps at the start, from a short solution."""
    start = sgd.start(problem, M=M[:1, :1], Q=Q[:1, :1])
    path = sgd.solve_ode(problem, algorithm, start, times=[0.0, time])
    return {name: np.diff(path[name].values[0], axis=0)[0] / time for name in ("M", "Q")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "update",
    [
        sgd.updates.momentum(0.6),
        pytest.param(sgd.updates.clipped(0.5), marks=pytest.mark.slow),
        pytest.param(sgd.updates.normalised(), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_printed_ode_of_updates(update):
    problem = sgd.TeacherStudent(
        width=1, activation="linear", noise=0.3, covariance=[(2.0, 1.0)], weight_decay=0.1
    )
    algorithm = sgd.OnePassSGD(lr=0.4, update=update)
    state = {name: np.asarray(value) for name, value in state_of(problem).items()}
    equations = problem.equations(algorithm)
    values = samples(problem, state, 40)
    values |= values["fields0"]
    values |= {"p": 1.0, "k": 1.0, "a": 1.0, "a*": 1.0, r"\Delta": 0.3, "B": 1.0, "norm": np.abs}
    values |= {r"\mathrm{lr}": 0.4, r"\mathrm{al}": 0.1, "l_1": 2.0, r"\theta": 0.5, r"\beta": 0.6}
    loss, ode = definitions(equations["Loss of one sample"]), definitions(equations["ODE"])
    add_activation(values, loss, r"\sigma")
    values["f"] = evaluate(loss["f"], values)
    values["y"] = evaluate(loss["y"], values)
    values["h"] = evaluate(loss["h_i"], values)
    if r"\tilde{h}" in ode:
        values[r"\tilde{h}"] = evaluate(ode[r"\tilde{h}"], values)
    if update.law.equivalent_rate:
        values[r"\widetilde{\mathrm{lr}}"] = evaluate(update.law.equivalent_rate, values)
    expected = slope_of_solution(problem, algorithm)
    for name in ("M", "Q"):
        printed = evaluate(ode[rf"\frac{{d{name}}}{{dt}}"], values)
        # nodes of a smooth rule resolve the kinks of clipping and normalisation to a percent
        np.testing.assert_allclose(printed, expected[name], rtol=2e-2, err_msg=str(ode))
