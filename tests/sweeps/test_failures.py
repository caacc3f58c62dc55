"""Sweeps that are stopped, killed, distributed, or have a damaged store lose and repeat nothing."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import sgdynamics as sgd
from sgdynamics.base import files
from sgdynamics.results.storage import netcdf, read_file
from sgdynamics.sweeps import sweep
from tests.sweeps.test_sweeping import same

ROOT = Path(__file__).parents[2]
PYTHONPATH = f"{ROOT}{os.pathsep}{ROOT / 'src'}"
OVER = {"x": list(range(6)), "y": [0.25, 0.5]}


def log_call(x, y, log):
    """A function that leaves a line for every call."""
    with open(log, "a", encoding="utf-8") as file:
        file.write(f"{x} {y}\n")
    if x == 4 and os.environ.get("SWEEP_TEST_FAILS"):
        raise RuntimeError("four")
    return {"z": x + 10 * y}


def slowly(x, y, log):
    time.sleep(0.15)
    return log_call(x, y, log)


def calls(log):
    return Path(log).read_text(encoding="utf-8").splitlines() if Path(log).exists() else []


def finished_points(store, *names):
    """The points in a store, as `log_call` writes them."""
    points = set()
    for piece in (Path(store) / "pieces").glob("*.nc"):
        for values in sgd.load(piece).point_values.values:
            point = json.loads(str(values))
            points.add(" ".join(str(point[f"arguments.{name}"]) for name in names or ("x", "y")))
    return points


def test_a_store_answers_and_grows(tmp_path, monkeypatch):
    log, store = str(tmp_path / "log"), tmp_path / "store"
    first = sweep(log_call, over=OVER, log=log, store=store, workers=1)
    assert len(calls(log)) == 12
    same(sweep(log_call, over=OVER, log=log, store=store, workers=1), first)
    assert len(calls(log)) == 12
    # more values: only they are computed, wherever they stand; fewer: nothing is
    options = sweep(
        log_call,
        over={"x": [7, 0, 1, 2, 3, 4, 5], "y": [0.25, 0.5]},
        log=log,
        store=store,
        workers=1,
    )
    assert calls(log)[12:] == ["7 0.25", "7 0.5"]
    np.testing.assert_array_equal(options.z.sel(x=[7, 0]), [[9.5, 12.0], [2.5, 5.0]])
    sweep(log_call, over={"y": [0.5], "x": [3]}, log=log, store=store, workers=1)
    assert len(calls(log)) == 14
    # a failed point is kept as failed, and tried again on the next call, alone
    monkeypatch.setenv("SWEEP_TEST_FAILS", "1")
    other = tmp_path / "other"
    with pytest.warns(UserWarning, match="2 of 12 points failed"):
        result = sweep(log_call, over=OVER, log=log, store=other, workers=1)
    assert set(result.failed.sel(x=4).values) == {"RuntimeError: four"}
    assert np.isnan(result.z.sel(x=4)).all()
    monkeypatch.delenv("SWEEP_TEST_FAILS")
    before = len(calls(log))
    same(sweep(log_call, over=OVER, log=log, store=other, workers=1), first)
    assert calls(log)[before:] == ["4 0.25", "4 0.5"]


def test_foreign_and_damaged_stores_are_refused(tmp_path):
    log, store = str(tmp_path / "log"), tmp_path / "store"
    sweep(log_call, over=OVER, log=log, store=store, workers=1)
    with pytest.raises(
        ValueError,
        match=r"manifest\.json belongs to another sweep \(arguments was .*use another folder",
    ):
        sweep(log_call, over=OVER, log=log + "2", store=store, workers=1)
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(slowly, over=OVER, log=log, store=store, workers=1)
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(log_call, over={"x": [0, 1]}, y=0.25, log=log, store=store, workers=1)
    for text in ("changed by a closure", "and by another"):
        # the same source, but it holds something else
        def scaled_length(x, text=text):
            return float(len(text)) * x

        closure = tmp_path / "closure"
        if text == "changed by a closure":
            sweep(scaled_length, over={"x": [1]}, store=closure, workers=1)
        else:
            with pytest.raises(ValueError, match="belongs to another sweep"):
                sweep(scaled_length, over={"x": [1]}, store=closure, workers=1)
    pieces = sorted((store / "pieces").glob("*.nc"))
    whole = pieces[0].read_bytes()
    pieces[0].write_bytes(whole[: len(whole) // 2])
    with pytest.raises(
        ValueError,
        match=rf"{pieces[0].name} cannot be read, it is truncated or damaged .*Delete this file",
    ):
        sweep(log_call, over=OVER, log=log, store=store, workers=1)
    before = len(calls(log))
    pieces[0].unlink()
    result = sweep(log_call, over=OVER, log=log, store=store, workers=1)
    assert len(calls(log)) > before
    assert np.all(np.isfinite(result.z))
    (store / "manifest.json").write_text('{"identity": ')
    with pytest.raises(ValueError, match=r"manifest\.json cannot be read"):
        sweep(log_call, over=OVER, log=log, store=store, workers=1)
    full = tmp_path / "full"
    full.mkdir()
    (full / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="contains other files"):
        sweep(log_call, over=OVER, log=log, store=full, workers=1)
    assert [first.name for first in full.iterdir()] == ["thesis.tex"]


def test_shards_meet_in_one_store(tmp_path):
    log, store = str(tmp_path / "log"), tmp_path / "store"
    shared = {"over": OVER, "log": log, "store": store, "workers": 1}
    piece = sweep(log_call, shard=(1, 3), **shared)
    assert len(calls(log)) == 4
    assert int(np.sum(piece.failed == "not computed yet")) == 8
    assert int(np.isfinite(piece.z).sum()) == 4
    sweep(log_call, shard=(0, 3), **shared)
    sweep(log_call, shard=(1, 3), **shared)  # again: it has nothing to do
    sweep(log_call, shard=(2, 3), **shared)
    assert sorted(calls(log)) == sorted(f"{x} {y}" for x in OVER["x"] for y in OVER["y"])
    whole = sweep(log_call, **shared)
    assert len(calls(log)) == 12
    same(whole, sweep(log_call, over=OVER, log=log, workers=1))
    with pytest.raises(ValueError, match="i = 0"):
        sweep(log_call, shard=(3, 3), **shared)


def itself(x):
    return float(x)


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def answer_or_fail(case):
    """One answer or error of every kind that used to end a whole sweep."""
    if case == "other dimensions":
        return {"y": [1.0, 2.0]}
    if case == "text":
        return {"y": "text"}
    if case == "swept dimension":
        return xr.Dataset({"y": ("case", [1.0])})
    if case == "name of a dimension":
        return {"y": 1.0, "z": [1.0], "z_0": 3.0}
    if case == "name of labels":
        return xr.Dataset({"y": ("z", [1.0]), "z_values": 1.0}, {"z": [0.5]})
    if case == "error text":
        raise ValueError("NUL \0 and surrogate \udc80")
    if case == "unprintable":
        raise Unprintable
    if case == "slash":
        return {"a/b": 1.0}
    if case == "empty name":
        return {"": 1.0}
    if case == "large integer":
        return {"y": 10**30}
    if case == "64 bits":
        return {"y": 2**63}
    if case == "NUL":
        return {"y": "a\0b"}
    if case == "exit":
        sys.exit("enough")
    if case == "warning":
        warnings.warn("NUL \0 and surrogate \udc80", stacklevel=1)
    return {"y": 2.0}


TROUBLES = {
    "other dimensions": r"'y' has dimensions \(y_0\) of numbers at this point and dimensions \(\) "
    "of numbers at most others",
    "text": "of texts at this point",
    "swept dimension": "has a dimension 'case', which a sweep uses itself",
    "name of a dimension": "a dimension and a variable of the name 'z_0'",
    "name of labels": "'z_values', which a sweep uses for the labels",
    "error text": r"ValueError: NUL \\x00 and surrogate \\udc80",
    "unprintable": "Unprintable: its message cannot be shown",
    "slash": "the name 'a/b', which files cannot contain",
    "empty name": "the name '', which files cannot contain",
    "large integer": r"'y' is an integer beyond 2\*\*53",
    "64 bits": r"'y' is an integer beyond 2\*\*53",
    "NUL": "'y' is a text with a NUL",
    "exit": "SystemExit: enough",
}


def check_troubles(result):
    for case, message in TROUBLES.items():
        assert re.search(message, str(result.failed.sel(case=case).values)), case
    assert set(result.failed.sel(case=["good", "warning", "best"]).values) == {""}
    np.testing.assert_array_equal(result.y.sel(case=["good", "warning", "best"]), 2.0)
    assert "NUL \\x00 and surrogate \\udc80" in str(result.warning.sel(case="warning").values)


@pytest.mark.filterwarnings("ignore:sweep")
def test_each_point_fails_alone(tmp_path):
    cases = [*list(TROUBLES)[:6], "good", *list(TROUBLES)[6:], "warning", "best"]
    result = sweep(answer_or_fail, over={"case": cases}, workers=1)
    check_troubles(result)
    scaled_length = sweep(answer_or_fail, over={"case": cases}, store=tmp_path / "store", workers=1)
    same(scaled_length, result)
    same(sweep(answer_or_fail, over={"case": cases}, store=tmp_path / "store", workers=1), result)
    same(sgd.load(sgd.save(result, tmp_path / "result.nc")), result)


def test_an_answer_that_no_file_can_hold_fails_alone(tmp_path, monkeypatch):
    """Whatever the reason: here a writer that does not take the number 3."""
    monkeypatch.setattr("sgdynamics.sweeps.store.netcdf", lambda pieces: _no_threes(pieces))
    with pytest.warns(UserWarning, match="1 of 5 points failed"):
        result = sweep(itself, over={"x": [1, 2, 3, 4, 5]}, store=tmp_path / "store", workers=1)
    assert str(result.failed.sel(x=3).values) == "the answer cannot be stored (RuntimeError: three)"
    np.testing.assert_array_equal(result["value"], [1, 2, np.nan, 4, 5])


def _no_threes(datasets):
    if any(np.any(piece["value"] == 3.0) for piece in datasets.values() if "value" in piece):
        raise RuntimeError("three")
    return netcdf(datasets)


@pytest.mark.filterwarnings("ignore:sweep")
def test_a_point_that_exits_on_dask():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        check_troubles(
            sweep(
                answer_or_fail,
                over={"case": [*TROUBLES, "good", "warning", "best"]},
                scheduler=client,
            )
        )


def test_every_flipped_bit_is_noticed(tmp_path):
    """200 bits in a piece of a store and in a file of `sgd.save`, and 30 in the checksum."""
    shared = {
        "over": {"x": [1, 2], "y": [0.25]},
        "log": str(tmp_path / "log"),
        "store": tmp_path / "store",
        "workers": 1,
    }
    first = sweep(log_call, **shared)
    piece = min((tmp_path / "store/pieces").glob("*.nc"))
    content = piece.read_bytes()
    bits = np.random.default_rng(0).integers(0, 8 * len(content), 200).tolist()
    bits += [8 * len(content) - 1 - 28 * index for index in range(30)]
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        piece.write_bytes(damaged)
        for required in (True, False):
            with pytest.raises(ValueError, match="this file is damaged"):
                read_file(piece, sealed=required)
    with pytest.raises(
        ValueError,
        match=rf"{piece.name} cannot be read, it is truncated or damaged .*Delete this file",
    ):
        sweep(log_call, **shared)
    piece.write_bytes(content)
    same(sweep(log_call, **shared), first)
    # a file of another program has no checksum
    first.to_netcdf(tmp_path / "other.nc", engine="h5netcdf")
    same(sgd.load(tmp_path / "other.nc"), first)
    with pytest.raises(ValueError, match="its checksum is missing"):
        read_file(tmp_path / "other.nc", sealed=True)


def test_later_formats_are_rejected(tmp_path, monkeypatch):
    shared = {"over": {"x": [1, 2]}, "store": tmp_path / "store", "workers": 1}
    monkeypatch.setattr("sgdynamics.sweeps.store.FORMAT", 99)
    sweep(itself, **shared)
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=r"manifest\.json has format 99, and this version reads format 2"
    ):
        sweep(itself, **shared)
    manifest = json.loads((tmp_path / "store/manifest.json").read_text())
    (tmp_path / "store/manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(ValueError, match="it has format 99"):
        sweep(itself, **shared)
    monkeypatch.setattr("sgdynamics.base.files.FORMAT", 2)
    file = sgd.save(xr.Dataset({"x": 1.0}), tmp_path / "later.nc")
    monkeypatch.undo()
    with pytest.raises(
        ValueError, match=r"later\.nc'.* it has format 2, of a later version of sgdynamics"
    ):
        sgd.load(file)


def many(x):
    time.sleep(0.002)
    return np.full(4000, float(x))


def test_a_full_disk_is_one_error_and_loses_nothing(tmp_path):
    """Under a limit on the size of files, which a disk of one piece's size would set."""
    store, before = tmp_path / "store", resource.getrlimit(resource.RLIMIT_FSIZE)
    over = {"x": list(range(300))}
    sweep(many, over={"x": over["x"][:1]}, store=store, workers=1)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
        with pytest.raises(
            OSError,
            match=r"pieces: a limit on the size of files is reached: .*MiB.* are free.*"
            "the same call continues",
        ):
            sweep(many, over=over, store=store, workers=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((store / "pieces").glob(".*"))
    assert len(finished_points(store, "x")) >= 2  # those written before, all of them whole
    result = sweep(many, over=over, store=store, workers=1)
    np.testing.assert_array_equal(result["value"][:, 0], over["x"])


def test_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError,
        match=r"the disk or the quota is full: .* needs .* MiB, and .* MiB are free\. "
        "Free space there",
    ) as error:
        sgd.save(xr.Dataset({"x": 1.0}), tmp_path / "result.nc")
    assert error.value.errno == errno.ENOSPC
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match=rf"{tmp_path}.*is full"):
        sweep(itself, over={"x": [1]}, store=tmp_path / "store", workers=1)


