"""States of the explorer: validation, values of the sliders, and export as TOML and Python."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from sgdynamics.base import checks

FOLDER = Path(__file__).parent
ACTIVATIONS = ("erf", "relu", "square", "linear")  # closed forms; the ODE of others takes seconds

# What the choices of the page add to a program and to a problem file. A covariance is a list of
# pairs (eigenvalue, fraction of d) with mean 1, so that learning rates can be compared.
OPTIMISERS = {
    "SGD": {"py": "", "toml": ""},
    "momentum": {
        "py": ", update=sgd.updates.momentum(memory=10.0)",
        "toml": 'update = { kind = "momentum", memory = 10.0 }\n',
    },
    "Adam": {
        "py": ", update=sgd.updates.adam(memory=4.0, eps=0.01)",
        "toml": 'update = { kind = "adam", memory = 4.0, eps = 0.01 }\n',
    },
}
BLOCKS: dict[str, list[tuple[float, float]]] = {
    "identity": [(1.0, 1.0)],
    "two eigenvalues": [(3.0, 0.2), (0.5, 0.8)],
    "five eigenvalues": [(4.0, 0.05), (2.0, 0.15), (1.0, 0.3), (0.5, 0.3), (0.25, 0.2)],
}
COVARIANCES = {
    name: {
        "py": f", covariance={blocks}",
        "toml": f"covariance = {[list(block) for block in blocks]}\n",
    }
    if len(blocks) > 1
    else {"py": "", "toml": ""}
    for name, blocks in BLOCKS.items()
}
HEADS = {
    "fixed": {"py": "", "toml": ""},
    "trained": {"py": ', head="trained"', "toml": 'head = "trained"\n'},
}
# Adam rescales coordinates, so that its runs have d dimensions and take longer.
METHODS = {"SGD": "exact", "momentum": "exact", "Adam": "direct"}
CHOICES: dict[str, Any] = {
    "activation": dict.fromkeys(ACTIVATIONS),
    "optimiser": OPTIMISERS,
    "covariance": COVARIANCES,
    "head": HEADS,
}


@dataclass(frozen=True)
class State:
    """State of the page: a committee learns two teacher units by one-pass SGD, from random rows."""

    width: int = 4
    activation: str = "erf"
    lr: float = 5.0
    noise: float = 0.001
    dimension: int = 1000
    time: float = 1000.0
    seed: int = 0
    optimiser: str = "SGD"
    batch: int = 1
    covariance: str = "identity"
    head: str = "fixed"

    @property
    def method(self) -> str:
        """The method of the runs in problem files."""
        return METHODS[self.optimiser]

    @property
    def has_finite_theory(self) -> bool:
        """Whether the exact mean step at dimension d is known; that of optimisers is not."""
        return self.optimiser == "SGD"

    @property
    def program(self) -> str:
        """The values on which compiled programs depend."""
        return " ".join(str(getattr(self, name)) for name in PROGRAM)


PROGRAM = ("width", "activation", "optimiser", "batch", "covariance", "head")
# Positions of the sliders. An address may have any other number within the bounds below.
SLIDERS: dict[str, list[Any]] = {
    "width": [1, 2, 3, 4, 5, 6, 7, 8],
    "activation": list(ACTIVATIONS),
    "lr": [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0],
    "noise": [0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0],
    "dimension": [20, 30, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000, 100000],
    "time": [5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0],
    "seed": list(range(10)),
    "optimiser": list(OPTIMISERS),
    "batch": [1, 2, 4, 8, 16, 32],
    "covariance": list(COVARIANCES),
    "head": list(HEADS),
}
# Smallest and largest values, both included: beyond them nothing is computed within seconds.
BOUNDS: dict[str, tuple[float, float]] = {
    "width": (1, 16),
    "lr": (1e-4, 100.0),
    "noise": (0.0, 100.0),
    "dimension": (3, 10**6),
    "time": (1e-3, 1e5),
    "seed": (0, 2**31 - 1),
    "batch": (1, 1000),
}


def state_from(query: Mapping[str, str]) -> State:
    """Parse and validate the texts of an address; missing values are those of the first state."""
    first = asdict(State())
    checks.reject_unknown("the address", query, first)
    state = State(
        **{name: _read(name, text, isinstance(first[name], int)) for name, text in query.items()}
    )
    # Student rows and teacher rows span width + 2 dimensions, in each group of coordinates.
    fraction = min(fraction for _, fraction in BLOCKS[state.covariance])
    smallest = math.ceil((state.width + 2) / fraction)
    if state.dimension < smallest:
        where = " for each eigenvalue" if len(BLOCKS[state.covariance]) > 1 else ""
        fix = f"rows and teachers span width + 2 dimensions{where}. Use {smallest} or more"
        raise checks.reject("dimension", state.dimension, fix)
    return state


def _read(name: str, text: str, is_whole: bool) -> Any:
    if name in CHOICES:
        return checks.choice(name, text, tuple(CHOICES[name]))
    low, high = BOUNDS[name]
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:  # also false for NaN
        raise checks.reject(name, text, f"give a number from {low:g} to {high:g}")
    return checks.integer(name, value, int(low)) if is_whole else value


def text_of(value: object) -> str:
    """Return a value as addresses and exports write it, and as the script of the page does."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def address(state: State) -> str:
    """Return the part of the page's address that follows the #."""
    return "&".join(f"{name}={quote(text_of(value))}" for name, value in asdict(state).items())


def templates() -> dict[str, str]:
    """Return the TOML and Python templates, with a $name for each value of the state."""
    return {
        kind: (FOLDER / f"export.{kind}.txt").read_text(encoding="utf-8") for kind in ("toml", "py")
    }


def export_text(state: State, kind: str) -> str:
    """Return a state as a problem file ("toml") or a program ("py")."""
    values = {name: text_of(value) for name, value in asdict(state).items()}
    values |= {name: pieces[values[name]][kind] for name, pieces in pieces_of_exports().items()}
    return Template(templates()[kind]).substitute(values, method=state.method)


def pieces_of_exports() -> dict[str, dict[str, dict[str, str]]]:
    """Return what each choice adds to an export, by name, value and kind of the export."""
    return {name: pieces for name, pieces in CHOICES.items() if name != "activation"}


def record(state: State) -> dict[str, Any]:
    """Return the content of the problem file of a state: the page computes what it exports."""
    return tomllib.loads(export_text(state, "toml"))


def settings(sliders: Mapping[str, list[Any]], **extra: object) -> dict[str, Any]:
    """Return the settings of the page: its first state, the positions of the sliders, templates."""
    return {
        "first": asdict(State()),
        "sliders": dict(sliders),
        "templates": templates(),
        "pieces": pieces_of_exports(),
        "methods": METHODS,
        "program": list(PROGRAM),
        **extra,
    }
