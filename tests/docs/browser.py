"""A headless Chromium, driven by the DevTools protocol through a pair of pipes.

It needs no Python package, no port and no network.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 60.0  # seconds per answer
MARGIN = 8  # CSS pixels around an element in a picture


def find_browser() -> str | None:
    """The path of an installed browser, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A page in a browser, as a context manager.

    `complaints` contains the errors that the page logs, and the files that fail to load, since the
    last call of `open`.
    """

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._number = 0
        self._buffer = b""

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="sgdynamics-browser-")
        browser_in, self._out = os.pipe()
        self._in, browser_out = os.pipe()
        flags = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--allow-file-access-from-files",
            "--mute-audio",
        ]
        command = [
            str(find_browser()),
            *flags,
            f"--user-data-dir={self._profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        # The browser reads from file descriptor 3 and writes to 4.
        line = f"exec 3<&{browser_in} 4>&{browser_out}; exec {shlex.join(command)}"
        ends = (browser_in, browser_out)
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", line],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _message(self, deadline: float) -> dict[str, Any]:
        """The next message of the browser. Messages end with a null byte."""
        while b"\0" not in self._buffer:
            if not select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError(f"The browser has not answered for {TIMEOUT:.0f} s.")
            received = os.read(self._in, 1 << 20)
            if not received:
                raise RuntimeError(
                    f"The browser {find_browser()} has ended. Try to run it in a shell, with the"
                    " options --headless --dump-dom about:blank."
                )
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _record_complaints(self, message: dict[str, Any]) -> None:
        """Add the errors that a message reports to `complaints`."""
        params, name = message.get("params", {}), message.get("method")
        if name == "Runtime.exceptionThrown":
            exception = params["exceptionDetails"].get("exception", {})
            self.complaints.append(f"script: {exception.get('description', 'an exception')}")
        elif name == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            values = (
                str(value.get("value", value.get("description", ""))) for value in params["args"]
            )
            self.complaints.append(f"console: {' '.join(values)}")
        elif name == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif name == "Network.loadingFailed" and not params.get("canceled"):
            self.complaints.append(f"not loaded: {params['type']} {params['errorText']}")

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol, and return the answer."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": params}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._out, json.dumps(command).encode() + b"\0")
        return self._wait_for(lambda message: message.get("id") == self._number, method)

    def _wait_for(self, is_wanted: Callable[[dict[str, Any]], bool], label: str) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT
        while True:
            message = self._message(deadline)
            if is_wanted(message):
                if "error" in message:
                    raise RuntimeError(f"{label}: {message['error']}")
                return message.get("result", {})
            self._record_complaints(message)

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the window, in CSS pixels."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def open(self, url: str) -> None:
        """Load a page and its fonts."""
        self.complaints.clear()
        self.ask("Page.navigate", url=url)
        self._wait_for(lambda message: message.get("method") == "Page.loadEventFired", url)
        self.run("document.fonts.ready.then(() => true)")

    def run(self, script: str) -> Any:
        """Evaluate an expression in the page."""
        answer = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            exception = answer["exceptionDetails"].get("exception", {})
            raise RuntimeError(exception.get("description", "the script failed"))
        return answer["result"].get("value")

    def picture(self, path: Path, selector: str | None = None) -> None:
        """Save a PNG of the window, or of an element of the page with a margin."""
        clip: dict[str, Any] = {}
        if selector is not None:
            box = self.run(
                "(({x, y, width, height}) => ({x, y: y + scrollY, width, height}))"
                f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
            )
            clip = {
                "x": box["x"] - MARGIN,
                "y": box["y"] - MARGIN,
                "width": box["width"] + 2 * MARGIN,
                "height": box["height"] + 2 * MARGIN,
                "scale": 1,
            }
        shot = self.ask(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=selector is not None,
            **({"clip": clip} if clip else {}),
        )
        path.write_bytes(base64.b64decode(shot["data"]))
