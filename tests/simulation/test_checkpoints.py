"""Runs that stop and continue from a checkpoint equal uninterrupted runs bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.simulation import checkpoints
from sgdynamics.simulation.running import Resources
from tests.fixed_data.test_direct import PERSISTENT, SPHERE, sphere_start

CALL: dict[str, Any] = {
    "dimension": 24,
    "runs": 5,
    "seed": 3,
    "method": "direct",
    "dtype": "float32",
    "progress": False,
}


def run_in_pieces(folder: Path, algorithm: Any, **arguments: Any) -> tuple[xr.Dataset, int]:
    """Repeat a call whose time limit allows a single piece, until the simulation is complete.

    Returns the result and the number of calls.
    """
    for count in range(1, 1000):
        try:
            return sgd.simulate(
                SPHERE,
                algorithm,
                sphere_start(1),
                **CALL | arguments,
                checkpoint=folder,
                seconds=1e-9,
            ), count
        except TimeoutError:
            assert (folder / checkpoints.ABOUT).is_file()
    raise AssertionError("the simulation is not complete after 999 calls")


def assert_same_results(result: xr.Dataset, expected: xr.Dataset) -> None:
    for name in ("M", "Q", "train_risk", "diverged_at", "stopped_at"):
        if name in result.variables or name in expected.variables:
            np.testing.assert_array_equal(result[name].values, expected[name].values)


ALGORITHMS: dict[str, Any] = {
    "persistent": PERSISTENT,
    "hot": sgd.Langevin(lr=0.02, temperature=0.01),
    "epochs": sgd.EpochSGD(lr=0.1, samples_per_dimension=3.0, batch=4),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["persistent", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hot", "epochs"))],
)
def test_stopped_and_continued_is_uninterrupted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs in groups of two, some of which meet `stop_at`; every call ends after one piece."""
    monkeypatch.setattr(DirectFixedData, "resources", lambda *_: Resources(largest_group=2))
    monkeypatch.setattr(DirectFixedData, "grain", property(lambda self: 20))
    algorithm = ALGORITHMS[kind]
    arguments: dict[str, Any] = {
        "steps": [0, 2, 7, 101, 130],
        "stop_at": 0.3,
        "dtype": "float32" if kind == "hot" else "float16",
    }
    whole = sgd.simulate(SPHERE, algorithm, sphere_start(1), **CALL | arguments)
    if kind == "persistent":
        # Some runs stop and others continue.
        assert 0 < np.isfinite(whole.stopped_at.values).sum() < CALL["runs"]
    result, calls = run_in_pieces(tmp_path / "runs", algorithm, **arguments)
    assert calls > 8
    assert_same_results(result, whole)
    # A complete checkpoint is read, and no data set is drawn again.
    monkeypatch.setattr(DirectFixedData, "initial", lambda *_: pytest.fail("a data set was drawn"))
    assert_same_results(run_in_pieces(tmp_path / "runs", algorithm, **arguments)[0], whole)


@pytest.mark.slow
def test_later_save_points_continue_from_the_end(tmp_path: Path) -> None:
    """A call with a later save point continues; afterwards no unfinished file is left."""
    first = sgd.simulate(
        SPHERE, PERSISTENT, sphere_start(1), **CALL, steps=[0, 5], checkpoint=tmp_path
    )
    second = sgd.simulate(
        SPHERE, PERSISTENT, sphere_start(1), **CALL, steps=[0, 5, 9], checkpoint=tmp_path
    )
    whole = sgd.simulate(SPHERE, PERSISTENT, sphere_start(1), **CALL, steps=[0, 5, 9])
    assert_same_results(second, whole)
    assert_same_results(first, whole.isel(time=slice(2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoints.ABOUT, "runs_0.npz"]


@pytest.mark.parametrize("method", ["exact", "direct"])
def test_one_pass_runs_continue(method: str, tmp_path: Path) -> None:
    """Momentum SGD is stopped in the first piece and continued twice, to a later end."""
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(0.5))
    start = sgd.random_start(problem, dimension=24, seed=0)
    arguments: dict[str, Any] = {
        "dimension": 24,
        "runs": 3,
        "seed": 3,
        "method": method,
        "progress": False,
    }
    whole = sgd.simulate(problem, algorithm, start, **arguments, steps=[0, 70, 300])
    with pytest.raises(TimeoutError, match="of 70"):
        sgd.simulate(
            problem, algorithm, start, **arguments, steps=[0, 70], checkpoint=tmp_path, seconds=1e-9
        )
    for steps in ([0, 70], [0, 70, 300]):
        result = sgd.simulate(
            problem, algorithm, start, **arguments, steps=steps, checkpoint=tmp_path
        )
    assert_same_results(result, whole)
    other = "direct" if method == "exact" else "exact"
    with pytest.raises(ValueError, match="a different method"):
        sgd.simulate(
            problem,
            algorithm,
            start,
            **arguments | {"method": other},
            steps=[0, 70],
            checkpoint=tmp_path,
        )


def test_spiked_tensors_have_no_checkpoint(tmp_path: Path) -> None:
    problem = sgd.SpikedTensor(order=3, snr=4.0)
    start = sgd.start(problem, m=0.5, r2=0.5)
    with pytest.raises(ValueError, match="not of spiked tensors"):
        sgd.simulate(
            problem, sgd.OnePassSGD(lr=0.1), start, steps=[5], dimension=20, checkpoint=tmp_path
        )


def test_calls_that_do_not_fit_a_checkpoint_raise(tmp_path: Path) -> None:
    start = sphere_start(1)
    sgd.simulate(SPHERE, PERSISTENT, start, **CALL, steps=[0, 5], checkpoint=tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dimension": 30}, "a different dimension"),
        ({"seed": 4, "dtype": "float64"}, "a different dtype, seed"),
        ({"algorithm": PERSISTENT.replace(lr=0.01)}, "a different algorithm"),
        ({"start": sphere_start(1, 0.2)}, "a different start"),
        ({"steps": [0, 3, 9]}, r"save points \[0, 5\]"),
        ({"checkpoint": None, "seconds": 3.0}, "Set checkpoint to a folder"),
        (
            {"method": "exact", "dtype": "float64"},
            "exact law of a fixed data set cannot be continued",
        ),
        ({"seconds": 0.0}, "seconds = 0"),
        ({"checkpoint": 3}, "checkpoint = 3"),
    ]
    for changes, message in cases:
        arguments: dict[str, Any] = {
            "problem": SPHERE,
            "algorithm": PERSISTENT,
            "start": start,
            "steps": [0, 5],
            "checkpoint": tmp_path,
            **CALL,
        }
        with pytest.raises(ValueError, match=message):
            sgd.simulate(**arguments | changes)
    (tmp_path / checkpoints.ABOUT).write_text(json.dumps({})[:1])
    with pytest.raises(ValueError, match="cannot be read"):
        sgd.simulate(SPHERE, PERSISTENT, start, **CALL, steps=[0, 5], checkpoint=tmp_path)
