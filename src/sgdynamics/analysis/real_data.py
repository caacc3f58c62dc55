"""How far the Gaussian theory of a spectrum is off on the samples that the spectrum was taken from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.problems.overlap_starts import Start, broadcast_runs
from sgdynamics.samples.real_data import DataSpectrum
from sgdynamics.samples.sample import GaussianSample
from sgdynamics.scaling.modes import MOST_MODES
from sgdynamics.simulation.real_data import RealDataSGD
from sgdynamics.simulation.running import run
from sgdynamics.solvers.linear import linear_student, solve_linear
from sgdynamics.solvers.ode import solve_ode

FAR = 10**12  # steps, after which a mean that does not settle has left every bound


@dataclass(frozen=True)
class DataGap:
    """The theory beside SGD on real samples.

    Attributes
    ----------
    steps : ndarray
        Where.
    theory : ndarray
        Its risk: the exact mean of a linear student (with the spectrum's kappa), else the ODE.
    samples : ndarray
        The mean risk of SGD that draws the samples themselves, over these samples; infinite where runs diverged.
    error : ndarray
        Its standard error over runs.
    settles : bool
        Whether the theory stays finite: at these steps, and a linear student's mean at all later ones too.
    """

    steps: np.ndarray
    theory: np.ndarray
    samples: np.ndarray
    error: np.ndarray
    settles: bool = True

    @property
    def off(self) -> np.ndarray:
        """theory/samples - 1; NaN where SGD diverged."""
        return np.where(np.isfinite(self.samples), self.theory / self.samples - 1, np.nan)

    @property
    def sentence(self) -> str:
        """The same in words."""
        if np.any(~np.isfinite(self.samples)):
            first = int(self.steps[~np.isfinite(self.samples)][0])
            both = "and the Gaussian theory does not stay finite at this lr either"
            said = "which the Gaussian theory does not say" if self.settles else both
            return f"on the data set itself SGD has diverged by step {first}, {said}"
        if not self.settles:
            last = int(self.steps[-1])
            return f"the Gaussian theory does not stay finite at this lr; on the data set itself SGD has not diverged by step {last}"
        shown = ", ".join(
            f"{100 * off:+.1f}% at step {step:g} (+- {100 * e / s:.1f})"
            for off, step, e, s in zip(self.off, self.steps, self.error, self.samples, strict=True)
        )
        return f"on the data set itself the Gaussian theory's risk is off by {shown}"


def checked_samples(problem: Any, data: ArrayArgument) -> np.ndarray:
    """The samples in the coordinates of the problem's spectrum; refuse what that was not taken from."""
    x = checks.real_array("data", data, "give finite numbers, samples x inputs")
    spectrum = problem.spectrum
    if not isinstance(spectrum, DataSpectrum):
        raise checks.reject(
            "data",
            x.shape,
            "this is for a problem with covariance=sgd.spectrum_of(data, ...): take that",
        )
    sample = problem.structure.sample
    if sample != GaussianSample(sample.signals):
        raise checks.reject(
            "data",
            x.shape,
            "samples of several inputs, with means or own draws, are not drawn from a data set",
        )
    axes = np.asarray(spectrum.axes)
    if x.ndim != 2 or x.shape[1] != len(axes) or not np.all(np.isfinite(x)):
        raise checks.reject(
            "data",
            x.shape,
            f"the spectrum was taken from {len(axes)} inputs. Use a finite array of shape "
            f"(samples, {len(axes)}).",
        )
    return x @ axes


@float64
def gap_on_data(
    dynamics: SolverDynamics[Any],
    begin: Start,
    z: np.ndarray,
    steps: np.ndarray,
    runs: int,
    seed: int,
) -> DataGap:
    """Runs on the samples beside the theory, at these steps."""
    problem, algorithm = dynamics.problem, dynamics.algorithm
    spectrum: DataSpectrum = problem.spectrum
    linear = linear_student(problem)
    own = (
        linear
        and spectrum.residuals is not None
        and len(spectrum.residuals) == len(z)
        and spectrum.noise > 0
    )
    draws = spectrum.residuals / np.sqrt(spectrum.noise) if own else None
    simulator = RealDataSGD(problem, algorithm, broadcast_runs(begin, runs), z, draws)
    found, diverged = run(simulator, runs, steps, seed, "", False)
    floor = 0.0 if own else problem.noise_floor
    risks = found["data_risk"] + floor
    risks = np.where(
        np.isfinite(risks) & ~((diverged >= 0)[:, None] & (steps[None] > diverged[:, None])),
        risks,
        np.inf,
    )
    exact = (
        linear
        and problem.head == "fixed"
        and problem.constraint is None
        and not algorithm.scheduled
    )
    if exact:
        # a mean that does not settle is still finite after few steps: the last number tells, where many steps are not taken one by one
        far = FAR if len(spectrum.eigenvalues) <= MOST_MODES else int(steps[-1])
        theory = solve_linear(
            problem, algorithm, begin, steps=[*steps.tolist(), far], kappa=spectrum.kappa
        )
    else:
        theory = solve_ode(problem, algorithm, begin, steps=steps.tolist())
    risk = theory["risk"].values[0]
    with np.errstate(invalid="ignore"):
        mean, error = risks.mean(axis=0), risks.std(axis=0, ddof=1) / np.sqrt(runs)
    return DataGap(steps, risk[: len(steps)], mean, error, bool(np.all(np.isfinite(risk))))
