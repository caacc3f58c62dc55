"""What the theory needs of one sample's gradient, as one interface: each way to integrate is a class of its own, a user's too.

Write h_i = dloss/dlambda_i and Omega for the covariance of the fields (students, then signals). Then, by Stein's lemma,

    E[h_i x] = sum_c H_ic w_c   (in covariance block b: eigenvalue_b times the block's part of the rows),   H_ic = E[dh_i/dlambda_c],

so H serves every block; C = E[h h^T] is the noise of SGD; E[dloss/da] moves the head; E[loss] is the risk. At finite d the
noise needs the norm of the input too: E[h h^T |x_b|^2] = eigenvalue_b (d_b C + 2 D_b C), D_b the derivative of C with respect
to Omega along eigenvalue_b Omega_b.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base.arrays import Nodes, Numeric, Parameters
from sgdynamics.expectations import curvature
from sgdynamics.problems.problem import Structure
from sgdynamics.samples import input_covariance


@dataclass(frozen=True)
class Quadrature:
    """How finely to integrate: terms of the Mehler series, Sobol points or circles (powers of two) and replicates."""

    terms: int = 64
    log2_points: int = 12
    log2_circles: int = 8
    replicates: int = 4
    mixture: Any = None  # the quadrature of `expectations.mixtures`, for mixtures only
    per_deviation: int = 4  # points of a grid over a few fields in one standard deviation
    label_terms: int = 0  # terms of the series among teachers, where they need more than `terms`


class Overlaps(NamedTuple):
    """A state as an expectation sees it: the overlaps of students and signals in every covariance block, and the fields' covariance."""

    blocks: Float[Numeric, "blocks fields fields"]  # Omega_b, (blocks, fields, fields)
    covariance: Float[
        Numeric, "fields fields"
    ]  # Omega = sum_b eigenvalue_b Omega_b: of the fields about their mean

    def means(self, coefficients: Float[Numeric, "*s K"]) -> Float[Numeric, "*s fields"]:
        """The mean of the fields, (..., fields), where that of the inputs has these coefficients (..., signals) on the signals."""
        return coefficients @ jnp.sum(self.blocks, axis=0)[-coefficients.shape[-1] :]


class Moments(NamedTuple):
    """What the theory needs of one sample's gradient h = dloss/dlambda, at one state.

    Attributes
    ----------
    stein : array
        H_ic = E[dh_i/dlambda_c], (p, fields).
    noise : array
        C = E[h h^T], (p, p).
    norms : array or None
        E[h h^T (x_b^2 - eigenvalue_b d_b)], x_b^2 the squared length in block b, (blocks, p, p); None at infinite d.
    head_gradient : array
        E[dloss/da], (p,).
    risk : array
        E[loss].
    shift : array or None
        Where inputs have means, (p, signals): E[h_i x] has their part sum_r shift_ir w*_r.
    pull : array or None
        Where a loss or rule reads overlaps, (p, fields) or by block (blocks, p, fields): the mean of its
        coefficients [A | B] on rows and signals.

    Examples
    --------
    >>> moments = sgd.Moments(stein=np.ones((1, 2)), noise=np.eye(1), norms=None, head_gradient=np.zeros(1), risk=0.5)
    >>> moments.shift is None
    True
    """

    stein: Float[Numeric, "p fields"]
    noise: Float[Numeric, "p p"]
    norms: Any
    head_gradient: Float[Numeric, " p"]
    risk: Float[Numeric, ""]
    shift: Float[Numeric, "p K"] | None = None
    pull: Any = None

    def coefficients(self, parameters: Parameters) -> Float[Numeric, "blocks p fields"]:
        """The mean of what a sample moves rows against, in each block on the rows and signals: E[h_i x], and ``pull``.

        Parameters
        ----------
        parameters : dict
            The numbers of the problem.

        Returns
        -------
        array
            (blocks, p, fields).
        """
        found = input_covariance.scaled(parameters, self.stein)
        if self.pull is not None:
            found = found + self.pull
        if self.shift is None:
            return found
        rest = jnp.zeros(
            (self.shift.shape[0], self.stein.shape[1] - self.shift.shape[1]), self.shift.dtype
        )
        return found + jnp.concatenate([rest, self.shift], axis=1)


