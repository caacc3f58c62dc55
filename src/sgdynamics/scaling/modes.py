"""The exact mean risk of one-pass SGD on a linear student, at any step, without stepping.

With eigenvalues l_j of the inputs' covariance, c_j = E[(w_j - w*_j)^2] in its eigenbasis, label noise s2, u = 2 risk = sum l_j c_j + s2
and steps w <- w - g grad over batches of B,

    c_j' = q_j c_j + (g^2/B) l_j (kappa sum l c + s2),   q_j = 1 - 2 g l_j + g^2 (1 - 1/B + 2 kappa/B) l_j^2,

for sums over blocks of n_b equal eigenvalues with n_b l_b in the last term. kappa = 1 for Gaussian inputs; for x = sqrt(tau) z it is
E[tau^2]. In r_b = c_b/sqrt(n_b) one step is a symmetric matrix, so that one eigenproblem gives all steps.
With weight decay al, r = 1 - g al, m_j = E[w_j - w*_j] and rho_j = r - g l_j: q_j = r^2 - 2 r g l_j + ..., and

    c_j' = ... - 2 g al rho_j w*_j m_j + (g al w*_j)^2,   (w*_j m_j)' = rho_j w*_j m_j - g al w*_j^2.
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

MOST_MODES = 3000  # of an eigenproblem
MOST_STEPS = 20_000  # that are taken one by one, where there are more modes


def small_step(step: Any, largest: float) -> float:
    """A step that is not absurd: the largest eigenvalue times it is 1e6 at most (2 is unstable already)."""
    g = checks.number("step", step, above=0.0)
    if g * largest > 1e6:
        raise checks.reject(
            "step", step, f"steps above {2 / largest:.3g} diverge: give a smaller one"
        )
    return g


def listed(argument: str, value: Any, least: float) -> np.ndarray:
    """One number or several, finite and at least so large."""
    fix = f"give finite numbers, {least:g} or more"
    found = np.atleast_1d(checks.real_array(argument, value, fix))
    if found.ndim != 1 or not len(found) or not np.all(np.isfinite(found)) or np.any(found < least):
        raise checks.reject(argument, value, fix)
    return found


@dataclass(frozen=True)
class LinearModes:
    """A linear student in the eigenbasis of its inputs: what its mean risk depends on.

    Parameters
    ----------
    eigenvalues : array (n,)
        l_b of the inputs' covariance.
    counts : array (n,)
        n_b: how many dimensions have it.
    errors : array (n,)
        The sum of E[(w_j - w*_j)^2] over them, at the start.
    noise : float, default 0.0
        Variance of the labels about the linear target, s2.
    kappa : float, default 1.0
        E|x|^4 over that of a Gaussian of the same covariance; 1 for Gaussian inputs.
    targets : array (n,), optional
        The sum of w*_j^2 over them: what weight decay needs to know.
    along : array (n,), optional
        The sum of w*_j E[w_j - w*_j], at the start; for w = 0 minus ``targets``, which it is unless given.

    Raises
    ------
    ValueError
        If lengths differ, an eigenvalue or an error is negative, or a count is below 1.

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
        fix = "give numbers in one row"
        parts = {
            name: checks.real_array(name, getattr(self, name), fix)
            for name in ("eigenvalues", "counts", "errors")
        }
        shape = next(iter(parts.values())).shape
        for name, value in parts.items():
            if value.shape != shape or value.ndim != 1 or not len(value):
                raise checks.reject(
                    name, value.shape, f"all three have one number a block: {shape}"
                )
            least = 1.0 if name == "counts" else 0.0
            if not np.all(np.isfinite(value)) or np.any(value < least):
                raise checks.reject(name, value, f"give finite numbers, {least:g} or more")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "noise", checks.number("noise", self.noise, minimum=0.0))
        object.__setattr__(self, "kappa", checks.number("kappa", self.kappa, above=0.0))
        for name in ("targets", "along"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(
                    self, name, checks.array(name, value, shape, "one number a block")
                )
        if self.along is None and self.targets is not None:
            object.__setattr__(self, "along", -self.targets)

    def problem(self, noise: float = 0.0) -> TeacherStudent:
        """The linear student with these modes as a problem, for schedules, protocols, epochs and fixed data sets.

        Parameters
        ----------
        noise : float, default 0.0
            Variance of label noise in addition to that of the modes.

        Returns
        -------
        TeacherStudent
            Of width 1, linear, with the eigenvalues as ``covariance`` and the target along one signal. Steps
            ``w <- w - g grad`` are those of ``OnePassSGD(lr=g, per="step")``.

        Raises
        ------
        ValueError
            If ``kappa`` is not 1 (problems have Gaussian inputs), or a count is not whole.

        Notes
        -----
        The coordinates of the target are the roots of ``targets``, or of ``errors`` where there are none: the
        modes of a student that starts at w = 0.
        """
        # here, because the rest of this module needs no JAX
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
        """sum n_b l_b."""
        return float(self.counts @ self.eigenvalues)

    @property
    def effective_dimension(self) -> float:
        """(sum l)^2/sum l^2."""
        return float(self.trace**2 / (self.counts @ self.eigenvalues**2))

    @cached_property
    def _scale(self) -> np.ndarray:
        return self.eigenvalues * np.sqrt(self.counts)

    def _survival(self, step: float, batch: int, decay: float = 0.0) -> np.ndarray:
        along, k, r = step * self.eigenvalues, self.kappa, 1 - step * decay
        return r**2 - 2 * r * along + (1 - 1 / batch + 2 * k / batch) * along**2

    def risk(
        self,
        steps: Sequence[float] | np.ndarray,
        step: float,
        batch: int = 1,
        weight_decay: float = 0.0,
    ) -> np.ndarray:
        """The mean risk after these numbers of steps.

        Parameters
        ----------
        steps : sequence of int
            How many, in any order; 0 is the start.
        step : float
            g: the step is w <- w - g grad (of a mean over the batch).
        batch : int, default 1
            B.
        weight_decay : float, default 0.0
            al: the gradient has al w more.

        Returns
        -------
        ndarray
            One number each; infinite where the mean has left every bound.

        Raises
        ------
        ValueError
            If there are more than 3000 blocks and more than 20000 steps, or weight decay and no ``targets``.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            found = 0.5 * (
                self.errors_after(steps, step, batch, weight_decay)[0] @ self.eigenvalues
                + self.noise
            )
        return np.where(np.isfinite(found), found, np.inf)

    def errors_after(
        self,
        steps: Sequence[float] | np.ndarray,
        step: float,
        batch: int = 1,
        weight_decay: float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The blocks' ``errors``, and ``along``, after these numbers of steps.

        Parameters
        ----------
        steps : sequence of int
            How many.
        step : float
            g.
        batch : int, default 1
            B.
        weight_decay : float, default 0.0
            al.

        Returns
        -------
        tuple of ndarray
            Both (steps, blocks).
        """
        g, B = small_step(step, float(self.eigenvalues.max())), checks.integer("batch", batch, 1)
        decay = checks.number("weight_decay", weight_decay, minimum=0.0)
        if decay and self.targets is None:
            raise checks.reject(
                "weight_decay",
                decay,
                "weight decay pulls towards 0: say where the target is, with targets=",
            )
        wanted = listed("steps", steps, 0.0)
        if np.any(wanted != np.round(wanted)):
            raise checks.reject("steps", steps, "steps are whole")
        return (self._stepped if len(self.eigenvalues) > MOST_MODES else self._at_once)(
            wanted, g, B, decay
        )

    def _sources(
        self, g: float, B: int, decay: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """What a step adds to the errors: always, and times rho^n after n steps; rho, and where ``along`` settles."""
        noise = g**2 / B * self.noise * self.counts * self.eigenvalues
        rho = 1 - g * decay - g * self.eigenvalues
        if not decay or self.targets is None or self.along is None:
            return noise, np.zeros_like(noise), rho, np.zeros_like(noise)
        settled = -g * decay * self.targets / (1 - rho)
        return (
            noise + (g * decay) ** 2 * self.targets - 2 * g * decay * rho * settled,
            -2 * g * decay * rho * (self.along - settled),
            rho,
            settled,
        )

    def _at_once(
        self, steps: np.ndarray, g: float, B: int, decay: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """By one eigenproblem: r' = (1 - E) r + b + b_1 rho^n."""
        root = np.sqrt(self.counts)
        eigen, vectors = _decomposed(
            (1 - self._survival(g, B, decay)).tobytes(),
            self._scale.tobytes(),
            self.kappa * g**2 / B,
        )
        always, once, rho, settled = self._sources(g, B, decay)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            lost = _lost(eigen, steps)
            summed = np.where(np.abs(eigen) > 1e-300, lost / eigen, steps[:, None])
            found = (1 - lost) * (vectors.T @ (self.errors / root)) + summed * (
                vectors.T @ (always / root)
            )
            if decay:
                found = found + np.einsum(
                    "nkb,kb->nk", _mixed(eigen, 1 - rho, steps), vectors.T * (once / root)
                )
                left = 1 - _lost(1 - rho, steps)
            else:
                left = np.ones((len(steps), 1))
            errors = (found @ vectors.T) * root
        along = (
            np.zeros_like(errors) if self.along is None else settled + left * (self.along - settled)
        )
        return errors, along

    def _stepped(
        self, steps: np.ndarray, g: float, B: int, decay: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Step by step: for many modes and few steps."""
        last = int(steps.max(initial=0))
        if last > MOST_STEPS:
            fix = f"with {len(self.eigenvalues)} blocks take {MOST_STEPS} steps at most, or put nearly equal eigenvalues into one block"
            raise checks.reject("steps", last, fix)
        q, (always, once, rho, settled) = self._survival(g, B, decay), self._sources(g, B, decay)
        c, found, power = self.errors.copy(), {}, np.ones_like(rho)
        for number in range(last + 1):
            if number in steps:
                found[number] = c, power
            feedback = (
                self.kappa * g**2 / B * self.counts * self.eigenvalues * float(self.eigenvalues @ c)
            )
            c, power = q * c + feedback + always + once * power, power * rho if decay else power
        along = [
            np.zeros_like(c)
            if self.along is None
            else settled + found[int(one)][1] * (self.along - settled)
            for one in steps
        ]
        return np.array([found[int(one)][0] for one in steps]), np.array(along)

    def noise_gain(self, step: float, batch: int = 1) -> float:
        """Abs(K), how much of its own risk one step feeds back: the risk settles at noise/(2 (1 - K)), and grows where it is 1 or more.

        Parameters
        ----------
        step : float
            g.
        batch : int, default 1
            B.

        Returns
        -------
        float
            Infinite where a single direction is unstable.
        """
        g, B = checks.number("step", step, above=0.0), checks.integer("batch", batch, 1)
        rest = 2 - g * self.eigenvalues * (1 - 1 / B + 2 * self.kappa / B)
        if np.any(rest <= 0):
            return math.inf
        return float(self.kappa * g / B * np.sum(self.counts * self.eigenvalues / rest))

    def largest_step(self, batch: int = 1) -> float:
        """The step g above which the mean risk no longer settles.

        Parameters
        ----------
        batch : int, default 1
            B.

        Returns
        -------
        float
            Below it, ``noise_gain`` is below 1.
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


@lru_cache(maxsize=4)  # one has up to 72 MB
def _decomposed(lost: bytes, scale: bytes, feedback: float) -> tuple[np.ndarray, np.ndarray]:
    """The eigenproblem of one step, which students with other errors, noise and targets share: E = diag(1 - q) - feedback w w^T."""
    w = np.frombuffer(scale)
    found = np.linalg.eigh(np.diag(np.frombuffer(lost)) - feedback * np.outer(w, w))
    for part in found:
        part.flags.writeable = False  # it is that of every later call too
    return found.eigenvalues, found.eigenvectors


def _lost(eigen: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """1 - (1 - eigen)^n, (steps, modes), without cancellation where eigen is small."""
    size = np.outer(
        steps,
        np.where(eigen < 1, np.log1p(-np.minimum(eigen, 1.0)), np.log(np.maximum(eigen - 1, 0.0))),
    )
    size = np.where(steps[:, None] == 0, 0.0, size)
    odd = np.outer(steps % 2 == 1, eigen > 1)
    return -np.expm1(size) * ~odd + (1 + np.exp(size)) * odd


def _mixed(eigen: np.ndarray, other: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """sum_m (1 - eigen)^(n - 1 - m) (1 - other)^m over m < n, (steps, modes, modes)."""
    one, two, gap = _lost(eigen, steps), _lost(other, steps), other[None] - eigen[:, None]
    close = np.abs(gap) < 1e-9
    same = steps[:, None] * np.where(
        np.abs(1 - eigen) > 1e-300, (1 - one) / (1 - eigen), steps[:, None] == 1
    )
    return np.where(
        close, same[:, :, None], (two[:, None] - one[:, :, None]) / np.where(close, 1.0, gap)
    )


@dataclass(frozen=True)
class PowerSum:
    """Places and weights with sum_j f(j) = weights . f(places) for smooth f, j = 1 ... count (which may be infinite).

    The first numbers one by one, then an integral over log j, with the first correction of Euler and Maclaurin at both ends.
    """

    places: np.ndarray
    weights: np.ndarray


def power_sum(count: float, decay: float, first: int = 128, a_decade: int = 14) -> PowerSum:
    """For functions that fall at least as fast as j^-decay."""
    if count <= 2 * first:
        j = np.arange(1.0, count + 1)
        return PowerSum(j, np.ones_like(j))
    j = np.arange(1.0, first + 2)
    weights = np.ones(first + 1)
    weights[-2], weights[-1] = 1 - 1 / 24, 1 / 24  # + f'(first + 1/2)/24
    last = count
    if math.isinf(count):
        last = first * 10 ** min(17 / max(decay - 1, 0.06), 290.0)
    low, high = math.log(first + 0.5), math.log(last + 0.5)
    panels = max(1, math.ceil((high - low) / math.log(10)))
    nodes, shares = np.polynomial.legendre.leggauss(a_decade)
    edges = np.linspace(low, high, panels + 1)
    half = np.diff(edges) / 2
    place = (edges[:-1] + half)[:, None] + half[:, None] * nodes
    x = np.exp(place).reshape(-1)
    share = (half[:, None] * shares).reshape(-1) * x
    if math.isinf(count):
        return PowerSum(np.concatenate([j, x]), np.concatenate([weights, share]))
    ends, end_weights = np.array([count, count + 1]), np.array([1.0, -1.0]) / 24
    return PowerSum(np.concatenate([j, x, ends]), np.concatenate([weights, share, end_weights]))
