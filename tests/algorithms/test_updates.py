"""Updates as arguments: memories that cannot be, what people type first, and what their docstrings say of a result."""

from __future__ import annotations

import re

import pytest

import sgdynamics as sgd
from sgdynamics import updates as U
from tests.contracts.before_work import Work, stop_before_work

ISOTROPIC = sgd.TeacherStudent(width=1, activation="erf")
SPECTRUM = sgd.Spectrum([1.0, 0.5, 0.05], [1, 2, 11])  # trace 2.55


def simulated(problem, algorithm, **when):
    return sgd.simulate(
        problem,
        algorithm,
        sgd.random_start(problem, dimension=100),
        dimension=100,
        method="direct",
        **when,
    )


def left(problem, algorithm, **_):
    return sgd.exit_time(
        problem, algorithm, sgd.random_start(problem, dimension=100), dimension=100, method="direct"
    )


@pytest.mark.parametrize("solver", [simulated, left])
@pytest.mark.parametrize(
    ("update", "argument", "most"),
    [
        (lambda c: U.adam(memory=c), "memory", 100),
        (lambda c: U.rmsprop(c, eps=0.1), "memory", 100),
        (lambda c: U.momentum(memory=c), "memory", 100),
        (lambda c: U.nesterov(memory=c), "memory", 100),
        (lambda c: U.average(c), "memory", 100),
        (lambda c: U.muon(memory=c), "memory", 100),
        (lambda c: U.dana(1.0, delta=c, offset=0.5), "delta", 50),
        (lambda c: U.weight_decay(0.1, of=U.adam(memory=c)), "memory", 100),
    ],
)
def test_a_memory_of_less_than_a_step_is_refused(update, argument, most, solver, monkeypatch):
    """beta2 = 1 - memory/D is a share of what is remembered: it cannot be negative."""
    stop_before_work(monkeypatch)
    with pytest.raises(Work):
        solver(ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=update(float(most))), steps=[0, 10])
    text = rf"{argument} = {2.0 * most}: \w+ would remember 0\.5 steps, less than one\. .* at most D.*; D = 100 here \(the dimension\)"
    with pytest.raises(ValueError, match=text):
        solver(ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=update(2.0 * most)), steps=[0, 10])


def test_a_memory_that_grows_beyond_a_step_is_refused(monkeypatch):
    stop_before_work(monkeypatch)
    growing = sgd.OnePassSGD(lr=0.1, update=U.momentum(memory=lambda alpha: 50.0 + 60.0 * alpha))
    with pytest.raises(Work):
        simulated(ISOTROPIC, growing, alpha=[0.0, 0.5])
    with pytest.raises(ValueError, match="memory = 110"):
        simulated(ISOTROPIC, growing, alpha=[0.0, 1.0])


@pytest.mark.parametrize(("per", "D"), [("dimension", 14.0), ("trace", 2.55), ("step", 1.0)])
def test_a_memory_counts_in_the_unit_of_the_step(per, D, monkeypatch):
    """A spectrum fixes its dimension and its trace, so that the ODE knows D too."""
    stop_before_work(monkeypatch)
    problem = sgd.TeacherStudent(width=1, activation="erf", covariance=SPECTRUM)
    begin = sgd.random_start(problem)
    for solver in (lambda *given: sgd.solve_ode(*given, steps=[0, 10]), sgd.exit_time):
        algorithm = sgd.OnePassSGD(lr=0.3, update=U.adam(memory=D), per=per)
        with pytest.raises(Work):
            solver(problem, algorithm, begin)
        with pytest.raises(ValueError, match=re.escape(f"D = {D:g} here")):
            solver(problem, algorithm.replace(update=U.adam(memory=1.01 * D)), begin)


def test_a_memory_in_large_batches_counts_in_steps():
    algorithm = sgd.OnePassSGD(lr=0.1, update=U.momentum(memory=2.0))
    with pytest.raises(ValueError, match=r"memory = 2\.0.*D = 1 here"):
        sgd.solve_large_batch(
            ISOTROPIC,
            algorithm,
            sgd.random_start(ISOTROPIC, dimension=100),
            steps=[0, 1],
            samples_per_dimension=1.0,
        )


