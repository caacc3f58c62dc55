"""One problem of each kind through the engine's main paths, every shape in a signature checked. Run by `tests/test_shapes.py` in a process
of its own, because the checks slow all else down: `python -m tests.shapes_checked`."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

ENGINE = ("samples", "problems", "algorithms", "gaussian", "compressed", "conditioning", "simulation", "limits", "random")
checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
hook = install_import_hook([f"sgdynamics.{room}" for room in ENGINE], "tests.shapes_checked.checker")
