"""Ridge regression in closed form, for any label law and covariance.

With beta = rho^-1 E[y z] the label is beta.z plus an uncorrelated rest of variance noise_eff, and
of a linear predictor under the squared loss nothing else enters. With lam = alpha weight_decay,

    kappa (alpha - sum_b phi_b l_b/(l_b + kappa)) = lam,
    G = sum_b phi_b l_b^2/(l_b + kappa)^2/alpha,
    test = [kappa^2 sum_b l_b beta.P_b beta/(l_b + kappa)^2 + noise_eff]/(2 (1 - G)),
    train = test (lam/(alpha kappa))^2.

At lam = 0 the predictor interpolates for alpha below the rank (kappa > 0), and kappa = 0 above.
Sources: Dobriban and Wager (2018), Hastie et al. (2022), Canatar et al. (2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from sgdynamics.base.roots import find_root
from sgdynamics.problems.likelihoods import OutcomeLaw
from sgdynamics.statics.erm_equations import ErmState, LinearData, Rows
from sgdynamics.statics.field_nodes import LabelledFields


class LinearPart(NamedTuple):
    """The part of the labels that is linear in the signals, and the variance of the rest."""

    beta: Float[np.ndarray, " K"]
    noise: float


def linear_part(data: LinearData, order: int = 0) -> LinearPart:
    """Return beta = rho^-1 E[y z] and noise_eff = E y^2 - beta.rho beta."""
    likelihood = data.likelihood
    z, weights = LabelledFields(likelihood, order).signal_grid(data.rho)
    mean = likelihood.means(z)
    if isinstance(likelihood.law, OutcomeLaw):
        square = likelihood.probabilities(z) @ np.array(likelihood.law.values) ** 2
    else:
        square = mean**2 + likelihood.noise
    beta = np.linalg.lstsq(data.rho, (weights * mean) @ z, rcond=1e-12)[0]
    noise = float(weights @ square) - float(beta @ data.rho @ beta)
    return LinearPart(beta, max(noise, 0.0))


class RidgeSolution(NamedTuple):
    """The solution: kappa, order parameters, overlaps of the rows, and both risks."""

    kappa: float
    state: ErmState
    rows: Rows
    risk: float
    train_risk: float


@dataclass(frozen=True, eq=False)
class Ridge:
    """Ridge regression at one number of samples per dimension.

    Attributes
    ----------
    data : LinearData
        Inputs and labels.
    linear : LinearPart
        The linear part of the labels.
    alpha : float
        Samples per dimension.
    """

    data: LinearData
    linear: LinearPart
    alpha: float

    def kappa(self, lam: float) -> float:
        """Return the effective weight decay kappa."""
        eig, phi = self.data.eigenvalues, self.data.fractions
        positive = eig > 0
        eig, phi = eig[positive], phi[positive]
        if lam == 0.0 and self.alpha >= self.data.rank:
            return 0.0

        def excess(log_kappa: float) -> float:
            kappa = np.exp(log_kappa)
            return float(kappa * (self.alpha - np.sum(phi * eig / (eig + kappa))) - lam)

        # kappa is at most lam/alpha plus the mean eigenvalue over alpha
        largest = (lam + float(np.sum(phi * eig))) / self.alpha
        smallest = largest
        while excess(np.log(smallest)) > 0 and smallest > 1e-280:
            smallest *= 1e-3
        low, high = np.log(smallest), np.log(1.01 * largest)
        return float(np.exp(find_root(excess, low, high, xtol=1e-14)))

    def solve(self, lam: float) -> RidgeSolution:
        """Return the predictor at lam = alpha weight_decay."""
        (beta, noise), alpha = self.linear, self.alpha
        eig, phi, P = self.data.eigenvalues, self.data.fractions, self.data.gram
        kappa = self.kappa(lam)
        # shrinkage factors l/(l + kappa), 0 in directions without data
        shrinkage = np.divide(eig, eig + kappa, out=np.zeros_like(eig), where=eig > 0)
        power = np.einsum("k,bkl,l->b", beta, P, beta)
        lost = float(np.sum(eig * power * (1.0 - shrinkage) ** 2))
        G = float(np.sum(phi * shrinkage**2)) / alpha
        twice = (lost + noise) / (1.0 - G)
        # qh/Vh^2 is the variance that noise and the lost part add to each direction
        spread = twice / alpha
        inverse = np.divide(shrinkage**2, eig, out=np.zeros_like(eig), where=eig > 0)
        rows = Rows(
            np.einsum("b,bkl,l->k", shrinkage, P, beta),
            float(np.sum(shrinkage**2 * power + phi * inverse * spread)),
        )
        m = np.einsum("b,bkl,l->k", eig * shrinkage, P, beta)
        q = float(np.sum(eig * shrinkage**2 * power + phi * shrinkage**2 * spread))
        degrees = float(np.sum(phi * shrinkage))
        # V = kappa sum phi l/(l + kappa)/lam, with lam = kappa (alpha - degrees)
        V = degrees / (alpha - degrees) if lam > 0 or kappa == 0.0 else np.inf
        share = lam / (alpha * kappa) if kappa > 0 else 1.0 - degrees / alpha
        return RidgeSolution(kappa, ErmState(m, q, V), rows, 0.5 * twice, 0.5 * twice * share**2)

    def best_lam(self) -> float | None:
        """Return the lam of least risk if all eigenvalues are equal, else None."""
        beta, noise = self.linear
        if not self.data.has_one_eigenvalue:
            return None
        power = float(beta @ self.data.gram.sum(axis=0) @ beta)
        return noise / power if power > 0 else np.inf
