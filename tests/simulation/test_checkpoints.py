"""Runs that stop and go on from a folder: bit for bit those that never stopped."""

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
from tests.fixed_data.test_direct import PERSISTENT, SPHERE, sphere_start

GIVEN: dict[str, Any] = {
    "dimension": 24,
    "runs": 5,
    "seed": 3,
    "method": "direct",
    "dtype": "float32",
    "progress": False,
}


def in_pieces(folder: Path, algorithm: Any, **given: Any) -> tuple[xr.Dataset, int]:
    """The result of calls that have no time for more than one piece each, and how many these were."""
    for count in range(1, 1000):
        try:
            return sgd.simulate(
                SPHERE, algorithm, sphere_start(1), **GIVEN | given, checkpoint=folder, seconds=1e-9
            ), count
        except TimeoutError:
            assert (folder / checkpoints.ABOUT).is_file()
    raise AssertionError("no end")


def same(one: xr.Dataset, other: xr.Dataset) -> None:
    for name in ("M", "Q", "train_risk", "diverged_at", "stopped_at"):
        if name in one.variables or name in other.variables:
            np.testing.assert_array_equal(one[name].values, other[name].values)


ALGORITHMS: dict[str, Any] = {
    "persistent": PERSISTENT,
    "hot": sgd.Langevin(lr=0.02, temperature=0.01),
    "epochs": sgd.EpochSGD(lr=0.1, samples_per_dimension=3.0, batch=4),
}


@pytest.mark.parametrize(
    "kind",
    ["persistent", *(pytest.param(one, marks=pytest.mark.slow) for one in ("hot", "epochs"))],
)
def test_stopped_and_continued_is_uninterrupted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of two runs, stops of some runs, an early end of the call in every piece; bit for bit."""
    monkeypatch.setattr(DirectFixedData, "largest_group", lambda self: 2)
    monkeypatch.setattr(DirectFixedData, "grain", property(lambda self: 20))
    algorithm = ALGORITHMS[kind]
    given: dict[str, Any] = {
        "steps": [0, 2, 7, 101, 130],
        "stop_at": 0.3,
        "dtype": "float32" if kind == "hot" else "float16",
    }
    whole = sgd.simulate(SPHERE, algorithm, sphere_start(1), **GIVEN | given)
    if kind == "persistent":
        assert (
            0 < np.isfinite(whole.stopped_at.values).sum() < GIVEN["runs"]
        )  # some stop, some go on
    found, calls = in_pieces(tmp_path / "runs", algorithm, **given)
    assert calls > 8
    same(found, whole)
    # what is there is read, and no data set is made again
    monkeypatch.setattr(DirectFixedData, "initial", lambda *_: pytest.fail("a data set was made"))
    same(in_pieces(tmp_path / "runs", algorithm, **given)[0], whole)


def test_later_save_points_go_on_from_the_end(tmp_path: Path) -> None:
    """The first end is a save point, another group size of this machine changes nothing, and no unfinished file is left."""
    first = sgd.simulate(
        SPHERE, PERSISTENT, sphere_start(1), **GIVEN, steps=[0, 5], checkpoint=tmp_path
    )
    second = sgd.simulate(
        SPHERE, PERSISTENT, sphere_start(1), **GIVEN, steps=[0, 5, 9], checkpoint=tmp_path
    )
    whole = sgd.simulate(SPHERE, PERSISTENT, sphere_start(1), **GIVEN, steps=[0, 5, 9])
    same(second, whole)
    same(first, whole.isel(time=slice(2)))
    assert sorted(path.name for path in tmp_path.iterdir()) == [checkpoints.ABOUT, "runs_0.npz"]


@pytest.mark.parametrize("method", ["exact", "direct"])
def test_one_pass_runs_continue(method: str, tmp_path: Path) -> None:
    """Runs of one-pass SGD with momentum, stopped in every piece and continued to a later end, bit for bit."""
    problem = sgd.TeacherStudent(width=2, activation="erf", noise=0.1)
    algorithm = sgd.OnePassSGD(lr=0.5, update=sgd.updates.momentum(0.5))
    start = sgd.random_start(problem, dimension=24, seed=0)
    call: dict[str, Any] = {
        "dimension": 24,
        "runs": 3,
        "seed": 3,
        "method": method,
        "progress": False,
    }
    whole = sgd.simulate(problem, algorithm, start, **call, steps=[0, 70, 300])
    with pytest.raises(TimeoutError, match="of 70"):
        sgd.simulate(
            problem, algorithm, start, **call, steps=[0, 70], checkpoint=tmp_path, seconds=1e-9
        )
    for steps in ([0, 70], [0, 70, 300]):
        result = sgd.simulate(problem, algorithm, start, **call, steps=steps, checkpoint=tmp_path)
    same(result, whole)
    other = "direct" if method == "exact" else "exact"
    with pytest.raises(ValueError, match="a different method"):
        sgd.simulate(
            problem,
            algorithm,
            start,
            **call | {"method": other},
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


def test_what_is_refused(tmp_path: Path) -> None:
    begin = sphere_start(1)
    sgd.simulate(SPHERE, PERSISTENT, begin, **GIVEN, steps=[0, 5], checkpoint=tmp_path)
    refused: list[tuple[dict[str, Any], str]] = [
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
    for changed, said in refused:
        arguments: dict[str, Any] = {
            "problem": SPHERE,
            "algorithm": PERSISTENT,
            "start": begin,
            "steps": [0, 5],
            "checkpoint": tmp_path,
            **GIVEN,
        }
        with pytest.raises(ValueError, match=said):
            sgd.simulate(**arguments | changed)
    (tmp_path / checkpoints.ABOUT).write_text(json.dumps({})[:1])
    with pytest.raises(ValueError, match="cannot be read"):
        sgd.simulate(SPHERE, PERSISTENT, begin, **GIVEN, steps=[0, 5], checkpoint=tmp_path)
