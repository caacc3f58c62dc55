"""Every number stays: seeded results of every solver against those that are stored in `tests/stored`, to 1e-9 relative."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conftest import clear_full_caches, slow
from tests.stored import make, store
from tests.stored.cases import CASES, FAST

STORED = store.read()


@pytest.mark.parametrize("name", slow(CASES, set(CASES) - set(FAST)))
def test_the_numbers_are_those_stored(name):
    clear_full_caches()
    found = store.gaps(CASES[name](), STORED[name])
    wrong = {array: f"{gap:.1e}" for array, gap in found.items() if not gap <= store.RELATIVE}
    assert wrong == {}, (
        f"{len(wrong)} of {len(found)} arrays of {name!r} are not those stored; largest relative differences"
    )


def test_the_store_is_that_of_the_table():
    assert list(STORED) == list(CASES)
    assert set(FAST) <= set(CASES)
    assert all(arrays for arrays in STORED.values())


@pytest.mark.parametrize("name", FAST)
def test_a_change_of_a_hundred_millionth_is_seen(name):
    stored = STORED[name]
    assert max(store.gaps(stored, stored).values()) == 0.0
    for array, value in stored.items():
        finite = np.flatnonzero(np.isfinite(value))
        if len(finite) == 0 or not np.any(value.flat[finite]):
            continue
        other = value.copy()
        other.flat[finite[np.argmax(np.abs(value.flat[finite]))]] *= 1 + 1e-8
        assert store.gaps({**stored, array: other}, stored)[array] > store.RELATIVE
        assert store.gaps({**stored, array: other + np.nan}, stored)[array] == np.inf
        assert store.gaps({**stored, array: other[None]}, stored)[array] == np.inf
    missing = dict(stored)
    gone = missing.popitem()[0]
    assert store.gaps(missing, stored)[gone] == np.inf


def test_what_is_stored_is_replaced_by_name_only(tmp_path, capsys):
    """`make` on a copy: what is there stays to the bit, unless it is named."""
    path, name = tmp_path / "results.npz", "random starts"
    other = {array: value + 1.0 for array, value in STORED[name].items()}
    store.write({**STORED, name: other}, path)
    with pytest.raises(SystemExit):
        make.main(["--only", name, "--into", str(path)])
    with pytest.raises(SystemExit):
        make.main(["--replace", "no such case", "--into", str(path)])
    assert make.main(["--into", str(path)]) == 0
    assert max(store.gaps(store.read(path)[name], other).values()) == 0.0
    assert make.main(["--replace", name, "--into", str(path)]) == 0
    assert "replaced" in capsys.readouterr().out
    assert max(store.gaps(store.read(path)[name], STORED[name]).values()) <= store.RELATIVE
    assert list(tmp_path.iterdir()) == [path]
