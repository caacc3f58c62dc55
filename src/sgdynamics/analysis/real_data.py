"""Error of the Gaussian theory of a data set's spectrum on the data set itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument
from sgdynamics.base.precision import float64
from sgdynamics.dynamics.adapter import SolverDynamics
from sgdynamics.problems.overlap_starts import Start, broadcast_runs
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.real_data import DataSpectrum
from sgdynamics.samples.sample import GaussianSample
from sgdynamics.scaling.modes import MOST_MODES
from sgdynamics.simulation.real_data import RealDataSGD
from sgdynamics.simulation.running import run
from sgdynamics.solvers.linear import linear_student, solve_linear
from sgdynamics.solvers.ode import solve_ode

# Number of steps after which a mean that grows is not finite any more.
LATE_STEP = 10**12


@dataclass(frozen=True)
class DataGap:
    """The risk of the theory compared with that of SGD on real samples.

    Attributes
    ----------
    steps : ndarray
        Steps at which they are compared.
    theory : ndarray
        Risk of the theory: the exact mean of a linear student (with the spectrum's kappa), or the
        ODE of any other student.
    samples : ndarray
        Mean risk of SGD that draws the samples themselves, over these samples; infinite where runs
        diverged.
    error : ndarray
        Standard error over runs of this mean.
    settles : bool
        Whether the theory stays finite: at these steps and, for the mean of a linear student, at
        all later ones.
    """

    steps: np.ndarray
    theory: np.ndarray
    samples: np.ndarray
    error: np.ndarray
    settles: bool = True

    @property
    def off(self) -> np.ndarray:
        """The relative error theory/samples - 1; NaN where SGD diverged."""
        return np.where(np.isfinite(self.samples), self.theory / self.samples - 1, np.nan)

    @property
    def sentence(self) -> str:
        """The comparison as a sentence."""
        has_diverged = ~np.isfinite(self.samples)
        if np.any(has_diverged):
            first = int(self.steps[has_diverged][0])
            theory = "and the Gaussian theory does not stay finite at this lr either"
            if self.settles:
                theory = "which the Gaussian theory does not predict"
            return f"on the data set itself SGD has diverged by step {first}, {theory}"
        if not self.settles:
            return (
                "the Gaussian theory does not stay finite at this lr; on the data set itself SGD "
                f"has not diverged by step {int(self.steps[-1])}"
            )
        relative_errors = 100 * self.error / self.samples
        rows = zip(100 * self.off, self.steps, relative_errors, strict=True)
        values = [f"{off:+.1f}% at step {step:g} (+- {error:.1f})" for off, step, error in rows]
        return f"on the data set itself the Gaussian theory's risk is off by {', '.join(values)}"


def checked_samples(problem: Problem, data: ArrayArgument) -> np.ndarray:
    """Samples in the coordinates of the problem's spectrum.

    ValueError if the spectrum was not computed from samples of this shape.
    """
    x = checks.real_array("data", data, "give finite numbers, samples x inputs")
    spectrum = problem.spectrum
    if not isinstance(spectrum, DataSpectrum):
        fix = (
            "the problem's spectrum is not that of data. Use covariance=sgd.spectrum_of(data, ...)"
        )
        raise checks.reject("data", x.shape, fix)
    sample = problem.structure.sample
    if sample != GaussianSample(sample.signals):
        fix = (
            "problems with several inputs, nonzero means or user-defined draws cannot use a data "
            "set. Use Gaussian inputs with one input per sample."
        )
        raise checks.reject("problem", problem, fix)
    axes = np.asarray(spectrum.axes)
    if x.ndim != 2 or x.shape[1] != len(axes) or not np.all(np.isfinite(x)):
        fix = (
            f"the spectrum was taken from {len(axes)} inputs. Use a finite array of shape "
            f"(samples, {len(axes)})."
        )
        raise checks.reject("data", x.shape, fix)
    return x @ axes


@float64
def gap_on_data(
    dynamics: SolverDynamics[Any],
    start: Start,
    z: np.ndarray,
    steps: np.ndarray,
    runs: int,
    seed: int,
) -> DataGap:
    """Compare the theory with runs on samples `z`, in coordinates of the spectrum."""
    problem, algorithm = dynamics.problem, dynamics.algorithm
    spectrum: DataSpectrum = problem.spectrum
    is_linear = linear_student(problem)
    # Labels of a linear student may use the residuals of the data instead of Gaussian noise.
    draws, noise_floor = None, problem.noise_floor
    residuals = spectrum.residuals
    if is_linear and residuals is not None and len(residuals) == len(z) and spectrum.noise > 0:
        draws, noise_floor = residuals / np.sqrt(spectrum.noise), 0.0
    simulator = RealDataSGD(problem, algorithm, broadcast_runs(start, runs), z, draws)
    states, last_finite = run(simulator, runs, steps, seed, "", False)
    risks = states["data_risk"] + noise_floor
    has_diverged = (last_finite >= 0)[:, None] & (steps[None] > last_finite[:, None])
    risks = np.where(np.isfinite(risks) & ~has_diverged, risks, np.inf)
    with np.errstate(invalid="ignore"):
        mean, error = risks.mean(axis=0), risks.std(axis=0, ddof=1) / np.sqrt(runs)
    theory = _theory_risk(dynamics, start, steps, is_linear)
    return DataGap(steps, theory[: len(steps)], mean, error, bool(np.all(np.isfinite(theory))))


def _theory_risk(
    dynamics: SolverDynamics[Any], start: Start, steps: np.ndarray, is_linear: bool
) -> np.ndarray:
    """The risk of the theory at these steps and, by the exact mean, at a last, late one."""
    problem, algorithm = dynamics.problem, dynamics.algorithm
    has_exact_mean = (
        is_linear
        and problem.head == "fixed"
        and problem.constraint is None
        and not algorithm.scheduled
    )
    if not has_exact_mean:
        theory = solve_ode(problem, algorithm, start, steps=steps.tolist())
        return theory["risk"].values[0]
    # A growing mean is still finite after a few steps. The late step shows that it grows, if there
    # are few enough modes to compute it in one step.
    spectrum: DataSpectrum = problem.spectrum
    late = LATE_STEP if len(spectrum.eigenvalues) <= MOST_MODES else int(steps[-1])
    save_points = [*steps.tolist(), late]
    theory = solve_linear(problem, algorithm, start, steps=save_points, kappa=spectrum.kappa)
    return theory["risk"].values[0]
