"""Threads on the cores of a process."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import pytest

from sgdynamics.base import cores


@pytest.mark.parametrize("available", [1, 3])
def test_values_are_in_order_and_in_the_precision_of_the_caller(
    available: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "count_cores", lambda: available)
    thread_ids = set()

    def square(x: int) -> tuple[int, str]:
        thread_ids.add(threading.get_ident())
        return x * x, str(jnp.asarray(float(x)).dtype)

    with jax.enable_x64(True):
        assert cores.map_on_cores(square, range(20)) == [(x * x, "float64") for x in range(20)]
    assert cores.map_on_cores(square, [2, 3]) == [(4, "float32"), (9, "float32")]
    if available == 1:
        assert thread_ids == {threading.get_ident()}
    assert cores.map_on_cores(square, []) == []


def test_an_error_of_one_item_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "count_cores", lambda: 2)
    with pytest.raises(ZeroDivisionError):
        cores.map_on_cores(lambda x: 1 / x, [1, 0, 2])
