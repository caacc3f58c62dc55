"""Figures that are computed in several calls.

Each piece is computed once, and the data are those of a figure that is computed in one call.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.fixed_data.direct import DirectFixedData
from sgdynamics.papers import rough_landscapes as paper
from sgdynamics_reproductions import gallery, pieces, rough_landscapes
from sgdynamics_reproductions.gallery.claims import count_wrong, judge_claims
from sgdynamics_reproductions.gallery.entries import Entry
from sgdynamics_reproductions.rough_landscapes import style


def small(quick: bool = False, seed: int = 0) -> tuple[Any, xr.Dataset]:
    """A small figure with two sets of runs and a theory."""
    t = np.array([0.0, 0.1, 0.4])
    algorithms: dict[str, dict[str, Any]] = {"GD": {}, "p-SGD": {"l": 0.5, "tau": 1.0}}
    results = []
    for name, parameters in algorithms.items():
        setting = paper.setting(3.0, 0.01, 0.2, name, dimension=20, seed=seed, runs=3, **parameters)
        results.append(style.runs_of(setting, t, 20, seed + 1))
    data = xr.Dataset(
        {"m": (("algorithm", "run", "time"), np.stack([result["m"].values for result in results]))},
        {"t": ("time", t)},
    )
    data["dmft"] = style.theory_of(paper.setting(3.0, 0.01, 0.2), t, 1024, seed)["m"]
    fig = style.figure(1, 1)
    fig.subplots().plot(t, data["m"].values[0].T)
    data.attrs = {"verdict": "measured"}
    return fig, data


@pytest.mark.slow
def test_a_figure_in_sittings_is_the_one_of_one_sitting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has time for a single piece, and the pages list unfinished figures."""
    monkeypatch.setattr(rough_landscapes, "figure_3", small)
    monkeypatch.setattr(DirectFixedData, "grain", property(lambda self: 20))

    def judge(data: xr.Dataset) -> Any:
        return judge_claims(str(data.attrs["verdict"]), count_wrong("claim", 0, 1))

    entry = Entry("rough_landscapes", "figure_3", "a line", "a claim", judge)
    monkeypatch.setattr(gallery, "ENTRIES", (entry,))
    expected = small()[1]
    codes, stem = [], tmp_path / "rough_landscapes-3"
    for _ in range(30):
        codes.append(
            gallery.main(
                [
                    "--full",
                    "--only",
                    "rough_landscapes/3",
                    "--seconds",
                    "0.02",
                    "--out",
                    str(tmp_path),
                ]
            )
        )
        if codes[-1] == 0:
            break
        about = json.loads(stem.with_suffix(".json").read_text())
        assert about["verdict"] == "unfinished"
        assert "same call continues" in about["error"]
        assert "unfinished" in (tmp_path / "index.html").read_text()
    assert codes[-1] == 0
    assert len(codes) > 2
    assert set(codes[:-1]) == {3}
    xr.testing.assert_identical(
        sgd.load(stem.with_suffix(".nc")).drop_attrs(), expected.drop_attrs()
    )
    stored = sorted(
        path.name.split("-")[0] for path in (tmp_path / "pieces" / stem.name).glob("*.nc")
    )
    assert stored == ["runs", "runs", "theory"]
    # All pieces are stored, so that nothing is simulated again.
    monkeypatch.setattr(style, "simulate", lambda *_, **__: pytest.fail("simulated again"))
    assert (
        gallery.main(
            [
                "--full",
                "--again",
                "--only",
                "rough_landscapes/3",
                "--seconds",
                "9",
                "--out",
                str(tmp_path),
            ]
        )
        == 0
    )
    with pytest.raises(SystemExit):
        gallery.main(["--seconds", "-1", "--only", "rough_landscapes/3", "--out", str(tmp_path)])


def test_other_calls_are_other_pieces(tmp_path: Path) -> None:
    calls = []

    def compute() -> xr.Dataset:
        calls.append(len(calls))
        return xr.Dataset({"x": float(calls[-1])})

    def compute_with(**call: Any) -> float:
        return float(pieces.compute_piece("piece", call, compute)["x"])

    with pieces.time_limit(tmp_path / "new", 10.0):
        assert compute_with(N=3, t=np.arange(2.0)) == compute_with(t=np.arange(2.0), N=3) == 0
        assert compute_with(N=3, t=np.arange(3.0)) == 1
        assert compute_with(N=3, t=np.arange(2.0), algorithm=sgd.GradientDescent()) == 2
    assert compute_with(N=3, t=np.arange(2.0)) == 3  # without a time limit nothing is stored
    with pieces.time_limit(tmp_path / "new", -1.0):
        assert compute_with(N=3, t=np.arange(2.0)) == 0  # a stored piece takes no time
        assert compute_with(N=5) == 4  # each call computes at least one piece
        with pytest.raises(TimeoutError, match="The same call continues"):
            compute_with(N=4)
