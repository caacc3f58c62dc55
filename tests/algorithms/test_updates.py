"""Updates as arguments of algorithms.

The tests cover memories shorter than one step, the messages for arguments and optimisers of other
libraries, and the variables of results that the docstrings of updates name.
"""

from __future__ import annotations

import re

import pytest

import sgdynamics as sgd
from sgdynamics import updates as U
from tests.contracts.before_work import Work, stop_before_work

ISOTROPIC = sgd.TeacherStudent(width=1, activation="erf")
SPECTRUM = sgd.Spectrum([1.0, 0.5, 0.05], [1, 2, 11])  # trace 2.55


def simulate_directly(problem, algorithm, **save_points):
    """Simulate in 100 dimensions from a random start."""
    return sgd.simulate(
        problem,
        algorithm,
        sgd.random_start(problem, dimension=100),
        dimension=100,
        method="direct",
        **save_points,
    )


def exit_time_directly(problem, algorithm, **_):
    """Exit times in 100 dimensions from a random start; save points are ignored."""
    return sgd.exit_time(
        problem, algorithm, sgd.random_start(problem, dimension=100), dimension=100, method="direct"
    )


@pytest.mark.parametrize("solver", [simulate_directly, exit_time_directly])
@pytest.mark.parametrize(
    ("make_update", "argument", "largest"),
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
def test_a_memory_shorter_than_one_step_raises(make_update, argument, largest, solver, monkeypatch):
    """A factor such as beta2 = 1 - memory/D is the weight of the past, which cannot be negative.

    The largest allowed value is the one at which the update remembers exactly one step.
    """
    stop_before_work(monkeypatch)
    with pytest.raises(Work):
        solver(ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=make_update(float(largest))), steps=[0, 10])
    message = (
        rf"{argument} = {2.0 * largest}: \w+ would remember 0\.5 steps, less than one\. "
        r".* at most D.*; D = 100 here \(the dimension\)"
    )
    with pytest.raises(ValueError, match=message):
        solver(ISOTROPIC, sgd.OnePassSGD(lr=0.1, update=make_update(2.0 * largest)), steps=[0, 10])


def test_a_schedule_of_memory_that_becomes_shorter_than_one_step_raises(monkeypatch):
    stop_before_work(monkeypatch)
    growing = sgd.OnePassSGD(lr=0.1, update=U.momentum(memory=lambda alpha: 50.0 + 60.0 * alpha))
    with pytest.raises(Work):
        simulate_directly(ISOTROPIC, growing, alpha=[0.0, 0.5])
    with pytest.raises(ValueError, match="memory = 110"):
        simulate_directly(ISOTROPIC, growing, alpha=[0.0, 1.0])


@pytest.mark.parametrize(("per", "D"), [("dimension", 14.0), ("trace", 2.55), ("step", 1.0)])
def test_the_memory_is_in_units_of_the_step_size(per, D, monkeypatch):
    """D of lr/D depends on `per`. A spectrum defines d and its trace, so the ODE uses D too."""
    stop_before_work(monkeypatch)
    problem = sgd.TeacherStudent(width=1, activation="erf", covariance=SPECTRUM)
    start = sgd.random_start(problem)

    def solve_ode(problem, algorithm, start):
        return sgd.solve_ode(problem, algorithm, start, steps=[0, 10])

    for solver in (solve_ode, sgd.exit_time):
        algorithm = sgd.OnePassSGD(lr=0.3, update=U.adam(memory=D), per=per)
        with pytest.raises(Work):
            solver(problem, algorithm, start)
        with pytest.raises(ValueError, match=re.escape(f"D = {D:g} here")):
            solver(problem, algorithm.replace(update=U.adam(memory=1.01 * D)), start)


def test_the_memory_is_in_steps_for_large_batches():
    algorithm = sgd.OnePassSGD(lr=0.1, update=U.momentum(memory=2.0))
    with pytest.raises(ValueError, match=r"memory = 2\.0.*D = 1 here"):
        sgd.solve_large_batch(
            ISOTROPIC,
            algorithm,
            sgd.random_start(ISOTROPIC, dimension=100),
            steps=[0, 1],
            samples_per_dimension=1.0,
        )


def test_the_limit_without_a_dimension_accepts_any_memory(monkeypatch):
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
            "lr = 0.1: adam has no such argument. "
            "The learning rate is an argument of the algorithm: sgd.OnePassSGD(lr=",
        ),
        (lambda: U.adam(betas=(0.9, 0.99)), "Write beta=beta1, and memory=c with 1 - beta2 = c/D."),
        (
            lambda: U.adam(),
            "memory is missing: adam needs it. It is the constant c of an average over D/c steps.",
        ),
        (
            lambda: U.rmsprop(4.0),
            "eps is missing: rmsprop needs it. "
            "The average of squares starts at 0, so that the first",
        ),
        (
            lambda: U.momentum(bata=0.9),
            "momentum has no such argument. Did you mean 'beta'? It takes beta, memory.",
        ),
        (
            lambda: sgd.OnePassSGD(momentum=0.9),
            "momentum = 0.9: OnePassSGD has no such argument. "
            "Write update=sgd.updates.momentum(0.9).",
        ),
        (
            lambda: sgd.OnePassSGD(0.1, nesterov=True),
            "nesterov = True: OnePassSGD has no such argument. "
            "Write update=sgd.updates.nesterov(0.9).",
        ),
        (
            lambda: sgd.OnePassSGD(batch_size=4),
            "batch_size = 4: OnePassSGD has no such argument. Write batch=...",
        ),
        (
            lambda: sgd.GradientDescent(momentum=0.9),
            "momentum = 0.9: GradientDescent has no such argument. "
            "Write update=sgd.updates.momentum(0.9)",
        ),
    ],
)
def test_arguments_of_other_libraries_raise_with_their_replacement(call, expected):
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
def test_optimisers_of_other_libraries_raise_with_their_replacement(name, expected):
    with pytest.raises(
        AttributeError, match=re.escape(f"has no attribute {name!r}: ") + ".*" + re.escape(expected)
    ):
        getattr(sgd, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'Nothing'$"):
        sgd.Nothing  # noqa: B018


@pytest.mark.slow
def test_docstrings_name_variables_of_results():
    """Expressions such as ``result.update_squares`` in docstrings of updates are valid."""
    problem = sgd.TeacherStudent(width=1, activation="linear", head="trained")
    start = sgd.random_start(problem, dimension=40)
    pattern = re.compile(r"``(result\..+?)``")
    for update in (U.adagrad_norm(0.5), U.adam(memory=1.0), U.average(1.0), U.polyak()):
        method = "direct" if update.law.coordinatewise else "exact"
        result = sgd.simulate(
            problem,
            sgd.OnePassSGD(lr=0.1, update=update),
            start,
            steps=[0, 1],
            dimension=40,
            method=method,
        )
        expressions = pattern.findall(" ".join(getattr(U, update.kind).__doc__.split()))
        assert expressions, update
        for expression in expressions:
            assert eval(expression, {"result": result}).size, expression
