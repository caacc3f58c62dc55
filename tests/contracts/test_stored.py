"""Seeded results of all solvers agree with `tests/stored` to a relative precision of 1e-9."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import clear_full_caches, slow
from tests.stored import make, store
from tests.stored.cases import CASES, FAST

STORED = store.read()


@pytest.mark.parametrize("name", slow(CASES, set(CASES) - set(FAST)))
def test_results_agree_with_the_store(name):
    clear_full_caches()
    gaps = store.gaps(CASES[name](), STORED[name])
    differences = {array: f"{gap:.1e}" for array, gap in gaps.items() if not gap <= store.RELATIVE}
    assert differences == {}, (
        f"{name!r}: {len(differences)} of {len(gaps)} arrays differ from the store"
        " (largest relative differences)"
    )


def test_the_store_has_the_cases_of_the_table():
    assert list(STORED) == list(CASES)
    assert set(FAST) <= set(CASES)
    assert all(arrays for arrays in STORED.values())


@pytest.mark.parametrize("name", FAST)
def test_a_relative_change_of_1e_8_is_detected(name):
    stored = STORED[name]
    assert max(store.gaps(stored, stored).values()) == 0.0
    for array, value in stored.items():
        finite = np.flatnonzero(np.isfinite(value))
        if len(finite) == 0 or not np.any(value.flat[finite]):
            continue
        changed = value.copy()
        changed.flat[finite[np.argmax(np.abs(value.flat[finite]))]] *= 1 + 1e-8
        assert store.gaps({**stored, array: changed}, stored)[array] > store.RELATIVE
        assert store.gaps({**stored, array: changed + np.nan}, stored)[array] == np.inf
        assert store.gaps({**stored, array: changed[None]}, stored)[array] == np.inf
    missing = dict(stored)
    removed = missing.popitem()[0]
    assert store.gaps(missing, stored)[removed] == np.inf


@pytest.mark.slow
def test_stored_results_are_replaced_by_name_only(tmp_path, capsys):
    """`make` on a copy: stored results stay equal bit by bit, except those that are named."""
    path, name = tmp_path / "results.npz", "random starts"
    changed = {array: value + 1.0 for array, value in STORED[name].items()}
    store.write({**STORED, name: changed}, path)
    with pytest.raises(SystemExit):
        make.main(["--only", name, "--into", str(path)])
    with pytest.raises(SystemExit):
        make.main(["--replace", "no such case", "--into", str(path)])
    assert make.main(["--into", str(path)]) == 0
    assert max(store.gaps(store.read(path)[name], changed).values()) == 0.0
    assert make.main(["--replace", name, "--into", str(path)]) == 0
    assert "replaced" in capsys.readouterr().out
    assert max(store.gaps(store.read(path)[name], STORED[name]).values()) <= store.RELATIVE
    assert list(tmp_path.iterdir()) == [path]
