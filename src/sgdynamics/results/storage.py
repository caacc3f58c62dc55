"""Results in files: `save` and `load`, as netCDF with a checksum."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xarray as xr

from sgdynamics.base import checks, files


def save(result: xr.Dataset | Mapping[str, xr.Dataset], path: str | os.PathLike[str]) -> Path:
    """Write a result as NetCDF, or several by name as groups of one file.

    The file is written under a temporary name and renamed, so that it is complete or absent. It
    ends with a checksum, which ``sgd.load`` verifies.

    Parameters
    ----------
    result : xarray.Dataset or mapping of str to xarray.Dataset
        One result, or several by name.
    path : str or path
        Path of the file, in an existing folder. An existing file is replaced.

    Returns
    -------
    pathlib.Path
        The path of the file.

    Raises
    ------
    ValueError
        If there is no result, a name is not plain text, or the path is a folder or in none.
    OSError
        If the disk is full; the message names the folder, the size of the file and the free space.

    Examples
    --------
    >>> import tempfile, xarray
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = sgd.save({"theory": xarray.Dataset({"x": 1.0})}, f"{folder}/results.nc")
    ...     print(float(sgd.load(file, "theory")["x"]))
    1.0
    """
    # A Dataset is a mapping too, of its variables.
    is_mapping = isinstance(result, Mapping) and not isinstance(result, xr.Dataset)
    results: dict[Any, Any] = dict(result) if is_mapping else {None: result}
    if not results:
        raise checks.reject("result", result, "give at least one result")
    for name, dataset in results.items():
        if not isinstance(dataset, xr.Dataset):
            fix = "give a result (a Dataset), or several by name"
            raise checks.reject("result", dataset, fix)
        if name is not None and not _is_group_name(name):
            fix = "the name of a result in a file is plain text, without a slash, and not . or .."
            raise checks.reject("group", name, fix)
    target = checks.path("path", path)
    if target.is_dir():
        raise checks.reject("path", str(path), "this is a folder. Use the name of a file.")
    if not target.parent.is_dir():
        raise checks.reject("path", str(path), "the folder does not exist: make it first")
    files.write(target, netcdf(results), seal=True)
    return target


def _is_group_name(name: object) -> bool:
    if not isinstance(name, str) or not name.strip() or name in (".", ".."):
        return False
    return "/" not in name and "\0" not in name


def netcdf(results: Mapping[Any, xr.Dataset]) -> memoryview:
    """The content of a NetCDF file with results by name (None for a single one).

    It is made in memory, because HDF5 does not survive a full disk.
    """
    import h5netcdf
    from xarray.backends import H5NetCDFStore

    content = io.BytesIO()
    with h5netcdf.File(content, "w") as file:
        for name, dataset in results.items():
            dataset.dump_to_store(H5NetCDFStore(file, group=name))
    return content.getbuffer()


def load(path: str | os.PathLike[str], group: str | None = None) -> xr.Dataset:
    """Read a result that ``sgd.save`` wrote.

    Parameters
    ----------
    path : str or path
        Path of the file.
    group : str, optional
        Name of the result in a file of several.

    Returns
    -------
    xarray.Dataset
        The result, in memory; the file is closed.

    Raises
    ------
    ValueError
        If the file does not exist, is damaged, or has several results and none is named.

    Examples
    --------
    >>> import tempfile, xarray
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = sgd.save(xarray.Dataset({"x": 1.0}), f"{folder}/result.nc")
    ...     print(float(sgd.load(file)["x"]))
    1.0
    """
    return read_file(path, group)


def read_file(
    path: str | os.PathLike[str], group: str | None = None, sealed: bool = False
) -> xr.Dataset:
    """The result in a file; a file that must be `sealed` has a checksum."""
    names = groups_in(path, sealed=sealed)
    if group is not None:
        checks.choice("group", group, names)
    elif names:
        choices = ", ".join(map(repr, names))
        raise checks.reject("group", None, f"{path} has several results: choose one of {choices}")
    try:
        with xr.open_dataset(checks.path("path", path), engine="h5netcdf", group=group) as stored:
            return stored.load()
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:  # a damaged file can make HDF5 and xarray fail in any way
        reason = checks.reason(error)
        fix = f"this file cannot be read, it is damaged or no result ({reason})"
        raise checks.reject("path", str(path), fix) from None


def groups_in(
    path: str | os.PathLike[str], argument: str = "path", sealed: bool = False
) -> list[str]:
    """The names of the results in a file of several; empty for a file of one.

    Damaged files are rejected under the name `argument`.
    """
    import h5py

    file = checks.path(argument, path)
    if not file.is_file():
        fix = "this is a folder. Use the name of a file." if file.is_dir() else "no such file"
        raise checks.reject(argument, str(path), fix)
    try:
        files.check_seal(file, required=sealed)
    except (files.DamagedFile, OSError) as error:
        fix = (
            f"this file is damaged or cannot be read ({checks.reason(error)}). Restore it from a "
            "copy, or compute it again"
        )
        raise checks.reject(argument, str(path), fix) from None
    try:
        with h5py.File(file) as content:
            return [name for name, item in content.items() if isinstance(item, h5py.Group)]
    except (OSError, RuntimeError, KeyError, ValueError, UnicodeDecodeError):
        fix = "this is no NetCDF file, or it is not whole"
        raise checks.reject(argument, str(path), fix) from None
