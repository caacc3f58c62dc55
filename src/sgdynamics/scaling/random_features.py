"""Power-law random features: SGD on theta in y = theta . A^T x, given the features or in their deterministic equivalent.

x_j = j^-a z_j for j = 1 ... v, labels sum_j j^-b x_j, features A^T x with A (v x d) of normals of variance 1/d, theta = 0 at the start. For
a given A this is a linear student with H = A^T D A, D = diag(j^-2a). For large d, sums over its modes follow from
m(z) = 1/(1 + (1/d) sum_j l_j/(l_j m - z)), l_j = j^-2a,

    G_F = sum_j j^-2(a+b)/(l_j m - z),   G_K = sum_j l_j + z d (1 - m),

and the loss after n steps is an inverse Laplace transform (Talbot's contour), whatever n and d are.
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
from sgdynamics.scaling.modes import LinearModes, listed, power_sum, small_step

if TYPE_CHECKING:
    from sgdynamics.problems.teacher_student import TeacherStudent

CONTOUR = 32  # points of Talbot's contour
REAL, TURNS, NEWTON = (
    16,
    6,
    5,
)  # of Newton's method for m: on the negative axis, and while z is turned from there


@dataclass(frozen=True)
class RandomFeatures:
    """A linear student on random features of inputs and target with power laws.

    Parameters
    ----------
    data_exponent : float
        a: inputs have the standard deviations j^-a.
    target_exponent : float
        b: the target is sum_j j^-b x_j; 2 (a + b) > 1, so that its variance is finite.
    features : int
        d: how many there are (a number up to 1e14 for the equivalent).
    inputs : float, default inf
        v: how many coordinates inputs have; infinite only where 2 a > 1, so that their trace is finite.

    Raises
    ------
    ValueError
        If an argument is refused; the message names it, the value and what would be right.

    Notes
    -----
    Maloney, Roberts and Sully (2022); Paquette, Paquette, Xiao and Pennington, "4+3 phases of compute-optimal neural scaling laws" (2024),
    who sum over the batch: their rate is ours over B.

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
                f"the target has infinite variance: give more than {0.5 - a:g}",
            )
        d = checks.number("features", self.features, minimum=1.0)
        v = checks.number("inputs", self.inputs, minimum=1.0, infinite=True)
        if math.isinf(v) and 2 * a <= 1:
            raise checks.reject(
                "inputs",
                v,
                f"the trace of the inputs is infinite at data_exponent = {a:g}: give a finite number",
            )
        if d != round(d) or (math.isfinite(v) and v != round(v)):
            raise checks.reject("features", (d, v), "numbers of features and inputs are whole")
        if v < d:
            raise checks.reject(
                "features", d, f"there are only {v:g} inputs: give that many at most"
            )

    def sample(self, seed: int = 0) -> LinearModes:
        """One draw of the features: its modes, from which the mean risk over samples is exact.

        Parameters
        ----------
        seed : int, default 0
            Of the features.

        Returns
        -------
        LinearModes
            With the part of the target that no theta reaches as noise.

        Raises
        ------
        ValueError
            If the inputs are infinitely many, or the matrix of features does not fit in memory.
        """
        if math.isinf(self.inputs):
            raise checks.reject(
                "inputs",
                self.inputs,
                "features of infinitely many inputs cannot be drawn: give a number, or take equivalent()",
            )
        v, d = int(self.inputs), int(self.features)
        check_memory(
            "features", d, 32.0 * v * d, "the matrix of features", "take fewer inputs or features"
        )
        return self.given(np.random.default_rng(seed).standard_normal((v, d)) / math.sqrt(d))

    def given(self, matrix: np.ndarray) -> LinearModes:
        """The modes of a given matrix of features.

        Parameters
        ----------
        matrix : array (inputs, features)
            A.

        Returns
        -------
        LinearModes
            As of ``sample``.
        """
        shape = (int(self.inputs), int(self.features))
        A = checks.array("matrix", matrix, shape, "inputs x features")
        j = np.arange(1.0, shape[0] + 1)
        root, target = j**-self.data_exponent, j ** -(self.data_exponent + self.target_exponent)
        left, values, _ = np.linalg.svd(root[:, None] * A, full_matrices=False)
        along = left.T @ target  # theta*_k = along_k/values_k in the basis of the modes
        reached = values > 1e-13 * values[0]
        rest = float(target @ target - np.sum(along[reached] ** 2))
        values, along = values[reached], along[reached]
        return LinearModes(values**2, np.ones_like(values), (along / values) ** 2, max(rest, 0.0))

    def problem(self, seed: int = 0, noise: float = 0.0) -> TeacherStudent:
        """The linear student on one draw of the features as a problem, for schedules, epochs and fixed data sets.

        Parameters
        ----------
        seed : int, default 0
            Seed of the features, as of ``sample``.
        noise : float, default 0.0
            Variance of label noise.

        Returns
        -------
        TeacherStudent
            As of ``LinearModes.problem``. The part of the target that no theta reaches is independent of the
            features, as inputs are Gaussian, and is part of its label noise.

        Raises
        ------
        ValueError
            If the inputs are infinitely many, or the matrix of features does not fit in memory.
        """
        return self.sample(seed).problem(noise)

    def equivalent(self) -> Equivalent:
        """The deterministic equivalent for large d: its loss needs neither features nor steps.

        Returns
        -------
        Equivalent
            With ``risk`` at any number of steps.
        """
        return Equivalent(self)


