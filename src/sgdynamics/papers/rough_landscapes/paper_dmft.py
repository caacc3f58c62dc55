"""DMFT in the paper's own form at finite eta: an independent check of ``sgd.solve_dmft``.

Nothing is iterated: each kernel at step t is an average over paths up to t, so that one causal
sweep solves the equations. Two misprints are corrected: (14) has nu_hat instead of nu_tilde, and
the perturbation P shifts only the argument of v'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.stats import qmc

from sgdynamics.base import checks
from sgdynamics.papers.rough_landscapes.formulas import PaperParameters, check_parameters

# relative size of a Cholesky pivot below which it is rounding: gradient descent is smooth in t, and
# its kernel has low rank
FLAT = 1e-12


@dataclass(frozen=True)
class KernelDMFT:
    """Solution of the DMFT in the paper's units, with standard errors over replicates.

    Attributes
    ----------
    t : ndarray
        Times eta (0, ..., steps), of length steps + 1.
    m : ndarray
        Overlap at each time.
    loss : ndarray
        Mean loss at each time.
    C : ndarray
        Correlation function C(t, t'), (steps + 1, steps + 1).
    R : ndarray
        Response function R(t, t'), zero above the diagonal and 1 on it.
    M_C : ndarray
        Noise kernel M_C, (steps, steps).
    M_R : ndarray
        Memory kernel M_R, (steps, steps), below the diagonal.
    delta_nu : ndarray
        The function delta_nu, of length steps.
    standard_error : dict of ndarray
        Standard errors of the means over replicates, by name.

    Examples
    --------
    >>> solution = sgd.papers.rough_landscapes.kernel_dmft(3.0, 0.01, 0.2, 2, paths=1024)
    >>> solution.C.shape, solution.M_R.shape
    ((3, 3), (2, 2))
    """

    t: np.ndarray
    m: np.ndarray
    loss: np.ndarray
    C: np.ndarray
    R: np.ndarray
    M_C: np.ndarray
    M_R: np.ndarray
    delta_nu: np.ndarray
    standard_error: dict[str, np.ndarray]


def kernel_dmft(
    alpha: float,
    eta: float,
    m0: float,
    steps: int,
    paths: int = 20000,
    l: float = 1.0,  # noqa: E741
    tau: float | None = None,
    T: float | Sequence[float] = 0.0,
    ridge: float | None = None,
    seed: int = 0,
    algorithm: str | None = None,
    replicates: int = 8,
) -> KernelDMFT:
    """DMFT of phase retrieval by Monte Carlo paths of the effective process, exact at finite eta.

    ::

        h+ = a [b h - (eta/l)(g + zeta + sum_{s<=t} Rg(t,s) h_s) + sqrt(2 T eta) xi]
        g = s v'(h + m h0, h0),   Cov zeta = alpha <g g'>
        m+ = a [b m - (eta/l) alpha <h0 g>]
        ridge: b = 1 - eta lambda, a = 1;   sphere: b = 1, a = 1/norm
        Rg(t,t) = alpha <D>,   Rg(t,s) = alpha <D_t Th(t,s)>,   D = s v''
        Th = dh/dP for a shift P of the argument of v' at s:
        Th(s+1,s) = -a (eta/l) D_s
        Th(t+1,s) = a [b Th(t,s) - (eta/l)(D_t Th(t,s) + sum_{s<r<=t} Rg(t,r) Th(r,s))]

    Parameters
    ----------
    alpha : float
        Number of samples divided by N.
    eta : float
        The learning rate.
    m0 : float
        Initial overlap.
    steps : int
        Number of steps.
    paths : int, default 20000
        Total number of Monte Carlo paths of the effective process.
    l : float, default 1.0
        The batch fraction.
    tau : float, optional
        Persistence time; required by p-SGD.
    T : float or (float, float), default 0.0
        Temperature, or (T, t) for a temperature that is switched to zero at time t.
    ridge : float, optional
        Ridge penalty lambda. By default the weights are on the sphere.
    seed : int, default 0
        Seed of the random number generator.
    algorithm : str, optional
        "GD", "SGD", "p-SGD" or "Langevin". Defaults to p-SGD with tau, Langevin with T > 0, SGD
        with l < 1, and GD otherwise.
    replicates : int, default 8
        Number of independent sets of paths.

    Returns
    -------
    KernelDMFT
        The solution in the paper's units.

    Notes
    -----
    The component of a weight orthogonal to the signal follows the same equation without g, so that
    C and the response R(t,s) of the weight at t to a unit kick at s need no paths. With
    K(t,s) = <zeta_t w_s>,

    ::

        C+(.,s) = a [b C - (eta/l)(K(t,s) + sum_r Rg(t,r) C(r,s))]
        R+(.,s) = a [b R - (eta/l) sum_r Rg(t,r) R(r,s)],   R(s,s) = 1

    In continuous time M_R = -Rg/(l eta) below the diagonal, delta_nu = Rg(t,t)/l and
    M_C = (alpha/l^2) <g g'>. The paths are divided among independent replicates of scrambled Sobol
    points; the number per replicate is rounded down to a power of two. The cost is paths steps^3,
    the memory (paths/replicates) steps^2. Source: (14)-(20), (A.17)-(A.22), (A.28).

    Examples
    --------
    >>> solution = sgd.papers.rough_landscapes.kernel_dmft(3.0, 0.01, 0.2, 2, paths=1024)
    >>> solution.m.shape
    (3,)
    """
    if algorithm is None:
        is_thermal = T[0] > 0 if isinstance(T, (tuple, list)) and len(T) == 2 else T != 0
        if tau is not None:
            algorithm = "p-SGD"
        elif is_thermal:
            algorithm = "Langevin"
        else:
            algorithm = "SGD" if l != 1 else "GD"
    parameters = check_parameters(alpha, eta, m0, algorithm, l, tau, T, ridge)
    steps = checks.integer("steps", steps, 1)
    replicates = checks.integer("replicates", replicates, 2)
    paths = checks.integer("paths", paths, 100 * replicates)
    seeds = np.random.SeedSequence(checks.integer("seed", seed, 0)).spawn(replicates)
    paths_per_replicate = 2 ** ((paths // replicates).bit_length() - 1)
    solutions = [
        _replicate(parameters, steps, paths_per_replicate, np.random.default_rng(sequence))
        for sequence in seeds
    ]
    values = {name: np.stack([solution[name] for solution in solutions]) for name in solutions[0]}
    means = {name: array.mean(axis=0) for name, array in values.items()}
    errors = {
        name: array.std(axis=0, ddof=1) / math.sqrt(replicates) for name, array in values.items()
    }
    return KernelDMFT(t=parameters.eta * np.arange(steps + 1), standard_error=errors, **means)


def _replicate(
    parameters: PaperParameters, steps: int, n: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """One causal sweep with n paths (a power of two), which are the last axis."""
    alpha, eta, rate, sphere = (
        parameters.alpha,
        parameters.eta,
        parameters.eta / parameters.l,
        parameters.sphere,
    )
    b = 1.0 if sphere else 1 - eta * parameters.ridge
    points = qmc.Sobol(3 * steps + 3, rng=random).random_base2(n.bit_length() - 1).T
    normal = special.ndtri(np.clip(points, 1e-16, 1 - 1e-16))
    h0 = normal[0]
    h, g = np.zeros((steps + 1, n)), np.zeros((steps, n))
    normals, kicks, switches = (
        normal[3 : 3 + steps],
        normal[3 + steps : 3 + 2 * steps],
        points[3 + 2 * steps :],
    )
    C = np.zeros((steps + 1, steps + 1))  # without m m', which is added at the end
    C[0, 0] = 1 - parameters.m0**2 if sphere else 1.0
    h[0] = math.sqrt(C[0, 0]) * normal[1]
    m, loss = np.zeros(steps + 1), np.zeros(steps + 1)
    m[0] = parameters.m0
    Rg, G, root, R = (
        np.zeros((steps, steps)),
        np.zeros((steps, steps)),
        np.zeros((steps, steps)),
        np.eye(steps + 1),
    )
    Th = np.zeros((steps, steps + 1, n))  # (s, t, path)
    K, scale = np.zeros((steps, steps + 1)), np.ones(steps)  # <zeta_t w_s>, and a
    on, off = parameters.switching
    s = points[2] < parameters.l
    for t in range(steps):
        field = h[t] + m[t] * h0
        gap = field**2 - h0**2
        loss[t] = np.mean(gap**2) / 4
        g[t], D = s * gap * field, s * (2 * field**2 + gap)
        Rg[t, :t] = alpha / n * (Th[:t, t] @ D)
        Rg[t, t] = alpha * D.mean()
        G[t, : t + 1] = G[: t + 1, t] = alpha / n * (g[: t + 1] @ g[t])
        zeta = _root_row(G, root, t) @ normals[: t + 1]
        now = Rg[t, : t + 1]
        thermal_variance = 2 * eta * parameters.temperature(t)
        thermal_noise = math.sqrt(thermal_variance) * kicks[t]
        h[t + 1] = b * h[t] - rate * (g[t] + zeta + now @ h[: t + 1]) + thermal_noise
        m[t + 1] = b * m[t] - rate * alpha * np.mean(h0 * g[t])
        # covariances of zeta_t with the earlier weights, then of the next weight with all weights
        for r in range(t):
            K[t, r + 1] = scale[r] * (
                b * K[t, r] - rate * (G[t, r] + Rg[r, : r + 1] @ K[t, : r + 1])
            )
        pull = K[t, : t + 1] + now @ C[: t + 1, : t + 1]
        square = G[t, t] + now @ (2 * K[t, : t + 1] + C[: t + 1, : t + 1] @ now)
        C[t + 1, : t + 1] = C[: t + 1, t + 1] = b * C[t, : t + 1] - rate * pull
        C[t + 1, t + 1] = b**2 * C[t, t] - 2 * b * rate * pull[t] + rate**2 * square
        C[t + 1, t + 1] += thermal_variance
        R[t + 1, : t + 1] = b * R[t, : t + 1] - rate * (now @ R[: t + 1, : t + 1])
        a = 1 / math.sqrt(C[t + 1, t + 1] + m[t + 1] ** 2) if sphere else 1.0
        scale[t] = a
        for r in range(t):
            Th[r, t + 1] = a * (
                (b - rate * D) * Th[r, t] - rate * (now[r + 1 :] @ Th[r, r + 1 : t + 1])
            )
        Th[t, t + 1] = -a * rate * D
        for rows in (h, m, C, R):
            rows[t + 1, ...] *= a
        C[:, t + 1] *= a
        R[t + 1, t + 1] = 1.0
        s = np.where(s, switches[t] >= off, switches[t] < on)
    loss[steps] = np.mean(((h[steps] + m[steps] * h0) ** 2 - h0**2) ** 2) / 4
    M_R = -np.tril(Rg, -1) / (parameters.l * eta)
    return {
        "m": m,
        "loss": loss,
        "C": C + np.outer(m, m),
        "R": R,
        "M_C": G / parameters.l**2,
        "M_R": M_R,
        "delta_nu": np.diag(Rg) / parameters.l,
    }


def _root_row(G: np.ndarray, root: np.ndarray, t: int) -> np.ndarray:
    """Row t of the Cholesky factor of G, from its earlier rows; flat pivots are set to zero.

    The row gives zeta_t conditioned on the earlier zeta.
    """
    for r in range(t):
        if root[r, r] > 0:
            root[t, r] = (G[t, r] - root[t, :r] @ root[r, :r]) / root[r, r]
    left = G[t, t] - root[t, :t] @ root[t, :t]
    root[t, t] = math.sqrt(left) if left > FLAT * G[t, t] else 0.0
    return root[t, : t + 1]