def test_threads_share_a_store(tmp_path):
    store, wrong, start = tmp_path / "store", [], threading.Barrier(12)

    def call():
        start.wait()
        try:
            sweep(itself, over={"x": list(range(20))}, store=store, workers=1)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    np.testing.assert_array_equal(
        sweep(itself, over={"x": list(range(20))}, store=store, workers=1)["value"], np.arange(20)
    )


def test_temporary_files_are_unique_and_may_be_removed(tmp_path, monkeypatch):
    target = tmp_path / ("a" * 200)
    # as on two machines whose processes have the same number
    with files.atomic_file(target) as first, files.atomic_file(target) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert target.read_text() == "first"
    # a clock that is wrong takes a file that is being written for an old one
    sync, removed = os.fsync, []

    def remove(descriptor):
        sync(descriptor)
        for path in tmp_path.glob(files.TEMPORARY) if len(removed) < 2 else ():
            path.unlink()
            removed.append(path)

    monkeypatch.setattr(os, "fsync", remove)
    file = sgd.save(xr.Dataset({"x": 1.0}), tmp_path / "result.nc")
    assert len(removed) == 2
    assert float(sgd.load(file).x) == 1.0
    assert {path.name for path in tmp_path.iterdir()} == {target.name, "result.nc"}


def test_files_and_links_in_place_of_folders(tmp_path):
    def attempt(store):
        sweep(itself, over={"x": [1]}, store=store, workers=1)

    (tmp_path / "file").write_text("a file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "dangling", "loop", "file/inside", "loop/inside"):
        with pytest.raises(
            ValueError,
            match=r"store = '.*: .*(is a file or a broken link|the folder cannot be used)",
        ):
            attempt(tmp_path / name)
    for name in ("file", "dangling", "loop"):
        store = tmp_path / f"with {name}"
        store.mkdir()
        (store / "pieces").symlink_to(tmp_path / name)
        with pytest.raises(ValueError, match="pieces is a file or a broken link"):
            attempt(store)
        broken = tmp_path / f"manifest {name}"
        attempt(broken)
        (broken / "manifest.json").unlink()
        (broken / "manifest.json").symlink_to(tmp_path / name)
        with pytest.raises(ValueError, match=r"manifest\.json cannot be read"):
            attempt(broken)
    store = tmp_path / "a piece"
    attempt(store)
    (store / "pieces" / "x.nc").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"x\.nc cannot be read, it is truncated or damaged"):
        attempt(store)