class Expectation(ABC):
    """How the expectations of one problem are taken.

    An own one is a frozen and hashable subclass, as compiled code depends on it, given as ``sgd.Problem(..., expectation=own)``.

    Notes
    -----
    ``moments`` and ``risk`` are all that one of your own must have: pure JAX functions of the numbers ``parameters``, the ``overlaps``
    (their ``.covariance`` is that of the fields, students first) and the head. What is fixed once, such as points, comes from ``nodes``,
    arrays with a leading axis of replicates (of one, where nothing is sampled), and they receive one of them; how fine these are is the
    ``quadrature``. With ``flow`` the noise is not needed, and ``norms`` only where ``finite``.

    Examples
    --------
    The mean of one field less one signal, squared, over two:

    >>> from dataclasses import dataclass
    >>> import jax.numpy as jnp
    >>> @dataclass(frozen=True)
    ... class Linear(sgd.Expectation):
    ...     def risk(self, quadrature, nodes, parameters, overlaps, head):
    ...         left = jnp.array([1.0, -1.0])
    ...         return left @ overlaps.covariance @ left / 2
    ...     def moments(self, quadrature, nodes, parameters, overlaps, head, *, finite=False, flow=False):
    ...         risk = self.risk(quadrature, nodes, parameters, overlaps, head)
    ...         return sgd.Moments(jnp.array([[1.0, -1.0]]), 2 * risk[None, None], None, jnp.zeros(1), risk)
    >>> problem = sgd.Problem(lambda f, s, a, z: (f[0] - s[0]) ** 2 / 2, width=1, signals=1, expectation=Linear())
    >>> begin = sgd.functional.state(sgd.start(problem, M=[[0.5]], Q=[[1.0]]))
    >>> import jax
    >>> with jax.enable_x64(True):
    ...     print(float(sgd.functional.risk(problem.structure, problem.parameters, begin)))
    0.5
    """

    uses_series = False  # whether `error` is that of a series, which other nodes would not show
    advice = "the quadrature does not resolve the loss at these overlaps. Compare with sgd.simulate, which uses none"

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
        """All of it at one state.

        Parameters
        ----------
        quadrature : Quadrature
            How finely to integrate.
        nodes : dict
            One replicate of what ``nodes`` returned.
        parameters : dict
            The numbers of the problem.
        overlaps : Overlaps
            The overlaps in every block, and the fields' covariance.
        head : array
            The second layer, (p,).
        finite : bool, default False
            Whether ``norms`` are needed, for the mean increment at finite d.
        flow : bool, default False
            Gradient flow: the noise is not needed.

        Returns
        -------
        Moments
            JAX values.
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
        """E[loss] at one state, with the nodes of ``risk_nodes``.

        Parameters
        ----------
        quadrature : Quadrature
            How finely to integrate.
        nodes : dict
            One replicate of what ``risk_nodes`` returned.
        parameters : dict
            The numbers of the problem.
        overlaps : Overlaps
            The overlaps in every block, and the fields' covariance.
        head : array
            The second layer, (p,).

        Returns
        -------
        array
            One number.
        """

    def quadrature(self, largest: float) -> Quadrature:
        """The quadrature that is fine enough at the start of a run.

        Parameters
        ----------
        largest : float
            The largest variance of a field.

        Returns
        -------
        Quadrature
            How finely to integrate.
        """
        return Quadrature()

    def finer(self, quadrature: Quadrature, largest: float) -> Quadrature | None:
        """A finer quadrature for states at which one is not accurate.

        Parameters
        ----------
        quadrature : Quadrature
            The one that was not.
        largest : float
            The largest variance of a field.

        Returns
        -------
        Quadrature or None
            None where there is no finer one.
        """
        return None

    def nodes(self, quadrature: Quadrature, flow: bool) -> dict[str, np.ndarray]:
        """The points that ``moments`` needs.

        Parameters
        ----------
        quadrature : Quadrature
            How finely to integrate.
        flow : bool
            Whether the noise is left out.

        Returns
        -------
        dict of ndarray
            With a leading axis of replicates.
        """
        return {"none": np.zeros((1, 1))}

    def risk_nodes(self, quadrature: Quadrature, *, quick: bool = True) -> dict[str, np.ndarray]:
        """The points that ``risk`` needs.

        Parameters
        ----------
        quadrature : Quadrature
            How finely to integrate.
        quick : bool, default True
            For many states, where 1e-4 is plenty.

        Returns
        -------
        dict of ndarray
            With a leading axis of replicates ("plain" where they serve nothing else).
        """
        return self.nodes(quadrature, flow=True)

    def search_nodes(
        self, quadrature: Quadrature, flow: bool
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
        """Nodes with which `moments` is smooth up to the edge of the physical region, and coarser ones where these tell the error."""
        return self.nodes(quadrature, flow), None

    def error(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> Float[Numeric, ""]:
        """Estimated relative error of what is not sampled, at one state (sampling has its replicates instead).

        Parameters
        ----------
        quadrature : Quadrature
            How finely to integrate.
        nodes : dict
            One replicate of the nodes.
        parameters : dict
            The numbers of the problem.
        overlaps : Overlaps
            The overlaps in every block, and the fields' covariance.
        head : array
            The second layer, (p,).

        Returns
        -------
        array
            One number; 0 unless given.
        """
        return jnp.asarray(0.0)

    def errors(
        self,
        quadrature: Quadrature,
        nodes: Nodes,
        parameters: Parameters,
        overlaps: Overlaps,
        head: Float[Numeric, " p"],
    ) -> tuple[Any, Any]:
        """`error`, and the part of it that is the error of the risk (0 where that is not known separately)."""
        error = self.error(quadrature, nodes, parameters, overlaps, head)
        return error, jnp.zeros_like(error)

    def sampled(self, flow: bool) -> bool:
        """Whether anything is an average over replicates of points."""
        return False

    @property
    def drift_sampled(self) -> bool:
        """Whether the drift itself is, not only the noise term."""
        return False

    @property
    def has_closed_pairs(self) -> bool:
        """Whether every pair of fields has a closed form."""
        return False

    @property
    def has_label_series(self) -> bool:
        """Whether the label has a `label_series`."""
        return False

    def label_series(
        self,
        parameters: Parameters,
        frame: np.ndarray,
        terms: int,
        powers: np.ndarray,
        roots: np.ndarray,
    ) -> tuple[np.ndarray, float, float]:
        """E[y(C zeta) h_alpha(zeta)] of the noiseless label, signals C zeta, for alpha = powers (n, K), |alpha| < terms; E[y^2]; an error.

        `roots` are sqrt(|alpha|!/alpha!), h orthonormal Hermite polynomials.
        """
        raise NotImplementedError("only the label of a network has a series")

    def curvatures(
        self,
        structure: Structure,
        quadrature: Quadrature,
        parameters: Parameters,
        head: np.ndarray,
        rows: np.ndarray,
        signals: np.ndarray,
    ) -> tuple[list[curvature.Curvature], bool]:
        """E[h_ij x x^T] at whitened rows, more than once: a fine and a coarse version, or (True) equally good replicates."""
        return curvature.sampled(structure, parameters, head, rows, signals), True
