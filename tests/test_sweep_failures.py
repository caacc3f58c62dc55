"""Sweeps that are stopped, killed, spread over processes and clusters, or handed a damaged store: nothing is lost or done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.sweeps import sweep
from tests.test_sweeps import same

ROOT = Path(__file__).parent.parent
OVER = {"x": list(range(6)), "y": [0.25, 0.5]}


def logged(x, y, log):
    """A function that leaves a line for every call."""
    with open(log, "a") as file:
        file.write(f"{x} {y}\n")
    if x == 4 and os.environ.get("SWEEP_TEST_FAILS"):
        raise RuntimeError("four")
    return {"z": x + 10 * y}


def slowly(x, y, log):
    time.sleep(0.15)
    return logged(x, y, log)


def calls(log):
    return Path(log).read_text().splitlines() if Path(log).exists() else []


def finished(store):
    """The points that a store holds, as `logged` writes them."""
    found = set()
    for piece in (Path(store) / "pieces").glob("*.nc"):
        for values in sgd.load(piece).point_values.values:
            point = json.loads(str(values))
            found.add(f"{point['arguments.x']} {point['arguments.y']}")
    return found


def test_a_store_answers_and_grows(tmp_path, monkeypatch):
    log, store = str(tmp_path / "log"), tmp_path / "store"
    first = sweep(logged, over=OVER, log=log, store=store, workers=1)
    assert len(calls(log)) == 12
    same(sweep(logged, over=OVER, log=log, store=store, workers=1), first)
    assert len(calls(log)) == 12
    # more values: only they are computed, wherever they stand; fewer: nothing is
    more = sweep(logged, over={"x": [7, 0, 1, 2, 3, 4, 5], "y": [0.25, 0.5]}, log=log, store=store, workers=1)
    assert calls(log)[12:] == ["7 0.25", "7 0.5"]
    np.testing.assert_array_equal(more.z.sel(x=[7, 0]), [[9.5, 12.0], [2.5, 5.0]])
    sweep(logged, over={"y": [0.5], "x": [3]}, log=log, store=store, workers=1)
    assert len(calls(log)) == 14
    # a failed point is kept as failed, and tried again on the next call, alone
    monkeypatch.setenv("SWEEP_TEST_FAILS", "1")
    other = tmp_path / "other"
    with pytest.warns(UserWarning, match="2 of 12 points failed"):
        found = sweep(logged, over=OVER, log=log, store=other, workers=1)
    assert set(found.failed.sel(x=4).values) == {"RuntimeError: four"}
    assert np.isnan(found.z.sel(x=4)).all()
    monkeypatch.delenv("SWEEP_TEST_FAILS")
    before = len(calls(log))
    same(sweep(logged, over=OVER, log=log, store=other, workers=1), first)
    assert calls(log)[before:] == ["4 0.25", "4 0.5"]


def test_foreign_and_damaged_stores_are_refused(tmp_path):
    log, store = str(tmp_path / "log"), tmp_path / "store"
    sweep(logged, over=OVER, log=log, store=store, workers=1)
    with pytest.raises(ValueError, match=r"manifest\.json belongs to another sweep \(arguments was .*give another folder"):
        sweep(logged, over=OVER, log=log + "2", store=store, workers=1)
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(slowly, over=OVER, log=log, store=store, workers=1)
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(logged, over={"x": [0, 1]}, y=0.25, log=log, store=store, workers=1)
    for text in ("changed by a closure", "and by another"):
        # the same source, but it holds something else
        def held(x, text=text):
            return float(len(text)) * x

        closure = tmp_path / "closure"
        if text == "changed by a closure":
            sweep(held, over={"x": [1]}, store=closure, workers=1)
        else:
            with pytest.raises(ValueError, match="belongs to another sweep"):
                sweep(held, over={"x": [1]}, store=closure, workers=1)
    pieces = sorted((store / "pieces").glob("*.nc"))
    whole = pieces[0].read_bytes()
    pieces[0].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=rf"{pieces[0].name} cannot be read, it is truncated or damaged .*delete that file"):
        sweep(logged, over=OVER, log=log, store=store, workers=1)
    before = len(calls(log))
    pieces[0].unlink()
    found = sweep(logged, over=OVER, log=log, store=store, workers=1)
    assert len(calls(log)) > before
    assert np.all(np.isfinite(found.z))
    (store / "manifest.json").write_text('{"identity": ')
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read"):
        sweep(logged, over=OVER, log=log, store=store, workers=1)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        sweep(logged, over=OVER, log=log, store=full, workers=1)
    assert [one.name for one in full.iterdir()] == ["thesis.tex"]


def test_shards_meet_in_one_store(tmp_path):
    log, store = str(tmp_path / "log"), tmp_path / "store"
    shared = {"over": OVER, "log": log, "store": store, "workers": 1}
    part = sweep(logged, shard=(1, 3), **shared)
    assert len(calls(log)) == 4
    assert int(np.sum(part.failed == "not computed yet")) == 8
    assert int(np.isfinite(part.z).sum()) == 4
    sweep(logged, shard=(0, 3), **shared)
    sweep(logged, shard=(1, 3), **shared)  # again: it has nothing to do
    sweep(logged, shard=(2, 3), **shared)
    assert sorted(calls(log)) == sorted(f"{x} {y}" for x in OVER["x"] for y in OVER["y"])
    whole = sweep(logged, **shared)
    assert len(calls(log)) == 12
    same(whole, sweep(logged, over=OVER, log=log, workers=1))
    with pytest.raises(ValueError, match="i = 0"):
        sweep(logged, shard=(3, 3), **shared)


SCRIPT = """
import sys
from sgdynamics.sweeps import sweep
from tests.test_sweep_failures import OVER, slowly
if __name__ == "__main__":
    store, log, workers = sys.argv[1:]
    print("ready", flush=True)
    sweep(slowly, over=OVER, log=log, store=store, workers=int(workers))
