"""Spiked matrices and tensors: a rank-one signal in Gaussian noise, seen afresh at every step, and where a run on it starts.

The data are Gaussian tensors, not Gaussian inputs, so this is no `Problem` and has no fields. But the gradient at x is Gaussian with a
mean and a covariance that only know m = <x, v> and r2 = |x|^2 - m^2, so these two numbers are a Markov chain at every dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, RealArray
from sgdynamics.base.resources import check_memory

MOST_ORDER = 100  # beyond it |x|^(2 order) leaves float64 as soon as |x| leaves 1
TOLERANCE = 1e-9  # how far below zero an r2 that this library made may be


@pytrees.register_parameters("snr", "ridge")
@dataclass(frozen=True)
class SpikedTensor:
    """Find a unit vector v from fresh tensors Y = snr v^(order) + W with independent standard normal entries W.

    ::

        loss(x, Y) = |Y - x^(order)|^2 + (ridge/2) |x|^2,      x in R^n

    Parameters
    ----------
    order : int, default 2
        Order of the tensor; 2 is the spiked matrix (not symmetrised).
    snr : float, default 1.2
        The strength of the signal, above 0.
    ridge : float, default 0.0
        Coefficient of the penalty, 0 or more; it enters the dynamics, not ``risk``.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Notes
    -----
    The loss is twice the negative log-likelihood, as in section 3 of "High-dimensional limit theorems for SGD" (Ben Arous, Gheissari,
    Jagannath).

    Examples
    --------
    >>> problem = sgd.SpikedTensor(order=3, snr=2.0)
    >>> problem.risk(m=0.0, r2=1.0)
    5.0
    """

    order: int = 2
    snr: float = 1.2
    ridge: float = 0.0
    kind: ClassVar[str] = "SpikedTensor"
    kinds: ClassVar[tuple[str, ...]] = ("spiked tensor",)  # in the table of what is supported

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", checks.integer("order", self.order, 2, MOST_ORDER))
        object.__setattr__(self, "snr", checks.number("snr", self.snr, above=0.0))
        object.__setattr__(self, "ridge", checks.number("ridge", self.ridge, 0.0))

    def replace(self, **changes: object) -> SpikedTensor:
        """The same problem with some of its arguments changed, checked as when it was made.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name.

        Returns
        -------
        SpikedTensor
            A new one; this one stays as it is.
        """
        return checks.replace_fields(self, changes)

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the problem, as a dictionary that JAX can trace."""
        return {"snr": pytrees.to_float64(self.snr), "ridge": pytrees.to_float64(self.ridge)}

    def risk(self, m: RealArray, r2: RealArray) -> RealArray:
        """The population loss without the ridge and without the noise's constant E|W|^2 = n^k.

        ::

            |snr v^(k) - x^(k)|^2 = (snr - m^k)^2 + r2 sum_j R^(2j) m^(2(k-1-j)),   R^2 = m^2 + r2

        Parameters
        ----------
        m : float or ndarray
            The overlap <x, v>.
        r2 : float or ndarray
            The squared length orthogonal to the signal, x^2 - m^2.

        Returns
        -------
        float or ndarray
            A sum of terms that are not negative, so that nothing cancels near 0. Section 3, before Proposition 3.1.
        """
        value = spiked_risk(
            self.order, self.snr, np.asarray(m, dtype=np.float64), np.asarray(r2, dtype=np.float64)
        )
        return float(value) if np.ndim(value) == 0 else value

    def describe(self) -> dict[str, Any]:
        """The problem as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments.
        """
        return {
            "kind": self.kind,
            "order": self.order,
            "snr": pytrees.to_python_scalar(self.snr),
            "ridge": pytrees.to_python_scalar(self.ridge),
        }


def spiked_risk(order: int, snr: float, m: RealArray, r2: RealArray) -> RealArray:
    """The same of NumPy or JAX values."""
    squared_overlap, squared_norm = m * m, m * m + r2
    series = sum(squared_norm**j * squared_overlap ** (order - 1 - j) for j in range(order))
    return (snr - m**order) ** 2 + r2 * series


def check_spiked_problem(value: SpikedTensor) -> SpikedTensor:
    """Raise ValueError unless the problem is a spiked tensor."""
    if not isinstance(value, SpikedTensor):
        raise checks.reject("problem", value, "give a SpikedTensor(order=..., snr=...)")
    return value


