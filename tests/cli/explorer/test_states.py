"""States of the explorer: valid addresses, and exports that agree with the computed curves."""

from __future__ import annotations

import itertools
import re
from dataclasses import asdict, replace
from functools import partial
from urllib.parse import parse_qsl

import jax
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.cli import problem_files
from sgdynamics.cli.explorer import curves, states
from sgdynamics.cli.explorer.states import State, address, export_text, record, state_from

OTHER = State(width=3, activation="relu", lr=0.25, noise=1e-05, dimension=77, time=2.5, seed=6)
CHOSEN = replace(
    OTHER,
    dimension=200,
    optimiser="momentum",
    batch=4,
    covariance="five eigenvalues",
    head="trained",
)


def test_an_address_is_read_as_it_was_written():
    for state in (State(), OTHER, CHOSEN):
        assert state_from(dict(parse_qsl(address(state)))) == state
    assert state_from({}) == State()
    assert state_from({"lr": "2", "dimension": "1e3"}) == State(lr=2.0, dimension=1000)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"lr": "0"}, "lr = '0': give a number from 0.0001"),
        ({"lr": "nan"}, "lr = 'nan': give a number"),
        ({"lr": "inf"}, "lr = 'inf': give a number"),
        ({"noise": "-1"}, "noise = '-1': give a number from 0"),
        ({"noise": ""}, "noise = '': give a number"),
        ({"width": "2.5"}, "width = 2.5: give a whole number"),
        ({"width": "1000"}, "width = '1000': give a number from 1 to 16"),
        ({"activation": "rleu"}, "activation = 'rleu': did you mean 'relu'?"),
        ({"activation": '"; import os'}, "choose one of 'erf'"),
        ({"dimension": "5"}, "dimension = 5: rows and teachers span width [+] 2 dimensions. Use 6"),
        ({"dimension": "50", "covariance": "five eigenvalues"}, "each eigenvalue. Use 120 or more"),
        ({"optimiser": "adam"}, "did you mean 'Adam'?"),
        ({"batch": "0"}, "batch = '0': give a number from 1 to 1000"),
        ({"rate": "1"}, "the address has no 'rate': .* it takes width, activation, lr"),
    ],
)
def test_what_is_wrong_in_an_address_has_a_message(query, message):
    with pytest.raises(ValueError, match=message):
        state_from(query)


def test_every_slider_has_the_first_state_and_stays_within_the_bounds():
    for sliders in (states.SLIDERS, curves.GRID):
        assert list(sliders) == list(asdict(State()))
        for name, values in sliders.items():
            assert asdict(State())[name] in values
            assert [
                asdict(state_from({"dimension": "200", name: states.text_of(value)}))[name]
                for value in values
            ] == values


def test_choices_are_in_both_exports():
    """The program and the problem file state the same problem and algorithm for each choice."""
    for name, values in states.CHOICES.items():
        for value in values:
            state = replace(State(dimension=200), **{name: value})
            plan = problem_files.plan(record(state))
            namespace = {}
            program = export_text(state, "py").split("start =")[0]
            exec(compile(program, "explored.py", "exec"), namespace)
            assert namespace["problem"] == plan.problem, (name, value)
            assert namespace["algorithm"] == plan.algorithm, (name, value)
            assert list(plan.calls) == ["ode", state.method]


def test_covariances_have_mean_one():
    """Learning rates of different covariances can be compared."""
    for name, blocks in states.BLOCKS.items():
        assert sum(fraction for _, fraction in blocks) == pytest.approx(1.0), name
        assert sum(value * fraction for value, fraction in blocks) == pytest.approx(1.0), name


