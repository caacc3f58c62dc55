"""The explorer in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# jobs in a shell's background ignore interrupts, and so does all that they start
HEARS = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from sgdynamics.cli.main import app; app()"
)


@contextmanager
def interruptible() -> Iterator[subprocess.Popen[str]]:
    """It hears an interrupt, whoever runs the tests; what does not end is killed."""
    command = [sys.executable, "-c", HEARS, "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
