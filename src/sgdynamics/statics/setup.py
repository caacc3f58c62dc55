"""The statics of a problem: its label law, and the covariance of its inputs and signals.

Inputs have blocks of eigenvalue l_b and share phi_b of d; P_b is the Gram matrix of the signals in
block b, so that the signals are z ~ N(0, rho) with rho = sum_b l_b P_b. A block of a spectrum with
n_b coordinates has the share n_b/d: the equations contain alpha l_b/phi_b, in which d cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.problems.likelihoods import Likelihood, likelihood_of
from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class Setup:
    """The parts of a problem that the equations of the statics read.

    Attributes
    ----------
    likelihood : Likelihood
        The law of the labels given the signals.
    eigenvalues : ndarray
        Eigenvalue l_b of the input covariance of each block.
    fractions : ndarray
        Share phi_b of d of each block.
    gram : ndarray
        Gram matrices P_b of the signals in each block, (blocks, k, k).
    """

    likelihood: Likelihood
    eigenvalues: Float[np.ndarray, " blocks"]
    fractions: Float[np.ndarray, " blocks"]
    gram: Float[np.ndarray, "blocks k k"]

    @property
    def directions(self) -> int:
        """Number k of signals."""
        return self.likelihood.directions

    @property
    def rho(self) -> Float[np.ndarray, "k k"]:
        """Covariance of the signals, sum_b l_b P_b."""
        return np.einsum("b,bij->ij", self.eigenvalues, self.gram)


def setup_of(problem: Problem) -> Setup:
    """Return the statics of a problem; ValueError if its labels have no law given the signals."""
    likelihood = likelihood_of(problem)
    spectrum = problem.spectrum
    if spectrum is not None and spectrum.infinite:
        fix = (
            "alpha = samples/d is undefined for an infinite-dimensional spectrum. Give "
            "sgd.power_law(..., dimension=) a finite dimension."
        )
        raise checks.reject("covariance", spectrum, fix)
    eigenvalues, fractions = zip(*problem.covariance_blocks, strict=True)
    return Setup(
        likelihood,
        np.array(eigenvalues, np.float64),
        np.array(fractions, np.float64),
        np.asarray(problem.gram, np.float64),
    )