def test_the_program_asks_for_what_the_file_states(monkeypatch):
    plan = problem_files.plan(record(OTHER))
    calls = {}

    class Enough(Exception):
        pass

    def simulate(problem, algorithm, start, method, **extra):
        assert method == "exact"
        calls.update(problem=problem, algorithm=algorithm, start=start, more=extra)
        raise Enough

    monkeypatch.setattr(
        sgd,
        "solve_ode",
        lambda *sections, times, dimension=None: calls.update(
            {f"ode {dimension}": (*sections, times)}
        ),
    )
    monkeypatch.setattr(sgd, "simulate", simulate)
    with pytest.raises(Enough):
        exec(compile(export_text(OTHER, "py"), "explored.py", "exec"), {})
    # The last statement of the program solves at finite d; it follows the runs.
    assert "dimension=77)\n    sgd.plot.risk(finite, ax)" in export_text(OTHER, "py")
    assert (
        plan.problem
        == calls["problem"]
        == sgd.TeacherStudent(width=3, teacher_width=2, activation="relu", noise=1e-05)
    )
    assert plan.algorithm == calls["algorithm"] == sgd.OnePassSGD(lr=0.25)
    assert np.array_equal(plan.start.M, calls["start"].M)
    assert np.array_equal(plan.start.Q, calls["start"].Q)
    assert np.array_equal(plan.save_points["times"], calls["more"].pop("times"))
    assert np.array_equal(plan.save_points["times"], calls["ode None"][3])
    assert (
        calls["more"] | {"method": "exact"}
        == plan.calls["exact"]
        == {"dimension": 77, "runs": 8, "seed": 6, "method": "exact"}
    )


@pytest.fixture(scope="module")
def simple():
    """The simplest program there is; other numbers share it."""
    return State(width=1, activation="linear", lr=0.5, noise=0.1, dimension=20, time=10.0)


@pytest.mark.slow
def test_curves_are_those_of_the_solvers(simple):
    result = curves.curves(simple)
    plan = problem_files.plan(record(simple))
    runs = problem_files.solve(plan, "exact", False)
    assert np.allclose(result["exact"]["risk"], runs["excess_risk"], rtol=1e-4)
    assert np.allclose(
        result["exact"]["M"], runs["M"].mean("run").values[:, 0].T, rtol=1e-4, atol=1e-4
    )
    assert (
        len(result["ode"]["t"]),
        len(result["ode"]["M"]),
        result["notes"],
        result["complete"],
    ) == (
        41,
        2,
        [],
        True,
    )
    # at finite d: the ODE with the exact mean step
    finite = sgd.solve_ode(
        plan.problem, plan.algorithm, plan.start, **plan.save_points, dimension=simple.dimension
    )
    np.testing.assert_allclose(result["finite"]["risk"], finite["excess_risk"][0], rtol=1e-4)
    assert (
        np.abs(np.log(np.array(result["finite"]["risk"][1:]) / result["ode"]["risk"][1:])).max()
        > 0.01
    )
    # the mean of the runs lies by the ODE, which is that of d -> infinity, and the risk has fallen
    assert result["ode"]["risk"][-1] < 0.2 * result["ode"]["risk"][0]
    assert np.mean(result["exact"]["risk"], axis=0)[-1] < 0.5 * result["ode"]["risk"][0]


@pytest.mark.slow
def test_the_first_answer_is_the_ode_alone(simple, monkeypatch):
    """The page draws it while the runs compile, so that it must not need them."""
    state, solve, solved = replace(simple, seed=5), curves._solve, []

    def record_call(state, method, times, **options):
        solved.append((method, options))
        return solve(state, method, times, **options)

    monkeypatch.setattr(curves, "_solve", record_call)
    first = curves.curves(state, 0)
    assert solved == [("ode", {})]
    assert (first["finite"], first["exact"]) == (None, {"t": [], "risk": [], "M": []})
    assert not first["complete"]
    assert curves.curves(state)["ode"] == first["ode"]


