"""The record of a certificate: its checks, the numbers behind them, a table and a paragraph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgdynamics.version import __version__


@dataclass(frozen=True)
class Check:
    """One line of a certificate: what was found and expected, and whether they agree; `error` is a standard error, if any."""

    name: str
    value: float
    expected: str
    passed: bool
    error: float = math.nan


@dataclass(frozen=True)
class Certificate:
    """What ``sgd.certify`` found: the checks, the numbers behind them, and the same in words.

    Attributes
    ----------
    problem : Problem
        What was tested.
    algorithm : OnePassSGD or an algorithm on fixed data
        How it was learned.
    checks : tuple of Check
        Each with its name, value, what is expected, and whether it was passed.
    times : ndarray
        The save points, in t.
    dimension : int
        Where exact and direct runs were compared.
    dimensions : tuple of int
        Where runs were compared with the theory.
    runs : int
        At each dimension.
    level : float
        The probability that a problem for which all holds fails.
    comparisons : int
        How many single tests share that level.
    theory : str
        Which theory.
    seed : int
        Of the random numbers.
    remarks : tuple of str
        What else there is to say.
    spread : ndarray
        Geometric mean of the spreads over entries and times, one number a dimension.
    spread_slope : float
        The exponent of d in it, -1/2 in theory.
    spread_slope_error : float
        Its standard error.
    gap : ndarray
        Root mean square of mean - theory, one number a dimension.
    gap_noise : ndarray
        What its noise alone would give.
    error_quadrature : float
        Relative error of the theory's risk, from its expectations.
    error_integrator : float
        The same from its integrator.
    error_sampling : float
        The largest standard error of a mean overlap at the largest dimension.
    data : DataGap or None
        How far the theory is off on real samples, where they were given: ``steps``, ``theory``, ``samples``, ``error``, ``off``,
        ``settles``.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=2)
    >>> begin = sgd.start(problem, M=[[0.3], [0.1]], Q=np.eye(2))
    >>> certificate = sgd.certify(
    ...     problem, sgd.OnePassSGD(lr=0.1), begin, steps=[10], dimension=10, dimensions=[10, 20, 40], runs=200, progress=False)
    >>> certificate.paragraph[:22]
    'We checked theory and '
    """

    problem: Any
    algorithm: Any
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
    data: Any = None

    @property
    def passed(self) -> bool:
        """Whether every check was passed."""
        return all(check.passed for check in self.checks)

    @property
    def gap_slope(self) -> float:
        """The exponent of d in the gap, -1 in theory; NaN where the gap is within three times its noise at some dimension."""
        if len(self.gap) < 2 or np.any(self.gap <= 3 * self.gap_noise):
            return math.nan
        return float(
            np.polyfit(np.log(self.dimensions), np.log(self.gap**2 - self.gap_noise**2) / 2, 1)[0]
        )

    def __str__(self) -> str:
        lines = [f"certificate: {'passed' if self.passed else 'FAILED'} ({self._kinds()})"]
        lines.append(f"{'check':<26}{'found':>12}  {'':<6}expected")
        for check in self.checks:
            lines.append(
                f"{check.name:<26}{check.value:>12.4g}  {'ok' if check.passed else 'FAIL':<6}{check.expected}"
            )
        if len(self.spread):
            lines.append(f"{'d':<26}" + "".join(f"{d:>12d}" for d in self.dimensions))
            for name, values in (
                ("spread", self.spread),
                (f"mean - {self.theory}, r.m.s.", self.gap),
                ("its noise", self.gap_noise),
            ):
                lines.append(f"{name:<26}" + "".join(f"{value:>12.3g}" for value in values))
        if self.data is not None:
            lines.append(f"{'step':<26}" + "".join(f"{step:>12.0f}" for step in self.data.steps))
            for name, values in (
                ("risk, theory", self.data.theory),
                ("risk, on the data", self.data.samples),
                ("theory/data - 1", self.data.off),
            ):
                lines.append(f"{name:<26}" + "".join(f"{value:>12.3g}" for value in values))
        return "\n".join([*lines, *self.remarks])

    def _kinds(self) -> str:
        return f"{self.problem.kind} of width {self.problem.width}, {type(self.algorithm).__name__}"

    @property
    def paragraph(self) -> str:
        """The certificate in plain English, with its numbers, for the appendix of a paper."""
        found = {check.name: check for check in self.checks}
        times = ", ".join(f"{t:.4g}" for t in self.times)
        passed = "All checks were passed" if self.passed else "Not all checks were passed"
        said = [
            f"We checked theory and simulation on the problem itself ({self._kinds()}) with sgdynamics {__version__}, seed {self.seed}, at "
            f"the times t = {times}. {passed}; they are set so that a correct problem fails one of them with probability {self.level:g} "
            "at most.",
        ]
        if self.comparisons:
            law, means = found["exact = direct: law"], found["exact = direct: means"]
            agree = "agree" if law.passed and means.passed else "DO NOT agree"
            said.append(
                f"At d = {self.dimension} we compared {self.runs} runs of the compressed simulation with {self.runs} runs of the algorithm "
                f"on {self.dimension}-dimensional weights: over {self.comparisons} comparisons (entries and times) the smallest "
                f"Kolmogorov-Smirnov p-value, after Bonferroni's correction, is {law.value:.2g}, and the largest difference of means is "
                f"{means.value:.1f} standard errors; the two laws {agree}."
            )
        if len(self.spread):
            spread, mean = found["spread ~ d^s: s"], found["mean gap, d -> infinity"]
            d = self.dimensions
            said.append(
                f"At d = {', '.join(map(str, d))}, {self.runs} runs each, the spread of the overlaps over runs falls as d^s with s = "
                f"{spread.value:.3f} ± {spread.error:.3f} (-1/2 in theory{'' if spread.passed else ', which is NOT found'}), from "
                f"{self.spread[0]:.2g} to {self.spread[-1]:.2g}. The mean over runs differs from the {self.theory} by {self.gap[0]:.2g} at "
                f"d = {d[0]} and {self.gap[-1]:.2g} at d = {d[-1]} (root mean square; noise alone gives {self.gap_noise[0]:.2g} and "
                f"{self.gap_noise[-1]:.2g}); extrapolated with a term 1/d to d = infinity, the entry furthest from it is "
                f"{mean.value:.1f} standard errors away, {'as chance allows' if mean.passed else 'MORE than chance allows'}."
            )
            budget = f"The theory's risk is known to {self.error_quadrature:.1g} (expectations)"
            budget += (
                f" and {self.error_integrator:.1g} (integrator), relative"
                if self.theory == "ODE"
                else ", relative"
            )
            said.append(
                f"{budget}; the means over runs at d = {d[-1]} to {self.error_sampling:.2g} or better (sampling)."
            )
        failed = [check for check in self.checks if not check.passed]
        said += [
            f"Failed: {check.name} = {check.value:.4g}, expected {check.expected}."
            for check in failed
        ]
        remarks = self.remarks if self.data is None else (*self.remarks, self.data.sentence)
        said += [f"{remark[0].upper()}{remark[1:]}." for remark in remarks]
        return " ".join(said)
