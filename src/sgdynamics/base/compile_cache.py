"""`compile_cache`: a folder of compiled programs, JAX's persistent compilation cache.

No import uses it.
"""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from sgdynamics.base import checks

VARIABLE = "JAX_COMPILATION_CACHE_DIR"
MIN_COMPILE_SECONDS = 0.1  # reading a program takes about as long


def compile_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a folder, where later sessions find them.

    Call it once at the top of a script or notebook. Programs that were compiled before, by any
    session on a processor of the same kind, are then read in place of being compiled.

    Parameters
    ----------
    folder : path, optional
        The folder. Defaults to that of the environment variable ``JAX_COMPILATION_CACHE_DIR``, and
        without it to a folder of this kind of processor in the user's folder for caches.

    Returns
    -------
    pathlib.Path
        The folder in use.

    Raises
    ------
    ValueError
        If the folder cannot be created or written.

    Notes
    -----
    This is JAX's own cache: a program is identified by its operations, the compiler's version and
    options, and the kind of device. On a CPU that does not include the instructions that the
    processor supports, hence the default folder depends on them. An entry that cannot be read is
    compiled again, with a warning. Programs compiled in less than 0.1 s are not stored. Nothing is
    ever removed: delete the folder to free its space.

    Examples
    --------
    >>> folder = sgd.compile_cache()
    >>> folder.is_dir()
    True
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    cache = default_folder() if folder is None else checks.path("folder", folder)
    argument = "folder" if folder is not None else VARIABLE
    try:
        # Programs are executed when they are read: nobody else may write them.
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise checks.reject(
            argument,
            str(cache),
            f"the folder cannot be created ({error.strerror}). Name another one.",
        ) from None
    if not os.access(cache, os.W_OK):
        raise checks.reject(argument, str(cache), "the folder is not writable. Name another one.")
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    # JAX decides at its first compilation whether there is a cache.
    compilation_cache.reset_cache()
    return cache


def default_folder() -> Path:
    """The folder that the environment names; by default one of this processor among caches."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "sgdynamics" / f"programs-{processor_identity()}"


def processor_identity() -> str:
    """A short hash of the kind of processor and of the instructions that it supports."""
    facts = {platform.machine(), platform.processor()}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features", "model name", "CPU part"):
            facts.add(value.strip())
    return hashlib.sha256("\n".join(sorted(facts)).encode()).hexdigest()[:12]
