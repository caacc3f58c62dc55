"""The interface of Gaussian expectations: `Expectation`, its arguments and its result.

Notation: h_i = dloss/dlambda_i is the gradient of the loss of one sample with respect to the
preactivation lambda_i = w_i.x, and Omega is the covariance of the fields (students, then signals).
Stein's lemma, E[g(x) x] = E[grad g] for x ~ N(0, I), gives

    E[h_i x] = sum_c H_ic w_c,   H_ic = E[dh_i/dlambda_c],

with the factor eigenvalue_b and the rows of block b in each covariance block. One matrix H
therefore serves all blocks. C = E[h h^T] is the gradient noise of SGD, E[dloss/da] moves the head,
and E[loss] is the population risk. At finite d the noise also depends on the norm of the input:

    E[h h^T |x_b|^2] = eigenvalue_b (d_b C + 2 D_b C),

where D_b C is the derivative of C with respect to Omega in the direction eigenvalue_b Omega_b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations.nodes import times_small
from sgdynamics.samples import input_covariance

if TYPE_CHECKING:
    from sgdynamics.expectations.mixture_moments import MixtureQuadrature


@dataclass(frozen=True)
class Quadrature:
    """Resolution of an expectation: static, because compiled code depends on it.

    Each family of expectations reads the fields that it needs and ignores the others.
    """

    terms: int = 64  # terms of the Mehler series
    log2_points: int = 12  # Sobol points, for smooth losses
    log2_circles: int = 8  # circles through pairs of Sobol points, for losses with kinks
    replicates: int = 4  # independent scramblings of the Sobol points
    mixture: MixtureQuadrature | None = None  # for Gaussian mixtures only
    per_deviation: int = 4  # points of a trapezoidal grid per standard deviation of a field
    label_terms: int = 0  # terms of the series among teachers, where they need more than `terms`
    # Whether the gradient noise is evaluated. An approximation of the drift may leave it out.
    noise: bool = True


class Overlaps(NamedTuple):
    """The overlaps of students and signals at one state, per covariance block and summed."""

    # Omega_b = [[Q_b, M_b], [M_b^T, P_b]]
    blocks: Float[Numeric, "blocks fields fields"]
    # Omega = sum_b eigenvalue_b Omega_b, the covariance of the fields about their mean
    covariance: Float[Numeric, "fields fields"]

    def means(self, coefficients: Float[Numeric, "*s K"]) -> Float[Numeric, "*s fields"]:
        """Means of the fields for inputs whose mean is sum_r coefficients_r w*_r."""
        on_signals = jnp.sum(self.blocks, axis=0)[-coefficients.shape[-1] :]
        if coefficients.ndim == 2:
            return times_small(coefficients, on_signals)
        return coefficients @ on_signals


class Moments(NamedTuple):
    """Moments of the gradient h = dloss/dlambda of one sample, at one state.

    Attributes
    ----------
    stein : array
        Matrix H_ic = E[dh_i/dlambda_c], (p, fields).
    noise : array
        Gradient noise C = E[h h^T], (p, p).
    norms : array or None
        Correction of the noise at finite d, E[h h^T (x_b^2 - eigenvalue_b d_b)] with x_b^2 the
        squared norm of the input in block b, (blocks, p, p). None at infinite d.
    head_gradient : array
        Gradient E[dloss/da] of the second layer, (p,).
    risk : array
        Population risk E[loss].
    shift : array or None
        Contribution of inputs with nonzero means, (p, signals): E[h_i x] contains
        sum_r shift_ir w*_r.
    pull : array or None
        Mean of the coefficients [A | B] on rows and signals, for losses and rules that read
        overlaps: (p, fields), or (blocks, p, fields) if they differ between blocks.

    Examples
    --------
    >>> moments = sgd.Moments(
    ...     stein=np.ones((1, 2)), noise=np.eye(1), norms=None, head_gradient=np.zeros(1), risk=0.5
    ... )
    >>> moments.shift is None
    True
    """

    stein: Float[Numeric, "p fields"]
    noise: Float[Numeric, "p p"]
    norms: Float[Numeric, "blocks p p"] | None
    head_gradient: Float[Numeric, " p"]
    risk: Float[Numeric, ""]
    shift: Float[Numeric, "p K"] | None = None
    pull: Float[Numeric, "*blocks p fields"] | None = None

    def coefficients(self, parameters: Parameters) -> Float[Numeric, "blocks p fields"]:
        """Mean descent direction of the rows, per block, as coefficients on rows and signals.

        This is E[h_i x] by Stein's lemma, plus ``pull``.

        Parameters
        ----------
        parameters : dict
            Parameters of the problem.

        Returns
        -------
        array
            Coefficients, (blocks, p, fields).
        """
        coefficients = input_covariance.times_eigenvalues(parameters, self.stein)
        if self.pull is not None:
            coefficients = coefficients + self.pull
        if self.shift is None:
            return coefficients
        # the means of the inputs lie in the span of the signals: no coefficient on the students
        on_students = jnp.zeros(
            (self.shift.shape[0], self.stein.shape[1] - self.shift.shape[1]), self.shift.dtype
        )
        return coefficients + jnp.concatenate([on_students, self.shift], axis=1)


class Expectation(ABC):
    """Gaussian expectations of one problem: the moments of its gradient, and its risk.

    Subclass it to supply the moments of a loss in closed form. The subclass is frozen and hashable,
    because compiled code depends on it, and is passed as ``sgd.Problem(..., expectation=own)``.

    Notes
    -----
    Only ``moments`` and ``risk`` are required. They are pure JAX functions of the parameters of the
    problem, of the ``overlaps`` (``overlaps.covariance`` is the covariance of the fields, students
    first) and of the head. Constant arrays such as quadrature points come from ``nodes``, with a
    leading axis of replicates (of length one if nothing is sampled); ``moments`` receives one
    replicate. The ``quadrature`` controls the resolution. With ``flow`` the noise is not needed,
    and ``norms`` are needed only with ``finite``.

    Examples
    --------
    Half the mean square of the difference between a field and a signal:

    >>> from dataclasses import dataclass
    >>> import jax.numpy as jnp
    >>> @dataclass(frozen=True)
    ... class Linear(sgd.Expectation):
    ...     def risk(self, quadrature, nodes, parameters, overlaps, head):
    ...         difference = jnp.array([1.0, -1.0])
    ...         return difference @ overlaps.covariance @ difference / 2
    ...     def moments(
    ...         self, quadrature, nodes, parameters, overlaps, head, *, finite=False, flow=False
    ...     ):
    ...         risk = self.risk(quadrature, nodes, parameters, overlaps, head)
    ...         stein = jnp.array([[1.0, -1.0]])
    ...         return sgd.Moments(stein, 2 * risk[None, None], None, jnp.zeros(1), risk)
    >>> def squared_error(fields, signals, head, draw):
    ...     return (fields[0] - signals[0]) ** 2 / 2
    >>> problem = sgd.Problem(squared_error, width=1, signals=1, expectation=Linear())
    >>> state = sgd.functional.state(sgd.start(problem, M=[[0.5]], Q=[[1.0]]))
    >>> import jax
    >>> with jax.enable_x64(True):
    ...     print(float(sgd.functional.risk(problem.structure, problem.parameters, state)))
    0.5
    """

    @abstractmethod
    def moments(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
        *,
        finite: bool = False,
        flow: bool = False,
    ) -> Moments:
        """Moments of the gradient at one state.

        Parameters
        ----------
        quadrature : Quadrature
            Resolution of the expectation.
        nodes : dict
            One replicate of the arrays that ``nodes`` returned.
        parameters : dict
            Parameters of the problem.
        overlaps : Overlaps
            Overlaps per covariance block, and the covariance of the fields.
        head : array
            Second layer, (p,).
        finite : bool, default False
            Whether ``norms`` are needed, for the mean increment at finite d.
        flow : bool, default False
            Whether the algorithm is gradient flow, which does not need the noise.

        Returns
        -------
        Moments
            JAX arrays.
        """

    @abstractmethod
    def risk(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        """Population risk E[loss] at one state, with the nodes of ``risk_nodes``.

        Parameters
        ----------
        quadrature : Quadrature
            Resolution of the expectation.
        nodes : dict
            One replicate of the arrays that ``risk_nodes`` returned.
        parameters : dict
            Parameters of the problem.
        overlaps : Overlaps
            Overlaps per covariance block, and the covariance of the fields.
        head : array
            Second layer, (p,).

        Returns
        -------
        array
            Risk, a scalar.
        """

    def quadrature(self, largest: float) -> Quadrature:
        """Choose a resolution that is sufficient at the start of a run.

        Parameters
        ----------
        largest : float
            Largest variance of a field.

        Returns
        -------
        Quadrature
            Resolution of the expectation.
        """
        return Quadrature()

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        """Choose a finer resolution for states at which a quadrature is inaccurate.

        Parameters
        ----------
        quadrature : Quadrature
            Resolution that turned out too coarse.
        largest : float
            Largest variance of a field.

        Returns
        -------
        Quadrature or None
            Finer resolution, or None if there is none.
        """
        return None

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        """Constant arrays that ``moments`` needs.

        Parameters
        ----------
        quadrature : Quadrature
            Resolution of the expectation.
        flow : bool
            Whether the noise is omitted.

        Returns
        -------
        dict of ndarray
            Arrays with a leading axis of replicates.
        """
        return {"none": np.zeros((1, 1))}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        """Constant arrays that ``risk`` needs.

        Parameters
        ----------
        quadrature : Quadrature
            Resolution of the expectation.
        quick : bool, default True
            Whether a relative accuracy of 1e-4 is sufficient, for the risks of many states.

        Returns
        -------
        dict of ndarray
            Arrays with a leading axis of replicates, under the key "plain" if only ``risk`` uses
            them.
        """
        return self.nodes(quadrature, flow=True)

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        """Estimated relative error at one state, apart from sampling.

        The error of sampling is estimated from replicates instead.

        Parameters
        ----------
        quadrature : Quadrature
            Resolution of the expectation.
        nodes : dict
            One replicate of the nodes.
        parameters : dict
            Parameters of the problem.
        overlaps : Overlaps
            Overlaps per covariance block, and the covariance of the fields.
        head : array
            Second layer, (p,).

        Returns
        -------
        array
            Relative error, a scalar; 0 by default.
        """
        return jnp.asarray(0.0)
