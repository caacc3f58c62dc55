"""A sweep on disk: manifest.json describes the sweep, pieces/*.nc contain finished points.

Any number of processes may write at once. Each file is written under a temporary name and renamed,
so that a killed process leaves only complete files. Pieces carry a checksum: a piece that does not
match is damaged, and is rejected rather than silently computed again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from sgdynamics.base import checks, files
from sgdynamics.base.identity import digest
from sgdynamics.results.storage import netcdf, read_file
from sgdynamics.sweeps.answers import Stack, Variable, error_text, failure, join
from sgdynamics.sweeps.job import FORMAT, Job
from sgdynamics.version import __version__

# Seconds after which a temporary file is removed. A writer that is still alive writes it again.
STALE_SECONDS = 86400.0
REMEDY = "use another folder as store=, or delete this one to compute everything again"


class Store:
    """The folder of one sweep."""

    def __init__(self, folder: str | os.PathLike[str], job: Job) -> None:
        self.folder = Path(folder)
        self.pieces = self.folder / "pieces"
        self.manifest = self.folder / "manifest.json"
        manifest = {
            "format": FORMAT,
            "identity": job.identity,
            "over": sorted(".".join(path) for path in job.varied),
            **job.describe(),
            "version": __version__,
        }
        with self._readable():
            for path in (self.folder, self.pieces):
                if os.path.lexists(path) and not path.is_dir():
                    raise checks.reject(
                        "store",
                        str(folder),
                        f"{path} is a file or a broken link. Use the name of a new folder.",
                    )
            if os.path.lexists(self.manifest):
                self._compare(manifest)
            elif self.folder.is_dir() and any(
                self._is_foreign(path) for path in self.folder.iterdir()
            ):
                raise checks.reject(
                    "store",
                    str(folder),
                    "the folder contains other files and no manifest.json. Use a new or an empty "
                    "folder.",
                )
            self.pieces.mkdir(parents=True, exist_ok=True)
            if not self.manifest.exists():
                files.write(self.manifest, (json.dumps(manifest, indent=1) + "\n").encode())
            self._remove_stale()

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Turn errors of the file system into errors that name the store."""
        try:
            yield
        except OSError as error:
            if error.errno in files.NO_SPACE:
                raise
            fix = (
                f"the folder cannot be used ({checks.reason(error)}). Use a folder that can be "
                "read and written."
            )
            raise checks.reject("store", str(self.folder), fix) from None

    def _remove_stale(self) -> None:
        """Remove temporary files of writers that were killed long ago."""
        for path in self.pieces.glob(files.TEMPORARY):
            try:
                if time.time() - path.stat().st_mtime > STALE_SECONDS:
                    path.unlink()
            except OSError:
                pass  # Its writer has finished, or another process has removed it.

    def _is_foreign(self, path: Path) -> bool:
        """Whether a file cannot come from a process that is just creating this store."""
        if path.name[0] == "." or path == self.manifest:
            return False
        return path != self.pieces or any(path.glob("*.nc"))

    def _compare(self, manifest: dict[str, Any]) -> None:
        """Reject the store of another sweep, and name the differences."""
        try:
            stored = json.loads(self.manifest.read_text())
            is_same = stored["identity"] == manifest["identity"]
            version = stored["format"]
        except (ValueError, KeyError, TypeError, RecursionError, OSError) as error:
            raise ValueError(
                f"store: {self.manifest} cannot be read ({checks.reason(error)}): {REMEDY}"
            ) from None
        if version != FORMAT:
            raise ValueError(
                f"store: {self.manifest} has format {version!r}, and this version reads format "
                f"{FORMAT}: {REMEDY}"
            )
        if is_same:
            return
        differs = [
            name
            for name in manifest
            if name not in ("identity", "version")
            and stored.get(name) != json.loads(json.dumps(manifest[name]))
        ]
        shown = "; ".join(
            f"{name} was {_shorten(stored.get(name))} and is {_shorten(manifest[name])}"
            for name in differs[:3]
        )
        hint = ""
        if "sha256" in shown:
            hint = (
                " (the hash of a function covers the variables that it reads: a list or dictionary "
                "that it fills changes it)"
            )
        raise ValueError(
            f"store: {self.manifest} belongs to another sweep "
            f"({shown or 'its identity differs'}){hint}: {REMEDY}"
        )

    def write(self, stacks: list[Stack], values: dict[str, str]) -> list[Stack]:
        """Write finished points in as few pieces as possible, and return them as written.

        A point whose answer no file can contain fails alone. A full disk raises OSError; the pieces
        written before are complete.
        """
        written = []
        for stack in join(stacks):
            try:
                contents = [(stack, netcdf({None: _piece(stack, values)}))]
            except Exception:
                # Nothing is on disk yet, so the cause is one of the answers.
                rows = [_storable(stack.row(index), values) for index in range(len(stack))]
                contents = [(row, netcdf({None: _piece(row, values)})) for row in join(rows)]
            for piece, content in contents:
                # The name of the file follows from its points.
                path = self.pieces / f"{digest(piece.names)[:24]}.nc"
                try:
                    files.write(path, content, seal=True)
                except OSError as error:
                    reason = error.strerror or str(error)
                    text = (
                        f"{reason}. The pieces in store = {str(self.folder)!r} are complete: the "
                        "same call continues from them"
                    )
                    raise OSError(error.errno, text) from None
                written.append(piece)
        return written

    def read(self) -> tuple[list[Stack], list[str]]:
        """The finished pieces, oldest first, and the versions of the library that wrote them."""
        stacks, versions = [], {__version__}
        for path in sorted(self.pieces.glob("*.nc"), key=_age):
            try:
                piece = read_file(path, sealed=True)
                if piece.attrs["format"] != FORMAT:
                    raise ValueError(
                        f"it has format {piece.attrs['format']}, and this version of sgdynamics "
                        f"reads format {FORMAT}"
                    )
                stacks.append(_stack(piece))
                versions.add(str(piece.attrs["version"]))
            except (
                OSError,
                ValueError,
                KeyError,
                RuntimeError,
                TypeError,
                AttributeError,
            ) as error:
                raise ValueError(
                    f"store: {path} cannot be read, it is truncated or damaged ({error}). Delete "
                    "this file, and the next call computes its points again"
                ) from None
        return stacks, sorted(versions)


