"""`Spectrum`: eigenvalues of the inputs' covariance with how often each occurs, and `power_law`, one with power laws at any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from sgdynamics.base import checks

UNITS = (
    "dimension",
    "trace",
    "step",
)  # of D in a step lr/D, and in the variance 1/D of a random coordinate
MAX_DIMENSION = 10**18  # beyond it block sizes, and then counters of 64 bits, overflow
MOST_POWER_LAW = 1e14
MOST_BLOCKS = 100_000
RAW, BINS = 30, 80  # blocks of a power law, by default
SHOWN = 8  # blocks up to which a spectrum is printed in full
CUT = 1e14  # where infinitely many directions go on as one block: what SGD learns of them in fewer steps is nothing
ONE_BY_ONE = (
    1 << 17
)  # numbers j that are summed one by one; an integral in place of a sum over those beyond is right to 1e-11
PANEL = 24  # nodes of such an integral over the logarithm of j
SMOOTH = 1e-6  # relative difference of an integral by fewer nodes that a target may make


@dataclass(frozen=True, eq=False)
class Spectrum:
    """The covariance of the inputs by eigenvalues and multiplicities, which fixes the dimension.

    A block may have a single coordinate. Give it as ``covariance=`` of any problem.

    Parameters
    ----------
    eigenvalues : array_like (blocks,)
        l_b, 0 or more and at least one above 0, in any order. A direction of variance 0 may carry a mean (``means=``).
    multiplicities : array_like (blocks,)
        n_b: how many coordinates have it, whole, 1 or more.
    target : array_like, optional
        The signals, in place of the problem's Gram matrix. (K, blocks): their coordinates, in a block of many coordinates the length of
        their part there (one signal: (blocks,)); or (blocks, K, K): their Gram matrix in each block, of rank n_b at most.

    Raises
    ------
    ValueError
        If an eigenvalue is negative, all are 0, a multiplicity is not whole, shapes differ, or a Gram matrix has a
        rank above its block's size.

    Examples
    --------
    >>> spectrum = sgd.Spectrum([4.0, 1.0, 0.25], [1, 3, 40], target=[1.0, 0.5, 0.2])
    >>> spectrum.dimension, spectrum.trace, round(spectrum.effective_dimension, 3)
    (44, 17.0, 13.447)
    >>> problem = sgd.TeacherStudent(width=2, activation="erf", covariance=spectrum)
    >>> begin = sgd.random_start(problem)
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5, per="trace"), begin, steps=[0, 40])
    >>> round(result.attrs["g_l1"], 4)
    0.1176
    """

    eigenvalues: Any
    multiplicities: Any
    target: Any = None
    infinite: bool = field(default=False, init=False)
    law: dict[str, Any] | None = field(
        default=None, init=False, repr=False
    )  # the arguments of power_law that made it

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
                "multiplicities", self.multiplicities, "give whole numbers, 1 or more, one a block"
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
                "multiplicities", self.multiplicities, "give whole numbers, 1 or more, one a block"
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

    def _checked_target(self, given: Any) -> np.ndarray:
        """The signals as Gram matrices (blocks, K, K)."""
        blocks, fix = (
            len(self.eigenvalues),
            "give (signals, blocks) coordinates or (blocks, signals, signals) Gram matrices",
        )
        target = checks.real_array("target", given, fix)
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
            raise checks.reject("target", np.shape(given), f"there are {blocks} blocks: {fix}")
        checks.gram_matrix("target", target)
        values = np.linalg.eigvalsh(target)
        rank = np.sum(values > 1e-9 * np.maximum(1.0, values[:, -1:]), axis=1)
        worst = int(np.argmax(rank - self.multiplicities))
        if rank[worst] > self.multiplicities[worst]:
            n = self.multiplicities[worst]
            raise checks.reject(
                "target",
                np.shape(given),
                f"block {worst} has {n} coordinates, and the signals have rank {rank[worst]} there",
            )
        return target

    def __repr__(self) -> str:
        if self.law is not None:
            named = {"target": None, "raw": RAW, "bins": BINS}
            others = [
                f"{name}={_named(self.law[name])}"
                for name in named
                if self.law[name] != named[name]
            ]
            return f"power_law({', '.join([f'{self.law[name]:g}' for name in ('exponent', 'dimension')] + others)})"
        if self.blocks > SHOWN:
            largest, smallest = self.eigenvalues.max(), self.eigenvalues.min()
            return f"Spectrum({self.blocks} blocks, dimension={self.dimension:g}, eigenvalues from {largest:.3g} to {smallest:.3g})"
        target = "" if self.target is None else f", target={self.target.tolist()}"
        return f"Spectrum({self.eigenvalues.tolist()}, {self.multiplicities.tolist()}{target})"

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self.eigenvalues)

    @property
    def dimension(self) -> float | int:
        """d, the sum of the multiplicities; infinite where ``power_law`` was asked for that."""
        return math.inf if self.infinite else int(self.multiplicities.sum())

    @property
    def trace(self) -> float:
        """sum_b n_b l_b, the mean of abs(x)^2."""
        return float(self.multiplicities @ self.eigenvalues)

    @property
    def effective_dimension(self) -> float:
        """The squared trace over sum_b n_b l_b^2: how many directions carry the noise of a step."""
        return float(self.trace**2 / (self.multiplicities @ self.eigenvalues**2))

    @property
    def fractions(self) -> np.ndarray:
        """n_b over their sum."""
        return self.multiplicities / self.multiplicities.sum()

    def coarser(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The same blocks with neighbouring bins of a power law merged in pairs, to estimate the error of binning.

        Both blocks of a pair get the mean eigenvalue of the pair; no block disappears, so that shapes and block sizes stay.

        Returns
        -------
        tuple of ndarray (blocks,), or None
            The pair that each block belongs to, and the eigenvalues; None for a spectrum without bins.
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
            What ``covariance=`` of a problem, and a problem file, take in its place.
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
    """Eigenvalues l_j = j^-exponent, j = 1 ... dimension: the first ``raw`` one by one, the others in bins of equal width in log j.

    Parameters
    ----------
    exponent : float
        Of the eigenvalues, 0 or more.
    dimension : float
        d, whole, up to 1e14; infinite where the trace is finite, for exponents above 1.
    target : float or callable, optional
        e for one signal with the coordinates w*_j = j^-e; or a function of j that gives the coordinates of K signals (for dimensions
        above 131072 it must be smooth in j, as its sums become integrals). Without it the problem's own Gram matrix holds.
    raw : int, default 30
        How many of the largest eigenvalues have a block of their own.
    bins : int, default 80
        Into how many blocks the others go. A bin has the mean of its eigenvalues (so that the trace is exact) and the summed Gram matrix.

    Returns
    -------
    Spectrum
        With ``raw`` + ``bins`` blocks or fewer, and for infinite dimensions one more that stands for all j above 1e14.

    Raises
    ------
    ValueError
        If the trace is infinite, the target has an infinite variance, or an argument is refused.

    Notes
    -----
    The error of binning is of second order in log(d/raw)/bins. ``solve_ode`` and ``solve_linear`` measure it, by merging neighbouring bins,
    and report it as ``error_binning``.

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
            f"give a whole number up to {MOST_POWER_LAW:.0e}, or infinity where the trace is finite",
        )
    if target is not None and not callable(target):
        target = checks.number("target", target)
        if math.isinf(d) and 2 * target + s <= 1:
            raise checks.reject(
                "target",
                target,
                f"the target has infinite variance: give more than {(1 - s) / 2:g}, or a finite dimension",
            )
    last = min(d, CUT)
    edges = np.arange(0.0, min(first, last) + 1)
    if last > edges[-1]:
        edges = np.concatenate(
            [edges, np.unique(np.round(np.geomspace(max(edges[-1], 1.0), last, count + 1)))]
        )
        edges = np.unique(edges)
    of_target = None if target is None else _coordinates(target)
    counts = np.diff(edges)
    eigenvalues = _summed(lambda j: j**-s, edges) / counts
    gram = None if of_target is None else _summed(of_target, edges)
    if math.isinf(d):
        trace = CUT ** (1 - s) / (s - 1)
        size = min(round(trace**2 / (CUT ** (1 - 2 * s) / (2 * s - 1))), 1e17)
        counts, eigenvalues = np.append(counts, size), np.append(eigenvalues, trace / size)
        if of_target is not None and gram is not None:
            far = _far(lambda j: j**-s * of_target(j)) / eigenvalues[-1]
            gram = np.concatenate([gram, far[None]])
    made = Spectrum(
        eigenvalues, counts, None if gram is None else gram.reshape(len(counts), *gram.shape[1:])
    )
    object.__setattr__(made, "infinite", math.isinf(d))
    whole = d if math.isinf(d) else int(d)
    object.__setattr__(
        made,
        "law",
        {"exponent": s, "dimension": whole, "target": target, "raw": first, "bins": count},
    )
    return made


