"""sgdynamics: the exact high-dimensional dynamics of SGD.

State a problem and an algorithm; get the theory, the finite-dimension simulation, and the two side by side.
"""

from sgdynamics import functional, papers, plot, updates
from sgdynamics.algorithms import OnePassSGD, piecewise_rate
from sgdynamics.analysis.certificate import Certificate
from sgdynamics.analysis.certify import certify
from sgdynamics.analysis.exit_times import ExitTimes, exit_time, exit_time_of
from sgdynamics.analysis.exponents import (
    generative_exponent,
    hermite_coefficients,
    hermite_series,
    information_exponent,
    leap_complexity,
)
from sgdynamics.analysis.fixed_points import FixedPoint, fixed_points
from sgdynamics.analysis.landscape import HessianSpectrum, hessian_spectrum
from sgdynamics.analysis.regimes import Plateau, Regime, plateau, regime
from sgdynamics.analysis.sample_complexity import SampleComplexity, sample_complexity
from sgdynamics.analysis.schedules import OptimalSchedule, optimal_schedule
from sgdynamics.comparison import compare
from sgdynamics.limits.covariance import increment_covariance
from sgdynamics.limits.dmft import solve_dmft
from sgdynamics.limits.effective import EffectiveDynamics, effective_dynamics
from sgdynamics.limits.effective_scaling import EffectiveScaling, effective_scaling
from sgdynamics.limits.mean_field import mean_field_density, mean_field_random_start, solve_mean_field
from sgdynamics.limits.ode import solve_ode
from sgdynamics.limits.sde import solve_sde
from sgdynamics.multipass import GradientDescent, Langevin, MultiPassSGD, PersistentSGD
from sgdynamics.problems import (
    Activation,
    GaussianMixture,
    MultiIndex,
    Problem,
    SpikedTensor,
    Start,
    TeacherStudent,
    polynomial,
    random_start,
    start,
)
from sgdynamics.problems.bridge import overlaps_of
from sgdynamics.results import algorithm_of, load, problem_of, save, start_from
from sgdynamics.simulation import simulate
from sgdynamics.sweeps import PowerLaw, fit_exponent, sweep
from sgdynamics.version import __version__

__all__ = [
    "Activation",
    "Certificate",
    "EffectiveDynamics",
    "EffectiveScaling",
    "ExitTimes",
    "FixedPoint",
    "GaussianMixture",
    "GradientDescent",
    "HessianSpectrum",
    "Langevin",
    "MultiIndex",
    "MultiPassSGD",
    "OnePassSGD",
    "OptimalSchedule",
    "PersistentSGD",
    "Plateau",
    "PowerLaw",
    "Problem",
    "Regime",
    "SampleComplexity",
    "SpikedTensor",
    "Start",
    "TeacherStudent",
    "__version__",
    "algorithm_of",
    "certify",
    "compare",
    "effective_dynamics",
    "effective_scaling",
    "exit_time",
    "exit_time_of",
    "fit_exponent",
    "fixed_points",
    "functional",
    "generative_exponent",
    "hermite_coefficients",
    "hermite_series",
    "hessian_spectrum",
    "increment_covariance",
    "information_exponent",
    "leap_complexity",
    "load",
    "mean_field_density",
    "mean_field_random_start",
    "optimal_schedule",
    "overlaps_of",
    "papers",
    "piecewise_rate",
    "plateau",
    "plot",
    "polynomial",
    "problem_of",
    "random_start",
    "regime",
    "sample_complexity",
    "save",
    "simulate",
    "solve_dmft",
    "solve_mean_field",
    "solve_ode",
    "solve_sde",
    "start",
    "start_from",
    "sweep",
    "updates",
]
