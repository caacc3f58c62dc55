"""`erm` and `max_margin`: linear predictors that minimise a convex loss, as n, d -> infinity."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function
from sgdynamics.base.controls import is_scheduled
from sgdynamics.base.progress import warn
from sgdynamics.base.roots import find_minimum
from sgdynamics.base.support import require
from sgdynamics.problems.likelihoods import AdditiveLaw, ClusterLaw, Likelihood
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.teacher_student import MultiIndex, TeacherStudent
from sgdynamics.results.datasets import encode
from sgdynamics.statics.erm_equations import ErmEquations, ErmState, LinearData, Rows
from sgdynamics.statics.margin import aligned_labels, largest_margin, separability_threshold
from sgdynamics.statics.prox import ConvexLoss, SquaredLoss, convex_loss
from sgdynamics.statics.ridge import Ridge, linear_part
from sgdynamics.statics.setup import setup_of
from sgdynamics.version import __version__

# Logarithms of lam = alpha weight_decay between which the best one is searched.
LOG_LAM = (-14.0, 9.0)
LOG_LAM_STEP = 1.0
MOST_SIGNALS = 3

NO_MINIMISER = (
    "without weight decay the loss has no unique minimiser at samples_per_dimension = {alpha:g}: "
    "{reason}. Use a positive weight_decay"
)


class _Solution(NamedTuple):
    """The predictor at one number of samples per dimension."""

    lam: float
    state: ErmState
    rows: Rows
    train_risk: float
    risk: float
    replicon: float
    error: float


def erm(
    problem: Problem,
    samples_per_dimension: ArrayArgument,
    weight_decay: float | str | None = None,
    loss: str | tuple[str, float] | Function | None = None,
) -> xr.Dataset:
    """The linear predictor w.x that minimises the mean loss on n samples plus weight decay.

    ::

        minimise  (1/n) sum_i loss(w.x_i, y_i) + (weight_decay/2)|w|^2,  n = samples_per_dimension d

    Parameters
    ----------
    problem : TeacherStudent, MultiIndex, GaussianMixture or Problem
        The law of inputs and labels, with at most three signals. Its student is used only if
        ``loss`` or ``weight_decay`` are not given.
    samples_per_dimension : float or sequence of float
        Samples per dimension, n/d.
    weight_decay : float or str, optional
        Coefficient of weight decay, or "best" for the one of least error (labels -1 and +1) or
        least risk. Defaults to that of the problem.
    loss : str, tuple or callable, optional
        "squared", "logistic", "hinge", "huber", ("huber", delta), "absolute", or a JAX function of
        (output, label) that is convex in the output. Defaults to the loss of the problem, whose
        student must then be one linear unit with a fixed head.

    Returns
    -------
    xarray.Dataset
        Along ``alpha``: overlaps ``M`` and ``Q`` of the row, ``V``, ``weight_decay``,
        ``train_risk`` (mean loss over the data) and ``risk`` (mean loss of a new sample), both
        infinite for noise without a mean, such as Cauchy noise. With additive noise and the squared
        loss ``excess_risk``; for labels -1 and +1 ``error`` (share of new samples with the wrong
        sign) and ``separable``; and ``replicon`` (the solution is stable below 1).
        ``error_quadrature`` is the largest relative difference of M and Q at two resolutions.

    Raises
    ------
    ValueError
        If an argument is invalid, the loss is not convex, or it has no unique minimiser: no weight
        decay on separable labels, or with fewer samples than dimensions.

    Warns
    -----
    UserWarning
        If the best weight decay is at the end of the range that is searched.

    Notes
    -----
    The limit n, d -> infinity. Gradient descent with the same weight decay on the same data ends
    here, for learning rates below 2 over the largest eigenvalue of the Hessian. Ridge regression is
    a closed form, other losses are fixed points. With gradient descent from W = 0 and
    ``weight_decay=0``, the squared loss ends at the interpolator of least norm.
    Sources: Sur and Candes (2019), Thrampoulidis, Abbasi and Hassibi (2018), Mignacco et al.
    (2020), Loureiro et al. (2021).

    Examples
    --------
    >>> labels = sgd.labels.sign()
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", labels=labels)
    >>> result = sgd.erm(problem, 2.0, weight_decay=0.05, loss="logistic")
    >>> print(round(float(result.error[0]), 4))
    0.1797
    """
    checks.require_outside_jit("erm")
    require("erm", problem)
    alphas = samples_argument(samples_per_dimension)
    chosen_loss = _loss_of(problem, loss)
    data = linear_data(problem, chosen_loss)
    if weight_decay is None:
        weight_decay = problem.weight_decay
        if is_scheduled(weight_decay):
            fix = "it depends on time. Give weight_decay= a number, or use problem.at(t)"
            raise checks.reject("weight_decay", weight_decay, fix)
    if weight_decay != "best":
        if isinstance(weight_decay, str):
            fix = 'give a number, "best", or None for that of the problem'
            raise checks.reject("weight_decay", weight_decay, fix)
        weight_decay = checks.number("weight_decay", weight_decay, 0.0)
    if isinstance(chosen_loss, SquaredLoss) and getattr(problem, "infinite_risk", False):
        fix = "its variance is infinite, and so is the squared loss. Use loss='huber' or 'absolute'"
        raise checks.reject("noise", problem.arguments["noise"], fix)
    predictor = _Predictor(data, chosen_loss)
    if weight_decay == "best" and predictor.has_infinite_risk:
        fix = (
            "the mean loss is infinite under this noise, so risks cannot be compared. Give a number"
        )
        raise checks.reject("weight_decay", weight_decay, fix)
    solutions: list[_Solution] = []
    finer: list[Rows] = []
    start = None
    for alpha in alphas:
        solution = predictor.solve(alpha, weight_decay, start)
        check = replace(predictor, order=1).rows_at(alpha, solution)
        if solution.replicon >= 1.0:
            fix = (
                f"the solution at samples_per_dimension = {alpha:g} is not stable (replicon = "
                f"{solution.replicon:.3g}). Use a larger weight decay"
            )
            raise checks.reject("weight_decay", weight_decay, fix)
        solutions.append(solution)
        finer.append(check)
        start = solution.state if np.isfinite(solution.state.V) else None
    attributes = {
        "loss": encode(chosen_loss.describe()),
        "error_quadrature": max(map(_difference, solutions, finer)),
    }
    return _dataset(problem, data, predictor, alphas, solutions, attributes)


def max_margin(problem: Problem, samples_per_dimension: ArrayArgument) -> xr.Dataset:
    """The linear classifier of norm 1 with the largest margin on n separable samples.

    Gradient descent on the logistic loss without weight decay tends to it, as 1/log t.

    Parameters
    ----------
    problem : MultiIndex, TeacherStudent, GaussianMixture or Problem
        A problem with labels -1 and +1 (clusters: 0 and 1), one signal, and inputs with one
        eigenvalue.
    samples_per_dimension : float or sequence of float
        Samples per dimension, n/d.

    Returns
    -------
    xarray.Dataset
        Along ``alpha``: ``M``, ``Q`` = 1, ``margin`` (least label times output over the data), and
        ``error`` (share of new samples with the wrong sign). The attribute ``separable_below`` is
        the number of samples per dimension below which the data are separable.

    Raises
    ------
    ValueError
        If the labels or inputs are of another kind, or the data are not separable.

    Notes
    -----
    Sources: Candes and Sur (2020), Montanari et al. (2019), Soudry et al. (2018).

    Examples
    --------
    >>> labels = sgd.labels.sign()
    >>> problem = sgd.TeacherStudent(width=1, activation="linear", labels=labels)
    >>> print(round(float(sgd.max_margin(problem, 2.0).margin[0]), 4))
    0.4546
    """
    checks.require_outside_jit("max_margin")
    require("max_margin", problem)
    alphas = samples_argument(samples_per_dimension)
    data = linear_data(problem, None)
    fix = "a margin needs labels -1 and +1. Use sgd.labels.sign(), or a target such as jnp.sign"
    if not data.is_binary:
        raise checks.reject("problem", problem.kind, fix)
    if data.directions > 1:
        fix = f"the labels depend on {data.directions} signals. Use one, or sgd.erm(loss='hinge')"
        raise checks.reject("problem", problem.kind, fix)
    if not data.has_one_eigenvalue:
        fix = (
            "the margin is known for inputs with one eigenvalue. Use sgd.erm with loss='hinge' and "
            "a small weight_decay"
        )
        raise checks.reject("covariance", problem.covariance, fix)
    labels, finer = (aligned_labels(data, order) for order in (0, 1))
    threshold = separability_threshold(labels)
    if alphas.max() >= threshold:
        fix = (
            f"the data are separable below {threshold:.6g} samples per dimension only. Use fewer "
            "samples, or sgd.erm"
        )
        raise checks.reject("samples_per_dimension", alphas.max(), fix)
    scale = float(np.sqrt(data.eigenvalues[0]))
    solutions = [largest_margin(labels, alpha, scale) for alpha in alphas]
    checked = [largest_margin(finer, alpha, scale) for alpha in alphas]
    cosine = np.array([solution.cosine for solution in solutions])
    margin = np.array([solution.margin for solution in solutions])
    length = float(np.sqrt(data.gram.sum()))
    variables = {
        "M": (("alpha", "unit", "signal"), cosine[:, None, None] * length),
        "Q": (("alpha", "unit", "unit_other"), np.ones((len(alphas), 1, 1))),
        "margin": ("alpha", margin),
        "error": ("alpha", np.array([solution.error for solution in solutions])),
    }
    attributes = {
        "separable_below": threshold,
        "error_quadrature": float(
            max(abs(b.margin / a.margin - 1) for a, b in zip(solutions, checked, strict=True))
        ),
    }
    return label_statics(problem, "max_margin", alphas, variables, attributes)


# Arguments


def samples_argument(value: object) -> np.ndarray:
    """Return the argument ``samples_per_dimension`` as an array of positive numbers."""
    fix = "give positive numbers, samples over dimension"
    result = np.atleast_1d(checks.real_array("samples_per_dimension", value, fix))
    is_valid = result.ndim == 1 and result.size and np.all(np.isfinite(result) & (result > 0))
    if not is_valid:
        raise checks.reject("samples_per_dimension", value, fix)
    return result


def linear_data(problem: Problem, loss: ConvexLoss | None) -> LinearData:
    """Return the statics of a problem for a linear predictor."""
    if problem.clusters and not problem.structure.sample.means:
        data = _cluster_data(problem)
    else:
        setup = setup_of(problem)
        data = LinearData(setup.likelihood, setup.eigenvalues, setup.fractions, setup.gram)
    if data.directions > MOST_SIGNALS:
        fix = (
            f"the labels depend on {data.directions} signals. At most {MOST_SIGNALS} are supported"
        )
        raise checks.reject("problem", problem.kind, fix)
    if loss is not None and loss.of_margin and not data.is_binary:
        fix = "this loss needs labels -1 and +1. Use loss='squared', 'huber' or 'absolute'"
        raise checks.reject("loss", loss.name, fix)
    return data


def _cluster_data(problem: Problem) -> LinearData:
    """Return the statics of a Gaussian mixture."""
    if len(problem.covariance_blocks) > 1 or problem.spectrum is not None:
        fix = "clusters are supported with one eigenvalue of the covariance"
        raise checks.reject("covariance", problem.covariance, fix)
    eigenvalue = min(float(block[0]) for block in problem.covariance_blocks)
    if not 0 < eigenvalue < np.inf:
        fix = "the inputs need a variance about the means. Use a finite snr"
        raise checks.reject("problem", problem.kind, fix)
    law = ClusterLaw(*zip(*problem.clusters, strict=True))
    gram = np.asarray(problem.parameters["gram"], np.float64).reshape(1, *[problem.signals] * 2)
    likelihood = Likelihood(law, problem.parameters, problem.signals)
    return LinearData(likelihood, np.array([eigenvalue]), np.ones(1), gram)


def _loss_of(problem: Problem, loss: object) -> ConvexLoss:
    """Return the loss of the predictor: the argument, or that of the problem's linear student."""
    if loss is not None:
        return convex_loss(loss)
    is_linear = (
        isinstance(problem, (TeacherStudent, MultiIndex))
        and problem.width == 1
        and problem.activation.name == "linear"
        and problem.head == "fixed"
        and problem.constraint is None
    )
    if not is_linear:
        fix = (
            "the student is not one free linear unit with a fixed head, so its loss is not convex "
            "in its weights. State the loss of a linear predictor, such as loss='squared'"
        )
        raise checks.reject("loss", loss, fix)
    assert isinstance(problem, (TeacherStudent, MultiIndex))
    return convex_loss(problem.loss)