@dataclass(frozen=True)
class Equivalent:
    """The loss of random features for large d, at any number of steps.

    Attributes
    ----------
    model : RandomFeatures
        Of which it is the equivalent.

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
        found = power_sum(self.model.inputs, min(2 * a, 2 * (a + b)))
        return found.places ** (-2 * a), found.places ** (-2 * (a + b)), found.weights

    @property
    def trace(self) -> float:
        """sum_j j^-2a."""
        eigenvalues, _, weights = self._sums
        return float(weights @ eigenvalues)

    @property
    def start(self) -> float:
        """The risk at theta = 0."""
        _, t, weights = self._sums
        return 0.5 * float(weights @ t)

    def risk(
        self, steps: Sequence[float] | np.ndarray, step: float, batch: int = 1, noise: float = 0.0
    ) -> np.ndarray:
        """The risk after these numbers of steps.

        Parameters
        ----------
        steps : sequence of float
            10 or more each.
        step : float
            g: theta <- theta - g grad.
        batch : int, default 1
            B.
        noise : float, default 0.0
            Variance of label noise.

        Returns
        -------
        ndarray
            One number each. It has a meaning where the mean risk is stable, below the largest step of ``LinearModes``.

        Raises
        ------
        ValueError
            If a number of steps is below 10: the contour is made for many.
        """
        g, B = small_step(step, 1.0), checks.integer("batch", batch, 1)
        s2 = checks.number("noise", noise, minimum=0.0)
        n = listed("steps", steps, 10.0)
        theta = np.pi * (2 * np.arange(CONTOUR // 2) + 1) / CONTOUR
        cot = 1 / np.tan(0.6407 * theta)
        shape = 0.5017 * theta * cot - 0.6122 + 0.2645j * theta
        slope = 0.5017 * cot - 0.5017 * 0.6407 * theta / np.sin(0.6407 * theta) ** 2 + 0.2645j
        with np.errstate(all="ignore"):
            s = CONTOUR / (g * n[:, None]) * shape
        with np.errstate(all="ignore"):  # steps beyond every bound
            values = (
                np.exp(s * g * n[:, None])
                * self._transform(s, g, B, s2)
                * slope
                * CONTOUR
                / (g * n[:, None])
            )
            # half of the contour, the other half is its mirror image; ds = slope dtheta, 2 pi/CONTOUR apart
            found = 0.5 * g * np.sum((values / 1j).real, axis=1) * 2 / CONTOUR
        return np.where(np.isfinite(found), found, np.inf)

    def _transform(self, s: np.ndarray, g: float, B: int, noise: float) -> np.ndarray:
        """(F + noise E/(E - 1))/(1 - g^2 K/(B E)), E = exp(s g)."""
        less = np.expm1(s * g)
        E, h = 1 + less, g**2 * (1 + 1 / B)
        root = np.sqrt(g**2 + h * less)
        high, low = (g + root) / h, -less / (g + root)
        (F_high, K_high), (F_low, K_low) = self._resolvents(high), self._resolvents(low)
        share = -E / (h * (high - low))
        F, K = share * (F_high - F_low), share * (K_high - K_low)
        return (F + noise * E / less) / (1 - g**2 * K / (B * E))

    def _resolvents(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """G_F and G_K at complex z."""
        lam, t, weights = (
            self._sums
        )  # eigenvalues, their share of the target, and how often each stands
        d, flat = self.model.features, z.reshape(-1, 1)
        size, angle = np.abs(flat), np.angle(-flat)

        def summed(values: np.ndarray) -> np.ndarray:
            # too small for threads to be worth it
            return np.einsum("ij,j->i", values, weights)[:, None]

        def gap(u: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            """log m + log(1 + sum l/(l m - z)/d) at m = exp(u), and its slope in u."""
            m = np.exp(u)
            one = lam / (lam * m - z)
            first, second = summed(one) / d, summed(one**2) / d
            return u + np.log(1 + first), 1 - m * second / (1 + first)

        # on the negative axis the gap grows with u; from there, m follows z as that is turned
        u = np.zeros_like(size)
        for _ in range(REAL):
            value, slope = gap(u, -size)
            u = u - value / slope
        u = u.astype(complex)
        for turn in range(1, TURNS + 1):
            here = -size * np.exp(1j * angle * turn / TURNS)
            for _ in range(NEWTON if turn == TURNS else 2):
                value, slope = gap(u, here)
                u = u - value / slope
        m = np.exp(u)
        over = 1 / (lam * m - flat)
        F, first, second = summed(t * over), summed(lam * over), summed(lam**2 * over)
        # sum l + z d (1 - m), without the difference: d (1 - m) = m first
        K = m * (second - flat * first**2 / d)
        return F.reshape(z.shape), K.reshape(z.shape)