def _storable(point: Stack, values: dict[str, str]) -> Stack:
    """A point, or its failure if no file can contain it."""
    try:
        netcdf({None: _piece(point, values)})
    except Exception as error:
        return failure(point.names, f"the answer cannot be stored ({error_text(error)})")
    return point


def _piece(stack: Stack, values: dict[str, str]) -> xr.Dataset:
    variables: dict[str, Any] = {
        "point_name": ("point", np.array(stack.names, dtype=str)),
        "point_values": ("point", np.array([values[name] for name in stack.names], dtype=object)),
        "failed": ("point", np.array(stack.failed, dtype=object)),
        "warning": ("point", np.array(stack.warning, dtype=object)),
    }
    for name, variable in stack.variables.items():
        attributes = {**variable.attributes, "is_coordinate": int(variable.coordinate)}
        variables[name] = (variable.dims, variable.values, attributes)
    attributes = {f"text_{name}": text for name, text in stack.texts.items()}
    return xr.Dataset(variables, attrs={**attributes, "version": __version__, "format": FORMAT})


def _stack(piece: xr.Dataset) -> Stack:
    columns = {
        name: [str(text) for text in piece[name].values]
        for name in ("point_name", "failed", "warning", "point_values")
    }
    variables = {}
    for name, variable in piece.variables.items():
        if name in columns:
            continue
        attributes = dict(variable.attrs)
        coordinate = bool(attributes.pop("is_coordinate"))
        values = variable.values
        if values.dtype.kind in "US":
            values = values.astype(object)
        dims = tuple(map(str, variable.dims))
        variables[str(name)] = Variable(dims, values, attributes, coordinate)
    texts = {
        name[5:]: str(text) for name, text in piece.attrs.items() if str(name).startswith("text_")
    }
    return Stack(columns["point_name"], columns["failed"], columns["warning"], variables, texts)


def _age(path: Path) -> tuple[float, str]:
    try:
        return path.stat().st_mtime, path.name
    except OSError:
        return 0.0, path.name  # a broken link, which raises an error when it is read


def _shorten(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."