# Solutions


@dataclass(frozen=True, eq=False)
class _Predictor:
    """A linear predictor with a loss, at one resolution of the quadrature."""

    data: LinearData
    loss: ConvexLoss
    order: int = 0

    @property
    def is_ridge(self) -> bool:
        """Whether the closed form of ridge regression applies."""
        return isinstance(self.loss, SquaredLoss) and self.data.cluster_law is None

    @property
    def has_infinite_risk(self) -> bool:
        """Whether the noise has no mean, so that the mean of no convex loss is finite."""
        law = self.data.likelihood.law
        return isinstance(law, AdditiveLaw) and not law.has_mean(self.data.likelihood.parameters)

    def solve(
        self, alpha: float, weight_decay: float | str, start: ErmState | None = None
    ) -> _Solution:
        """Return the predictor with a weight decay, or with the best one."""
        if weight_decay == "best":
            lam = self.best_lam(alpha)
            return self.solve_at(alpha, lam, start)
        lam = alpha * float(weight_decay)
        if lam == 0.0:
            self.require_minimiser(alpha)
        return self.solve_at(alpha, lam, start)

    def require_minimiser(self, alpha: float) -> None:
        """Raise ValueError if the loss without weight decay has no unique minimiser."""
        rank, reason = self.data.rank, ""
        if self.is_ridge:
            if abs(alpha - rank) < 1e-6 * rank:
                reason = "samples and dimensions are equal, where the norm is infinite"
        elif self.data.is_binary and (
            alpha < rank * separability_threshold(aligned_labels(self.data))
        ):
            if self.loss.of_margin:
                reason = "the data are separable, see sgd.max_margin"
            elif alpha <= rank:
                reason = "the predictor interpolates the labels"
        elif alpha <= rank:
            reason = "the predictor interpolates the labels"
        if reason:
            fix = NO_MINIMISER.format(alpha=alpha, reason=reason)
            raise checks.reject("weight_decay", 0.0, fix)

    def solve_at(self, alpha: float, lam: float, start: ErmState | None = None) -> _Solution:
        """Return the predictor at lam = alpha weight_decay."""
        equations = ErmEquations(self.data, self.loss, alpha, lam, self.order)
        if self.is_ridge:
            return self._ridge(equations)
        try:
            state = equations.solve(start)
        except RuntimeError as error:
            fix = (
                f"the state equations at samples_per_dimension = {alpha:g} have {error}. Use a "
                "larger weight decay or other samples_per_dimension"
            )
            raise checks.reject("weight_decay", lam / alpha, fix) from None
        if not np.isfinite(state.q):
            fix = NO_MINIMISER.format(alpha=alpha, reason="the weights grow without bound")
            raise checks.reject("weight_decay", lam / alpha, fix)
        return _Solution(
            lam,
            state,
            equations.rows(state),
            np.inf if self.has_infinite_risk else equations.train_loss(state),
            np.inf if self.has_infinite_risk else equations.test_loss(state),
            equations.replicon(state),
            self.error(equations, state),
        )

    def rows_at(self, alpha: float, solution: _Solution) -> Rows:
        """Return the overlaps at this resolution, from a solution at another one."""
        equations = ErmEquations(self.data, self.loss, alpha, solution.lam, self.order)
        if self.is_ridge:
            return self._ridge(equations).rows
        return equations.rows(equations.solve(solution.state))

    def _ridge(self, equations: ErmEquations) -> _Solution:
        data, alpha = self.data, equations.alpha
        solution = Ridge(data, linear_part(data, self.order), alpha).solve(equations.lam)
        eigenvalues, phi = data.eigenvalues, data.fractions
        total = eigenvalues + solution.kappa
        shrinkage = np.divide(eigenvalues, total, out=np.zeros_like(eigenvalues), where=total > 0)
        return _Solution(
            equations.lam,
            solution.state,
            solution.rows,
            solution.train_risk,
            solution.risk,
            float(np.sum(phi * shrinkage**2)) / alpha,
            self.error(equations, solution.state),
        )

    def error(self, equations: ErmEquations, state: ErmState) -> float:
        """Return the share of new samples with the wrong sign; NaN for other labels."""
        if not self.data.is_binary:
            return np.nan
        return error_of_signs(self.data, state.m, state.q, self.order)

    def best_lam(self, alpha: float) -> float:
        """Return the lam of least error (labels -1 and +1) or of least risk."""
        if self.is_ridge:
            ridge = Ridge(self.data, linear_part(self.data, self.order), alpha)
            lam = ridge.best_lam()
            if lam is not None and np.isfinite(lam):
                return lam
        by_error, start = self.data.is_binary, None
        log_lams = np.arange(LOG_LAM[1], LOG_LAM[0], -LOG_LAM_STEP)
        values = []
        for log_lam in log_lams:
            solution = self.solve_at(alpha, float(np.exp(log_lam)), start)
            start = solution.state
            values.append(solution.error if by_error else solution.risk)
            # beyond the minimum the equations become slow as lam -> 0
            if len(values) > 4 and values[-1] > values[-2] > values[-3] > min(values):
                break
        index = int(np.argmin(values))

        def objective(log_lam: float) -> float:
            solution = self.solve_at(alpha, float(np.exp(log_lam)), start)
            return solution.error if by_error else solution.risk

        if index in (0, len(log_lams) - 1):
            end = "larger" if index == 0 else "smaller"
            warn(
                f"weight_decay = 'best': at samples_per_dimension = {alpha:g} the result improves "
                f"with ever {end} weight decay; the end of the range is used."
            )
            return float(np.exp(log_lams[index]))
        high, low = log_lams[index - 1], log_lams[min(index + 1, len(log_lams) - 1)]
        return float(np.exp(find_minimum(objective, low, high, xtol=1e-4).x))