def _named(target: Any) -> str:
    return getattr(target, "__name__", "function") if callable(target) else f"{target:g}"


def _coordinates(target: float | Callable[[Any], Any]) -> Callable[[np.ndarray], np.ndarray]:
    """Products of the signals' coordinates at each of several j, (K, K, n)."""
    if not callable(target):
        return lambda j: (j ** (-2 * target))[None, None]
    fix = "give a function of j (1, 2, ...) that returns the coordinates of the signals, K finite numbers"
    try:
        one = np.atleast_1d(np.asarray(target(1.0), dtype=float))
    except Exception as error:
        raise checks.reject(
            "target", target, f"calling it with j = 1 failed with: {checks.reason(error)}; {fix}"
        ) from error
    if one.ndim != 1 or not len(one):
        raise checks.reject("target", target, f"at j = 1 it gave shape {one.shape}; {fix}")

    def products(j: np.ndarray) -> np.ndarray:
        found = _called(target, j, len(one))
        if found is None or not np.all(np.isfinite(found)):
            raise checks.reject("target", target, fix)
        return found[:, None] * found[None]

    return products


def _called(target: Callable[[Any], Any], j: np.ndarray, signals: int) -> np.ndarray | None:
    """A user's function at several j, (K, n): all at once where it takes that, else one by one."""
    some = np.unique(np.linspace(0, len(j) - 1, 5).astype(int))
    each = [np.atleast_1d(np.asarray(target(float(j[place])), dtype=float)) for place in some]
    if any(one.shape != (signals,) for one in each):
        return None
    try:
        found = np.asarray(target(j), dtype=float).reshape(signals, len(j))
    except Exception:  # it does not take an array
        found = np.full((signals, len(j)), np.nan)
    if np.allclose(found[:, some], np.stack(each, axis=1), rtol=1e-12, atol=1e-300):
        return found
    return np.stack(
        [np.atleast_1d(np.asarray(target(float(one)), dtype=float)) for one in j], axis=1
    )


