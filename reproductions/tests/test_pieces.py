"""Figures that are made in several sittings: each piece once, stopped and gone on with, and nothing
of it shows in the data.
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
    """Two sets of runs and a theory, as figures ask for them."""
    t = np.array([0.0, 0.1, 0.4])
    each, every = [], dict[str, dict[str, Any]](**{"GD": {}, "p-SGD": {"l": 0.5, "tau": 1.0}})
    for name, numbers in every.items():
        one = paper.setting(3.0, 0.01, 0.2, name, dimension=20, seed=seed, runs=3, **numbers)
        each.append(style.runs_of(one, t, 20, seed + 1))
    data = xr.Dataset(
        {"m": (("algorithm", "run", "time"), np.stack([one["m"].values for one in each]))},
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
    """With no time for more than one piece of a run each; what was unfinished is said, and left out
    of no page.
    """
    monkeypatch.setattr(rough_landscapes, "figure_3", small)
    monkeypatch.setattr(DirectFixedData, "grain", property(lambda self: 20))
    judge: Any = lambda data: judge_claims(str(data.attrs["verdict"]), count_wrong("claim", 0, 1))  # noqa: E731
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
        assert "the same call continues them" in about["error"]
        assert "unfinished" in (tmp_path / "index.html").read_text()
    assert codes[-1] == 0
    assert len(codes) > 2
    assert set(codes[:-1]) == {3}
    xr.testing.assert_identical(
        sgd.load(stem.with_suffix(".nc")).drop_attrs(), expected.drop_attrs()
    )
    kept = sorted(
        path.name.split("-")[0] for path in (tmp_path / "pieces" / stem.name).glob("*.nc")
    )
    assert kept == ["runs", "runs", "theory"]
    # all pieces are there: nothing is simulated again
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
    made = []

    def compute() -> xr.Dataset:
        made.append(len(made))
        return xr.Dataset({"x": float(made[-1])})

    def asked(**call: Any) -> float:
        return float(pieces.compute_piece("piece", call, compute)["x"])

    with pieces.time_limit(tmp_path / "new", 10.0):
        assert asked(N=3, t=np.arange(2.0)) == asked(t=np.arange(2.0), N=3) == 0
        assert asked(N=3, t=np.arange(3.0)) == 1
        assert asked(N=3, t=np.arange(2.0), algorithm=sgd.GradientDescent()) == 2
    assert asked(N=3, t=np.arange(2.0)) == 3  # outside nothing is kept
    with pieces.time_limit(tmp_path / "new", -1.0):
        assert asked(N=3, t=np.arange(2.0)) == 0  # what is there takes no time
        assert asked(N=5) == 4  # every sitting makes something
        with pytest.raises(TimeoutError, match="The same call continues"):
            asked(N=4)
