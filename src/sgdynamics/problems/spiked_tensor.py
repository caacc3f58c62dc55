"""`SpikedTensor`: a rank-one signal in Gaussian noise, drawn anew at every step; and its starts.

The data are Gaussian tensors and not Gaussian inputs, so this is not a `Problem` and has no fields.
The gradient at x is Gaussian, and its mean and covariance depend on x only through m = <x, v> and
r2 = |x|^2 - m^2. These two order parameters are therefore a Markov chain at every dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import ArrayArgument, Parameters, RealArray
from sgdynamics.base.equations import HasEquations
from sgdynamics.base.resources import check_memory

# Largest order: beyond it |x|^(2 order) overflows float64 as soon as |x| differs from 1.
MOST_ORDER = 100
# Rounding of an integrator may make an r2 negative by this much.
TOLERANCE = 1e-9


@pytrees.register_parameters("snr", "ridge")
@dataclass(frozen=True)
class SpikedTensor(HasEquations):
    """Recovery of a unit vector v from fresh noisy tensors of rank one.

    ::

        Y = snr v^(order) + W,      W with independent standard normal entries
        loss(x, Y) = |Y - x^(order)|^2 + (ridge/2) |x|^2,      x in R^n

    Parameters
    ----------
    order : int, default 2
        Order of the tensor; 2 is the spiked matrix (not symmetrised).
    snr : float, default 1.2
        Signal-to-noise ratio, above 0: the strength of the signal.
    ridge : float, default 0.0
        Coefficient of the penalty, 0 or more. It enters the dynamics but not ``risk``.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Notes
    -----
    The loss is twice the negative log-likelihood, as in section 3 of "High-dimensional limit
    theorems for SGD" (Ben Arous, Gheissari, Jagannath).

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

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of this problem in the table of supported combinations."""
        return ("spiked tensor",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", checks.integer("order", self.order, 2, MOST_ORDER))
        object.__setattr__(self, "snr", checks.number("snr", self.snr, above=0.0))
        object.__setattr__(self, "ridge", checks.number("ridge", self.ridge, 0.0))

    def replace(self, **changes: object) -> SpikedTensor:
        """Return a problem with some of the arguments changed, checked as in the constructor.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name.

        Returns
        -------
        SpikedTensor
            A new problem; this one does not change.
        """
        return checks.replace_fields(self, changes)

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem, as a dictionary that JAX can trace."""
        return {"snr": pytrees.to_float64(self.snr), "ridge": pytrees.to_float64(self.ridge)}

    def risk(self, m: RealArray, r2: RealArray) -> RealArray:
        """Return the population risk, without the ridge and without the constant E|W|^2 = n^k.

        ::

            |snr v^(k) - x^(k)|^2 = (snr - m^k)^2 + r2 sum_j R^(2j) m^(2(k-1-j)),   R^2 = m^2 + r2

        The sum is over j = 0, ..., k - 1 with k the order.

        Parameters
        ----------
        m : float or ndarray
            The overlap <x, v>.
        r2 : float or ndarray
            The squared length orthogonal to the signal, abs(x)^2 - m^2.

        Returns
        -------
        float or ndarray
            The risk. No term of the formula is negative, so that nothing cancels near 0.

        Notes
        -----
        Source: section 3, before Proposition 3.1.
        """
        overlaps, squared_lengths = (np.asarray(value, dtype=np.float64) for value in (m, r2))
        risks = spiked_risk(self.order, self.snr, overlaps, squared_lengths)
        return float(risks) if np.ndim(risks) == 0 else risks

    def describe(self) -> dict[str, str | int | float]:
        """Return the problem as plain values for the record of a result.

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
    """Return the risk of a spiked tensor (see `SpikedTensor.risk`), of NumPy or JAX values."""
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
                f"m has shape {m.shape} and r2 {r2.shape}: give one number per run in each, with "
                "at least one run"
            )
        object.__setattr__(self, "m", m)
        object.__setattr__(self, "r2", r2)

    @property
    def runs(self) -> int:
        return self.m.shape[0]


def spiked_start(
    problem: SpikedTensor, *, m: ArrayArgument | None, r2: ArrayArgument | None
) -> SpikedStart:
    """Make a start from m = <x, v> and r2 = |x - m v|^2 >= 0, each a number or one per run."""
    check_spiked_problem(problem)
    arrays = {}
    for name, value in (("m", m), ("r2", r2)):
        array = checks.real_array(name, value, "give a number, or one number per run")
        if array.ndim > 1 or 0 in array.shape:
            raise ValueError(
                f"{name} has shape {array.shape}: give a number, or one number per run"
            )
        arrays[name] = np.atleast_1d(checks.array(name, array, array.shape, "one number per run"))
    counts = {name: len(array) for name, array in arrays.items()}
    runs = max(counts.values())
    if any(count not in (1, runs) for count in counts.values()):
        raise ValueError(
            f"m has {counts['m']} runs and r2 has {counts['r2']}: give the same number, or one"
        )
    if np.any(arrays["r2"] < 0):
        raise checks.reject(
            "r2",
            float(arrays["r2"].min()),
            "it is the squared length |x|^2 - m^2 orthogonal to the signal: give 0 or more",
        )
    return SpikedStart(
        np.broadcast_to(arrays["m"], runs).copy(), np.broadcast_to(arrays["r2"], runs).copy()
    )


def validate_spiked_start(problem: SpikedTensor, start: SpikedStart) -> SpikedStart:
    """Return the start after checks; an integrator's rounding below r2 = 0 is set to 0."""
    check_spiked_problem(problem)
    if not isinstance(start, SpikedStart):
        raise checks.reject("start", start, "give a start made for a SpikedTensor (m and r2)")
    r2 = np.where((start.r2 < 0) & (start.r2 >= -TOLERANCE), 0.0, start.r2)
    return spiked_start(problem, m=start.m, r2=r2)


def check_spiked_dimension(dimension: int) -> int:
    """Validate the dimension n: at least 2, for the signal and a direction orthogonal to it."""
    return checks.integer("dimension", dimension, 2, 10**18)


def spiked_random_start(
    problem: SpikedTensor, *, dimension: int, seed: int = 0, runs: int = 1, scale: float = 1.0
) -> SpikedStart:
    """Draw m and r2 of x ~ N(0, scale^2 I/n) from their exact law, independent of each other:

        m ~ N(0, scale^2/n),   r2 ~ scale^2 chi2_{n-1}/n

    The cost does not depend on n, and run i does not depend on the number of runs.
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
