"""Pallas, JAX's language of GPU kernels: the only module that imports this experimental API.

`pl` holds what kernels of all devices share (program ids, slices, `pallas_call`), `triton` the
loads, stores and compiler parameters of NVIDIA GPUs. If a release of JAX moves them, this file
changes and nothing else.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, runtime_checkable

import jax
from jax import Array
from jax.experimental import pallas as pl

from sgdynamics.base.arrays import Function, Numeric, PyTree

__all__ = ["Lanes", "Reference", "call_kernel", "device_memory", "has_kernels", "pl", "triton"]

# A range of adjacent indices, as `pl.ds` makes it.
Lanes = slice | pl.Slice


@runtime_checkable
class Reference(Protocol):
    """An array in the memory of the device, as a kernel receives it: read and written by index."""

    # Views by index for Triton's own loads and stores, which take masks.
    at: Any

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> Any: ...

    def __getitem__(self, index: Any, /) -> Array: ...

    def __setitem__(self, index: Any, value: Numeric, /) -> None: ...


def _find_triton() -> Any:
    """The part of Pallas for NVIDIA GPUs, or None: jaxlib for Windows is built without Triton."""
    try:
        return importlib.import_module("jax.experimental.pallas.triton")
    except ImportError:
        return None


triton: Any = _find_triton()

# Bytes of memory to assume for a device that does not report its own, such as a CPU.
DEFAULT_MEMORY = 1 << 30


def has_kernels() -> bool:
    """Whether this machine compiles the kernels of the library: Triton needs an NVIDIA GPU."""
    device = jax.local_devices()[0]
    has_triton_device = device.platform == "gpu" and "NVIDIA" in device.device_kind
    return triton is not None and has_triton_device


def device_memory() -> int:
    """Bytes of memory that JAX may use on the first device."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit", DEFAULT_MEMORY)


def call_kernel(
    kernel: Function,
    out_shape: PyTree,
    grid: tuple[int, ...],
    *,
    name: str,
    interpret: bool,
    warps: int,
    stages: int,
) -> Function:
    """Return the function of whole arrays that runs `kernel` once for each point of the grid.

    Parameters
    ----------
    kernel : callable
        Kernel body, a function of references to the inputs and then to the outputs.
    out_shape : pytree of jax.ShapeDtypeStruct
        Shapes and dtypes of the outputs.
    grid : tuple of int
        Number of programs along each axis of the grid.
    name : str
        Name of the kernel in profiles.
    interpret : bool
        Whether to run the kernel by XLA on any device, for tests, instead of compiling it.
    warps : int
        Number of warps (of 32 threads) of one program.
    stages : int
        Number of stages of Triton's software pipeline of loads. Each stage takes registers.
    """
    # Interpret mode rejects the parameters of a compiler that it does not call.
    params = None if interpret else triton.CompilerParams(num_warps=warps, num_stages=stages)
    return pl.pallas_call(
        kernel,
        out_shape=out_shape,
        grid=grid,
        interpret=interpret,
        compiler_params=params,
        name=name,
    )
