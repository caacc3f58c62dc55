"""The page on this machine alone: one static page, its settings, curves and exports as JSON and files. No framework, no other machine."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from sgdynamics import checks
from sgdynamics.explorer import states

# what computes is imported by the first request for it, so that the page does not wait for JAX

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
LONGEST_ADDRESS = 2000
FILES = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", "text/javascript")}
KINDS = {"py": "text/x-python", "toml": "application/toml", "pdf": "application/pdf"}


class Overtaken(Exception):
    """The page has asked for something newer while this waited."""


class Refused(Exception):
    """Not for the one who asks."""


class Explorer(ThreadingHTTPServer):
    """The server of one process. Computations go one after the other; of those that wait for one page the newest is computed."""

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there it would let two servers share a port

    def __init__(self, port: int = 0) -> None:
        self.compiled: set[str] = set()
        self._computing = threading.Lock()
        self._newest: dict[str, int] = {}
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            fix = "something else listens there, or it is not allowed: give another, or --port 0 for any that is free"
            raise checks.reject("port", port, f"{fix} ({error.strerror})") from None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    @property
    def computing(self) -> bool:
        return self._computing.locked()

    def curves(self, given: dict[str, str]) -> dict[str, Any]:
        """The curves of an address. `page` and `number` say which page asks, and for the how many-th time."""
        page, number = given.pop("page", ""), given.pop("number", "0")
        if len(page) > 40:
            raise checks.reject("page", page, "give at most 40 characters")
        if not (number.isascii() and number.isdigit() and len(number) < 16):
            raise checks.reject("number", number, "give a whole number, 0 or more")
        state = states.state_from(given)
        if page:
            if len(self._newest) > 1000:
                self._newest.clear()
            self._newest[page] = max(int(number), self._newest.get(page, 0))
        with self._computing:
            if page and self._newest.get(page, 0) > int(number):
                raise Overtaken
            from sgdynamics.explorer import curves

            found = curves.curves(state)
            self.compiled.add(f"{state.width} {state.activation}")
            return found

    def export(self, given: dict[str, str]) -> tuple[bytes, str, str]:
        """A file of an address: its bytes, its kind and its name."""
        kind = checks.choice("kind", given.pop("kind", "py"), tuple(KINDS))
        state = states.state_from(given)
        if kind != "pdf":
            return states.exported(state, kind).encode(), KINDS[kind], f"explored.{kind}"
        with self._computing:
            from sgdynamics.explorer import curves

            return curves.pdf(state), KINDS[kind], "explored.pdf"


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Explorer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        try:
            self._check_sender()
            self._answer(urlsplit(self.path))
        except Refused as error:
            self._json({"error": str(error)}, HTTPStatus.FORBIDDEN)
        except Overtaken:
            self._json({"error": "overtaken"}, HTTPStatus.CONFLICT)
        except ValueError as error:
            self._json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page has gone on without the answer
        except Exception as error:
            self._json({"error": checks.reason(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _check_sender(self) -> None:
        """A page of another site may not ask: neither under a name of its own that leads to this machine, nor across."""
        host = self.headers.get("Host", "")
        if host.rpartition(":")[0] not in HOSTS and host not in HOSTS:
            raise Refused(f"Host = {host[:80]!r}: this page is for 127.0.0.1 and localhost alone")
        if self.headers.get("Sec-Fetch-Site") == "cross-site" and self.headers.get("Sec-Fetch-Mode") != "navigate":
            raise Refused("Sec-Fetch-Site = 'cross-site': other sites may not ask")

    def _answer(self, asked: Any) -> None:
        if asked.path in FILES:
            name, kind = FILES[asked.path]
            self._send((states.FOLDER / name).read_bytes(), f"{kind}; charset=utf-8")
        elif asked.path == "/settings":
            self._json(states.settings(states.SLIDERS, compiled=sorted(self.server.compiled)))
        elif asked.path == "/curves":
            self._json(self.server.curves(_given(asked.query)))
        elif asked.path == "/export":
            content, kind, name = self.server.export(_given(asked.query))
            self._send(content, kind, {"Content-Disposition": f'attachment; filename="{name}"'})
        else:
            paths = ", ".join((*FILES, "/settings", "/curves", "/export"))
            self._json({"error": f"path = {asked.path[:80]!r}: there is no such page; there are {paths}"}, HTTPStatus.NOT_FOUND)

    def _json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(value, allow_nan=False).encode(), "application/json", status=status)

    def _send(self, content: bytes, kind: str, more: dict[str, str] | None = None, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
        fixed = {"Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store"}
        fixed |= {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"}
        for name, value in {**fixed, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: every move of a slider would be a line in the terminal."""


def _given(query: str) -> dict[str, str]:
    """The names and texts of a query, each once."""
    if len(query) > LONGEST_ADDRESS:
        raise ValueError(f"the address has {len(query)} characters: give at most {LONGEST_ADDRESS}")
    pairs = parse_qsl(query, keep_blank_values=True)
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = sorted({name for name, _ in pairs if [one for one, _ in pairs].count(name) > 1})
        raise checks.reject(twice[0], [text for name, text in pairs if name == twice[0]], "give it once")
    return found


def serve(server: Explorer, say: Callable[[str], Any], browse: bool) -> None:
    """Serve until the keyboard stops it."""
    try:
        say(f"explorer at {server.url} (Ctrl-C ends it)")
        if browse:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        say("explorer ended")
        if server.computing:
            # the compiler cannot be interrupted, Python's own end would abort it with an error, and nothing is left to be written
            os._exit(0)
    finally:
        server.server_close()