def test_a_limit_without_a_dimension_takes_any_memory(monkeypatch):
    stop_before_work(monkeypatch)
    with pytest.raises(Work):
        sgd.solve_ode(
            ISOTROPIC,
            sgd.OnePassSGD(lr=0.1, update=U.adam(memory=1e4)),
            sgd.random_start(ISOTROPIC, dimension=100),
            alpha=[0.0, 1.0],
        )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda: U.adam(lr=0.1),
            "lr = 0.1: adam has no such argument. The learning rate is an argument of the algorithm: sgd.OnePassSGD(lr=",
        ),
        (lambda: U.adam(betas=(0.9, 0.99)), "Write beta=beta1, and memory=c with 1 - beta2 = c/D."),
        (
            lambda: U.adam(),
            "memory is missing: adam needs it. It is the constant c of an average over D/c steps.",
        ),
        (
            lambda: U.rmsprop(4.0),
            "eps is missing: rmsprop needs it. The average of squares starts at 0, so that the first",
        ),
        (
            lambda: U.momentum(bata=0.9),
            "momentum has no such argument. did you mean 'beta'? It takes beta, memory.",
        ),
        (
            lambda: sgd.OnePassSGD(momentum=0.9),
            "momentum = 0.9: OnePassSGD has no such argument. Write update=sgd.updates.momentum(0.9).",
        ),
        (
            lambda: sgd.OnePassSGD(0.1, nesterov=True),
            "nesterov = True: OnePassSGD has no such argument. Write update=sgd.updates.nesterov(0.9).",
        ),
        (
            lambda: sgd.OnePassSGD(batch_size=4),
            "batch_size = 4: OnePassSGD has no such argument. Write batch=...",
        ),
        (
            lambda: sgd.EpochSGD(update=U.sign()),
            "update = sign(): EpochSGD has no such argument. Only plain steps are supported on a fixed data set",
        ),
        (
            lambda: sgd.GradientDescent(momentum=0.9),
            "momentum = 0.9: GradientDescent has no such argument. Only plain steps are supported on a fixed data set",
        ),
    ],
)
def test_arguments_of_other_libraries_get_what_to_write(call, expected):
    with pytest.raises(ValueError, match=re.escape(expected)):
        call()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("SGD", "write sgd.OnePassSGD(lr=...) for fresh samples, sgd.EpochSGD("),
        ("Adam", "write sgd.OnePassSGD(lr=..., update=sgd.updates.adam(...))"),
        ("AdamW", "update=sgd.updates.adam(memory=..., weight_decay=...))"),
        ("RMSprop", "update=sgd.updates.rmsprop(...))"),
    ],
)
def test_optimisers_of_other_libraries_get_what_to_write(name, expected):
    with pytest.raises(
        AttributeError, match=re.escape(f"has no attribute {name!r}: ") + ".*" + re.escape(expected)
    ):
        getattr(sgd, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'Nothing'$"):
        sgd.Nothing  # noqa: B018


@pytest.mark.slow
def test_docstrings_name_variables_of_results():
    """What the docstrings of updates say of a result is found there under this name."""
    problem = sgd.TeacherStudent(width=1, activation="linear")
    begin = sgd.random_start(problem, dimension=40)
    pattern = re.compile(r"``(result\..+?)``")
    for update in (U.adagrad_norm(0.5), U.adam(memory=1.0), U.average(1.0), U.polyak()):
        method = "direct" if update.law.coordinatewise else "exact"
        result = sgd.simulate(
            problem,
            sgd.OnePassSGD(lr=0.1, update=update),
            begin,
            steps=[0, 1],
            dimension=40,
            method=method,
        )
        expressions = pattern.findall(" ".join(getattr(U, update.kind).__doc__.split()))
        assert expressions, update
        for expression in expressions:
            assert eval(expression, {"result": result}).size, expression
