"""The compiler's code generator for programs that are run once, or on a few numbers: there the compiler's own time is what counts."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import numpy as np


@cache
def older_generator() -> dict[str, Any] | None:
    """XLA's older code generator on a CPU, as options of `jax.jit`: half the time to compile. Where XLA does not know it, nothing."""
    older = {"xla_cpu_use_fusion_emitters": False}
    try:
        jax.jit(lambda x: x, compiler_options=older)(np.zeros(()))
    except jax.errors.JaxRuntimeError:
        return None
    return older if jax.default_backend() == "cpu" else None
