"""The explorer's server, for this machine only: page, settings, curves, exports and forecasts."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sgdynamics.base import checks
from sgdynamics.cli.explorer import states

# The first request that needs it imports the computation, so the page does not wait for JAX.

ADDRESS = "127.0.0.1"
HOSTS = ("127.0.0.1", "localhost")
LONGEST_ADDRESS = 2000
MAX_BODY = 4_000_000  # bytes of a request for a forecast, which contains the files
MAX_CONNECTIONS = 64  # each has a thread; a browser opens six
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/forecast.js": ("forecast.js", "text/javascript"),
}
ANSWERS = ("/settings", "/curves", "/floor", "/equations", "/export")
KINDS = {"py": "text/x-python", "toml": "application/toml", "pdf": "application/pdf"}


class Overtaken(Exception):
    """The page has requested a newer state while this request waited."""


class Forbidden(Exception):
    """The request comes from another site."""


class InvalidRequest(Exception):
    """The request has the wrong form; `status` states which."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Explorer(ThreadingHTTPServer):
    """The server of one process.

    Computations run one after the other, and compilations on their own: states whose programs are
    compiled do not wait for a compilation. Of several waiting requests of one page, only the
    newest is computed.
    """

    daemon_threads = True
    allow_reuse_address = os.name != "nt"  # there it would let two servers share a port

    def __init__(self, port: int = 0) -> None:
        self.compiled: set[str] = set()
        self._computing = threading.Lock()
        self._compiling = threading.Lock()
        self._floor = threading.Lock()
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._newest: dict[str, int] = {}
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            fix = (
                f"the port is in use or not allowed ({error.strerror}). Choose another one, or "
                "--port 0 for any free one"
            )
            raise checks.reject("port", port, fix) from None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_address[1]}/"

    @property
    def computing(self) -> bool:
        locks = (self._computing, self._compiling, self._floor)
        return any(lock.locked() for lock in locks)

    def process_request(self, request: socket.socket, client_address: tuple[str, int]) -> None:
        """Start a thread for a connection; close connections beyond the limit at once."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(
        self, request: socket.socket, client_address: tuple[str, int]
    ) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def curves(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the curves of an address.

        ``page`` and ``number`` identify the page and count its requests; ``pieces`` is the number
        of pieces of the exact runs to compute, 0 for the ODE alone.
        """
        page, number = _page_of(query)
        pieces = _count(query, "pieces", 1)
        state = states.state_from(query)
        lock = self._computing if state.program in self.compiled else self._compiling
        with self._turn(page, number, lock):
            from sgdynamics.cli.explorer import curves

            result = curves.curves(state, pieces)
            if pieces > 0:  # otherwise the program of the runs is still to be compiled
                self.compiled.add(state.program)
            return result

    def floor(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the Bayes-optimal risk of an address."""
        page, number = _page_of(query)
        state = states.state_from(query)
        with self._turn(page, number, self._floor):
            from sgdynamics.cli.explorer import floor

            return floor.floor(state)

    def equations(self, query: dict[str, str]) -> dict[str, Any]:
        """Return the equations of an address, as LaTeX and as MathML."""
        state = states.state_from(query)
        from sgdynamics.cli import problem_files
        from sgdynamics.cli.explorer import mathml

        plan = problem_files.plan(states.record(state))
        problem: Any = plan.problem
        equations = problem.equations(plan.algorithm)
        return {
            "title": equations.title,
            "latex": str(equations),
            "sections": mathml.sections(equations),
        }

    def forecast(self, query: dict[str, str], content: bytes) -> dict[str, object]:
        """Return the forecast that the content of a request asks for.

        ``page`` and ``number`` identify the panel of a page and count its requests.
        """
        page, number = _page_of(query)
        checks.reject_unknown("the address", query, ())
        with self._turn(page, number):
            from sgdynamics.cli.explorer import forecasts

            return forecasts.predict(forecasts.request_from(content))

    @contextmanager
    def _turn(self, page: str, number: int, lock: threading.Lock | None = None) -> Iterator[None]:
        """Wait for the computations before this one; raise Overtaken if a newer request waits."""
        if page:
            if len(self._newest) > 1000:
                self._newest.clear()
            self._newest[page] = max(number, self._newest.get(page, 0))
        with lock or self._computing:
            if page and self._newest.get(page, 0) > number:
                raise Overtaken
            yield

    def export(self, query: dict[str, str]) -> tuple[bytes, str, str]:
        """Return the file of an address: its bytes, its content type and its name."""
        kind = checks.choice("kind", query.pop("kind", "py"), tuple(KINDS))
        state = states.state_from(query)
        if kind != "pdf":
            return states.export_text(state, kind).encode(), KINDS[kind], f"explored.{kind}"
        with self._computing:
            from sgdynamics.cli.explorer import curves

            return curves.pdf(state), KINDS[kind], "explored.pdf"


def _page_of(query: dict[str, str]) -> tuple[str, int]:
    """Take the name of a page and the number of its request out of a query."""
    page = query.pop("page", "")
    if len(page) > 40:
        fix = "the name of a page has at most 40 characters. Shorten it"
        raise checks.reject("page", page, fix)
    return page, _count(query, "number", 0)


def _count(query: dict[str, str], name: str, default: int) -> int:
    """Take a whole number out of a query."""
    text = query.pop(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise checks.reject(name, text, "this is not a whole number. Use 0, 1, 2, ...")
    return int(text)


class Handler(BaseHTTPRequestHandler):
    """The handler of one connection."""

    server: Explorer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        self._respond(self._answer)

    def do_POST(self) -> None:
        self.close_connection = True  # an error may leave a part of the content unread
        self._respond(self._answer_post)

    def _respond(self, answer: Callable[[SplitResult], None]) -> None:
        """Answer a request of this machine; an error becomes a status and a message."""
        try:
            self._check_sender()
            answer(urlsplit(self.path))
        except Forbidden as error:
            self._json({"error": str(error)}, HTTPStatus.FORBIDDEN)
        except InvalidRequest as error:
            self._json({"error": str(error)}, error.status)
        except Overtaken:
            self._json({"error": "overtaken"}, HTTPStatus.CONFLICT)
        except ValueError as error:
            self._json({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the page no longer waits for the answer
        except Exception as error:
            self._json({"error": checks.reason(error)}, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _check_sender(self) -> None:
        """Reject requests of other sites, by another name of this machine or across origins."""
        host = self.headers.get("Host", "")
        if not _is_local(host):
            raise Forbidden(
                f"Host = {host[:80]!r}: this page answers to 127.0.0.1 and localhost only"
            )
        if self.command == "GET" and self.headers.get("Sec-Fetch-Mode") == "navigate":
            return  # a link on another site opens the page, whose content that site cannot read
        if self.headers.get("Sec-Fetch-Site") == "cross-site":
            raise Forbidden(
                "Sec-Fetch-Site = 'cross-site': requests of other sites are not answered"
            )
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != host:
            raise Forbidden(f"Origin = {origin[:80]!r}: requests of other sites are not answered")

    def _answer(self, url: SplitResult) -> None:
        if url.path in FILES:
            name, kind = FILES[url.path]
            self._send((states.FOLDER / name).read_bytes(), f"{kind}; charset=utf-8")
        elif url.path == "/settings":
            self._json(states.settings(states.SLIDERS, compiled=sorted(self.server.compiled)))
        elif url.path == "/curves":
            self._json(self.server.curves(_parse_query(url.query)))
        elif url.path == "/floor":
            self._json(self.server.floor(_parse_query(url.query)))
        elif url.path == "/equations":
            self._json(self.server.equations(_parse_query(url.query)))
        elif url.path == "/export":
            content, kind, name = self.server.export(_parse_query(url.query))
            self._send(content, kind, {"Content-Disposition": f'attachment; filename="{name}"'})
        else:
            paths = ", ".join((*FILES, *ANSWERS))
            message = f"path = {url.path[:80]!r}: there is no such page. The server has {paths}"
            self._json({"error": message}, HTTPStatus.NOT_FOUND)

    def _answer_post(self, url: SplitResult) -> None:
        if url.path != "/forecast":
            message = f"path = {url.path[:80]!r}: only /forecast takes content. Use GET"
            raise InvalidRequest(HTTPStatus.METHOD_NOT_ALLOWED, message)
        # A form of another site cannot have this type.
        kind = self.headers.get("Content-Type", "")
        if kind.partition(";")[0].strip() != "application/json":
            message = f"Content-Type = {kind[:80]!r}: use 'application/json'"
            raise InvalidRequest(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, message)
        query, content = _parse_query(url.query), self._read_content()
        self._json(self.server.forecast(query, content))

    def _read_content(self) -> bytes:
        """Read the content of a request, of limited size."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 16):
            message = f"Content-Length = {length[:80]!r}: give the number of bytes"
            raise InvalidRequest(HTTPStatus.LENGTH_REQUIRED, message)
        if int(length) > MAX_BODY:
            message = (
                f"the files have {int(length) / 1e6:.1f} MB: the limit is {MAX_BODY / 1e6:g} MB. "
                "Use fewer rows"
            )
            raise InvalidRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        content = self.rfile.read(int(length))
        if len(content) < int(length):
            raise ValueError(f"the request ends after {len(content)} of {length} bytes")
        return content

    def _json(self, value: object, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(value, allow_nan=False).encode(), "application/json", status=status)

    def _send(
        self,
        content: bytes,
        kind: str,
        extra: dict[str, str] | None = None,
        status: HTTPStatus = HTTPStatus.OK,
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": CONTENT_POLICY,
            "Referrer-Policy": "no-referrer",
        }
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in {**headers, **(extra or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: every move of a slider would be a line in the terminal."""


def _is_local(host: str) -> bool:
    """Return whether a Host header names this machine, with or without a port."""
    name, separator, port = host.partition(":")
    return name in HOSTS and (not separator or (port.isascii() and port.isdigit()))


def _parse_query(query: str) -> dict[str, str]:
    """Parse a query, in which each name may stand once."""
    if len(query) > LONGEST_ADDRESS:
        raise ValueError(
            f"the address has {len(query)} characters: the limit is {LONGEST_ADDRESS}. Shorten it"
        )
    pairs = parse_qsl(query, keep_blank_values=True)
    values: dict[str, str] = {}
    for name, text in pairs:
        if name in values:
            texts = [other for other_name, other in pairs if other_name == name]
            raise checks.reject(name, texts, "the address names it more than once. Give one value")
        values[name] = text
    return values


def serve(server: Explorer, say: Callable[[str], Any], browse: bool) -> None:
    """Serve until the keyboard interrupts."""
    try:
        say(f"explorer at {server.url} (Ctrl-C ends it)")
        if browse:
            import webbrowser

            webbrowser.open(server.url)
        server.serve_forever()
    except KeyboardInterrupt:
        say("explorer ended")
        if server.computing:
            # The compiler cannot be interrupted, and an ordinary exit would abort it with an error.
            # Nothing is left to be written.
            os._exit(0)
    finally:
        server.server_close()
