"""The exact mean risk of one-pass SGD on a linear student, after any number of steps.

With eigenvalues l_j of the input covariance, c_j = E[(w_j - w*_j)^2] in its eigenbasis, label noise
s2, 2 risk = sum l_j c_j + s2, and steps w <- w - g grad over batches of B,

    c_j' = q_j c_j + (g^2/B) l_j (kappa sum l c + s2),
    q_j = 1 - 2 g l_j + g^2 (1 - 1/B + 2 kappa/B) l_j^2,

and with n_b l_b in the last term for the sum over a block of n_b equal eigenvalues. kappa = 1 for
Gaussian inputs; for x = sqrt(tau) z it is E[tau^2]. In r_b = c_b/sqrt(n_b) one step is a symmetric
matrix, so that one eigenvalue problem gives all steps. With weight decay al, r = 1 - g al,
m_j = E[w_j - w*_j] and rho_j = r - g l_j: q_j = r^2 - 2 r g l_j + ..., and

    c_j' = ... - 2 g al rho_j w*_j m_j + (g al w*_j)^2,
    (w*_j m_j)' = rho_j w*_j m_j - g al w*_j^2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import optimize

from sgdynamics.base import checks

if TYPE_CHECKING:
    from sgdynamics.problems.teacher_student import TeacherStudent

# largest number of modes of an eigenvalue problem
MOST_MODES = 3000
# largest number of steps that are iterated if there are more modes
MOST_STEPS = 20_000


def validate_step(step: object, largest: float) -> float:
    """Return the step size g, whose product with the largest eigenvalue is at most 1e6.

    The mean is unstable above 2; larger values would only overflow.
    """
    g = checks.number("step", step, above=0.0)
    if g * largest > 1e6:
        raise checks.reject(
            "step", step, f"SGD diverges for steps above {2 / largest:.3g}. Use a smaller one."
        )
    return g


def validate_values(argument: str, value: object, minimum: float) -> np.ndarray:
    """Return one or several finite numbers of at least `minimum` as a one-dimensional array."""
    fix = f"use finite numbers of at least {minimum:g}"
    values = np.atleast_1d(checks.real_array(argument, value, fix))
    is_valid = values.ndim == 1 and len(values) > 0 and np.all(np.isfinite(values))
    if not is_valid or np.any(values < minimum):
        raise checks.reject(argument, value, fix)
    return values


@dataclass(frozen=True)
class LinearModes:
    """A linear student in the eigenbasis of its inputs, as far as its mean risk depends on it.

    Parameters
    ----------
    eigenvalues : array (n,)
        Eigenvalues l_b of the input covariance.
    counts : array (n,)
        Multiplicities n_b of the eigenvalues.
    errors : array (n,)
        Initial sums of E[(w_j - w*_j)^2] over the dimensions of each block.
    noise : float, default 0.0
        Variance of the labels about the linear target, s2.
    kappa : float, default 1.0
        Ratio of E|x|^4 to that of a Gaussian with the same covariance; 1 for Gaussian inputs.
    targets : array (n,), optional
        Sums of w*_j^2 over each block; needed for weight decay.
    along : array (n,), optional
        Initial sums of w*_j E[w_j - w*_j] over each block. Defaults to minus ``targets``, the value
        for w = 0.

    Raises
    ------
    ValueError
        If the lengths differ, an eigenvalue or an error is negative, or a count is below 1.

    Examples
    --------
    >>> modes = sgd.scaling.LinearModes(1 / np.arange(1, 13.0), np.ones(12), np.ones(12))
    >>> round(modes.largest_step(batch=1), 6)
    0.465924
    >>> print(np.round(modes.risk([0, 10, 100], step=0.2), 6))
    [1.551605 0.661914 0.014142]
    """

    eigenvalues: np.ndarray
    counts: np.ndarray
    errors: np.ndarray
    noise: float = 0.0
    kappa: float = 1.0
    targets: np.ndarray | None = None
    along: np.ndarray | None = None

    def __post_init__(self) -> None:
        fix = "use a one-dimensional array"
        arrays = {
            name: checks.real_array(name, getattr(self, name), fix)
            for name in ("eigenvalues", "counts", "errors")
        }
        shape = next(iter(arrays.values())).shape
        for name, value in arrays.items():
            if value.shape != shape or value.ndim != 1 or not len(value):
                raise checks.reject(
                    name,
                    value.shape,
                    f"eigenvalues, counts and errors need one value per block: {shape}",
                )
            minimum = 1.0 if name == "counts" else 0.0
            if not np.all(np.isfinite(value)) or np.any(value < minimum):
                raise checks.reject(name, value, f"use finite numbers of at least {minimum:g}")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "noise", checks.number("noise", self.noise, minimum=0.0))
        object.__setattr__(self, "kappa", checks.number("kappa", self.kappa, above=0.0))
        for name in ("targets", "along"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(
                    self, name, checks.array(name, value, shape, "one value per block")
                )
        if self.along is None and self.targets is not None:
            object.__setattr__(self, "along", -self.targets)

    def problem(self, noise: float = 0.0) -> TeacherStudent:
        """State the linear student as a problem, for schedules, protocols and fixed data sets.

        Parameters
        ----------
        noise : float, default 0.0
            Variance of label noise in addition to that of the modes.

        Returns
        -------
        TeacherStudent
            Linear student of width 1 with the eigenvalues as ``covariance`` and one signal. Its
            steps ``w <- w - g grad`` are those of ``OnePassSGD(lr=g, per="step")``.

        Raises
        ------
        ValueError
            If ``kappa`` is not 1 (problems have Gaussian inputs), or a count is not an integer.

        Notes
        -----
        The coordinates of the target are the square roots of ``targets``, or of ``errors`` by
        default, which is right for a student that starts at w = 0.
        """
        # imported here, because the rest of this module needs no JAX
        from sgdynamics.problems.teacher_student import TeacherStudent
        from sgdynamics.samples.spectra import Spectrum

        if self.kappa != 1.0:
            raise checks.reject(
                "kappa",
                self.kappa,
                "a problem has Gaussian inputs, kappa = 1. Use sgd.solve_linear(kappa=...)",
            )
        targets = self.errors if self.targets is None else self.targets
        spectrum = Spectrum(self.eigenvalues, self.counts, target=np.sqrt(targets))
        total = self.noise + checks.number("noise", noise, minimum=0.0)
        return TeacherStudent(width=1, activation="linear", noise=total, covariance=spectrum)

    @property
    def trace(self) -> float:
        """Trace of the covariance, sum n_b l_b."""
        return float(self.counts @ self.eigenvalues)

    @property
    def effective_dimension(self) -> float:
        """Effective dimension, (sum l)^2/sum l^2."""
        return float(self.trace**2 / (self.counts @ self.eigenvalues**2))

    @cached_property
    def _scale(self) -> np.ndarray:
        return self.eigenvalues * np.sqrt(self.counts)

    def _survival(self, step: float, batch: int, decay: float = 0.0) -> np.ndarray:
        """Return q_b, the factor by which a step multiplies the error of a block."""
        gl, kappa, r = step * self.eigenvalues, self.kappa, 1 - step * decay
        return r**2 - 2 * r * gl + (1 - 1 / batch + 2 * kappa / batch) * gl**2

    def risk(
        self,
        steps: Sequence[float] | np.ndarray,
        step: float,
        batch: int = 1,
        weight_decay: float = 0.0,
    ) -> np.ndarray:
        """Mean risk after given numbers of steps.

        Parameters
        ----------
        steps : sequence of int
            Numbers of steps, in any order; 0 is the start.
        step : float
            Step size g: w <- w - g grad, with the gradient averaged over the batch.
        batch : int, default 1
            Batch size B.
        weight_decay : float, default 0.0
            Weight decay al, which adds al w to the gradient.

        Returns
        -------
        ndarray
            Risk per number of steps; infinite if the mean has overflowed.

        Raises
        ------
        ValueError
            If there are more than 3000 blocks and more than 20000 steps, or weight decay without
            ``targets``.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            errors, _ = self.errors_after(steps, step, batch, weight_decay)
            risk = 0.5 * (errors @ self.eigenvalues + self.noise)
        return np.where(np.isfinite(risk), risk, np.inf)

    def errors_after(
        self,
        steps: Sequence[float] | np.ndarray,
        step: float,
        batch: int = 1,
        weight_decay: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values of ``errors`` and ``along`` after given numbers of steps.

        Parameters
        ----------
        steps : sequence of int
            Numbers of steps.
        step : float
            Step size g.
        batch : int, default 1
            Batch size B.
        weight_decay : float, default 0.0
            Weight decay al.

        Returns
        -------
        tuple of ndarray
            ``errors`` and ``along``, of shape (steps, blocks).
        """
        g, B = validate_step(step, float(self.eigenvalues.max())), checks.integer("batch", batch, 1)
        decay = checks.number("weight_decay", weight_decay, minimum=0.0)
        if decay and self.targets is None:
            raise checks.reject(
                "weight_decay",
                decay,
                "the effect of weight decay depends on the target. Pass targets=.",
            )
        counts = validate_values("steps", steps, 0.0)
        if np.any(counts != np.round(counts)):
            raise checks.reject("steps", steps, "use integers")
        solve = self._iterate if len(self.eigenvalues) > MOST_MODES else self._diagonalise
        return solve(counts, g, B, decay)

    def _sources(
        self, g: float, B: int, decay: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the terms that a step adds to the errors, b + b_1 rho^n after n steps.

        Returns b, b_1, rho, and the stationary value of ``along``.
        """
        noise = g**2 / B * self.noise * self.counts * self.eigenvalues
        rho = 1 - g * decay - g * self.eigenvalues
        if not decay or self.targets is None or self.along is None:
            return noise, np.zeros_like(noise), rho, np.zeros_like(noise)
        stationary = -g * decay * self.targets / (1 - rho)
        return (
            noise + (g * decay) ** 2 * self.targets - 2 * g * decay * rho * stationary,
            -2 * g * decay * rho * (self.along - stationary),
            rho,
            stationary,
        )

    def _diagonalise(
        self, steps: np.ndarray, g: float, B: int, decay: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Solve r' = (1 - E) r + b + b_1 rho^n for all steps by one eigenvalue problem."""
        root = np.sqrt(self.counts)
        eigen, vectors = _decompose_step(
            (1 - self._survival(g, B, decay)).tobytes(),
            self._scale.tobytes(),
            self.kappa * g**2 / B,
        )
        constant, decaying, rho, stationary = self._sources(g, B, decay)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            loss = _fraction_lost(eigen, steps)
            # geometric series of the constant source, with the limit n for eigenvalue 0
            geometric = np.where(np.abs(eigen) > 1e-300, loss / eigen, steps[:, None])
            initial, source = vectors.T @ (self.errors / root), vectors.T @ (constant / root)
            coefficients = (1 - loss) * initial + geometric * source
            if decay:
                series = _double_geometric(eigen, 1 - rho, steps)
                decaying_source = vectors.T * (decaying / root)
                coefficients = coefficients + np.einsum("nkb,kb->nk", series, decaying_source)
                remaining = 1 - _fraction_lost(1 - rho, steps)
            else:
                remaining = np.ones((len(steps), 1))
            errors = (coefficients @ vectors.T) * root
        if self.along is None:
            return errors, np.zeros_like(errors)
        return errors, stationary + remaining * (self.along - stationary)

    def _iterate(
        self, steps: np.ndarray, g: float, B: int, decay: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Iterate the recursion, for many modes and few steps."""
        last = int(steps.max(initial=0))
        if last > MOST_STEPS:
            fix = (
                f"with {len(self.eigenvalues)} blocks at most {MOST_STEPS} steps are possible. "
                "Use fewer steps, or merge nearly equal eigenvalues into one block."
            )
            raise checks.reject("steps", last, fix)
        q = self._survival(g, B, decay)
        constant, decaying, rho, stationary = self._sources(g, B, decay)
        c, power = self.errors.copy(), np.ones_like(rho)
        snapshots = {}
        for index in range(last + 1):
            if index in steps:
                snapshots[index] = c, power
            # noise of the gradient, proportional to the current risk
            risk = float(self.eigenvalues @ c)
            feedback = self.kappa * g**2 / B * self.counts * self.eigenvalues * risk
            c = q * c + feedback + constant + decaying * power
            power = power * rho if decay else power
        errors = np.array([snapshots[int(count)][0] for count in steps])
        if self.along is None:
            return errors, np.zeros_like(errors)
        powers = np.array([snapshots[int(count)][1] for count in steps])
        return errors, stationary + powers * (self.along - stationary)

    def errors_with_rates(
        self, steps: np.ndarray, rates: np.ndarray, batch: int, weight_decay: float
    ) -> np.ndarray:
        """Values of ``errors`` after given numbers of steps whose sizes differ.

        Iterates the recursion of the module docstring. A step costs a few products of length n.

        Parameters
        ----------
        steps : array of int
            Numbers of steps, up to the number of rates.
        rates : array
            The size g of each step.
        batch : int
            Batch size B.
        weight_decay : float
            Weight decay al.

        Returns
        -------
        ndarray
            ``errors``, of shape (steps, blocks).
        """
        eigenvalues, B, decay = self.eigenvalues, batch, weight_decay
        targets = np.zeros_like(eigenvalues) if self.targets is None else self.targets
        c, m = self.errors.copy(), -targets if self.along is None else self.along.copy()
        noisy = self.counts * eigenvalues / B
        save_points = set(steps.astype(int).tolist())
        snapshots = {0: c}
        for index, g in enumerate(rates.tolist(), start=1):
            noise = g**2 * noisy * (self.kappa * float(eigenvalues @ c) + self.noise)
            c = self._survival(g, B, decay) * c + noise
            if decay:
                rho = 1 - g * decay - g * eigenvalues
                c += (g * decay) ** 2 * targets - 2 * g * decay * rho * m
                m = rho * m - g * decay * targets
            if index in save_points:
                snapshots[index] = c
        return np.array([snapshots[int(count)] for count in steps])

    def noise_gain(self, step: float, batch: int = 1) -> float:
        """Fraction K of the risk that the gradient noise feeds back.

        The risk converges to noise/(2 (1 - K)) if K < 1, and grows otherwise.

        Parameters
        ----------
        step : float
            Step size g.
        batch : int, default 1
            Batch size B.

        Returns
        -------
        float
            The fraction K; infinite if a single direction is unstable.
        """
        g, B = checks.number("step", step, above=0.0), checks.integer("batch", batch, 1)
        # (1 - q_b)/(g l_b), the contraction of block b without feedback
        contraction = 2 - g * self.eigenvalues * (1 - 1 / B + 2 * self.kappa / B)
        if np.any(contraction <= 0):
            return math.inf
        return float(self.kappa * g / B * np.sum(self.counts * self.eigenvalues / contraction))

    def largest_step(self, batch: int = 1) -> float:
        """Largest step size g at which the mean risk converges.

        Parameters
        ----------
        batch : int, default 1
            Batch size B.

        Returns
        -------
        float
            The step size at which ``noise_gain`` reaches 1.
        """
        B = checks.integer("batch", batch, 1)
        edge = 2 / ((1 - 1 / B + 2 * self.kappa / B) * float(self.eigenvalues.max()))
        root: Any = optimize.brentq(
            lambda g: min(self.noise_gain(g, B), 1e6) - 1,
            1e-12 * edge,
            edge * (1 - 1e-12),
            xtol=1e-15 * edge,
        )
        return float(root)


@lru_cache(maxsize=4)  # an entry takes up to 72 MB
def _decompose_step(loss: bytes, scale: bytes, feedback: float) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues and eigenvectors of E = diag(1 - q) - feedback w w^T.

    Students that differ in errors, noise and targets share them.
    """
    w = np.frombuffer(scale)
    decomposition = np.linalg.eigh(np.diag(np.frombuffer(loss)) - feedback * np.outer(w, w))
    for array in decomposition:
        array.flags.writeable = False  # cached: later calls return the same arrays
    return decomposition.eigenvalues, decomposition.eigenvectors


def _fraction_lost(eigen: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return 1 - (1 - eigen)^n, (steps, modes), without cancellation for small eigenvalues."""
    # log |1 - eigen|; the sign is restored for odd n and eigen > 1
    log_factor = np.where(
        eigen < 1, np.log1p(-np.minimum(eigen, 1.0)), np.log(np.maximum(eigen - 1, 0.0))
    )
    log_power = np.where(steps[:, None] == 0, 0.0, np.outer(steps, log_factor))
    is_negative = np.outer(steps % 2 == 1, eigen > 1)
    return -np.expm1(log_power) * ~is_negative + (1 + np.exp(log_power)) * is_negative


def _double_geometric(eigen: np.ndarray, other: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return sum_m (1 - eigen)^(n - 1 - m) (1 - other)^m over m < n, (steps, modes, modes)."""
    loss, other_loss = _fraction_lost(eigen, steps), _fraction_lost(other, steps)
    gap = other[None] - eigen[:, None]
    is_close = np.abs(gap) < 1e-9
    # n (1 - eigen)^(n - 1) for equal arguments
    equal = steps[:, None] * np.where(
        np.abs(1 - eigen) > 1e-300, (1 - loss) / (1 - eigen), steps[:, None] == 1
    )
    different = (other_loss[:, None] - loss[:, :, None]) / np.where(is_close, 1.0, gap)
    return np.where(is_close, equal[:, :, None], different)


@dataclass(frozen=True)
class PowerSum:
    """Nodes and weights with sum_j f(j) = weights . f(nodes) for smooth f and j = 1, ..., count.

    The first terms are summed one by one. The others are an integral over log j with the first
    Euler-Maclaurin correction at both ends, so that `count` may be infinite.
    """

    nodes: np.ndarray
    weights: np.ndarray


def power_sum(count: float, decay: float, first: int = 128, per_decade: int = 14) -> PowerSum:
    """Return the nodes for functions that decrease at least as fast as j^-decay."""
    if count <= 2 * first:
        j = np.arange(1.0, count + 1)
        return PowerSum(j, np.ones_like(j))
    j = np.arange(1.0, first + 2)
    weights = np.ones(first + 1)
    weights[-2], weights[-1] = 1 - 1 / 24, 1 / 24  # Euler-Maclaurin: + f'(first + 1/2)/24
    last = count
    if math.isinf(count):
        # cut where the tail is below 1e-17 of the sum
        last = first * 10 ** min(17 / max(decay - 1, 0.06), 290.0)
    low, high = math.log(first + 0.5), math.log(last + 0.5)
    panels = max(1, math.ceil((high - low) / math.log(10)))
    nodes, node_weights = np.polynomial.legendre.leggauss(per_decade)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges) / 2
    log_j = (edges[:-1] + half)[:, None] + half[:, None] * nodes
    x = np.exp(log_j).reshape(-1)
    tail_weights = (half[:, None] * node_weights).reshape(-1) * x
    if math.isinf(count):
        return PowerSum(np.concatenate([j, x]), np.concatenate([weights, tail_weights]))
    ends, end_weights = np.array([count, count + 1]), np.array([1.0, -1.0]) / 24
    return PowerSum(
        np.concatenate([j, x, ends]), np.concatenate([weights, tail_weights, end_weights])
    )