SCRIPT = """
import sys
from sgdynamics.sweeps import sweep
from tests.sweeps.test_failures import OVER, slowly
if __name__ == "__main__":
    store, log, workers = sys.argv[1:]
    print("ready", flush=True)
    sweep(slowly, over=OVER, log=log, store=store, workers=int(workers))
"""


def killed_again_and_again(tmp_path, workers, kills):
    """A sweep in another process, killed (SIGKILL) several times; returns its store and its log."""
    store, log, script = tmp_path / "store", str(tmp_path / "log"), tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    middle = 0
    for options in [*kills, None]:
        before = len(calls(log))
        scaled_length = finished_points(store) if store.exists() else set()
        command = [sys.executable, str(script), str(store), log, str(workers)]
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, start_new_session=True
        )
        if options is None:
            assert process.wait(timeout=240) == 0
        else:
            deadline = time.monotonic() + 240
            while (
                len(calls(log)) < before + options
                and process.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.02)
            middle += process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
            time.sleep(0.5 if workers > 1 else 0.0)  # its workers notice
        process.stdout.close()
        new = calls(log)[before:]
        assert not scaled_length & set(new), "a point that the store held was computed again"
    assert middle == len(kills)
    return store, log


@pytest.mark.slow
def test_resumes_after_being_killed(tmp_path):
    store, log = killed_again_and_again(tmp_path, 1, (4,))
    count = len(calls(log))
    assert 12 <= count <= 12 + 3  # what was under way, or not yet written, at each kill
    result = sweep(slowly, over=OVER, log=log, store=store, workers=1)
    assert len(calls(log)) == count
    same(result, sweep(log_call, over=OVER, log=str(tmp_path / "other"), workers=1))


