"""What the explorer can show: its states, checked; the values of its sliders; and each state as TOML and Python."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any

from sgdynamics import checks

FOLDER = Path(__file__).parent
ACTIVATIONS = ("erf", "relu", "square", "linear")  # closed forms: others take the ODE seconds


@dataclass(frozen=True)
class State:
    """One state of the page: a committee that learns from two teacher units, by one-pass SGD from random rows."""

    width: int = 4
    activation: str = "erf"
    lr: float = 5.0
    noise: float = 0.001
    dimension: int = 100
    time: float = 1000.0
    seed: int = 0


# the places of the sliders; an address may have any other number within the bounds below
SLIDERS: dict[str, list[Any]] = {
    "width": [1, 2, 3, 4, 5, 6, 7, 8],
    "activation": list(ACTIVATIONS),
    "lr": [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0],
    "noise": [0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
    "dimension": [20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000],
    "time": [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0],
    "seed": list(range(10)),
}
# from and to, both allowed: beyond them nothing is computed within a moment
BOUNDS: dict[str, tuple[float, float]] = {
    "width": (1, 16),
    "lr": (1e-4, 100.0),
    "noise": (0.0, 100.0),
    "dimension": (3, 10**6),
    "time": (1e-3, 1e5),
    "seed": (0, 2**31 - 1),
}


def state_from(given: Mapping[str, str]) -> State:
    """A state from the texts of an address; what it does not say is as at first."""
    first = asdict(State())
    checks.known_names("the address", given, first)
    found = {name: _read(name, text, isinstance(first[name], int)) for name, text in given.items()}
    state = State(**found)
    if state.dimension < state.width + 2:
        raise checks.reject("dimension", state.dimension, f"rows and teachers need width + 2 coordinates: take {state.width + 2} or more")
    return state


def _read(name: str, text: str, is_whole: bool) -> Any:
    if name == "activation":
        return checks.choice(name, text, ACTIVATIONS)
    low, high = BOUNDS[name]
    try:
        value = float(text)
    except ValueError:
        raise checks.reject(name, text, f"give a number from {low:g} to {high:g}") from None
    if not low <= value <= high:  # NaN is not
        raise checks.reject(name, text, f"give a number from {low:g} to {high:g}")
    return checks.whole(name, value, int(low)) if is_whole else value


def text_of(value: Any) -> str:
    """A value as addresses and exports have it; scripts of the page write numbers the same way."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def address(state: State) -> str:
    """What follows the # in the page's address."""
    return "&".join(f"{name}={text_of(value)}" for name, value in asdict(state).items())


def templates() -> dict[str, str]:
    """TOML and Python with a $name for each number of the state."""
    return {"toml": (FOLDER / "export.toml.txt").read_text(encoding="utf-8"), "py": (FOLDER / "export.py.txt").read_text(encoding="utf-8")}


def exported(state: State, kind: str) -> str:
    """A state as a problem file ("toml") or a program ("py")."""
    return Template(templates()[kind]).substitute({name: text_of(value) for name, value in asdict(state).items()})


def record(state: State) -> dict[str, Any]:
    """What a problem file would say: the page computes what it exports."""
    return tomllib.loads(exported(state, "toml"))


def settings(sliders: Mapping[str, list[Any]], **more: Any) -> dict[str, Any]:
    """What the page's script must know: its first state, the places of its sliders, the texts that it exports."""
    return {"first": asdict(State()), "sliders": dict(sliders), "templates": templates(), **more}
