"""The result of `certify`: its checks and statistics, with a table and a paragraph of text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sgdynamics.version import __version__

if TYPE_CHECKING:
    from sgdynamics.algorithms.fixed_data import FixedData
    from sgdynamics.algorithms.one_pass import OnePassSGD
    from sgdynamics.analysis.real_data import DataGap
    from sgdynamics.problems.problem import Problem


@dataclass(frozen=True)
class Check:
    """One test of a certificate.

    Attributes
    ----------
    name : str
        Name of the test.
    value : float
        Value of the test statistic.
    expected : str
        Range of the statistic in which the test is passed.
    passed : bool
        Whether the value lies in this range.
    error : float
        Standard error of the value; NaN if it has none.
    """

    name: str
    value: float
    expected: str
    passed: bool
    error: float = math.nan


@dataclass(frozen=True)
class Certificate:
    """Result of ``sgd.certify``: the checks, the statistics behind them, and a summary in words.

    Attributes
    ----------
    problem : Problem
        The learning problem.
    algorithm : OnePassSGD or an algorithm on fixed data
        The training algorithm.
    checks : tuple of Check
        The tests, each with its name, value and expected range, and whether it was passed.
    times : ndarray
        Save points in units of t.
    dimension : int
        Dimension at which exact and direct runs were compared.
    dimensions : tuple of int
        Dimensions at which runs were compared with the theory.
    runs : int
        Number of runs at each dimension.
    level : float
        Upper bound on the probability that a correct problem fails any check.
    comparisons : int
        Number of comparisons of exact and direct runs, one per entry and save point.
    theory : str
        "ODE" or "DMFT"; empty if no theory was tested.
    seed : int
        Seed of the random number generators.
    remarks : tuple of str
        Remarks on tests that were not made or were replaced.
    spread : ndarray
        Spread of the overlaps over runs at each dimension: the geometric mean over entries and
        save points.
    spread_slope : float
        The exponent of d in the spread, -1/2 in theory.
    spread_slope_error : float
        Standard error of this exponent.
    gap : ndarray
        Root mean square difference between the mean over runs and the theory at each dimension.
    gap_noise : ndarray
        Value of the gap that sampling noise alone would produce.
    error_quadrature : float
        Relative error of the theory's risk due to its expectations.
    error_integrator : float
        Relative error of the theory's risk due to the integrator.
    error_sampling : float
        Largest standard error of a mean overlap at the largest dimension.
    data : DataGap or None
        Relative error of the theory on real samples, if they were passed: ``steps``, ``theory``,
        ``samples``, ``error``, ``off``, ``settles``.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> start = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> certificate = sgd.certify(
    ...     problem,
    ...     sgd.OnePassSGD(lr=0.1),
    ...     start,
    ...     steps=[10],
    ...     dimension=10,
    ...     dimensions=[10, 20, 40],
    ...     runs=200,
    ...     progress=False,
    ... )
    >>> certificate.paragraph[:22]
    'We checked theory and '
    """

    problem: Problem
    algorithm: OnePassSGD | FixedData
    checks: tuple[Check, ...]
    times: np.ndarray
    dimension: int
    dimensions: tuple[int, ...]
    runs: int
    level: float
    comparisons: int
    theory: str
    seed: int
    remarks: tuple[str, ...] = ()
    spread: np.ndarray = field(default_factory=lambda: np.zeros(0))
    spread_slope: float = math.nan
    spread_slope_error: float = math.nan
    gap: np.ndarray = field(default_factory=lambda: np.zeros(0))
    gap_noise: np.ndarray = field(default_factory=lambda: np.zeros(0))
    error_quadrature: float = math.nan
    error_integrator: float = math.nan
    error_sampling: float = math.nan
    data: DataGap | None = None

    @property
    def passed(self) -> bool:
        """Whether all checks were passed."""
        return all(check.passed for check in self.checks)

    @property
    def gap_slope(self) -> float:
        """The exponent of d in the gap, -1 in theory.

        NaN if the gap is at most three times its sampling noise at any dimension: the noise
        would dominate the fit.
        """
        if len(self.gap) < 2 or np.any(self.gap <= 3 * self.gap_noise):
            return math.nan
        # The noise adds to the gap in quadrature, so its square is subtracted before the fit.
        logarithms = np.log(self.gap**2 - self.gap_noise**2) / 2
        return float(np.polyfit(np.log(self.dimensions), logarithms, 1)[0])

    def __str__(self) -> str:
        lines = [f"certificate: {'passed' if self.passed else 'FAILED'} ({self._setting()})"]
        lines.append(f"{'check':<26}{'found':>12}  {'':<6}expected")
        for check in self.checks:
            outcome = "ok" if check.passed else "FAIL"
            lines.append(f"{check.name:<26}{check.value:>12.4g}  {outcome:<6}{check.expected}")
        if len(self.spread):
            lines.append(f"{'d':<26}" + "".join(f"{d:>12d}" for d in self.dimensions))
            gap_label = f"mean - {self.theory}, r.m.s."
            lines += [
                _table_row("spread", self.spread),
                _table_row(gap_label, self.gap),
                _table_row("its noise", self.gap_noise),
            ]
        if self.data is not None:
            lines.append(f"{'step':<26}" + "".join(f"{step:>12.0f}" for step in self.data.steps))
            lines += [
                _table_row("risk, theory", self.data.theory),
                _table_row("risk, on the data", self.data.samples),
                _table_row("theory/data - 1", self.data.off),
            ]
        return "\n".join([*lines, *self.remarks])

    def _setting(self) -> str:
        """The problem and the algorithm in a few words."""
        return f"{self.problem.kind} of width {self.problem.width}, {type(self.algorithm).__name__}"

    @property
    def paragraph(self) -> str:
        """The certificate as English text with its values, for the appendix of a paper."""
        times = ", ".join(f"{t:.4g}" for t in self.times)
        passed = "All checks were passed" if self.passed else "Not all checks were passed"
        sentences = [
            f"We checked theory and simulation on the problem itself ({self._setting()}) with "
            f"sgdynamics {__version__}, seed {self.seed}, at the times t = {times}. {passed}; they "
            "are set so that a correct problem fails one of them with probability "
            f"{self.level:g} at most."
        ]
        if self.comparisons:
            sentences.append(self._law_sentence())
        if len(self.spread):
            sentences += self._limit_sentences()
        for check in self.checks:
            if not check.passed:
                failure = f"{check.name} = {check.value:.4g}, expected {check.expected}"
                sentences.append(f"Failed: {failure}.")
        remarks = self.remarks if self.data is None else (*self.remarks, self.data.sentence)
        sentences += [f"{remark[0].upper()}{remark[1:]}." for remark in remarks]
        return " ".join(sentences)

    def _law_sentence(self) -> str:
        """The comparison of exact and direct runs, as a sentence."""
        law, means = self._check("exact = direct: law"), self._check("exact = direct: means")
        agree = "agree" if law.passed and means.passed else "DO NOT agree"
        return (
            f"At d = {self.dimension} we compared {self.runs} runs of the compressed simulation "
            f"with {self.runs} runs of the algorithm on {self.dimension}-dimensional weights: over "
            f"{self.comparisons} comparisons (entries and times) the smallest Kolmogorov-Smirnov "
            f"p-value, after Bonferroni's correction, is {law.value:.2g}, and the largest "
            f"difference of means is {means.value:.1f} standard errors; the two laws {agree}."
        )

    def _limit_sentences(self) -> list[str]:
        """The comparison of runs with the theory at growing d, and the error budget."""
        slope, mean = self._check("spread ~ d^s: s"), self._check("mean gap, d -> infinity")
        d = self.dimensions
        exponent = "-1/2 in theory" + ("" if slope.passed else ", which is NOT found")
        chance = "as chance allows" if mean.passed else "MORE than chance allows"
        comparison = (
            f"At d = {', '.join(map(str, d))}, {self.runs} runs each, the spread of the overlaps "
            f"over runs falls as d^s with s = {slope.value:.3f} ± {slope.error:.3f} ({exponent}), "
            f"from {self.spread[0]:.2g} to {self.spread[-1]:.2g}. The mean over runs differs from "
            f"the {self.theory} by {self.gap[0]:.2g} at d = {d[0]} and {self.gap[-1]:.2g} at d = "
            f"{d[-1]} (root mean square; noise alone gives {self.gap_noise[0]:.2g} and "
            f"{self.gap_noise[-1]:.2g}); extrapolated with a term 1/d to d = infinity, the entry "
            f"furthest from it is {mean.value:.1f} standard errors away, {chance}."
        )
        integrator = (
            f" and {self.error_integrator:.1g} (integrator)" if self.theory == "ODE" else ""
        )
        budget = (
            f"The theory's risk is known to {self.error_quadrature:.1g} (expectations){integrator}"
            f", relative; the means over runs at d = {d[-1]} to {self.error_sampling:.2g} or "
            "better (sampling)."
        )
        return [comparison, budget]

    def _check(self, name: str) -> Check:
        """The check of this name."""
        return next(check for check in self.checks if check.name == name)


def _table_row(label: str, values: np.ndarray) -> str:
    """One row of the printed table."""
    return f"{label:<26}" + "".join(f"{value:>12.3g}" for value in values)
