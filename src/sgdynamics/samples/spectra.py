"""`Spectrum`, the eigenvalues of the input covariance with multiplicities, and `power_law`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function

UNITS = (
    "dimension",
    "trace",
    "step",
)  # of D in a step lr/D, and in the variance 1/D of a random coordinate
MAX_DIMENSION = 10**18  # beyond it block sizes and 64-bit counters overflow
MOST_POWER_LAW = 1e14
MOST_BLOCKS = 100_000
RAW, BINS = 30, 80  # blocks of a power law, by default
SHOWN = 8  # blocks up to which a spectrum is printed in full
# Directions beyond this index are one block: SGD with fewer steps learns nothing of them.
CUT = 1e14
# Sums over j up to here are term by term. Beyond, an integral in place of the sum is accurate to
# 1e-11.
EXACT_TERMS = 1 << 17
PANEL = 24  # nodes of an integral over log j
SMOOTH = 1e-6  # relative change with fewer nodes up to which a target counts as smooth


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The covariance of the inputs by eigenvalues and multiplicities, which fixes the dimension.

    A block may have a single coordinate. Give it as ``covariance=`` of any problem.

    Parameters
    ----------
    eigenvalues : array_like (blocks,)
        Eigenvalues l_b, 0 or more and at least one above 0, in any order. A direction of variance 0
        may have a mean (``means=``).
    multiplicities : array_like (blocks,)
        Numbers n_b of coordinates with these eigenvalues, whole numbers of 1 or more.
    target : array_like, optional
        Signals that replace the problem's Gram matrix. Either their coordinates (K, blocks), or
        (blocks,) for one signal; in a block of many coordinates this is the norm of the component
        there. Or their Gram matrices (blocks, K, K), of rank n_b at most.

    Raises
    ------
    ValueError
        If an eigenvalue is negative, all are 0, a multiplicity is not a whole number, shapes
        differ, or the rank of a Gram matrix exceeds the size of its block.

    Examples
    --------
    >>> spectrum = sgd.Spectrum([4.0, 1.0, 0.25], [1, 3, 40], target=[1.0, 0.5, 0.2])
    >>> spectrum.dimension, spectrum.trace, round(spectrum.effective_dimension, 3)
    (44, 17.0, 13.447)
    >>> problem = sgd.TeacherStudent(width=2, activation="erf", covariance=spectrum)
    >>> start = sgd.random_start(problem)
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5, per="trace"), start, steps=[0, 40])
    >>> round(result.attrs["g_l1"], 4)
    0.1176
    """

    eigenvalues: Any
    multiplicities: Any
    target: Any = None
    infinite: bool = field(default=False, init=False)
    law: dict[str, Any] | None = field(
        default=None, init=False, repr=False
    )  # arguments of power_law

    def __post_init__(self) -> None:
        fix = (
            "give numbers of 0 or more, at least one above 0, in one row with one number per block"
        )
        eigenvalues = np.atleast_1d(checks.real_array("eigenvalues", self.eigenvalues, fix))
        valid = (
            eigenvalues.ndim == 1 and np.all(np.isfinite(eigenvalues)) and np.all(eigenvalues >= 0)
        )
        if not valid or not np.any(eigenvalues):
            raise checks.reject("eigenvalues", self.eigenvalues, fix)
        counts = np.atleast_1d(
            checks.real_array(
                "multiplicities",
                self.multiplicities,
                "give whole numbers, 1 or more, one per block",
            )
        )
        if counts.shape != eigenvalues.shape:
            raise checks.reject(
                "multiplicities",
                self.multiplicities,
                f"there are {len(eigenvalues)} eigenvalues: give as many whole numbers",
            )
        if (
            not np.all(np.isfinite(counts))
            or np.any(counts != np.round(counts))
            or np.any(counts < 1)
        ):
            raise checks.reject(
                "multiplicities",
                self.multiplicities,
                "give whole numbers, 1 or more, one per block",
            )
        if counts.sum() > MAX_DIMENSION:
            raise checks.reject(
                "multiplicities",
                float(counts.sum()),
                f"they may add up to {MAX_DIMENSION:.0e} at most",
            )
        object.__setattr__(self, "eigenvalues", eigenvalues)
        object.__setattr__(self, "multiplicities", counts.astype(np.int64))
        object.__setattr__(
            self, "target", None if self.target is None else self._checked_target(self.target)
        )

    def _checked_target(self, stated: ArrayArgument) -> np.ndarray:
        """The Gram matrices (blocks, K, K) of the signals."""
        blocks, fix = (
            len(self.eigenvalues),
            "give (signals, blocks) coordinates or (blocks, signals, signals) Gram matrices",
        )
        target = checks.real_array("target", stated, fix)
        if target.ndim == 1:
            target = target[None]
        if target.ndim == 2 and target.shape[1] == blocks and len(target):
            target = np.einsum("rb,sb->brs", target, target)
        if (
            target.ndim != 3
            or target.shape[0] != blocks
            or target.shape[1] != target.shape[2]
            or not target.size
        ):
            raise checks.reject("target", np.shape(stated), f"there are {blocks} blocks: {fix}")
        checks.gram_matrix("target", target)
        values = np.linalg.eigvalsh(target)
        rank = np.sum(values > 1e-9 * np.maximum(1.0, values[:, -1:]), axis=1)
        worst = int(np.argmax(rank - self.multiplicities))
        if rank[worst] > self.multiplicities[worst]:
            n = self.multiplicities[worst]
            raise checks.reject(
                "target",
                np.shape(stated),
                f"block {worst} has {n} coordinates, but the signals have rank {rank[worst]} there",
            )
        return target

    def __repr__(self) -> str:
        if self.law is not None:
            named = {"target": None, "raw": RAW, "bins": BINS}
            others = [
                f"{name}={_target_name(self.law[name])}"
                for name in named
                if self.law[name] != named[name]
            ]
            stated = [f"{self.law[name]:g}" for name in ("exponent", "dimension")]
            return f"power_law({', '.join(stated + others)})"
        if self.blocks > SHOWN:
            largest, smallest = self.eigenvalues.max(), self.eigenvalues.min()
            return (
                f"Spectrum({self.blocks} blocks, dimension={self.dimension:g}, "
                f"eigenvalues from {largest:.3g} to {smallest:.3g})"
            )
        target = "" if self.target is None else f", target={self.target.tolist()}"
        return f"Spectrum({self.eigenvalues.tolist()}, {self.multiplicities.tolist()}{target})"

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self.eigenvalues)

    @property
    def dimension(self) -> float | int:
        """d, the sum of the multiplicities; may be infinite for a ``power_law``."""
        return math.inf if self.infinite else int(self.multiplicities.sum())

    @property
    def trace(self) -> float:
        """sum_b n_b l_b, the mean of abs(x)^2."""
        return float(self.multiplicities @ self.eigenvalues)

    @property
    def effective_dimension(self) -> float:
        """The squared trace over sum_b n_b l_b^2.

        Number of directions that carry the noise of a step.
        """
        return float(self.trace**2 / (self.multiplicities @ self.eigenvalues**2))

    @property
    def fractions(self) -> np.ndarray:
        """n_b divided by the dimension."""
        return self.multiplicities / self.multiplicities.sum()

    def coarser(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Merge neighbouring bins of a power law in pairs, to estimate the error of binning.

        Both blocks of a pair get the mean eigenvalue of the pair. No block disappears, so that
        shapes and block sizes stay the same.

        Returns
        -------
        tuple of ndarray (blocks,), or None
            The pair of each block, and the eigenvalues; None for a spectrum without bins.
        """
        if self.law is None:
            return None
        first, end = min(self.law["raw"], self.blocks), self.blocks - self.infinite
        if end - first < 2:
            return None
        pair = np.arange(self.blocks)
        pair[first:end] = first + np.arange(end - first) // 2
        counts = np.bincount(pair, self.multiplicities)[pair]
        traces = np.bincount(pair, self.multiplicities * self.eigenvalues)[pair]
        return pair, traces / counts

    def describe(self) -> dict[str, Any]:
        """The spectrum as plain values for a record.

        Returns
        -------
        dict
            A record that ``covariance=`` of a problem and a problem file accept.
        """
        if self.law is not None and not callable(self.law["target"]):
            return {"kind": "power_law", **self.law}
        plain = {
            "kind": "Spectrum",
            "eigenvalues": self.eigenvalues.tolist(),
            "multiplicities": self.multiplicities.tolist(),
        }
        return (
            plain
            | ({} if self.target is None else {"target": self.target.tolist()})
            | ({"infinite": True} if self.infinite else {})
        )


def power_law(
    exponent: float,
    dimension: float,
    target: float | Callable[[Any], Any] | None = None,
    raw: int = RAW,
    bins: int = BINS,
) -> Spectrum:
    """Eigenvalues l_j = j^-exponent for j = 1 ... dimension.

    The first ``raw`` have a block each, the others are in bins of equal width in log j.

    Parameters
    ----------
    exponent : float
        Exponent of the eigenvalues, 0 or more.
    dimension : float
        Dimension d, a whole number up to 1e14; infinite if the trace is finite, for exponents above
        1.
    target : float or callable, optional
        Exponent e of one signal with the coordinates w*_j = j^-e, or a function of j that returns
        the coordinates of K signals. For dimensions above 131072 that must be smooth in j, because
        its sums become integrals. By default the problem's own Gram matrix applies.
    raw : int, default 30
        Number of the largest eigenvalues that have a block of their own.
    bins : int, default 80
        Number of blocks for the others. A bin has the mean of its eigenvalues, so that the trace is
        exact, and the sum of their Gram matrices.

    Returns
    -------
    Spectrum
        A spectrum of at most ``raw`` + ``bins`` blocks, and for infinite dimensions one more for
        all j above 1e14.

    Raises
    ------
    ValueError
        If the trace is infinite, the target has an infinite variance, or an argument is invalid.

    Notes
    -----
    The error of binning is of second order in log(d/raw)/bins. ``solve_ode`` and ``solve_linear``
    estimate it by merging neighbouring bins, and report it as ``error_binning``.

    Examples
    --------
    >>> spectrum = sgd.power_law(1.2, 1e9, target=0.3)
    >>> spectrum.blocks, round(spectrum.trace, 6)
    (110, 5.512338)
    """
    s = checks.number("exponent", exponent, minimum=0.0)
    d = checks.number("dimension", dimension, minimum=1.0, infinite=True)
    first, count = (
        checks.integer("raw", raw, 0, MOST_BLOCKS),
        checks.integer("bins", bins, 1, MOST_BLOCKS),
    )
    if math.isinf(d) and s <= 1:
        raise checks.reject(
            "dimension",
            d,
            f"the trace of the inputs is infinite at exponent = {s:g}: give a finite number",
        )
    if math.isfinite(d) and (d != round(d) or d > MOST_POWER_LAW):
        raise checks.reject(
            "dimension",
            dimension,
            f"give a whole number up to {MOST_POWER_LAW:.0e}, or infinity if the trace is finite",
        )
    if target is not None and not callable(target):
        target = checks.number("target", target)
        if math.isinf(d) and 2 * target + s <= 1:
            raise checks.reject(
                "target",
                target,
                f"the target has infinite variance: give more than {(1 - s) / 2:g}, or a finite "
                "dimension",
            )
    last = min(d, CUT)
    edges = np.arange(0.0, min(first, last) + 1)
    if last > edges[-1]:
        edges = np.concatenate(
            [edges, np.unique(np.round(np.geomspace(max(edges[-1], 1.0), last, count + 1)))]
        )
        edges = np.unique(edges)
    products = None if target is None else _coordinate_products(target)
    counts = np.diff(edges)
    eigenvalues = _block_sums(lambda j: j**-s, edges) / counts
    gram = None if products is None else _block_sums(products, edges)
    if math.isinf(d):
        trace = CUT ** (1 - s) / (s - 1)
        size = min(round(trace**2 / (CUT ** (1 - 2 * s) / (2 * s - 1))), 1e17)
        counts, eigenvalues = np.append(counts, size), np.append(eigenvalues, trace / size)
        if products is not None and gram is not None:
            far = _far(lambda j: j**-s * products(j)) / eigenvalues[-1]
            gram = np.concatenate([gram, far[None]])
    spectrum = Spectrum(
        eigenvalues, counts, None if gram is None else gram.reshape(len(counts), *gram.shape[1:])
    )
    object.__setattr__(spectrum, "infinite", math.isinf(d))
    stated_dimension = d if math.isinf(d) else int(d)
    object.__setattr__(
        spectrum,
        "law",
        {
            "exponent": s,
            "dimension": stated_dimension,
            "target": target,
            "raw": first,
            "bins": count,
        },
    )
    return spectrum


def _target_name(target: float | Function) -> str:
    return getattr(target, "__name__", "function") if callable(target) else f"{target:g}"


def _coordinate_products(
    target: float | Callable[[Any], Any],
) -> Callable[[np.ndarray], np.ndarray]:
    """Products of the signals' coordinates at each of several j, (K, K, n)."""
    if not callable(target):
        return lambda j: (j ** (-2 * target))[None, None]
    fix = (
        "give a function of j (1, 2, ...) that returns the coordinates of the signals, K finite "
        "numbers"
    )
    try:
        first = np.atleast_1d(np.asarray(target(1.0), dtype=float))
    except Exception as error:
        raise checks.reject(
            "target", target, f"calling it with j = 1 failed with: {checks.reason(error)}; {fix}"
        ) from error
    if first.ndim != 1 or not len(first):
        raise checks.reject("target", target, f"at j = 1 it gave shape {first.shape}; {fix}")

    def products(j: np.ndarray) -> np.ndarray:
        coordinates = _evaluate_target(target, j, len(first))
        if coordinates is None or not np.all(np.isfinite(coordinates)):
            raise checks.reject("target", target, fix)
        return coordinates[:, None] * coordinates[None]

    return products


def _evaluate_target(
    target: Callable[[Any], Any], j: np.ndarray, signals: int
) -> np.ndarray | None:
    """Evaluate a user's function at several j, (K, n).

    If it does not accept arrays, or returns other values for them, it is called for each j.
    """
    some = np.unique(np.linspace(0, len(j) - 1, 5).astype(int))
    tried = [np.atleast_1d(np.asarray(target(float(j[index])), dtype=float)) for index in some]
    if any(coordinates.shape != (signals,) for coordinates in tried):
        return None
    try:
        values = np.asarray(target(j), dtype=float).reshape(signals, len(j))
    except Exception:  # the function does not accept an array
        values = np.full((signals, len(j)), np.nan)
    if np.allclose(values[:, some], np.stack(tried, axis=1), rtol=1e-12, atol=1e-300):
        return values
    return np.stack(
        [np.atleast_1d(np.asarray(target(float(index)), dtype=float)) for index in j], axis=1
    )


def _block_sums(function: Callable[[np.ndarray], np.ndarray], edges: np.ndarray) -> np.ndarray:
    """Sums of function(j), (..., n) at n places, over edges[b] < j <= edges[b + 1].

    (blocks, ...).
    """
    near = int(np.sum(edges[1:] <= EXACT_TERMS))
    sums = []
    if near:
        values = function(np.arange(1.0, edges[near] + 1))
        running = np.concatenate(
            [np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1
        )
        sums.append(
            np.moveaxis(np.diff(running[..., edges[: near + 1].astype(int)], axis=-1), -1, 0)
        )
    far = [
        _integral(function, low, high)
        for low, high in zip(edges[near:-1], edges[near + 1 :], strict=True)
    ]
    if far:
        sums.append(np.stack(far))
    return np.concatenate(sums)


def _integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> np.ndarray:
    """The sum over low < j <= high.

    One by one as far as that goes, then as an integral over log j.
    """
    total: Any = 0.0
    if low < EXACT_TERMS:
        total = function(np.arange(low + 1, EXACT_TERMS + 1)).sum(axis=-1)
        low = EXACT_TERMS
    both = []
    for nodes in (PANEL, PANEL - 7):
        points, weights = _legendre(nodes)
        half = (math.log(high + 0.5) - math.log(low + 0.5)) / 2
        j = np.exp(math.log(low + 0.5) + half * (1 + points))
        both.append(function(j) @ (half * weights * j))
    if np.any(np.abs(both[0] - both[1]) > SMOOTH * np.abs(both[0]).max()):
        fix = (
            f"for dimensions above {EXACT_TERMS} its sums become integrals: give a function that "
            "is smooth in j, or a smaller dimension"
        )
        raise checks.reject("target", f"a function that is not smooth near j = {low:.3g}", fix)
    return total + both[0]


@lru_cache
def _legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(nodes)


def _far(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The sum over all j above the cut of a function that falls faster than 1/j."""
    total, low = np.zeros(()), CUT
    for _ in range(4000):
        decade = _integral(function, low, low * 10)
        total, low = total + decade, low * 10
        if np.all(np.abs(decade) <= 1e-14 * np.abs(total).max()) or low > 1e280:
            break
    return total


def spectrum_from(record: dict[str, Any]) -> Spectrum:
    """Build the spectrum of a record."""
    values = dict(record)
    kind = values.pop("kind", "Spectrum" if "eigenvalues" in values else "power_law")
    makers: dict[str, Any] = {"Spectrum": Spectrum, "power_law": power_law}
    checks.choice("covariance kind", kind, tuple(makers))
    infinite = values.pop("infinite", False)
    names = (
        ("eigenvalues", "multiplicities", "target")
        if kind == "Spectrum"
        else ("exponent", "dimension", "target", "raw", "bins")
    )
    checks.reject_unknown(f"covariance: {kind}", values, names)
    missing = [name for name in names[:2] if name not in values]
    if missing:
        raise ValueError(f"covariance: {kind} needs {', '.join(missing)}")
    if isinstance(values.get("dimension"), str) and values["dimension"] in ("inf", "Infinity"):
        values["dimension"] = math.inf  # JSON has no infinity
    spectrum = makers[kind](**values)
    if infinite:
        object.__setattr__(spectrum, "infinite", True)
    return spectrum
