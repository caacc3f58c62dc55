"""A sweep on disk: manifest.json says what is swept, pieces/*.nc hold finished points. Several processes may write at once.

Every file is written under a temporary name and renamed, so a process that is killed leaves whole files only; a file of a final
name that does not open has been damaged since, and is refused rather than silently computed again.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics import checks, files
from sgdynamics.results import load, save
from sgdynamics.sweeps.answers import Stack, Variable
from sgdynamics.sweeps.identity import digest
from sgdynamics.sweeps.job import FORMAT, Job
from sgdynamics.version import __version__

STALE = 3600.0  # seconds after which an unfinished file belongs to nobody


class Store:
    """The folder of one sweep."""

    def __init__(self, folder: str | os.PathLike[str], job: Job) -> None:
        self.folder = Path(folder)
        self.pieces = self.folder / "pieces"
        self.manifest = self.folder / "manifest.json"
        mine = {
            "format": FORMAT,
            "identity": job.identity,
            "over": sorted(".".join(path) for path in job.varied),
            **job.describe(),
            "version": __version__,
        }
        if self.folder.exists() and not self.folder.is_dir():
            raise checks.reject("store", str(folder), "it is a file: give the name of a folder")
        if self.manifest.exists():
            self._compare(mine)
        elif self.folder.is_dir() and any(one.name[0] != "." and not self._just_made(one) for one in self.folder.iterdir()):
            raise checks.reject("store", str(folder), "the folder holds other files and no manifest.json: give a new or an empty folder")
        self.pieces.mkdir(parents=True, exist_ok=True)
        if not self.manifest.exists():
            with files.whole(self.manifest) as unfinished:
                unfinished.write_text(json.dumps(mine, indent=1) + "\n")
        for left in self.pieces.glob(files.UNFINISHED):
            try:
                if time.time() - left.stat().st_mtime > STALE:
                    left.unlink()
            except FileNotFoundError:
                pass  # its writer has finished it, or another process has cleaned up

    def _just_made(self, one: Path) -> bool:
        """Another process may have made the folder of pieces and not yet its manifest, or the manifest a moment ago."""
        return one == self.manifest or (one == self.pieces and not any(one.glob("*.nc")))

    def _compare(self, mine: dict[str, Any]) -> None:
        """Refuse the store of another sweep, and say in what it differs."""
        again = "give another folder as store=, or delete this one to compute everything again"
        try:
            theirs = json.loads(self.manifest.read_text())
            same = theirs["identity"] == mine["identity"]
        except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
            raise ValueError(f"store: {self.manifest} cannot be read ({checks.reason(error)}): {again}") from None
        if same:
            return
        differs = [name for name in mine if name not in ("identity", "version") and theirs.get(name) != json.loads(json.dumps(mine[name]))]
        shown = "; ".join(f"{name} was {_short(theirs.get(name))} and is {_short(mine[name])}" for name in differs[:3])
        raise ValueError(f"store: {self.manifest} belongs to another sweep ({shown or 'its identity differs'}): {again}")

    def write(self, stack: Stack, values: list[str]) -> Path:
        """One piece, under a name that follows from its points."""
        variables: dict[str, Any] = {
            "point_name": ("point", np.array(stack.names, dtype=str)),
            "point_values": ("point", np.array(values, dtype=str)),
            "failed": ("point", np.array(stack.failed, dtype=object)),
            "warning": ("point", np.array(stack.warning, dtype=object)),
        }
        for name, one in stack.variables.items():
            attributes = {**one.attributes, "is_coordinate": int(one.coordinate)}
            variables[name] = (one.dims, one.values, attributes)
        attributes = {f"text_{name}": text for name, text in stack.texts.items()} | {"version": __version__, "format": FORMAT}
        name = digest(stack.names)[:24]
        return save(xr.Dataset(variables, attrs=attributes), self.pieces / f"{name}.nc")

    def read(self) -> tuple[list[Stack], list[str]]:
        """Every finished piece, older ones first, and the versions of the library that made them."""
        found, versions = [], {__version__}
        for path in sorted(self.pieces.glob("*.nc"), key=_age):
            try:
                piece = load(path)
                found.append(_stack(piece))
                versions.add(str(piece.attrs["version"]))
            except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"store: {path} cannot be read, it is truncated or damaged ({error}): delete that file, and its points are computed "
                    "again on the next call"
                ) from None
        return found, sorted(versions)


def _stack(piece: xr.Dataset) -> Stack:
    own = {name: [str(text) for text in piece[name].values] for name in ("point_name", "failed", "warning", "point_values")}
    variables = {}
    for name, one in piece.variables.items():
        if name in own:
            continue
        attributes = dict(one.attrs)
        coordinate = bool(attributes.pop("is_coordinate"))
        values = one.values
        if values.dtype.kind in "US":
            values = values.astype(object)
        variables[str(name)] = Variable(tuple(map(str, one.dims)), values, attributes, coordinate)
    texts = {name[5:]: str(text) for name, text in piece.attrs.items() if str(name).startswith("text_")}
    return Stack(own["point_name"], own["failed"], own["warning"], variables, texts)


def _age(path: Path) -> tuple[float, str]:
    return path.stat().st_mtime, path.name


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."