@pytest.mark.slow
def test_runs_in_pieces_are_those_in_one(simple, monkeypatch):
    """Each piece continues the runs of the one before, bit for bit, until they reach the end."""
    whole = curves.simulate_runs(simple)
    monkeypatch.setattr(curves, "STEPS_PER_PIECE", 150)
    monkeypatch.setattr(curves, "_checkpoint", partial(_other_checkpoint, curves._checkpoint))
    ends = []
    for pieces in itertools.count(1):
        answer = curves.curves(simple, pieces)
        ends.append(answer["exact"]["t"][-1])
        if answer["complete"]:
            break
    assert ends == [3.75, 7.5, 10.0]
    runs, complete, notes = curves.simulate_runs(simple, len(ends))
    assert complete
    assert notes == whole[2] == ()
    np.testing.assert_array_equal(runs["M"], whole[0]["M"])


def _other_checkpoint(original, state):
    return original(replace(state, seed=state.seed + 1000))


def test_runs_beyond_the_limit_end_early_with_a_note(simple, monkeypatch):
    state = replace(simple, seed=3)
    monkeypatch.setattr(curves, "MAX_STEPS", 100)
    answer = curves.curves(state)
    assert (answer["exact"]["t"][-1], answer["ode"]["t"][-1]) == (2.5, 10.0)
    end = "The runs end at t = 2.5, after 1e+02 steps. The exported program continues to the end."
    assert (answer["notes"], answer["complete"]) == ([end], True)
    monkeypatch.setattr(curves, "MAX_STEPS", 5)
    omitted = curves.curves(replace(simple, seed=4))
    assert omitted["exact"]["t"] == [0.0]
    assert "Runs are omitted: the first of 40 save points takes 10 steps" in omitted["notes"][0]


def test_checkpoints_of_old_states_are_removed(simple, monkeypatch):
    monkeypatch.setattr(curves, "MAX_CHECKPOINTS", 3)
    folders = [curves._checkpoint(replace(simple, seed=seed)) for seed in range(2000, 2006)]
    assert [folder.exists() for folder in folders[-2:]] == [True, True]
    assert len(list(folders[0].parent.iterdir())) <= 3


@pytest.mark.slow
def test_a_diverging_ode_is_drawn_up_to_its_divergence():
    """Curves of a learning rate that is too large end early, and a note names a stable rate."""
    state = State(width=1, activation="square", lr=20.0, noise=0.1, dimension=20, time=1000.0)
    answer = curves.curves(state)
    ode = answer["ode"]
    assert len(ode["t"]) > 10
    assert ode["t"][-1] < 1.0
    assert np.isfinite(ode["risk"]).all()
    assert max(ode["risk"]) > 2 * ode["risk"][0]
    (note,) = answer["notes"]
    stable = float(re.search(r"Move the learning rate to (\S+) or less", note)[1])
    assert not curves._diverges(replace(state, lr=stable))
    assert curves._diverges(
        replace(state, lr=states.SLIDERS["lr"][states.SLIDERS["lr"].index(stable) + 1])
    )


def test_another_number_does_not_compile_again(simple, caplog):
    curves.curves(simple)
    with jax.log_compiles():
        curves.curves(
            State(
                **{
                    **asdict(simple),
                    "lr": 0.3,
                    "noise": 0.2,
                    "dimension": 31,
                    "time": 7.0,
                    "seed": 2,
                }
            )
        )
        repeated = [
            item.message for item in caplog.records if "Finished XLA compilation" in item.message
        ]
        assert repeated == []
        jax.jit(lambda x: 3 * x)(np.ones(3))
    assert any(
        "Finished XLA compilation" in item.message for item in caplog.records
    )  # it would see it


def test_the_grid_of_the_documentation_has_every_place_of_its_sliders(monkeypatch):
    monkeypatch.setattr(curves, "curves", lambda state: {"state": asdict(state)})
    result = curves.grid()
    assert address(State()) in result["curves"]
    assert len(result["curves"]) == np.prod([len(values) for values in result["sliders"].values()])
    assert result["curves"][address(State())] == {"state": result["first"]}
