"""Identities of functions and objects.

They are equal for functions that compute the same, and differ if any data in the function differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest

import sgdynamics as sgd
from sgdynamics.algorithms.updates.update import MAKERS
from sgdynamics.base.identity import digest, find_unidentified, plain
from sgdynamics.sweeps import sweep
from tests.base import identity_cases
from tests.base.identity_cases import (
    SWEEP_ARGUMENTS,
    VALUES,
    Box,
    call_indirectly,
    factorial,
    make_scaling,
)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", VALUES)
def test_identity_depends_on_the_data_in_a_function(name):
    make = VALUES[name]
    assert find_unidentified(plain(make(1.0))) is None
    assert plain(make(1.0)) == plain(make(1.0))
    assert plain(make(1.0)) != plain(make(3.0))


def test_identity_depends_on_globals(monkeypatch):
    before = digest(call_indirectly)
    assert digest(call_indirectly) == before
    monkeypatch.setattr(identity_cases, "SCALE", 2.0)  # read by a called function
    assert digest(call_indirectly) != before

    def read_from_module(x):
        return identity_cases.SCALE * x

    at_two = digest(read_from_module)
    monkeypatch.setattr(identity_cases, "SCALE", 3.0)
    assert digest(read_from_module) != at_two
    before = digest(Box(1.0))
    # A different class of the same name.
    monkeypatch.setattr(Box, "times", lambda self, x: self.value + x)
    assert digest(Box(1.0)) != before


def test_identity_depends_on_code_and_not_on_its_position():
    texts = (
        "def f(x):\n    'Described.'\n    return x * 2\n",
        "\n\ndef f(x):\n    'Documented.'\n    return x * 2\n",
        "def f(x):\n    return x * 2.0\n",
    )
    functions = []
    for text in texts:
        namespace = {"__name__": "user"}
        exec(compile(text, "file", "exec"), namespace)
        functions.append(namespace["f"])
    first, moved, other = map(digest, functions)
    assert first == moved
    assert first != other
    assert digest([lambda x: x + 1, lambda x: x + 2][0]) != digest(
        [lambda x: x + 1, lambda x: x + 2][1]
    )


def test_values_are_equal_as_numbers():
    assert digest([1, 2.0, np.float32(3.0)]) == digest(np.array([1, 2, 3])) == digest((1.0, 2, 3))
    assert digest(np.arange(100.0)) == digest(np.arange(100)) != digest(np.arange(100.0)[::-1])
    assert plain({1: "a"}) != plain({"1": "a"})
    assert digest(factorial) == digest(factorial)  # a recursive function


@pytest.mark.slow
def test_identity_is_the_same_in_another_process():
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONHASHSEED": "7",
    }
    command = [
        sys.executable,
        "-c",
        "from tests.base.identity_cases import digests; print(*digests())",
    ]
    printed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=240
    ).stdout
    assert printed.split() == identity_cases.digests()


def answer(x, problem=None, algorithm=None, start=None, evaluate=None):
    return 1.0 * x


@pytest.mark.parametrize("name", SWEEP_ARGUMENTS)
def test_a_store_distinguishes_closures(name, tmp_path):
    shared = {"over": {"x": [1, 2]}, "store": tmp_path / "store", "workers": 1}
    sweep(answer, **shared, **SWEEP_ARGUMENTS[name](1.0))
    sweep(answer, **shared, **SWEEP_ARGUMENTS[name](1.0))
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(answer, **shared, **SWEEP_ARGUMENTS[name](3.0))


@pytest.mark.parametrize("name", VALUES)
def test_a_store_distinguishes_solvers(name, tmp_path):
    def solver(value):
        content = VALUES[name](value)
        return lambda x: float(content is not None) * x

    sweep(solver(1.0), over={"x": [1]}, store=tmp_path, workers=1)
    sweep(solver(1.0), over={"x": [1]}, store=tmp_path, workers=1)
    with pytest.raises(
        ValueError,
        match=r"belongs to another sweep .*"
        r"the hash of a function covers the variables that it reads",
    ):
        sweep(solver(3.0), over={"x": [1]}, store=tmp_path, workers=1)


class Decay(sgd.Dynamics):
    """Dynamics of a user, with a parameter that is not a dataclass field."""

    variables: ClassVar = {"m": ("magnetisation",)}

    def __init__(self, rate):
        self.speed = rate

    def rate(self, values, state):
        return {"m": -self.speed * state["m"]}


def test_a_store_distinguishes_dynamics_and_updates(tmp_path, monkeypatch):
    shared = {"over": {"x": [1]}, "workers": 1}
    sweep(answer, problem=Decay(1.0), store=tmp_path / "a", **shared)
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(answer, problem=Decay(2.0), store=tmp_path / "a", **shared)
    # A record names an update of the user; the identity depends on the code of the update too.
    algorithm = sgd.OnePassSGD(lr=0.1, update=sgd.updates.momentum(0.5))
    monkeypatch.setitem(MAKERS, "momentum", make_scaling(1.0))
    sweep(answer, algorithm=algorithm, store=tmp_path / "b", **shared)
    monkeypatch.setitem(MAKERS, "momentum", make_scaling(2.0))
    with pytest.raises(ValueError, match="belongs to another sweep"):
        sweep(answer, algorithm=algorithm, store=tmp_path / "b", **shared)


def test_functions_of_the_same_factory_are_different_points_of_a_sweep(tmp_path):
    activations = [
        sgd.Activation(make_scaling(1.0)),
        sgd.Activation(make_scaling(2.0)),
        sgd.Activation(jnp.tanh),
    ]

    def slope(problem):
        return float(problem.activation(1.0))

    result = sweep(
        slope,
        problem=sgd.TeacherStudent(1),
        over={"activation": activations},
        store=tmp_path / "store",
        workers=1,
    )
    np.testing.assert_allclose(result["value"], [1.0, 2.0, np.tanh(1.0)], rtol=1e-6)
    assert len(set(result.activation.values)) == 3
    assert all(str(text).startswith("function ") for text in result.activation.values[:2])
    with pytest.raises(ValueError, match=r"have the same parameters\. Remove one"):
        sweep(
            slope,
            problem=sgd.TeacherStudent(1),
            over={"activation": [make_scaling(1.0), make_scaling(1.0)]},
            workers=1,
        )


def test_objects_without_an_identity_raise_only_with_a_store(tmp_path):
    file = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    with file:

        def reads(x):
            return float(file.closed) + x

        with pytest.raises(
            ValueError,
            match=r"closure variable 'file' of function 'reads' "
            r"\(a _io.TextIOWrapper\).*__getstate__",
        ):
            sweep(reads, over={"x": [1]}, store=tmp_path / "store", workers=1)
        assert not (tmp_path / "store").exists()
        np.testing.assert_array_equal(
            sweep(reads, over={"x": [1, 2]}, workers=1)["value"], [1.0, 2.0]
        )
        pair = sweep(
            lambda handle: 1.0, over={"handle": [file, (number for number in ())]}, workers=1
        )
        assert pair.sizes["handle"] == 2
    # A lock carries no data, so a function may read it.
    lock = threading.Lock()
    sweep(lambda x: lock.locked() + x, over={"x": [1]}, store=tmp_path / "lock", workers=1)
