"""The argument `devices`: local devices among which runs, paths and points are divided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import jax

from sgdynamics.base import checks
from sgdynamics.base.arrays import Device

_LIMIT: ContextVar[Sequence[Device] | None] = ContextVar("devices", default=None)


@contextmanager
def limited_devices(devices: Sequence[Device]) -> Iterator[None]:
    """Compute on these devices inside of this context, wherever a call does not set `devices`."""
    if devices == jax.local_devices():
        yield
        return
    token = _LIMIT.set(devices)
    try:
        with jax.default_device(devices[0]):
            yield
    finally:
        _LIMIT.reset(token)


def choose_devices(devices: int | None) -> Sequence[Device]:
    """Validate the argument `devices`: the first local devices, by default all of them."""
    available = jax.local_devices()
    if devices is None:
        return _LIMIT.get() or available
    count = checks.integer("devices", devices, 1)
    if count > len(available):
        fix = f"this process has {len(available)} ({available[0].platform}). Use at most that many."
        raise checks.reject("devices", devices, fix)
    return available[:count]
