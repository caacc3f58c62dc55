"""`samples_needed`: samples per dimension for a given error, by the best possible and by others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function
from sgdynamics.base.precision import float64
from sgdynamics.base.roots import find_root
from sgdynamics.base.support import require
from sgdynamics.expectations.nodes import gauss_legendre
from sgdynamics.problems.problem import Problem
from sgdynamics.results.datasets import encode
from sgdynamics.statics.bayes import bayes_optimal
from sgdynamics.statics.channel import channel_of
from sgdynamics.statics.erm import erm, error_of_signs, linear_data, max_margin
from sgdynamics.statics.erm_equations import LinearData
from sgdynamics.statics.ridge import linear_part
from sgdynamics.version import __version__

METHODS = ("bayes", "amp", "erm", "max_margin", "one_pass", "sgd")
# Range and resolution of the search for a level.
RANGE, FIRST_POINTS, POINTS, ROUNDS = (0.02, 2e4), 40, 9, 4
INTEGRATION_NODES = 200

Metric = Callable[[np.ndarray], np.ndarray]


@float64
def samples_needed(
    problem: Problem,
    risk: float,
    by: str | Sequence[str] = ("bayes", "amp", "erm"),
    loss: str | tuple[str, float] | Function = "squared",
) -> xr.DataArray:
    """Samples per dimension at which an error is reached, by the best possible and by others.

    Parameters
    ----------
    problem : TeacherStudent, MultiIndex or GaussianMixture
        The law of inputs and labels.
    risk : float
        The error to reach: the share of wrong labels for labels -1 and +1, otherwise the excess
        risk under the squared loss.
    by : str or sequence of str, default ("bayes", "amp", "erm")
        "bayes": the Bayes-optimal learner. "amp": the best known in polynomial time. "erm": a
        linear predictor with the best weight decay. "max_margin": the classifier of largest margin.
        "one_pass": the best of all rules that use each sample once, from zero weights, for one
        signal and inputs with one eigenvalue. "sgd": one-pass SGD of a linear student on the
        squared loss with the best learning-rate schedule, for inputs with one eigenvalue.
    loss : str, tuple or callable, default "squared"
        Loss of "erm", as in ``sgd.erm``.

    Returns
    -------
    xarray.DataArray
        Samples per dimension along ``by``; infinity where more than 20000 are needed or the error
        is never reached.

    Raises
    ------
    ValueError
        If an argument is invalid, or a method does not apply to the problem.

    Notes
    -----
    The limit n, d -> infinity. The best one-pass rule has dq/dalpha = (rho - q)^2 J(q), with the
    overlap q and the information J of a sample. SGD with the squared loss and the learning rate
    lr = u/(u + noise) needs alpha = log(u0/u) + noise (1/u - 1/u0), where u is the squared distance
    to the best linear predictor and noise the variance of what it does not explain.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", labels=sgd.labels.sign())
    >>> alpha = sgd.samples_needed(problem, risk=0.2, by=["bayes", "sgd"])
    >>> print(alpha.values.round(3))
    [1.608 2.144]
    """
    checks.require_outside_jit("samples_needed")
    require("samples_needed", problem)
    level = checks.number("risk", risk, above=0.0)
    names = [by] if isinstance(by, str) else by
    if not isinstance(names, Sequence) or not names:
        raise checks.reject("by", by, f"give names among {', '.join(METHODS)}")
    names = [checks.choice("by", name, METHODS) for name in names]
    search = _Search(problem, linear_data(problem, None), level, loss)
    values = [search.samples(name) for name in names]
    attributes = {
        "risk": level,
        "quantity": search.quantity,
        "problem": encode(problem.describe()),
        "version": __version__,
    }
    return xr.DataArray(
        np.array(values),
        {"by": names},
        ("by",),
        "samples_per_dimension",
        attributes | {"long_name": "samples/d"},
    )


@dataclass(frozen=True, eq=False)
class _Search:
    """The error of each method as a function of the samples per dimension, and its inverse."""

    problem: Problem
    data: LinearData
    level: float
    loss: str | tuple[str, float] | Function

    @property
    def quantity(self) -> str:
        """The variable of results that is compared with the level."""
        return "error" if self.data.is_binary else "excess_risk"

    def samples(self, method: str) -> float:
        """Return the samples per dimension that a method needs."""
        if method == "one_pass":
            return self.best_rule()
        if method == "sgd":
            return self.squared_loss()
        return first_below(self.metric(method), self.level)

    def metric(self, method: str) -> Metric:
        """Return the error as a function of samples per dimension."""
        problem, name = self.problem, self.quantity
        if method == "erm":

            def fit(alphas: np.ndarray) -> np.ndarray:
                result = erm(problem, alphas, weight_decay="best", loss=self.loss)
                if name not in result:
                    fix = (
                        "excess risks are compared under the squared loss with additive noise. Use "
                        "loss='squared'"
                    )
                    raise checks.reject("loss", self.loss, fix)
                return result[name].values

            return fit
        if method == "max_margin":
            return lambda alphas: max_margin(problem, alphas)["error"].values
        suffix = "_amp" if method == "amp" else ""

        def optimum(alphas: np.ndarray) -> np.ndarray:
            result = bayes_optimal(problem, alphas)
            return result[name + suffix if name + suffix in result else name].values

        return optimum

    def best_rule(self) -> float:
        """Integrate the best one-pass rule up to the overlap with this error."""
        self._require_one_eigenvalue("one_pass", signals=1)
        rho = float(self.data.rho[0, 0])
        channel = channel_of(self.data.likelihood, rho)
        name, level = self.quantity, self.level

        def excess(log_rest: float) -> float:
            return channel.errors(rho * -np.expm1(log_rest))[name] - level

        # rest = 1 - q/rho, from 1 (nothing learned) down
        lowest = -25.0
        if excess(-1e-9) <= 0:
            return 0.0
        if excess(lowest) > 0:
            return np.inf
        end = -find_root(excess, lowest, -1e-9)
        first = channel.information(1e-9 * rho).J
        if first < 1e-7 / rho:
            return np.inf  # zero weights are a fixed point
        nodes, weights = gauss_legendre(INTEGRATION_NODES)
        s = end * nodes
        J = np.array([channel.information(rho * -np.expm1(-value)).J for value in s])
        # q = rho (1 - exp(-s)):  dalpha = exp(s) ds/(rho J)
        return float(end * np.sum(weights * np.exp(s) / (rho * J)))

    def squared_loss(self) -> float:
        """Samples of one-pass SGD on the squared loss with its best schedule, from zero weights."""
        self._require_one_eigenvalue("sgd", signals=None)
        beta, noise = linear_part(self.data)
        total = float(beta @ self.data.rho @ beta)
        if total <= 0:
            return np.inf

        def error(log_share: float) -> float:
            """The error at the share u/u0 of what is left to learn; W.beta = |W|^2 throughout."""
            share = np.exp(log_share)
            if self.quantity == "excess_risk":
                return 0.5 * (total * share + noise - self.data.likelihood.noise)
            m = self.data.rho @ beta * (1.0 - share)
            return error_of_signs(self.data, m, total * (1.0 - share))

        if error(-1e-9) <= self.level:
            return 0.0
        if error(-25.0) > self.level:
            return np.inf
        log_share = find_root(lambda x: error(x) - self.level, -25.0, -1e-9)
        return -log_share + noise / total * np.expm1(-log_share)

    def _require_one_eigenvalue(self, method: str, signals: int | None) -> None:
        """Raise ValueError for inputs or labels that the formulas do not cover."""
        data = self.data
        if data.cluster_law is not None or not data.has_one_eigenvalue:
            fix = "this needs centred inputs with one eigenvalue. Omit it"
            raise checks.reject("by", method, fix)
        if signals is not None and data.directions != signals:
            raise checks.reject("by", method, "this needs labels of one signal. Omit it")


def first_below(metric: Metric, level: float) -> float:
    """Return the smallest samples per dimension with an error of at most `level`."""
    low, high = RANGE
    alphas = np.geomspace(low, high, FIRST_POINTS)
    values: Float[np.ndarray, " n"] = np.zeros(0)
    # in groups, because large numbers of samples are slow and rarely needed
    for group in np.array_split(alphas, 5):
        values = np.concatenate([values, metric(group)])
        if np.any(values <= level):
            break
    alphas = alphas[: len(values)]
    for _ in range(ROUNDS):
        is_below = values <= level
        if not is_below.any():
            return np.inf
        index = int(np.argmax(is_below))
        if index == 0:
            return float(alphas[0])
        alphas = np.geomspace(alphas[index - 1], alphas[index], POINTS)
        values = metric(alphas)
    index = int(np.argmax(values <= level))
    before, after = values[index - 1 : index + 1]
    share = (before - level) / (before - after)
    low, high = np.log(alphas[index - 1 : index + 1])
    return float(np.exp(low + share * (high - low)))
