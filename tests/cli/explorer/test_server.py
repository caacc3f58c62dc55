"""The explorer's server: what it answers, to whom, and what it says of bad requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import signal
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from sgdynamics.cli import main
from sgdynamics.cli.explorer import curves
from sgdynamics.cli.explorer.server import MAX_CONNECTIONS, Explorer
from sgdynamics.cli.explorer.states import State, export_text
from tests.cli.explorer.process import interruptible


@contextmanager
def serving():
    server = Explorer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def server():
    with serving() as item:
        yield item


def get(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request(
        "GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def post(server, content, path="/forecast", **headers):
    """Status and JSON value of the answer to a request with content."""
    headers = {"Content_Type": "application/json", **headers}
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=60)
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, body=content, headers=names)
    answer = connection.getresponse()
    assert answer.getheader("Content-Type") == "application/json"
    status, value = answer.status, json.loads(answer.read())
    connection.close()
    return status, value


def request_error(server, path, status, **headers):
    result, kind, content = get(server, path, **headers)
    assert (result, kind["Content-Type"]) == (status, "application/json")
    return json.loads(content)


def test_the_page_brings_all_it_needs(server):
    for path, kind, inside in (
        ("/", "text/html", b'id="explorer-risk"'),
        ("/page.js", "text/javascript", b"fetch("),
        ("/page.css", "text/css", b"{"),
        ("/forecast.js", "text/javascript", b"fetch("),
    ):
        status, headers, content = get(server, path)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
        assert inside in content
        assert b"://" not in content.replace(
            b"http://www.w3.org/2000/svg", b""
        )  # nothing from elsewhere
        assert "default-src 'none'" in headers["Content-Security-Policy"]
    settings = request_error(server, "/settings", 200)
    assert settings["first"] == asdict(State())
    assert set(settings["sliders"]) == set(settings["first"])


def test_it_is_for_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    port = server.server_address[1]
    for host in ("127.0.0.1", "localhost", f"localhost:{port}", "127.0.0.1:9"):
        assert get(server, "/settings", Host=host)[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "localhost.evil.example",
        "",
        "evil.example:127.0.0.1",
        "localhost:x",
        "localhost:80:80",
    ):
        for path in ("/", "/curves", "/export?kind=pdf"):
            assert (
                "127.0.0.1 and localhost only"
                in request_error(server, path, 403, Host=host)["error"]
            )
    assert (
        "other sites"
        in request_error(
            server, "/curves", 403, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors"
        )["error"]
    )
    for origin in (
        "http://evil.example",
        "null",
        f"http://evil.example:{port}",
        f"http://127.0.0.1:{port + 1}",
    ):
        assert "other sites" in request_error(server, "/curves", 403, Origin=origin)["error"]
    assert (
        get(server, "/settings", Origin=f"http://127.0.0.1:{port}", Host=f"127.0.0.1:{port}")[0]
        == 200
    )
    assert (
        get(server, "/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate")[0] == 200
    )  # somebody's link


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/curves?lr=-1", "lr = '-1': give a number from 0.0001 to 100"),
        ("/curves?lr=1&lr=2", "lr = ['1', '2']: the address names it more than once"),
        ("/curves?speed=1", "the address has no 'speed'"),
        ("/curves?number=x", "number = 'x': this is not a whole number"),
        ("/curves?pieces=-1", "pieces = '-1': this is not a whole number"),
        ("/curves?page=" + "x" * 50, "page = "),
        ("/curves?lr=" + "1" * 3000, "the address has 3003 characters"),
        ("/export?kind=exe", "kind = 'exe': "),
        ("/export?kind=toml&width=0", "width = '0': give a number from 1 to 16"),
    ],
)
def test_bad_requests_have_messages(server, path, message):
    assert request_error(server, path, 400)["error"].startswith(message)


def test_unknown_paths_and_methods(server):
    assert "there is no such page" in request_error(server, "/../states.py", 404)["error"]
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=30)
    connection.request("PUT", "/curves")
    assert connection.getresponse().status == 501
    connection.close()
    assert post(server, b"{}", path="/curves") == (
        405,
        {"error": "path = '/curves': only /forecast takes content. Use GET"},
    )


@pytest.mark.parametrize(
    "path",
    [
        "/../states.py",
        "/page.js/../states.py",
        "/%2e%2e/states.py",
        "/..%2fstates.py",
        "//etc/passwd",
        "/page.js%00",
        "/static/",
        "/\\states.py",
    ],
)
def test_no_path_leads_out_of_the_page(server, path):
    status, headers, content = get(server, path)
    assert (status, headers["Content-Type"]) == (404, "application/json")
    assert b"there is no such page" in content


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /curves?lr=%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
        b"GET /settings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Connection: close\r\n\r\nGET /",
        b"PUT /page.js HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
)
def test_malformed_requests_leave_the_server_working(server, request_bytes):
    with socket.create_connection(server.server_address, timeout=10) as connection:
        connection.sendall(request_bytes)
        connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert b"Traceback" not in answer
    assert b"export.py" not in answer
    assert get(server, "/settings")[0] == 200


@pytest.mark.slow
def test_a_flood_of_connections_is_cut_off(server):
    """Idle connections beyond the limit are closed at once; afterwards the page answers again."""
    flood = [
        socket.create_connection(server.server_address, timeout=10)
        for _ in range(MAX_CONNECTIONS + 20)
    ]
    try:
        deadline, is_closed = time.monotonic() + 20, 0
        while is_closed < 20 and time.monotonic() < deadline:
            readable, _, _ = select.select(flood, [], [], 0.1)
            is_closed = len(
                readable
            )  # an open connection has nothing to read, a closed one its end
        assert is_closed == 20
    finally:
        for connection in flood:
            connection.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(server, "/settings")[0] == 200:
                return
        time.sleep(0.05)
    pytest.fail("the server does not answer after the flood")


def test_exports_are_files(server):
    for kind in ("py", "toml"):
        status, headers, content = get(server, f"/export?kind={kind}&lr=0.25&activation=relu")
        assert status == 200
        assert headers["Content-Disposition"] == f'attachment; filename="explored.{kind}"'
        assert content.decode() == export_text(State(lr=0.25, activation="relu"), kind)


def test_failures_of_a_computation_are_told(server, monkeypatch):
    def fails(state, pieces):
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(curves, "curves", fails)
    assert request_error(server, "/curves", 500)["error"] == "RuntimeError: out of"


def test_the_newest_of_those_that_wait_is_computed(server, monkeypatch):
    computed, go, begun = [], threading.Event(), threading.Event()

    def slowly(state, pieces):
        computed.append(state.lr)
        begun.set()
        assert go.wait(20)
        return {"lr": state.lr}

    monkeypatch.setattr(curves, "curves", slowly)
    answers = {}

    def ask(number, page="p"):
        answers[page, number] = get(server, f"/curves?page={page}&number={number}&lr={number}")

    threads = [threading.Thread(target=ask, args=(1,))]
    threads[0].start()
    assert begun.wait(20)
    for number, page in ((2, "p"), (3, "p"), (1, "other")):
        threads.append(threading.Thread(target=ask, args=(number, page)))
        threads[-1].start()
    until = time.monotonic() + 20
    while (server._newest.get("p"), server._newest.get("other")) != (3, 1):
        assert time.monotonic() < until
        time.sleep(0.01)
    go.set()
    for thread in threads:
        thread.join()
    assert {key: answer[0] for key, answer in answers.items()} == {
        ("p", 1): 200,
        ("p", 2): 409,
        ("p", 3): 200,
        ("other", 1): 200,
    }
    assert sorted(computed) == [1.0, 1.0, 3.0]
    assert State().program in request_error(server, "/settings", 200)["compiled"]


def test_a_port_that_is_taken_is_told(server):
    port = server.server_address[1]
    message = CliRunner().invoke(main.app, ["explore", "--port", str(port), "--no-browser"])
    assert message.exit_code == 2
    assert message.stderr.startswith(f"sgdynamics: port = {port}: the port is in use")
    assert "--port 0" in message.stderr
    assert "port = 70000" in CliRunner().invoke(main.app, ["explore", "--port", "70000"]).stderr


def test_the_keyboard_ends_it():
    with interruptible() as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("explorer at http://127.0.0.1:")
        os.kill(process.pid, signal.SIGINT)
        remainder, wrong = process.communicate(timeout=60)
    assert (process.returncode, remainder, wrong) == (0, "explorer ended\n", "")
