"""Files that are complete or absent: written under a temporary name and renamed, with a checksum.

Input files are checked here too, without importing JAX.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sgdynamics.base import checks

TEMPORARY = ".*.part"  # pattern of the files that a killed process may leave
ATTEMPTS = 5  # at writing a file whose temporary one another process removes
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
FORMAT = 1  # of a file with a checksum
_SEAL = re.compile(rb"\n#sgdynamics file, format (\d{6}), sha256 ([0-9a-f]{64})\n")
SEAL_LENGTH = len(b"\n#sgdynamics file, format 000001, sha256 \n") + 64
_HDF5 = b"\x89HDF\r\n\x1a\n"


class DamagedFile(ValueError):
    """The content of a file differs from what was written, or a later version wrote it."""


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `target` in one step on success.

    Any number of threads and machines may write the same target.
    """
    # The name contains no part of the target's, which may be as long as a file system allows.
    temporary = target.with_name(f".{uuid.uuid4().hex}.part")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        with suppress(OSError):  # the folder itself may be gone
            temporary.unlink(missing_ok=True)


def write(target: Path, content: bytes | memoryview, seal: bool = False) -> None:
    """Write a file in one step, with a checksum at its end if it is to be sealed.

    A full disk raises an OSError that names the folder, the size and the free space.
    """
    end = _seal_of(content) if seal else b""
    for attempt in range(ATTEMPTS):
        try:
            with atomic_file(target) as temporary:
                with temporary.open("xb") as file:
                    file.write(content)
                    file.write(end)
                    file.flush()
                    os.fsync(file.fileno())  # some file systems report a full disk only here
                return
        except FileNotFoundError:  # another process took the temporary file for an abandoned one
            if attempt == ATTEMPTS - 1 or not target.parent.is_dir():
                raise
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise OSError(error.errno, _full(target, len(content), error)) from None


def _full(target: Path, size: int, error: OSError) -> str:
    try:
        free = f"{shutil.disk_usage(target.parent).free / 2**20:.3g} MiB are free"
    except OSError:
        free = "the free space is unknown"
    why = (
        "a limit on the size of files is reached"
        if error.errno == errno.EFBIG
        else "the disk or the quota is full"
    )
    return (
        f"{target.parent}: {why}: {target.name} needs {size / 2**20:.3g} MiB, and {free}. "
        "Free space there, or choose another folder"
    )


def _seal_of(content: bytes | memoryview) -> bytes:
    """A line with format and checksum that follows the content; readers of HDF5 ignore it."""
    head = b"\n#sgdynamics file, format %06d, sha256 " % FORMAT
    checksum = hashlib.sha256(content)
    checksum.update(head)
    return head + checksum.hexdigest().encode() + b"\n"


def check_seal(path: Path, required: bool = False) -> None:
    """Raise DamagedFile if the content of a file does not have its checksum.

    A file that another program wrote has none, and passes unless it is `required`.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(64)
        file.seek(max(0, size - SEAL_LENGTH))
        seal = _SEAL.fullmatch(file.read())
        if seal is None:
            if required or size > (_hdf5_size(start) or size):
                raise DamagedFile("its checksum is missing or damaged")
            return
        if int(seal[1]) > FORMAT:
            raise DamagedFile(
                f"it has format {int(seal[1])}, of a later version of sgdynamics; "
                f"this version reads format {FORMAT}"
            )
        file.seek(0)
        # The checksum covers everything but itself and the end of its line.
        checksum, unread = hashlib.sha256(), size - 65
        while unread > 0 and (block := file.read(min(unread, 1 << 20))):
            checksum.update(block)
            unread -= len(block)
    if checksum.hexdigest().encode() != seal[2]:
        raise DamagedFile("its content does not have its checksum")


def _hdf5_size(start: bytes) -> int | None:
    """The size of an HDF5 file as its superblock has it; None for any other file."""
    if not start.startswith(_HDF5):
        return None
    # Offset of the 8-byte end-of-file address in superblocks of version 0, 1, and 2 or 3.
    offset = {0: 40, 1: 44}.get(start[8], 28)
    return int.from_bytes(start[offset : offset + 8], "little")


def require_file(path: str | Path) -> Path:
    """The path of an existing file; the message for a missing one suggests a similar name."""
    file = Path(path)
    if file.is_dir():
        fix = "this is a folder. Give a problem file (.toml) or a result (.nc)."
        raise checks.reject("file", str(path), fix)
    if not file.is_file():
        names = [other.name for other in file.parent.glob("*")] if file.parent.is_dir() else []
        similar = checks.did_you_mean(file.name, names).strip()
        raise checks.reject(
            "file", str(path), f"no such file. {similar[:1].upper()}{similar[1:]}".strip()
        )
    return file


def read_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(require_file(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        fix = "this is not a text file. Give a problem file (.toml) or a result (.nc)."
        raise checks.reject("file", str(path), fix) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not a TOML file: {error}") from None
