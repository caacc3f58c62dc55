"""`DiagonalNetwork`: a product of two weights per coordinate, trained on a linear teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sgdynamics.base import checks, pytrees
from sgdynamics.base.arrays import Parameters
from sgdynamics.base.equations import HasEquations
from sgdynamics.problems.diagonal_limits import (
    Interpolator,
    LateLaw,
    solve_interpolator,
    solve_late_law,
)
from sgdynamics.samples import input_covariance
from sgdynamics.samples.arguments import Covariance, validate_covariance
from sgdynamics.samples.input_covariance import block_sizes

LAW_NODES = 32  # teacher weights that stand for a continuous law
MOST_ATOMS = 1000


@dataclass(frozen=True)
class DiagonalNetwork(HasEquations):
    """A diagonal linear network: two weights per coordinate, whose product is the predictor.

    ::

        f(x) = sum_j u_j v_j x_j/sqrt(d),     y = sum_j b_j x_j/sqrt(d) + sqrt(noise) z
        loss = (f - y)^2/2

    The inputs are Gaussian, and the teacher weights b_j are independent draws from a law.

    Parameters
    ----------
    teacher : sequence of (float, float) or law, default ((1.0, 0.1), (0.0, 0.9))
        Law of the teacher weights b: pairs (value, share) whose shares add up to 1, or a frozen
        continuous law with the method ``ppf``, such as ``scipy.stats.laplace()``, which is replaced
        by 32 values (Gauss-Legendre quadrature of its quantiles).
    start : float or (float, float), default 1.0
        Initial weights u and v of every coordinate; a number is u, with v = 0. Their sizes differ.
    noise : float, default 0.0
        Variance of the label noise.
    weight_decay : float, default 0.0
        Coefficient al of (al/2) sum_j (u_j^2 + v_j^2)/d, which is added to the loss.
    covariance : sequence of (float, float), optional
        Blocks (eigenvalue, fraction of d) of the inputs' covariance, which is diagonal. Defaults to
        the identity. The law of b is the same in all blocks.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Notes
    -----
    A step of one-pass SGD is u -= lr dloss/du, v -= lr dloss/dv, so that t = lr steps/d; on a fixed
    data set it is u -= lr d dloss/du of the mean loss, so that t = lr steps. Small starts are
    biased towards predictors of small L1 norm and large ones of small L2 norm (Woodworth et al.,
    2020). The solvers take no ``start``, because the problem states it.

    Examples
    --------
    >>> problem = sgd.DiagonalNetwork(teacher=[(1.0, 0.2), (0.0, 0.8)], start=0.2, noise=0.25)
    >>> result = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.3), alpha=[0.0, 5.0, 20.0])
    >>> result["excess_risk"].values[0].round(4).tolist()
    [0.1, 0.0692, 0.0083]
    """

    teacher: Any = ((1.0, 0.1), (0.0, 0.9))
    start: Any = 1.0
    noise: float = 0.0
    weight_decay: float = 0.0
    covariance: Any = None
    kind: ClassVar[str] = "DiagonalNetwork"

    def __post_init__(self) -> None:
        for name in ("noise", "weight_decay"):
            object.__setattr__(self, name, checks.number(name, getattr(self, name), 0.0))
        object.__setattr__(self, "teacher", _teacher_atoms(self.teacher))
        object.__setattr__(self, "start", _initial_weights(self.start))
        covariance = validate_covariance(self.covariance)
        if covariance.spectrum is not None:
            fix = (
                "a diagonal network needs many coordinates with each eigenvalue. Use blocks, "
                "covariance=[(2.0, 0.5), (0.5, 0.5)], for example."
            )
            raise checks.reject("covariance", self.covariance, fix)
        object.__setattr__(self, "_covariance", covariance)
        if self.covariance is not None:
            columns = (covariance.eigenvalues.tolist(), covariance.fractions.tolist())
            object.__setattr__(self, "covariance", tuple(zip(*columns, strict=True)))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of this problem in the table of supported combinations."""
        return ("diagonal",)

    @property
    def parameters(self) -> Parameters:
        """The parameters of the problem, as a dictionary that JAX can trace."""
        covariance: Covariance = self._covariance  # type: ignore[attr-defined]
        values, shares = np.array(self.teacher, np.float64).T
        return {
            "teacher": values,
            "shares": shares,
            "start": np.array(self.start, np.float64),
            "noise": pytrees.to_float64(self.noise),
            "weight_decay": pytrees.to_float64(self.weight_decay),
            "eigenvalues": np.asarray(covariance.eigenvalues, np.float64),
            "fractions": np.asarray(covariance.fractions, np.float64),
        }

    @property
    def imbalance(self) -> float:
        """The scale c = ``abs(u^2 - v^2)`` of the start: small values favour sparse predictors."""
        u, v = self.start
        return abs(u * u - v * v)

    def replace(self, **changes: object) -> DiagonalNetwork:
        """Return a problem with some of the arguments changed, checked as in the constructor.

        Parameters
        ----------
        **changes
            Arguments of the constructor by name.

        Returns
        -------
        DiagonalNetwork
            A new problem; this one does not change.
        """
        return checks.replace_fields(self, changes)

    def block_dimensions(self, dimension: int) -> np.ndarray:
        """Return the sizes of the covariance blocks at dimension d, by largest remainder.

        Parameters
        ----------
        dimension : int
            The dimension d.

        Returns
        -------
        ndarray
            One integer per block; they add up to d.
        """
        return block_sizes(input_covariance.fractions(self.parameters), dimension)

    def late_law(self, lr: float, batch: int = 1) -> LateLaw:
        """Return the law of the weights that label noise leads to, after long training.

        With the loss R/2 and r = lr R/batch, the weight of a coordinate with b > r/2 is Gamma
        distributed with the mean b - r/2, and that of one with b < r/2 vanishes (signs follow b)::

            |a| ~ Gamma(shape |b|/r - 1/2, scale r)
            R = noise + E[r |b| - r^2/4; |b| > r/2] + E[b^2; |b| < r/2]

        Parameters
        ----------
        lr : float
            The learning rate of one-pass SGD.
        batch : int, default 1
            Samples per step.

        Returns
        -------
        LateLaw
            ``excess_risk``, ``rate`` (r), and by teacher weight ``shapes``, ``means`` and
            ``is_zero``.

        Raises
        ------
        ValueError
            If an argument is out of range, or if the inputs have several eigenvalues or the
            weights decay.

        Notes
        -----
        Label noise makes c = ``abs(u^2 - v^2)`` decay as exp(-lr R t/batch): the law is that of
        c -> 0. It is reached slowly where ``abs(b)`` is close to r/2.

        Examples
        --------
        >>> problem = sgd.DiagonalNetwork(teacher=[(1.0, 0.2), (0.0, 0.8)], noise=0.25)
        >>> round(problem.late_law(lr=0.3).excess_risk, 5)
        0.00781
        """
        lr = checks.number("lr", lr, above=0.0)
        batch = checks.integer("batch", batch, 1)
        self._require_plain()
        values, shares = np.array(self.teacher).T
        return solve_late_law(values, shares, self.noise, lr / batch)

    def interpolator(self, samples_per_dimension: float) -> Interpolator:
        """Return the predictor at which gradient flow on n < d samples without noise ends.

        It has the least potential among all that interpolate the data, with c =
        ``abs(u^2 - v^2)`` of the start (Woodworth et al., 2020)::

            sum_j (a_j arcsinh(2 a_j/c) - sqrt(4 a_j^2 + c^2)/2)

        For a start with v = 0. Large c give the least L2 norm and small ones the least L1 norm.
        With E = E[(a - b)^2], standard normal z and P the map a(x) with a + gamma arcsinh(2 a/c) =
        x, the limit d -> infinity is the solution of ::

            a = P(b + sqrt(E/alpha) z),     E[P'] = alpha

        Weights near 0 move at the rate c, so that small starts come close to it after the time 1/c
        only. Steps of finite size end near it: their c depends on the coordinate.

        Parameters
        ----------
        samples_per_dimension : float
            Ratio alpha = n/d, below 1.

        Returns
        -------
        Interpolator
            ``excess_risk``, ``l1_norm``, ``squared_norm`` (E[a^2]) and ``threshold``
            (gamma).

        Raises
        ------
        ValueError
            If an argument is out of range, or if there is noise, decay, an initial v or several
            eigenvalues.

        Examples
        --------
        >>> problem = sgd.DiagonalNetwork(teacher=[(1.0, 0.1), (0.0, 0.9)])
        >>> wide, sparse = problem.replace(start=10.0), problem.replace(start=0.1)
        >>> round(wide.interpolator(0.5).excess_risk, 4)
        0.025
        >>> sparse.interpolator(0.5).excess_risk < 0.005
        True
        """
        alpha = checks.number("samples_per_dimension", samples_per_dimension, above=0.0)
        if alpha >= 1:
            fix = "only fewer samples than coordinates leave a choice. Use a ratio below 1."
            raise checks.reject("samples_per_dimension", samples_per_dimension, fix)
        self._require_plain()
        if self.noise > 0:
            fix = "the interpolator is known for labels without noise. Use noise=0."
            raise checks.reject("noise", self.noise, fix)
        if self.start[1] != 0:
            fix = "the predictor must start at 0. Use a number, which is u."
            raise checks.reject("start", self.start, fix)
        values, shares = np.array(self.teacher).T
        return solve_interpolator(values, shares, alpha, self.imbalance)

    def _require_plain(self) -> None:
        """Raise ValueError for blocks of different eigenvalues, and for weight decay."""
        if np.any(input_covariance.eigenvalues(self.parameters) != 1.0):
            fix = "this is known for the covariance 1. Omit covariance."
            raise checks.reject("covariance", self.covariance, fix)
        if self.weight_decay > 0:
            fix = "this is known without weight decay. Use weight_decay=0."
            raise checks.reject("weight_decay", self.weight_decay, fix)

    def describe(self) -> dict[str, Any]:
        """Return the problem as plain values for the record of a result.

        Returns
        -------
        dict
            "kind" and the arguments.
        """
        blocks = None if self.covariance is None else [list(pair) for pair in self.covariance]
        return {
            "kind": self.kind,
            "teacher": [list(pair) for pair in self.teacher],
            "start": list(self.start),
            "noise": self.noise,
            "weight_decay": self.weight_decay,
            "covariance": blocks,
        }