def _summed(function: Callable[[np.ndarray], np.ndarray], edges: np.ndarray) -> np.ndarray:
    """Sums of function(j), (..., n) at n places, over edges[b] < j <= edges[b + 1]: (blocks, ...)."""
    near = int(np.sum(edges[1:] <= ONE_BY_ONE))
    parts = []
    if near:
        values = function(np.arange(1.0, edges[near] + 1))
        running = np.concatenate(
            [np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1
        )
        parts.append(
            np.moveaxis(np.diff(running[..., edges[: near + 1].astype(int)], axis=-1), -1, 0)
        )
    far = [
        _integral(function, low, high)
        for low, high in zip(edges[near:-1], edges[near + 1 :], strict=True)
    ]
    if far:
        parts.append(np.stack(far))
    return np.concatenate(parts)


def _integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> np.ndarray:
    """The sum over low < j <= high: one by one as far as that goes, then as an integral over log j."""
    total: Any = 0.0
    if low < ONE_BY_ONE:
        total = function(np.arange(low + 1, ONE_BY_ONE + 1)).sum(axis=-1)
        low = ONE_BY_ONE
    both = []
    for nodes in (PANEL, PANEL - 7):
        places, weights = _legendre(nodes)
        half = (math.log(high + 0.5) - math.log(low + 0.5)) / 2
        j = np.exp(math.log(low + 0.5) + half * (1 + places))
        both.append(function(j) @ (half * weights * j))
    if np.any(np.abs(both[0] - both[1]) > SMOOTH * np.abs(both[0]).max()):
        fix = f"at dimensions above {ONE_BY_ONE} its sums are integrals: give a function that is smooth in j, or a smaller dimension"
        raise checks.reject("target", f"a function that is not smooth near j = {low:.3g}", fix)
    return total + both[0]


@lru_cache
def _legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.polynomial.legendre.leggauss(nodes)


def _far(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The sum over all j above the cut, of what falls faster than 1/j."""
    total, low = np.zeros(()), CUT
    for _ in range(4000):
        part = _integral(function, low, low * 10)
        total, low = total + part, low * 10
        if np.all(np.abs(part) <= 1e-14 * np.abs(total).max()) or low > 1e280:
            break
    return total


def spectrum_from(record: dict[str, Any]) -> Spectrum:
    """The spectrum that a record states."""
    values = dict(record)
    kind = values.pop("kind", "Spectrum" if "eigenvalues" in values else "power_law")
    makers: dict[str, Any] = {"Spectrum": Spectrum, "power_law": power_law}
    checks.choice("covariance kind", kind, tuple(makers))
    infinite = values.pop("infinite", False)
    known = (
        ("eigenvalues", "multiplicities", "target")
        if kind == "Spectrum"
        else ("exponent", "dimension", "target", "raw", "bins")
    )
    checks.reject_unknown(f"covariance: {kind}", values, known)
    missing = [name for name in known[:2] if name not in values]
    if missing:
        raise ValueError(f"covariance: {kind} needs {', '.join(missing)}")
    if isinstance(values.get("dimension"), str) and values["dimension"] in ("inf", "Infinity"):
        values["dimension"] = math.inf  # JSON has no infinity
    made = makers[kind](**values)
    if infinite:
        object.__setattr__(made, "infinite", True)
    return made
