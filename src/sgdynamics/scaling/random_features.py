"""Power-law random features: SGD on theta in y = theta . A^T x, for given features or in the limit.

The inputs are x_j = j^-a z_j for j = 1, ..., v, the labels sum_j j^-b x_j, the features A^T x with
A (v x d) of normals of variance 1/d, and theta = 0 at the start. For a given A this is a linear
student with H = A^T D A, D = diag(j^-2a). For large d, sums over its modes follow from
m(z) = 1/(1 + (1/d) sum_j l_j/(l_j m - z)), l_j = j^-2a,

    G_F = sum_j j^-2(a+b)/(l_j m - z),   G_K = sum_j l_j + z d (1 - m),

and the loss after n steps is an inverse Laplace transform (on Talbot's contour), for any n and d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.resources import check_memory
from sgdynamics.scaling.modes import LinearModes, power_sum, validate_step, validate_values

if TYPE_CHECKING:
    from sgdynamics.problems.teacher_student import TeacherStudent

# points of Talbot's contour
CONTOUR = 32
# Newton iterations for m on the negative axis, rotations of z from there, iterations at the end
REAL, TURNS, NEWTON = 16, 6, 5


@dataclass(frozen=True)
class RandomFeatures:
    """A linear student on random features of power-law inputs, with a power-law target.

    Parameters
    ----------
    data_exponent : float
        Exponent a of the standard deviations j^-a of the inputs.
    target_exponent : float
        Exponent b of the target sum_j j^-b x_j; 2 (a + b) > 1, so that its variance is finite.
    features : int
        Number d of features, up to 1e14 for the deterministic equivalent.
    inputs : float, default inf
        Number v of input coordinates; may be infinite if 2 a > 1, where the trace is finite.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    Maloney, Roberts and Sully (2022); Paquette, Paquette, Xiao and Pennington, "4+3 phases of
    compute-optimal neural scaling laws" (2024), who sum over the batch: their rate is ours over B.

    Examples
    --------
    >>> model = sgd.scaling.RandomFeatures(0.7, 1.2, features=1000, inputs=1e8)
    >>> loss = model.equivalent()
    >>> print(np.round(1e3 * loss.risk([100, 10_000], step=0.5 / loss.trace), 5))
    [2.05257 0.28612]
    """

    data_exponent: float
    target_exponent: float
    features: float
    inputs: float = math.inf

    def __post_init__(self) -> None:
        a = checks.number("data_exponent", self.data_exponent, above=0.0)
        b = checks.number("target_exponent", self.target_exponent)
        if 2 * (a + b) <= 1:
            raise checks.reject(
                "target_exponent",
                b,
                f"the target has infinite variance. Use more than {0.5 - a:g}.",
            )
        d = checks.number("features", self.features, minimum=1.0)
        v = checks.number("inputs", self.inputs, minimum=1.0, infinite=True)
        if math.isinf(v) and 2 * a <= 1:
            raise checks.reject(
                "inputs",
                v,
                f"the trace is infinite at data_exponent = {a:g}. Use a finite number.",
            )
        if d != round(d) or (math.isfinite(v) and v != round(v)):
            raise checks.reject("features", (d, v), "use integers for features and inputs")
        if v < d:
            raise checks.reject(
                "features", d, f"there are only {v:g} inputs. Use at most that many features."
            )

    def sample(self, seed: int = 0) -> LinearModes:
        """Draw the features and return their modes, from which the mean risk over samples is exact.

        Parameters
        ----------
        seed : int, default 0
            Seed of the features.

        Returns
        -------
        LinearModes
            The modes, with the part of the target that no theta represents as noise.

        Raises
        ------
        ValueError
            If the number of inputs is infinite, or the feature matrix does not fit in memory.
        """
        if math.isinf(self.inputs):
            raise checks.reject(
                "inputs",
                self.inputs,
                "infinitely many inputs cannot be drawn. Use a number, or equivalent().",
            )
        v, d = int(self.inputs), int(self.features)
        check_memory(
            "features", d, 32.0 * v * d, "the feature matrix", "use fewer inputs or features"
        )
        return self.given(np.random.default_rng(seed).standard_normal((v, d)) / math.sqrt(d))

    def given(self, matrix: np.ndarray) -> LinearModes:
        """Return the modes of a given feature matrix.

        Parameters
        ----------
        matrix : array (inputs, features)
            Feature matrix A.

        Returns
        -------
        LinearModes
            The modes, as in ``sample``.
        """
        shape = (int(self.inputs), int(self.features))
        A = checks.array("matrix", matrix, shape, "inputs x features")
        j = np.arange(1.0, shape[0] + 1)
        root, target = j**-self.data_exponent, j ** -(self.data_exponent + self.target_exponent)
        left, values, _ = np.linalg.svd(root[:, None] * A, full_matrices=False)
        projections = left.T @ target  # theta*_k = projections_k/values_k in the basis of the modes
        is_regular = values > 1e-13 * values[0]
        unexplained = float(target @ target - np.sum(projections[is_regular] ** 2))
        values, projections = values[is_regular], projections[is_regular]
        errors = (projections / values) ** 2
        return LinearModes(values**2, np.ones_like(values), errors, max(unexplained, 0.0))

    def problem(self, seed: int = 0, noise: float = 0.0) -> TeacherStudent:
        """State the linear student on one draw of the features as a problem.

        Parameters
        ----------
        seed : int, default 0
            Seed of the features, as in ``sample``.
        noise : float, default 0.0
            Variance of label noise.

        Returns
        -------
        TeacherStudent
            The problem of ``LinearModes.problem``. The part of the target that no theta represents
            is independent of the features, because inputs are Gaussian, and is part of its label
            noise.

        Raises
        ------
        ValueError
            If the number of inputs is infinite, or the feature matrix does not fit in memory.
        """
        return self.sample(seed).problem(noise)

    def equivalent(self) -> Equivalent:
        """Return the deterministic equivalent for large d, which needs neither features nor steps.

        Returns
        -------
        Equivalent
            Object whose ``risk`` is defined for any number of steps.
        """
        return Equivalent(self)


@dataclass(frozen=True)
class Equivalent:
    """The loss of random features for large d, at any number of steps.

    Attributes
    ----------
    model : RandomFeatures
        The random-feature model.

    Examples
    --------
    >>> loss = sgd.scaling.RandomFeatures(1.0, 0.7, features=1e9).equivalent()
    >>> print(f"{loss.start:.4f}", np.round(1e6 * loss.risk([1e4, 1e6], step=0.5 / loss.trace), 3))
    0.5693 [10.22   0.039]
    """

    model: RandomFeatures

    @cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        a, b = self.model.data_exponent, self.model.target_exponent
        total = power_sum(self.model.inputs, min(2 * a, 2 * (a + b)))
        return total.nodes ** (-2 * a), total.nodes ** (-2 * (a + b)), total.weights

    @property
    def trace(self) -> float:
        """Trace of the input covariance, sum_j j^-2a."""
        eigenvalues, _, weights = self._sums
        return float(weights @ eigenvalues)

    @property
    def start(self) -> float:
        """Risk at theta = 0."""
        _, t, weights = self._sums
        return 0.5 * float(weights @ t)

    def risk(
        self, steps: Sequence[float] | np.ndarray, step: float, batch: int = 1, noise: float = 0.0
    ) -> np.ndarray:
        """Risk after given numbers of steps.

        Parameters
        ----------
        steps : sequence of float
            Numbers of steps, at least 10 each.
        step : float
            Step size g: theta <- theta - g grad.
        batch : int, default 1
            Batch size B.
        noise : float, default 0.0
            Variance of label noise.

        Returns
        -------
        ndarray
            Risk per number of steps, meaningful where the mean risk is stable, below the largest
            step of ``LinearModes``.

        Raises
        ------
        ValueError
            If a number of steps is below 10; the contour is accurate for many steps.
        """
        g, B = validate_step(step, 1.0), checks.integer("batch", batch, 1)
        s2 = checks.number("noise", noise, minimum=0.0)
        n = validate_values("steps", steps, 10.0)
        theta = np.pi * (2 * np.arange(CONTOUR // 2) + 1) / CONTOUR
        # Talbot's contour with the optimal constants of Weideman (2006)
        cot = 1 / np.tan(0.6407 * theta)
        shape = 0.5017 * theta * cot - 0.6122 + 0.2645j * theta
        slope = 0.5017 * cot - 0.5017 * 0.6407 * theta / np.sin(0.6407 * theta) ** 2 + 0.2645j
        with np.errstate(all="ignore"):
            s = CONTOUR / (g * n[:, None]) * shape
        with np.errstate(all="ignore"):  # unstable steps overflow
            scale = CONTOUR / (g * n[:, None])
            values = np.exp(s * g * n[:, None]) * self._transform(s, g, B, s2) * slope * scale
            # Half of the contour; the other half is its mirror image. ds = slope dtheta, and the
            # nodes are 2 pi/CONTOUR apart.
            risk = 0.5 * g * np.sum((values / 1j).real, axis=1) * 2 / CONTOUR
        return np.where(np.isfinite(risk), risk, np.inf)

    def _transform(self, s: np.ndarray, g: float, B: int, noise: float) -> np.ndarray:
        """Return (F + noise E/(E - 1))/(1 - g^2 K/(B E)) with E = exp(s g)."""
        E_minus_1 = np.expm1(s * g)
        E, h = 1 + E_minus_1, g**2 * (1 + 1 / B)
        # poles of 1/(E - 1 + 2 g z - h z^2)
        root = np.sqrt(g**2 + h * E_minus_1)
        high, low = (g + root) / h, -E_minus_1 / (g + root)
        (F_high, K_high), (F_low, K_low) = self._resolvents(high), self._resolvents(low)
        share = -E / (h * (high - low))
        F, K = share * (F_high - F_low), share * (K_high - K_low)
        return (F + noise * E / E_minus_1) / (1 - g**2 * K / (B * E))

    def _resolvents(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return G_F and G_K at complex z."""
        # eigenvalues, their share of the target, and their weights
        lam, t, weights = self._sums
        d, flat = self.model.features, z.reshape(-1, 1)
        size, angle = np.abs(flat), np.angle(-flat)

        def total(values: np.ndarray) -> np.ndarray:
            # einsum, because a matrix product would start threads for small arrays
            return np.einsum("ij,j->i", values, weights)[:, None]

        def gap(u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """Return log m + log(1 + sum l/(l m - z)/d) at m = exp(u), and its derivative."""
            m = np.exp(u)
            resolvent = lam / (lam * m - z)
            first, second = total(resolvent) / d, total(resolvent**2) / d
            return u + np.log(1 + first), 1 - m * second / (1 + first)

        # On the negative axis the gap increases with u and Newton's method converges; from there m
        # is followed while z is rotated to its argument.
        u = np.zeros_like(size)
        for _ in range(REAL):
            value, slope = gap(u, -size)
            u = u - value / slope
        u = u.astype(complex)
        for turn in range(1, TURNS + 1):
            rotated = -size * np.exp(1j * angle * turn / TURNS)
            for _ in range(NEWTON if turn == TURNS else 2):
                value, slope = gap(u, rotated)
                u = u - value / slope
        m = np.exp(u)
        over = 1 / (lam * m - flat)
        F, first, second = total(t * over), total(lam * over), total(lam**2 * over)
        # sum l + z d (1 - m) without cancellation: d (1 - m) = m first
        K = m * (second - flat * first**2 / d)
        return F.reshape(z.shape), K.reshape(z.shape)
