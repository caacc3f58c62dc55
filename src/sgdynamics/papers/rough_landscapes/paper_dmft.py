"""The paper's own form of DMFT, with its kernels, at finite eta: an independent check of
`sgd.solve_dmft` on a few steps.

Nothing is iterated: every kernel at step t is an average over paths up to t, so one causal sweep
solves the equations. The paper's print is corrected where it has to be: (14) has nu_hat, not
nu_tilde, and the perturbation P shifts the argument of v' only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special
from scipy.stats import qmc

from sgdynamics.base import checks
from sgdynamics.papers.rough_landscapes.formulas import Numbers, numbers

FLAT = 1e-12  # a pivot below this share of its diagonal entry is rounding: gradient descent is smooth in t, its kernel has low rank


@dataclass(frozen=True)
class KernelDMFT:
    """The solution at t = eta (0 ... steps), in the paper's units, each with the standard error of
    the mean over replicates.

    Attributes
    ----------
    t : ndarray
        The paper's times eta (0 ... steps).
    m : ndarray
        The overlap.
    loss : ndarray
        The mean loss.
    C : ndarray
        C(t, t'), (steps + 1, steps + 1).
    R : ndarray
        R(t, t'), zero above the diagonal and 1 on it.
    M_C : float or ndarray
        The kernel M_C.
    M_R : float or ndarray
        The kernel M_R.
    delta_nu : float or ndarray
        delta_nu.
    standard_error : dict of ndarray
        Of the mean over replicates, by name.

    Notes
    -----
    m, loss (steps + 1); C(t, t') and R(t, t') (steps + 1, steps + 1), R zero above the diagonal and
    1 on it; M_C, M_R (steps, steps), M_R below the diagonal; delta_nu (steps).

    Examples
    --------
    >>> found = sgd.papers.rough_landscapes.kernel_dmft(3.0, 0.01, 0.2, 2, paths=1024)
    >>> found.C.shape, found.M_R.shape
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
    """DMFT of phase retrieval by paths of the effective process, exact at finite eta up to the
    sampling error.

    ::

        h+ = a [b h - (eta/l)(g + zeta + sum_{s<=t} Rg(t,s) h_s) + sqrt(2 T eta) xi],   g = s v'(h + m h0, h0),  Cov zeta = alpha <g g'>
        m+ = a [b m - (eta/l) alpha <h0 g>],     b = 1 - eta lambda with a ridge and a = 1; b = 1 and a = 1/norm on the sphere
        Rg(t,t) = alpha <D>,  Rg(t,s) = alpha <D_t Th(t,s)>,  D = s v'',  Th = dh/dP of a shift P of the argument of v' at s:
        Th(s+1,s) = -a (eta/l) D_s,  Th(t+1,s) = a [b Th(t,s) - (eta/l)(D_t Th(t,s) + sum_{s<r<=t} Rg(t,r) Th(r,s))]

    Parameters
    ----------
    alpha : float
        Samples over N.
    eta : float
        The learning rate.
    m0 : float
        The overlap at the start.
    steps : int
        How many.
    paths : int, default 20000
        Of the effective process, in all.
    l : float, default 1.0
        The batch fraction.
    tau : float, optional
        The persistence time; p-SGD where it is given.
    T : float or (float, float), default 0.0
        The temperature, or (T, t) for one that is switched to zero at t.
    ridge : float, optional
        lambda; the sphere unless given.
    seed : int, default 0
        Seed of the random number generator.
    algorithm : str, optional
        Follows from the numbers unless given: p-SGD with tau, SGD with l < 1, Langevin with T > 0,
        else GD.
    replicates : int, default 8
        Independent sets of paths.

    Returns
    -------
    KernelDMFT
        In the paper's units.

    Notes
    -----
    A weight less its part along the signal follows the same equation without g, so that C and the
    response R(t,s) of the weight at t to a unit kick at s need no paths: with K(t,s) = <zeta_t
    w_s>,

    ::

        C+(.,s) = a [b C - (eta/l)(K(t,s) + sum_r Rg(t,r) C(r,s))],   R+(.,s) = a [b R - (eta/l) sum_r Rg(t,r) R(r,s)],   R(s,s) = 1.

    In continuous time M_R = -Rg/(l eta) below the diagonal, delta_nu = Rg(t,t)/l, M_C = (alpha/l^2)
    <g g'>.

    The algorithm follows from the numbers unless given: p-SGD with tau, SGD with l < 1, Langevin
    with T > 0, else GD. ``paths`` are shared by independent replicates (scrambled Sobol points, a
    power of two each: rounded down); cost paths steps^3, memory (paths/replicates) steps^2. Source:
    (14)-(20), (A.17)-(A.22), (A.28).

    Examples
    --------
    >>> found = sgd.papers.rough_landscapes.kernel_dmft(3.0, 0.01, 0.2, 2, paths=1024)
    >>> found.m.shape
    (3,)
    """
    if algorithm is None:
        hot = T[0] > 0 if isinstance(T, (tuple, list)) and len(T) == 2 else T != 0
        algorithm = "p-SGD" if tau is not None else "Langevin" if hot else "SGD" if l != 1 else "GD"
    given = numbers(alpha, eta, m0, algorithm, l, tau, T, ridge)
    steps, replicates = (
        checks.integer("steps", steps, 1),
        checks.integer("replicates", replicates, 2),
    )
    paths = checks.integer("paths", paths, 100 * replicates)
    seeds = np.random.SeedSequence(checks.integer("seed", seed, 0)).spawn(replicates)
    each = 2 ** ((paths // replicates).bit_length() - 1)
    found = [_replicate(given, steps, each, np.random.default_rng(one)) for one in seeds]
    values = {name: np.stack([one[name] for one in found]) for name in found[0]}
    means = {name: each.mean(axis=0) for name, each in values.items()}
    errors = {
        name: each.std(axis=0, ddof=1) / math.sqrt(replicates) for name, each in values.items()
    }
    return KernelDMFT(t=given.eta * np.arange(steps + 1), standard_error=errors, **means)


def _replicate(
    given: Numbers, steps: int, n: int, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """One causal sweep with n paths, a power of two; paths are the last axis."""
    alpha, eta, rate, sphere = given.alpha, given.eta, given.eta / given.l, given.sphere
    b = 1.0 if sphere else 1 - eta * given.ridge
    points = qmc.Sobol(3 * steps + 3, rng=random).random_base2(n.bit_length() - 1).T
    normal = special.ndtri(np.clip(points, 1e-16, 1 - 1e-16))
    h0 = normal[0]
    h, g = np.zeros((steps + 1, n)), np.zeros((steps, n))
    normals, kicks, switches = (
        normal[3 : 3 + steps],
        normal[3 + steps : 3 + 2 * steps],
        points[3 + 2 * steps :],
    )
    C = np.zeros((steps + 1, steps + 1))  # less m m' until the end
    C[0, 0] = 1 - given.m0**2 if sphere else 1.0
    h[0] = math.sqrt(C[0, 0]) * normal[1]
    m, loss = np.zeros(steps + 1), np.zeros(steps + 1)
    m[0] = given.m0
    Rg, G, root, R = (
        np.zeros((steps, steps)),
        np.zeros((steps, steps)),
        np.zeros((steps, steps)),
        np.eye(steps + 1),
    )
    Th = np.zeros((steps, steps + 1, n))  # (s, t, path)
    K, scale = np.zeros((steps, steps + 1)), np.ones(steps)  # <zeta_t w_s>, and a
    on, off = given.switching
    s = points[2] < given.l
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
        hot = 2 * eta * given.temperature(t)
        h[t + 1] = b * h[t] - rate * (g[t] + zeta + now @ h[: t + 1]) + math.sqrt(hot) * kicks[t]
        m[t + 1] = b * m[t] - rate * alpha * np.mean(h0 * g[t])
        # covariances: of zeta_t with the weights so far, then of the next weight with them and with
        # itself
        for r in range(t):
            K[t, r + 1] = scale[r] * (
                b * K[t, r] - rate * (G[t, r] + Rg[r, : r + 1] @ K[t, : r + 1])
            )
        pull = K[t, : t + 1] + now @ C[: t + 1, : t + 1]
        square = G[t, t] + now @ (2 * K[t, : t + 1] + C[: t + 1, : t + 1] @ now)
        C[t + 1, : t + 1] = C[: t + 1, t + 1] = b * C[t, : t + 1] - rate * pull
        C[t + 1, t + 1] = b**2 * C[t, t] - 2 * b * rate * pull[t] + rate**2 * square + hot
        R[t + 1, : t + 1] = b * R[t, : t + 1] - rate * (now @ R[: t + 1, : t + 1])
        a = 1 / math.sqrt(C[t + 1, t + 1] + m[t + 1] ** 2) if sphere else 1.0
        scale[t] = a
        for r in range(t):
            Th[r, t + 1] = a * (
                (b - rate * D) * Th[r, t] - rate * (now[r + 1 :] @ Th[r, r + 1 : t + 1])
            )
        Th[t, t + 1] = -a * rate * D
        for part in (h, m, C, R):
            part[t + 1, ...] *= a
        C[:, t + 1] *= a
        R[t + 1, t + 1] = 1.0
        s = np.where(s, switches[t] >= off, switches[t] < on)
    loss[steps] = np.mean(((h[steps] + m[steps] * h0) ** 2 - h0**2) ** 2) / 4
    M_R = -np.tril(Rg, -1) / (given.l * eta)
    return {
        "m": m,
        "loss": loss,
        "C": C + np.outer(m, m),
        "R": R,
        "M_C": G / given.l**2,
        "M_R": M_R,
        "delta_nu": np.diag(Rg) / given.l,
    }


def _root_row(G: np.ndarray, root: np.ndarray, t: int) -> np.ndarray:
    """Row t of the Cholesky root of G, whose earlier rows are there: zeta_t given the earlier ones.
    Flat pivots are zero.
    """
    for r in range(t):
        if root[r, r] > 0:
            root[t, r] = (G[t, r] - root[t, :r] @ root[r, :r]) / root[r, r]
    left = G[t, t] - root[t, :t] @ root[t, :t]
    root[t, t] = math.sqrt(left) if left > FLAT * G[t, t] else 0.0
    return root[t, : t + 1]
