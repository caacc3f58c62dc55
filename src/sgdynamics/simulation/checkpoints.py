"""Checkpoints: files from which the runs of a simulation continue bit by bit as if never stopped.

A checkpoint contains the states of the runs, the number of steps made, and the overlaps at the save
points so far. It does not contain data sets, which are drawn again from their keys. There is one
file per group of runs. Files are replaced atomically, so that a file is complete or does not exist.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sgdynamics.base import checks, files

# Least time between two writes, in seconds.
WRITE_INTERVAL = 60.0
# Name of the file that describes the call.
ABOUT = "runs.json"


class Checkpoint:
    """The folder of one simulation.

    Parameters
    ----------
    folder : Path
        The folder, which need not exist.
    call : mapping
        Plain values by name that define the simulation. A later call continues only if they are the
        same.
    seconds : float, optional
        Time after which the call writes its checkpoint and raises TimeoutError.

    Attributes
    ----------
    size : int or None
        Number of runs per group in an earlier call; None if there was none.
    """

    def __init__(self, folder: Path, call: Mapping[str, Any], seconds: float | None = None) -> None:
        # Through JSON, so that the values compare equal with those of a stored file.
        self.folder, self.call = folder, json.loads(json.dumps(dict(call)))
        self.seconds = seconds
        # A monotonic clock: changes of the system time neither trigger nor delay a write.
        self.start_time = self.last_write = time.monotonic()
        self.size = self._stored_size()

    def _stored_size(self) -> int | None:
        """Number of runs per group in an earlier call; None if there was none.

        Raises
        ------
        ValueError
            If the folder belongs to another simulation.
        """
        try:
            about = json.loads((self.folder / ABOUT).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            fix = f"its {ABOUT} cannot be read ({type(error).__name__}). Use another folder."
            raise checks.reject("checkpoint", str(self.folder), fix) from None
        changed = [
            name
            for name in sorted({*self.call, *about["call"]})
            if self.call.get(name) != about["call"].get(name)
        ]
        if changed:
            fix = (
                f"the folder contains the runs of a call with a different {', '.join(changed)}. "
                "Use another folder, or the same arguments."
            )
            raise checks.reject("checkpoint", str(self.folder), fix)
        return int(about["size"])

    def fix_group_size(self, size: int) -> None:
        """Store the number of runs per group before the first group starts.

        The free memory determines it, and may differ in a later call; files belong to groups.
        """
        if self.size is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with files.atomic_file(self.folder / ABOUT) as unfinished:
                unfinished.write_text(
                    json.dumps({"call": self.call, "size": size}, indent=1), encoding="utf-8"
                )
            # From now on this call, too, uses the stored size.
            self.size = size

    def _file(self, first: int) -> Path:
        """The file of the group whose first run has this index."""
        return self.folder / f"runs_{first}.npz"

    def read(self, first: int, steps: np.ndarray) -> dict[str, np.ndarray] | None:
        """Arrays of the group whose first run has this index; None if there is no file.

        Raises
        ------
        ValueError
            If the save points `steps` differ from the stored ones up to the present step.
        """
        if not self._file(first).is_file():
            return None
        with np.load(self._file(first)) as stored:
            arrays = {name: stored[name] for name in stored.files}
        past_steps, now = arrays["steps"], int(arrays["now"])
        # Stored save points must be the first of the new ones, and the others lie ahead: values at
        # a step that the runs have passed do not exist.
        is_prefix = np.array_equal(past_steps, steps[: len(past_steps)])
        if not is_prefix or np.any(steps[len(past_steps) :] < now):
            fix = (
                f"its runs have reached step {now} and passed the save points "
                f"{past_steps.tolist()[-5:]}. Use the same save points up to there."
            )
            raise checks.reject("checkpoint", str(self.folder), fix)
        return arrays

    def write(self, first: int, arrays: Mapping[str, Any]) -> None:
        """Replace the file of the group whose first run has this index."""
        with files.atomic_file(self._file(first)) as unfinished, unfinished.open("wb") as target:
            # Plain arrays only: a file with pickled objects could run code when it is read.
            np.savez(
                target,
                allow_pickle=False,
                **{name: np.asarray(value) for name, value in arrays.items()},
            )
        self.last_write = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether to write the checkpoint now."""
        return time.monotonic() - self.last_write > WRITE_INTERVAL or self.late

    @property
    def late(self) -> bool:
        """Whether the time of this call is over."""
        return self.seconds is not None and time.monotonic() - self.start_time > self.seconds

    def stop(self, now: int, last: int) -> None:
        """Raise TimeoutError if the time of this call is over."""
        if self.late:
            raise TimeoutError(
                f"seconds = {self.seconds:g}: the time is over at step {now} of {last}. The runs "
                f"are stored in {self.folder}; the same call continues them."
            )