def error_of_signs(data: LinearData, m: np.ndarray, q: float, order: int = 0) -> float:
    """Return the share of labels -1 and +1 that differ from the sign of the output."""
    sign = ErmEquations(data, _SIGN, 1.0, 1.0, order)
    nodes = sign.nodes(ErmState(m, q, 0.0))
    return float(nodes.mean(1.0 * (nodes.om * nodes.label < 0)))


class _SignLoss(SquaredLoss):
    """A loss that bends at 0, for the quadrature of the sign of the output."""

    def features(self, label: np.ndarray, V: float) -> list[tuple[np.ndarray, float]]:
        return [(0.0 * label, 0.0)]

    of_residual = False  # type: ignore[misc]


_SIGN = _SignLoss()


def _difference(coarse: _Solution, fine: Rows) -> float:
    """Return the largest relative difference of M and Q between two resolutions."""
    scale = np.sqrt(coarse.rows.Q)
    change = np.max(np.abs(fine.M - coarse.rows.M)) / scale
    return float(max(change, abs(fine.Q / coarse.rows.Q - 1.0)))


# Results


def _dataset(
    problem: Problem,
    data: LinearData,
    predictor: _Predictor,
    alphas: np.ndarray,
    solutions: list[_Solution],
    attributes: dict[str, Any],
) -> xr.Dataset:
    def column(name: str) -> np.ndarray:
        return np.array([getattr(solution, name) for solution in solutions])

    M = np.array([solution.rows.M for solution in solutions])
    Q = np.array([solution.rows.Q for solution in solutions])
    variables: dict[str, Any] = {
        "M": (("alpha", "unit", "signal"), M[:, None, :]),
        "Q": (("alpha", "unit", "unit_other"), Q[:, None, None]),
        "V": ("alpha", np.array([solution.state.V for solution in solutions])),
        "weight_decay": ("alpha", column("lam") / alphas),
        "train_risk": ("alpha", column("train_risk")),
        "risk": ("alpha", column("risk")),
        "replicon": ("alpha", column("replicon")),
    }
    law = data.likelihood.law
    if isinstance(law, AdditiveLaw) and isinstance(predictor.loss, SquaredLoss):
        variables["excess_risk"] = ("alpha", column("risk") - 0.5 * data.likelihood.noise)
    if data.is_binary:
        threshold = data.rank * separability_threshold(aligned_labels(data))
        variables["error"] = ("alpha", column("error"))
        variables["separable"] = ("alpha", alphas < threshold)
        attributes = attributes | {"separable_below": threshold}
    return label_statics(problem, "erm", alphas, variables, attributes)


MEANINGS = {
    "M": "overlaps with the signals, W W*^T",
    "Q": "Gram matrix of the rows, W W^T",
    "V": "variance of the output per unit of a kick, in the prox",
    "weight_decay": "weight decay",
    "train_risk": "mean loss over the data set",
    "risk": "population risk",
    "excess_risk": "excess risk",
    "error": "share of new samples with the wrong sign",
    "replicon": "stability, below 1",
    "separable": "whether the data are linearly separable",
    "margin": "least label times output over the data",
}


def label_statics(
    problem: Problem,
    method: str,
    alphas: np.ndarray,
    variables: dict[str, Any],
    attributes: dict[str, Any],
) -> xr.Dataset:
    """Return a Dataset along alpha, with meanings and the record of the problem."""
    labelled = {
        name: (axes, values, {"long_name": MEANINGS[name]})
        for name, (axes, values) in variables.items()
    }
    attributes = attributes | {
        "problem": encode(problem.describe()),
        "method": method,
        "version": __version__,
    }
    return xr.Dataset(
        labelled, {"alpha": ("alpha", alphas, {"long_name": "samples/d"})}, attributes
    )