"""


def killed_again_and_again(tmp_path, workers, kills):
    """A sweep in a process of its own, killed (SIGKILL) in the middle, several times; returns its store and its log."""
    store, log, script = tmp_path / "store", str(tmp_path / "log"), tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    middle = 0
    for more in [*kills, None]:
        before = len(calls(log))
        held = finished(store) if store.exists() else set()
        command = [sys.executable, str(script), str(store), log, str(workers)]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, start_new_session=True)
        if more is None:
            assert process.wait(timeout=240) == 0
        else:
            deadline = time.monotonic() + 240
            while len(calls(log)) < before + more and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            middle += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            time.sleep(0.5 if workers > 1 else 0.0)  # its workers notice
        process.stdout.close()
        new = calls(log)[before:]
        assert not held & set(new), "a point that the store held was computed again"
    assert middle == len(kills)
    return store, log


def test_resumes_after_being_killed(tmp_path):
    store, log = killed_again_and_again(tmp_path, 1, (4,))
    count = len(calls(log))
    assert 12 <= count <= 12 + 3  # what was under way, or not yet written, at each kill
    found = sweep(slowly, over=OVER, log=log, store=store, workers=1)
    assert len(calls(log)) == count
    same(found, sweep(logged, over=OVER, log=str(tmp_path / "other"), workers=1))


@pytest.mark.slow
def test_resumes_after_being_killed_with_its_processes(tmp_path):
    store, log = killed_again_and_again(tmp_path, 2, (3, 4))
    count = len(calls(log))
    time.sleep(1.0)
    assert len(calls(log)) == count  # nobody goes on computing
    same(sweep(slowly, over=OVER, log=log, store=store, workers=1), sweep(logged, over=OVER, log=str(tmp_path / "other"), workers=1))


def deadly(x):
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(x)


@pytest.mark.slow
def test_a_point_that_kills_its_process():
    with pytest.warns(UserWarning, match="1 of 5 points failed"):
        found = sweep(deadly, over={"x": [0, 1, 2, 3, 4]}, workers=2)
    assert "died twice" in str(found.failed.sel(x=2).values)
    np.testing.assert_array_equal(found["value"], [0, 1, np.nan, 3, 4])


@pytest.mark.slow
def test_dask_cluster_that_loses_a_worker(tmp_path):
    """A scheduler and two workers as processes; one worker is killed in the middle of the sweep."""
    pytest.importorskip("distributed")
    address = tmp_path / "scheduler.json"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s"}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"], [sys.executable, "-m", "distributed.cli.dask_worker"]
    log, store = str(tmp_path / "log"), tmp_path / "store"
    processes = []

    def begin(command):
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path))
        return processes[-1]

    try:
        begin([*dask[0], "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(address)])
        deadline = time.monotonic() + 120
        while not address.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        options = ["--scheduler-file", str(address), "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        victim, _ = begin([*dask[1], *options]), begin([*dask[1], *options])

        def kill():
            while len(calls(log)) < 4 and time.monotonic() < deadline + 240:
                time.sleep(0.05)
            victim.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        from distributed import Client

        with Client(json.loads(address.read_text())["address"], timeout=120) as client:
            client.wait_for_workers(2, timeout=120)
            found = sweep(slowly, over=OVER, log=log, store=store, scheduler=client)
        killer.join()
        assert victim.wait(timeout=10) != 0
        same(found, sweep(logged, over=OVER, log=str(tmp_path / "other"), workers=1))
        assert 12 <= len(calls(log)) <= 12 + 8
        count = len(calls(log))
        same(sweep(slowly, over=OVER, log=log, store=store, workers=1), found)
        assert len(calls(log)) == count
    finally:
        for process in processes:
            process.kill()
            process.wait()
