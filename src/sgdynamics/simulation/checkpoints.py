"""Runs that stop and go on: what a simulation keeps in a folder, so that a later call goes on from there as if it had not stopped.

Data sets are not kept, which their keys make again: only the states of the runs, how far they are, and the values at the save points
behind them. Files are whole or not there, and there is one for each group of runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sgdynamics.base import checks, files

EVERY = 60.0  # seconds between two writings
ABOUT = "runs.json"


class Checkpoint:
    """The folder of one simulation; `call` is what makes it that one, as plain values by name."""

    def __init__(self, folder: Path, call: Mapping[str, Any], seconds: float | None = None) -> None:
        self.folder, self.call = folder, json.loads(json.dumps(dict(call)))
        self.seconds = seconds
        self.began = self.written = time.monotonic()
        self.size = self._known_size()

    def _known_size(self) -> int | None:
        """The size of the groups of an earlier call, None where there is none; refuses the folder of another simulation."""
        try:
            found = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            fix = f"its {ABOUT} cannot be read ({type(error).__name__}): give another folder"
            raise checks.reject("checkpoint", str(self.folder), fix) from None
        other = [
            name
            for name in sorted({*self.call, *found["call"]})
            if self.call.get(name) != found["call"].get(name)
        ]
        if other:
            fix = f"it has the runs of another call (another {', '.join(other)}): give another folder, or the same arguments"
            raise checks.reject("checkpoint", str(self.folder), fix)
        return int(found["size"])

    def begin(self, size: int) -> None:
        """Before the first group: how many runs go together, which memory decides and a later call must keep to."""
        if self.size is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with files.atomic_file(self.folder / ABOUT) as unfinished:
                unfinished.write_text(
                    json.dumps({"call": self.call, "size": size}, indent=1), encoding="utf-8"
                )
            self.size = size

    def _file(self, first: int) -> Path:
        return self.folder / f"runs_{first}.npz"

    def read(self, first: int, steps: np.ndarray) -> dict[str, np.ndarray] | None:
        """What was kept of the group that begins with this run; None where nothing was."""
        if not self._file(first).is_file():
            return None
        with np.load(self._file(first)) as stored:
            found = {name: stored[name] for name in stored.files}
        done, now = found["steps"], int(found["now"])
        if not np.array_equal(done, steps[: len(done)]) or np.any(steps[len(done) :] < now):
            fix = f"its runs are at step {now} and have the save points {done.tolist()[-5:]} behind them: give those, and later ones"
            raise checks.reject("checkpoint", str(self.folder), fix)
        return found

    def write(self, first: int, arrays: Mapping[str, Any]) -> None:
        with files.atomic_file(self._file(first)) as unfinished, unfinished.open("wb") as target:
            np.savez(
                target,
                allow_pickle=False,
                **{name: np.asarray(value) for name, value in arrays.items()},
            )
        self.written = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() - self.written > EVERY or self.late

    @property
    def late(self) -> bool:
        """Whether the seconds of this call are over."""
        return self.seconds is not None and time.monotonic() - self.began > self.seconds

    def stop(self, now: int, last: int) -> None:
        """End the call, if its seconds are over."""
        if self.late:
            where = f"at step {now} of {last}: what was done is in {self.folder}, and the same call goes on from there"
            raise TimeoutError(f"seconds = {self.seconds:g} are over {where}")