@dataclass(frozen=True)
class SpikedStart:
    """Initial conditions on a spiked tensor: m = <x, v> (run,) and r2 = |x|^2 - m^2 (run,)."""

    m: np.ndarray
    r2: np.ndarray

    def __post_init__(self) -> None:
        m, r2 = (
            checks.real_array(name, getattr(self, name), "give one number per run")
            for name in ("m", "r2")
        )
        if m.ndim != 1 or m.shape != r2.shape or not len(m):
            raise ValueError(
                f"m has shape {m.shape} and r2 {r2.shape}: give one number per run in each, with at least one run"
            )
        object.__setattr__(self, "m", m)
        object.__setattr__(self, "r2", r2)

    @property
    def runs(self) -> int:
        return self.m.shape[0]


def spiked_start(
    problem: SpikedTensor, *, m: ArrayArgument | None, r2: ArrayArgument | None
) -> SpikedStart:
    """A start from m = <x, v> and r2 = |x - m v|^2 >= 0, each a number or one number per run."""
    check_spiked_problem(problem)
    values = {}
    for name, value in (("m", m), ("r2", r2)):
        array = checks.real_array(name, value, "give a number, or one number per run")
        if array.ndim > 1 or 0 in array.shape:
            raise ValueError(
                f"{name} has shape {array.shape}: give a number, or one number per run"
            )
        values[name] = np.atleast_1d(checks.array(name, array, array.shape, "one number per run"))
    lengths = {name: len(value) for name, value in values.items()}
    runs = max(lengths.values())
    if any(length not in (1, runs) for length in lengths.values()):
        raise ValueError(
            f"m has {lengths['m']} runs and r2 has {lengths['r2']}: give the same number, or one"
        )
    if np.any(values["r2"] < 0):
        raise checks.reject(
            "r2",
            float(values["r2"].min()),
            "it is the squared length |x|^2 - m^2 orthogonal to the signal: give 0 or more",
        )
    return SpikedStart(
        np.broadcast_to(values["m"], runs).copy(), np.broadcast_to(values["r2"], runs).copy()
    )


def validate_spiked_start(problem: SpikedTensor, start: SpikedStart) -> SpikedStart:
    """Return the start after checks; an integrator's rounding below r2 = 0 is set to 0."""
    check_spiked_problem(problem)
    if not isinstance(start, SpikedStart):
        raise checks.reject("start", start, "give a start made for a SpikedTensor (m and r2)")
    r2 = np.where((start.r2 < 0) & (start.r2 >= -TOLERANCE), 0.0, start.r2)
    return spiked_start(problem, m=start.m, r2=r2)


def check_spiked_dimension(dimension: int) -> int:
    """The dimension n: the signal and something orthogonal to it."""
    return checks.integer("dimension", dimension, 2, 10**18)


def spiked_random_start(
    problem: SpikedTensor, *, dimension: int, seed: int = 0, runs: int = 1, scale: float = 1.0
) -> SpikedStart:
    """m and r2 of x ~ N(0, scale^2 I/n), with their exact law and at a cost that does not depend on n.

        m ~ N(0, scale^2/n),   r2 ~ scale^2 chi2_{n-1}/n,   independent

    Run i does not depend on how many runs there are.
    """
    check_spiked_problem(problem)
    n = check_spiked_dimension(dimension)
    runs = checks.integer("runs", runs, 1)
    seed = checks.integer("seed", seed, 0)
    scale = checks.number("scale", scale, above=0.0)
    check_memory("runs", runs, 64.0 * runs, "their states", "give fewer runs")
    m, r2 = np.empty(runs), np.empty(runs)
    for run in range(runs):
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(run,)))
        m[run], r2[run] = generator.standard_normal(), generator.chisquare(n - 1)
    with np.errstate(over="ignore"):
        m, r2 = m * scale / math.sqrt(n), r2 * scale * scale / n
    check_scale(scale, m, r2, r2)
    return SpikedStart(m, r2)


def check_scale(scale: float, M: np.ndarray, Q: np.ndarray, lengths: np.ndarray) -> None:
    """Raise ValueError for a scale at which squared lengths are infinite or 0 in float64."""
    if not (np.all(np.isfinite(M)) and np.all(np.isfinite(Q)) and np.all(lengths > 0)):
        raise checks.reject(
            "scale",
            scale,
            "squared lengths of the rows leave the range of float64: give a scale of order 1",
        )
