"""Learners on data sets of finite dimension, in NumPy: they share no code with the theory.

The signal is the first axis, w* = e_0, unless it is an argument; rows of X are samples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import optimize, special

NEWTON_STEPS = 60


def ridge(X: np.ndarray, y: np.ndarray, weight_decay: float) -> np.ndarray:
    """Minimise the mean of (X w - y)^2/2 plus weight_decay |w|^2/2."""
    n, d = X.shape
    if n < d:  # the dual problem is smaller
        return X.T @ np.linalg.solve(X @ X.T + n * weight_decay * np.eye(n), y)
    return np.linalg.solve(X.T @ X + n * weight_decay * np.eye(d), X.T @ y)


def logistic(X: np.ndarray, y: np.ndarray, weight_decay: float) -> np.ndarray:
    """Minimise the mean of log(1 + exp(-y X w)) plus weight_decay |w|^2/2."""

    def slopes(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        share = special.expit(-y * f)
        return -y * share, share * (1 - share)

    return _newton(X, weight_decay, slopes, lambda f: np.logaddexp(0.0, -y * f))


def huber(X: np.ndarray, y: np.ndarray, weight_decay: float) -> np.ndarray:
    """Minimise the mean Huber loss with delta = 1 plus weight_decay |w|^2/2."""

    def slopes(f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        residual = f - y
        return np.clip(residual, -1.0, 1.0), 1.0 * (np.abs(residual) < 1.0)

    def loss(f: np.ndarray) -> np.ndarray:
        size = np.abs(f - y)
        return np.where(size < 1.0, 0.5 * size**2, size - 0.5)

    return _newton(X, weight_decay, slopes, loss)


def _newton(
    X: np.ndarray,
    weight_decay: float,
    slopes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    loss: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Minimise mean loss plus weight decay by Newton steps that are halved until they descend."""
    n, d = X.shape
    w = np.zeros(d)

    def objective(v: np.ndarray) -> float:
        return float(loss(X @ v).mean() + 0.5 * weight_decay * v @ v)

    for _ in range(NEWTON_STEPS):
        first, second = slopes(X @ w)
        gradient = X.T @ first / n + weight_decay * w
        if np.linalg.norm(gradient) < 1e-10 * np.sqrt(d):
            break
        step = np.linalg.solve((X.T * second) @ X / n + weight_decay * np.eye(d), gradient)
        size, before = 1.0, objective(w)
        while size > 1e-6 and objective(w - size * step) > before - 0.1 * size * step @ gradient:
            size *= 0.5
        w = w - size * step
    return w


def max_margin(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The shortest w with y X w >= 1, by nonnegative least squares (Lawson and Hanson)."""
    n, d = X.shape
    A = np.concatenate([(y[:, None] * X).T, np.ones((1, n))])
    target = np.zeros(d + 1)
    target[-1] = 1.0
    residual = A @ optimize.nnls(A, target, maxiter=20 * n)[0] - target
    return -residual[:-1] / residual[-1]


def one_pass_sgd(
    rng: np.random.Generator, runs: int, d: int, steps: np.ndarray, share: np.ndarray
) -> np.ndarray:
    """Cosines (run, save) of one-pass SGD on the squared loss and sign labels, after `steps`.

    share : distance to the best predictor before each step, relative to that of w = 0.
    """
    noise, total = 1.0 - 2.0 / np.pi, 2.0 / np.pi
    w, cosines = np.zeros((runs, d)), []
    for step in range(int(steps[-1])):
        x = rng.standard_normal((runs, d))
        lr = total * share[step] / (total * share[step] + noise)
        residual = np.sign(x[:, 0]) - np.einsum("rd,rd->r", w, x)
        w += lr / d * residual[:, None] * x
        if step + 1 in steps:
            cosines.append(w[:, 0] / np.linalg.norm(w, axis=1))
    return np.array(cosines).T


def committee_amp(
    X: np.ndarray,
    y: np.ndarray,
    denoiser: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]],
    values: np.ndarray,
    first: float,
    steps: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Overlaps (2, 2) of message passing for two signals, the first two axes.

    denoiser : function of (om, V) that returns Z (n, outcomes) and its gradient (n, outcomes, 2).
    first : overlap q = M = Q at the start.
    """
    n, d = X.shape
    W = np.sqrt(first * (1 - first) / d) * rng.standard_normal((2, d))
    W[:, :2] += first * np.eye(2)
    V, g = (1.0 - first) * np.eye(2), np.zeros((n, 2))
    index = np.searchsorted(values, y)
    samples = np.arange(n)
    for _ in range(steps):
        om = X @ W.T - g @ V
        Z, gradient = denoiser(om, V)
        g = gradient[samples, index] / np.maximum(Z[samples, index], 1e-12)[:, None]
        L = g.T @ g / d
        V = np.linalg.inv(np.eye(2) + L)
        W = V @ (g.T @ X / d + L @ W)
    return W[:, :2]


def top_cosine2(X: np.ndarray, T: np.ndarray) -> float:
    """Squared cosine of the top eigenvector of X^T T X with the first axis."""
    matrix = (X.T * T) @ X
    d = len(matrix)
    from scipy.linalg import eigh

    vector = eigh(matrix, subset_by_index=[d - 1, d - 1])[1][:, 0]
    return float(vector[0] ** 2)
