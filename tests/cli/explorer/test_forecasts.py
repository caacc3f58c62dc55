"""Forecasts of the explorer: requests with loss curves, and the curves of the answer."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.cli.explorer import forecasts
from sgdynamics.cli.explorer.server import MAX_BODY
from tests.cli.explorer.test_server import get, post, serving

LOSS_CURVES = Path(__file__).parents[3] / "examples/loss_curves"
NAMES = ("25M_constant_24000", "25M_wsdcon_9")
FILES = [
    {"name": f"{name}.csv", "text": (LOSS_CURVES / f"{name}.csv").read_text()} for name in NAMES
]


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def fit():
    return sgd.forecast([LOSS_CURVES / f"{name}.csv" for name in NAMES], warn=False)


def content_of(files=None, **values):
    return json.dumps({"files": FILES if files is None else files, **values}).encode()


def one_file(text, name="mine.csv"):
    return [{"name": name, "text": text}]


def test_the_prediction_is_that_of_the_library(server, fit):
    status, answer = post(
        server,
        content_of(schedule="wsd", peak=3e-4, steps=30000, warmup=2000, decay=0.3, final=0.1),
        path="/forecast?page=p&number=3",
    )
    assert status == 200, answer
    expected = fit.predict(sgd.schedules.wsd(3e-4, 30000, warmup=2000, decay=0.3, final=0.1))
    for name in ("step", "loss", "lower", "upper"):
        np.testing.assert_allclose(answer["prediction"][name], expected[name], rtol=1e-5)
    drawn = np.interp(expected["step"], *map(answer["prediction"].get, ("rate_step", "rate")))
    np.testing.assert_allclose(drawn, expected["lr"], atol=2e-6)
    assert answer["run"] == {"peak": 3e-4, "steps": 30000, "warmup": 2000}
    assert answer["residual"] == pytest.approx(fit.residual, rel=1e-4)
    assert [curve["name"] for curve in answer["curves"]] == list(NAMES)
    for curve, measured in zip(answer["curves"], fit.curves, strict=True):
        assert set(curve["loss"]) <= set(measured.losses)
        on_fit = np.interp(curve["step"], curve["fit_step"], curve["fit_loss"])
        assert np.abs(on_fit - curve["loss"]).mean() < 3 * fit.residual
    assert answer["notes"] == ["C" + fit.warnings[0][1:]]
    assert answer["best"] is None


def test_empty_fields_stand_for_the_measured_run(server, fit):
    status, answer = post(server, content_of(schedule="cosine", final=0))
    assert status == 200, answer
    longest = fit.curves[0].rates
    assert answer["run"] == {
        "peak": 3e-4,
        "steps": longest.length,
        "warmup": longest.warmup_end(),
    }
    assert answer["prediction"]["rate"][-1] == 0
    assert any("below a tenth of the lowest" in note for note in answer["notes"])
    short = post(server, content_of(schedule="constant", steps=8000))[1]
    assert short["run"]["warmup"] == 800


def test_the_best_schedule_is_that_of_the_library(server, fit):
    status, answer = post(server, content_of(steps=24000, warmup=2160, best=True))
    assert status == 200, answer
    best = fit.optimal_schedule(24000, warmup=2160)
    assert answer["best"]["loss"][-1] == pytest.approx(best.loss, rel=1e-4)
    expected = (best.gain, best.gain_lower, best.gain_upper)
    np.testing.assert_allclose(answer["best"]["gain"], expected, rtol=1e-4)
    assert answer["best"]["decay_start"] == pytest.approx(best.decay_start, rel=1e-4)


@pytest.mark.slow
def test_notes_of_the_best_schedule_name_it(server):
    """The best schedule of this curve stays below the measured peak, where there is no band."""
    name = "synthetic_a2.0_wsd"
    file = one_file((LOSS_CURVES / f"{name}.csv").read_text(), name)
    status, answer = post(server, content_of(file, best=True))
    assert status == 200, answer
    assert None not in answer["prediction"]["lower"]
    assert set(answer["best"]["lower"]) == {None}
    assert answer["notes"][-1].startswith("Best schedule: the peak 0.05")


def test_a_peak_that_is_not_measured_has_no_band(server):
    status, answer = post(server, content_of(peak=1e-3))
    assert status == 200, answer
    assert set(answer["prediction"]["lower"]) == {None}
    assert any("the prediction has no band" in note for note in answer["notes"])
    status, answer = post(server, content_of(peak=1e-3, best=True))
    assert status == 400
    assert "measured peaks are from 0.0003 to 0.0003" in answer["error"]


ROWS = "\n".join(f"{step},0.1,{2 + 3 * step**-0.5:.5f}" for step in range(100, 8000, 100))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"files": []}, "there is no loss curve"),
        ({"files": "a,b"}, "there is no loss curve"),
        ({"files": [{"name": "a.csv"}]}, "a file of the request has no name or no text"),
        ({"files": ["a,b"]}, "a file of the request has no name or no text"),
        ({"files": one_file("")}, "curves = 'mine.csv': this is not a CSV file (EmptyDataError"),
        ({"files": one_file('a,b\n"')}, "curves = 'mine.csv': this is not a CSV file (ParserError"),
        ({"files": one_file("step,lr,loss\n")}, "curves = 'mine.csv': the file has no rows."),
        (
            {"files": one_file("time,loss\n1,2\n")},
            "curves = 'mine': it has no column step (it has time, loss).",
        ),
        ({"files": one_file("step,loss\n1,2\n")}, "curves = 'mine': it has no column lr."),
        (
            {"files": one_file("step,lr,loss\n1,x,2\n")},
            "curves = 'mine': its column lr must be numbers.",
        ),
        ({"files": one_file("step,lr,loss\n0,1,2\n")}, "curves = 'mine': 1 rows are left"),
        ({"files": one_file(f"step,lr,loss\n{ROWS}\n8000,0.1,nan")}, "curves = 'mine': its loss"),
        (
            {"files": one_file("run,step,lr,loss\n" + "".join(f"{n},1,1,1\n" for n in range(21)))},
            "curves = 21: the page fits at most 20 curves",
        ),
        (
            {"files": one_file(f"step,lr,loss,Step\n{ROWS}")},
            "curves = 'mine.csv': it has more than",
        ),
        ({"peak": "high"}, "peak = 'high': give a number above 0"),
        ({"peak": -1}, "peak = -1: give a number above 0"),
        ({"steps": float("nan")}, "steps = nan: give a number above 0"),
        ({"steps": 1e7}, "steps = 10000000.0: the longest measured run has"),
        ({"steps": 10**400}, "steps = "),
        ({"warmup": 1e5}, "warmup = 100000.0: warm-up must end before the run"),
        ({"decay": 1.5}, "decay = 1.5: give a share from 0 to 1"),
        ({"schedule": "wds"}, "schedule = 'wds': did you mean 'wsd'?"),
        ({"shape": 3}, "shape = 3: choose one of 'linear'"),
        ({"best": "yes"}, "best = 'yes': "),
        ({"lr": 1}, "the request has no 'lr': "),
    ],
)
def test_bad_requests_have_the_message_of_the_library(server, values, message):
    status, answer = post(server, content_of(**values))
    assert (status, answer["error"][: len(message)]) == (400, message)
    assert "\n" not in answer["error"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 200_000, b"1" * 5000])
def test_content_that_is_not_an_object_has_a_message(server, content):
    message = {"error": "the request is not a JSON object. Load the page anew"}
    assert post(server, content) == (400, message)


def test_names_of_files_are_not_paths(server):
    status, answer = post(server, content_of(one_file(f"Step, LR ,loss\n{ROWS}", "../a/é<b>.csv")))
    assert status == 200, answer
    assert [curve["name"] for curve in answer["curves"]] == ["é<b>"]


def send(server, headers, content=b""):
    """Status line and content of the answer to a request that is written by hand."""
    lines = [b"POST /forecast HTTP/1.1", b"Host: localhost", *headers, b"", content]
    with socket.create_connection(server.server_address, timeout=20) as connection:
        connection.sendall(b"\r\n".join(lines))
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_the_size_of_requests_is_limited(server):
    kind = b"Content-Type: application/json"
    answer = send(server, [kind, b"Content-Length: %d" % (MAX_BODY + 1)])
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"the files have 4.0 MB: the limit is 4 MB. Use fewer rows" in answer
    assert send(server, [kind]).startswith(b"HTTP/1.1 411 ")
    assert send(server, [kind, b"Content-Length: -5"]).startswith(b"HTTP/1.1 411 ")
    assert send(server, [kind, b"Content-Length: " + b"9" * 99]).startswith(b"HTTP/1.1 411 ")
    answer = send(server, [kind, b"Content-Length: 10"], b"{}")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"the request ends after 2 of 10 bytes" in answer
    assert b"Connection: close" in answer
    assert get(server, "/settings")[0] == 200


def test_the_page_has_the_limit_of_the_server(server):
    script = get(server, "/forecast.js")[2].decode()
    assert f"const MAX_BYTES = {MAX_BODY:_};" in script


def test_only_the_page_itself_may_send_files(server):
    port = server.server_address[1]
    for headers in (
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"},  # a form of another site
    ):
        assert post(server, content_of(), **headers)[0] == 403
    for kind in ("text/plain", "multipart/form-data", ""):
        status, answer = post(server, content_of(), Content_Type=kind)
        assert (status, answer["error"]) == (
            415,
            f"Content-Type = {kind!r}: use 'application/json'",
        )
    host = f"127.0.0.1:{port}"
    assert post(server, content_of(), Host=host, Origin=f"http://{host}")[0] == 200


def test_bad_addresses_have_messages(server):
    assert post(server, content_of(), path="/forecast?page=" + "x" * 50)[0] == 400
    status, answer = post(server, content_of(), path="/forecast?lr=3")
    assert (status, answer["error"][:30]) == (400, "the address has no 'lr': it ta")


def test_a_fit_is_computed_once_for_all_schedules(monkeypatch):
    calls = []

    def count_fits(*arguments, **options):
        calls.append(arguments)
        return sgd.forecast(*arguments, **options)

    monkeypatch.setattr(forecasts, "forecast", count_fits)
    forecasts.fit_files.cache_clear()
    losses = [
        forecasts.predict(forecasts.request_from(content_of(decay=decay)))["prediction"]["loss"][-1]
        for decay in (0.1, 0.2)
    ]
    assert len(calls) == 1
    assert losses[0] != losses[1]


def test_a_request_that_is_overtaken_is_not_computed(server, monkeypatch):
    started, proceed = threading.Event(), threading.Event()
    decays = []

    def wait(request):
        decays.append(request.decay)
        started.set()
        assert proceed.wait(20)
        return {}

    monkeypatch.setattr(forecasts, "predict", wait)
    statuses = {}

    def ask(number):
        content = content_of(decay=number / 10)
        statuses[number] = post(server, content, path=f"/forecast?page=q&number={number}")[0]

    threads = [threading.Thread(target=ask, args=(number,)) for number in (1, 2, 3)]
    threads[0].start()
    assert started.wait(20)
    for number, thread in zip((2, 3), threads[1:], strict=True):
        thread.start()
        while server._newest.get("q") != number:
            assert thread.is_alive()
    proceed.set()
    for thread in threads:
        thread.join()
    assert statuses == {1: 200, 2: 409, 3: 200}
    assert decays == [0.1, 0.3]
    assert not server.computing
