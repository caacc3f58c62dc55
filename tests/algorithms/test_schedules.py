"""Learning-rate schedules by name: their values, their use in solvers, records and bad input."""

from __future__ import annotations

import numpy as np
import pytest

import sgdynamics as sgd


def values(schedule, times):
    return [round(float(schedule(time)), 6) for time in times]


def test_values_of_the_forms():
    schedules = sgd.schedules
    assert values(schedules.constant(0.1, 100, warmup=10), (0, 5, 10, 90)) == [0, 0.05, 0.1, 0.1]
    cosine = schedules.cosine(1.0, 110, warmup=10, final=0.2)
    assert values(cosine, (0, 10, 60, 110, 200)) == [0, 1, 0.6, 0.2, 0.2]
    wsd = schedules.wsd(1.0, 100, decay=0.4, final=0.1)
    assert values(wsd, (0, 60, 80, 100)) == [1, 1, 0.55, 0.1]
    assert values(schedules.wsd(1.0, 100, decay=0.4, shape="sqrt"), (70,)) == [0.5]
    assert values(schedules.wsd(1.0, 100, decay=0.4, shape="cosine"), (80,)) == [0.5]
    exponential = schedules.wsd(1.0, 100, decay=0.4, shape="exponential")
    assert values(exponential, (80, 100)) == [0.1, 0.01]
    assert values(schedules.multistep(1.0, [0.5, 0.8], 10, factor=0.5), (4, 6, 9)) == [1, 0.5, 0.25]
    assert values(schedules.piecewise([2, 5], [3.0, 2.0, 1.0], 10), (1, 3, 7)) == [3, 2, 1]


def test_the_ode_follows_a_schedule_in_alpha():
    """dM/dt of a linear unit is 1 - M, so that M depends on the integral of the rate alone."""
    problem = sgd.TeacherStudent(width=1, activation="linear")
    start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    algorithm = sgd.OnePassSGD(lr=sgd.schedules.cosine(0.4, alpha=5.0))
    result = sgd.solve_ode(problem, algorithm, start, alpha=[5.0])
    assert result.M.item() == pytest.approx(1 - np.exp(-0.4 * 5 / 2), rel=1e-6)
    restored = sgd.algorithm_of(result)
    assert restored.lr.parameters["peak"] == 0.4
    repeated = sgd.solve_ode(problem, restored, start, alpha=[5.0])
    assert repeated.M.item() == result.M.item()


@pytest.mark.parametrize("shape", ["linear", "sqrt", "cosine", "exponential"])
def test_records_contain_the_arguments(shape):
    schedule = sgd.schedules.wsd(0.4, alpha=5.0, decay=0.3, shape=shape)
    record = schedule.describe()
    assert record["schedule"] == "wsd"
    assert record["shape"] == shape
    assert {"peak": 0.4, "alpha": 5.0, "decay": 0.3}.items() <= record.items()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: s.cosine(0.1), "give exactly one of steps="),
        (lambda s: s.cosine(0.1, 10, alpha=2.0), "give exactly one of steps="),
        (lambda s: s.cosine(0.0, 10), "peak = 0"),
        (lambda s: s.cosine(0.1, 10, final=2.0), "final = 2.0"),
        (lambda s: s.wsd(0.1, 10, warmup=20), "warm-up must end before the run"),
        (lambda s: s.wsd(0.1, 10, shape="cubic"), "shape = 'cubic'"),
        (lambda s: s.multistep(0.1, [0.5, 0.2], 10), "must increase between 0 and 1"),
        (lambda s: s.piecewise([5, 2], [1.0, 1.0, 1.0], 10), "give increasing times"),
        (lambda s: s.piecewise([5], [1.0], 10), "rates"),
        (lambda s: s.from_file("missing.csv"), "no such file"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make(sgd.schedules)


def test_a_schedule_in_steps_is_not_for_solvers():
    with pytest.raises(ValueError, match="this schedule counts steps"):
        sgd.OnePassSGD(lr=sgd.schedules.cosine(0.1, 1000))


def test_a_file_with_rates(tmp_path):
    path = tmp_path / "rates.csv"
    path.write_text("step,lr\n0,0\n10,0.1\n100,0.2\n")
    assert values(sgd.schedules.from_file(path), (5, 55)) == [0.05, 0.15]
    path.write_text("step,lr\n0,0\n10,-1\n")
    with pytest.raises(ValueError, match="rates must be finite and 0 or more"):
        sgd.schedules.from_file(path)