@pytest.mark.slow
def test_resumes_after_being_killed_with_its_processes(tmp_path):
    store, log = killed_again_and_again(tmp_path, 2, (3, 4))
    count = len(calls(log))
    time.sleep(1.0)
    assert len(calls(log)) == count  # nobody goes on computing
    same(
        sweep(slowly, over=OVER, log=log, store=store, workers=1),
        sweep(log_call, over=OVER, log=str(tmp_path / "other"), workers=1),
    )


def deadly(x):
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(x)


@pytest.mark.slow
def test_a_point_that_kills_its_process():
    with pytest.warns(UserWarning, match="1 of 5 points failed"):
        result = sweep(deadly, over={"x": [0, 1, 2, 3, 4]}, workers=2)
    assert "died twice" in str(result.failed.sel(x=2).values)
    np.testing.assert_array_equal(result["value"], [0, 1, np.nan, 3, 4])


@pytest.mark.slow
def test_dask_cluster_that_loses_a_worker(tmp_path):
    """A scheduler and two workers as processes; one worker is killed in the middle of the sweep."""
    pytest.importorskip("distributed")
    address = tmp_path / "scheduler.json"
    environment = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s",
    }
    dask = (
        [sys.executable, "-m", "distributed.cli.dask_scheduler"],
        [sys.executable, "-m", "distributed.cli.dask_worker"],
    )
    log, store = str(tmp_path / "log"), tmp_path / "store"
    processes = []

    def start_process(command):
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=tmp_path,
            )
        )
        return processes[-1]

    try:
        start_process(
            [
                *dask[0],
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--no-dashboard",
                "--scheduler-file",
                str(address),
            ]
        )
        deadline = time.monotonic() + 120
        while not address.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        options = [
            "--scheduler-file",
            str(address),
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
        ]
        victim, _ = start_process([*dask[1], *options]), start_process([*dask[1], *options])

        def kill():
            while len(calls(log)) < 4 and time.monotonic() < deadline + 240:
                time.sleep(0.05)
            victim.kill()

        killer = threading.Thread(target=kill)
        killer.start()
        from distributed import Client

        with Client(json.loads(address.read_text())["address"], timeout=120) as client:
            client.wait_for_workers(2, timeout=120)
            result = sweep(slowly, over=OVER, log=log, store=store, scheduler=client)
        killer.join()
        assert victim.wait(timeout=10) != 0
        same(result, sweep(log_call, over=OVER, log=str(tmp_path / "other"), workers=1))
        assert 12 <= len(calls(log)) <= 12 + 8
        count = len(calls(log))
        same(sweep(slowly, over=OVER, log=log, store=store, workers=1), result)
        assert len(calls(log)) == count
    finally:
        for process in processes:
            process.kill()
            process.wait()