def _teacher_atoms(stated: Any) -> tuple[tuple[float, float], ...]:
    """The teacher weights and their shares."""
    if callable(getattr(stated, "ppf", None)):
        nodes, weights = np.polynomial.legendre.leggauss(LAW_NODES)
        quantiles = np.asarray(stated.ppf((nodes + 1) / 2), np.float64)
        if quantiles.shape != (LAW_NODES,) or not np.all(np.isfinite(quantiles)):
            fix = "its quantiles are not finite numbers. Use pairs (value, share)."
            raise checks.reject("teacher", stated, fix)
        return tuple(zip(quantiles.tolist(), (weights / weights.sum()).tolist(), strict=True))
    fix = "expected pairs (value, share), such as [(1.0, 0.2), (0.0, 0.8)], or a law with ppf."
    if isinstance(stated, str | bytes) or not isinstance(stated, Sequence | np.ndarray):
        raise checks.reject("teacher", stated, fix)
    atoms = checks.real_array("teacher", stated, fix)
    if atoms.ndim != 2 or atoms.shape[1] != 2 or not 1 <= len(atoms) <= MOST_ATOMS:
        raise checks.reject("teacher", stated, fix)
    if not np.all(np.isfinite(atoms)) or np.any(atoms[:, 1] <= 0):
        fix = "values must be finite and shares above 0. Use other pairs (value, share)."
        raise checks.reject("teacher", stated, fix)
    if abs(atoms[:, 1].sum() - 1) > 1e-9:
        fix = f"the shares add up to {atoms[:, 1].sum():.6g}. Use shares that add up to 1."
        raise checks.reject("teacher", stated, fix)
    return tuple((float(value), float(share)) for value, share in atoms)


def _initial_weights(stated: object) -> tuple[float, float]:
    """The initial weights (u, v) of every coordinate."""
    fix = "expected a number u, or a pair (u, v) of finite numbers."
    weights = checks.real_array("start", stated, fix)
    if weights.shape == ():
        weights = np.array([weights, 0.0])
    if weights.shape != (2,) or not np.all(np.abs(weights) < 1e100):
        raise checks.reject("start", stated, fix)
    u, v = (float(weight) for weight in weights)
    if abs(u) == abs(v):
        fix = (
            "with |u| = |v| the weights keep their signs for ever. Use different sizes, such as "
            "start=1.0."
        )
        raise checks.reject("start", stated, fix)
    return u, v
