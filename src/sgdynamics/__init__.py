"""sgdynamics: the exact high-dimensional dynamics of SGD.

State a problem and an algorithm; get the theory, the matching finite-dimensional simulation, and
the comparison of the two.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sgdynamics.version import __version__

if TYPE_CHECKING:
    # The same names for type checkers; a test compares them with the table below.
    from sgdynamics import papers as papers
    from sgdynamics import scaling as scaling
    from sgdynamics.algorithms import schedules as schedules
    from sgdynamics.algorithms import updates as updates
    from sgdynamics.algorithms.amp import AMP as AMP
    from sgdynamics.algorithms.epochs import EpochSGD as EpochSGD
    from sgdynamics.algorithms.fixed_data import GradientDescent as GradientDescent
    from sgdynamics.algorithms.fixed_data import Langevin as Langevin
    from sgdynamics.algorithms.fixed_data import MultiPassSGD as MultiPassSGD
    from sgdynamics.algorithms.fixed_data import PersistentSGD as PersistentSGD
    from sgdynamics.algorithms.from_torch import from_torch as from_torch
    from sgdynamics.algorithms.from_training import Training as Training
    from sgdynamics.algorithms.from_training import from_training as from_training
    from sgdynamics.algorithms.one_pass import OnePassSGD as OnePassSGD
    from sgdynamics.algorithms.stable_rates import largest_stable_lr as largest_stable_lr
    from sgdynamics.algorithms.workers import Workers as Workers
    from sgdynamics.analysis import models as models
    from sgdynamics.analysis.certificate import Certificate as Certificate
    from sgdynamics.analysis.certify import certify as certify
    from sgdynamics.analysis.comparison import compare as compare
    from sgdynamics.analysis.early_stopping import EarlyStopping as EarlyStopping
    from sgdynamics.analysis.early_stopping import early_stopping as early_stopping
    from sgdynamics.analysis.effective.dynamics import EffectiveDynamics as EffectiveDynamics
    from sgdynamics.analysis.effective.dynamics import effective_dynamics as effective_dynamics
    from sgdynamics.analysis.effective.scaling import EffectiveScaling as EffectiveScaling
    from sgdynamics.analysis.effective.scaling import effective_scaling as effective_scaling
    from sgdynamics.analysis.exit_results import ExitTimes as ExitTimes
    from sgdynamics.analysis.exit_results import exit_time_of as exit_time_of
    from sgdynamics.analysis.exit_times import exit_time as exit_time
    from sgdynamics.analysis.expect import expect as expect
    from sgdynamics.analysis.exponents import generative_exponent as generative_exponent
    from sgdynamics.analysis.exponents import information_exponent as information_exponent
    from sgdynamics.analysis.fixed_points import FixedPoint as FixedPoint
    from sgdynamics.analysis.fixed_points import fixed_points as fixed_points
    from sgdynamics.analysis.hermite_series import hermite_coefficients as hermite_coefficients
    from sgdynamics.analysis.hermite_series import hermite_series as hermite_series
    from sgdynamics.analysis.landscape import HessianSpectrum as HessianSpectrum
    from sgdynamics.analysis.landscape import hessian_spectrum as hessian_spectrum
    from sgdynamics.analysis.leap_complexity import leap_complexity as leap_complexity
    from sgdynamics.analysis.plateaus import Plateau as Plateau
    from sgdynamics.analysis.plateaus import plateau as plateau
    from sgdynamics.analysis.protocols.optimise import OptimalProtocol as OptimalProtocol
    from sgdynamics.analysis.protocols.optimise import optimal_protocol as optimal_protocol
    from sgdynamics.analysis.protocols.schedules import optimal_schedule as optimal_schedule
    from sgdynamics.analysis.regimes import Regime as Regime
    from sgdynamics.analysis.regimes import regime as regime
    from sgdynamics.analysis.repeats import worth_of_repeats as worth_of_repeats
    from sgdynamics.analysis.sample_complexity import SampleComplexity as SampleComplexity
    from sgdynamics.analysis.sample_complexity import sample_complexity as sample_complexity
    from sgdynamics.base.compile_cache import compile_cache as compile_cache
    from sgdynamics.base.controls import piecewise_rate as piecewise_rate
    from sgdynamics.base.equations import Equations as Equations
    from sgdynamics.base.support import supported as supported
    from sgdynamics.dynamics.protocol import Dynamics as Dynamics
    from sgdynamics.expectations.interface import Expectation as Expectation
    from sgdynamics.expectations.interface import Moments as Moments
    from sgdynamics.fixed_data.options import DMFT as DMFT
    from sgdynamics.plotting import plot as plot
    from sgdynamics.problems import labels as labels
    from sgdynamics.problems.activations import Activation as Activation
    from sgdynamics.problems.activations import polynomial as polynomial
    from sgdynamics.problems.contexts import contexts as contexts
    from sgdynamics.problems.deep_linear import DeepLinear as DeepLinear
    from sgdynamics.problems.diagonal import DiagonalNetwork as DiagonalNetwork
    from sgdynamics.problems.from_network import from_network as from_network
    from sgdynamics.problems.mixture import GaussianMixture as GaussianMixture
    from sgdynamics.problems.moves import Move as Move
    from sgdynamics.problems.network_overlaps import overlaps_of as overlaps_of
    from sgdynamics.problems.overlap_starts import Start as Start
    from sgdynamics.problems.problem import Problem as Problem
    from sgdynamics.problems.rule import Rule as Rule
    from sgdynamics.problems.spiked_tensor import SpikedTensor as SpikedTensor
    from sgdynamics.problems.starts import random_start as random_start
    from sgdynamics.problems.starts import start as start
    from sgdynamics.problems.students import ensemble as ensemble
    from sgdynamics.problems.teacher_student import MultiIndex as MultiIndex
    from sgdynamics.problems.teacher_student import TeacherStudent as TeacherStudent
    from sgdynamics.problems.wide_network import WideNetwork as WideNetwork
    from sgdynamics.results.citing import cite as cite
    from sgdynamics.results.datasets import algorithm_of as algorithm_of
    from sgdynamics.results.datasets import problem_of as problem_of
    from sgdynamics.results.observables import on_train as on_train
    from sgdynamics.results.states import start_from as start_from
    from sgdynamics.results.storage import load as load
    from sgdynamics.results.storage import save as save
    from sgdynamics.samples.real_data import DataSpectrum as DataSpectrum
    from sgdynamics.samples.real_data import spectrum_of as spectrum_of
    from sgdynamics.samples.spectra import Spectrum as Spectrum
    from sgdynamics.samples.spectra import power_law as power_law
    from sgdynamics.scaling.forecast import Forecast as Forecast
    from sgdynamics.scaling.forecast import Monitor as Monitor
    from sgdynamics.scaling.forecast import forecast as forecast
    from sgdynamics.scaling.forecast import monitor as monitor
    from sgdynamics.sde.covariance import increment_covariance as increment_covariance
    from sgdynamics.solvers import functional as functional
    from sgdynamics.solvers.dmft import solve_dmft as solve_dmft
    from sgdynamics.solvers.large_batch import solve_large_batch as solve_large_batch
    from sgdynamics.solvers.linear import solve_linear as solve_linear
    from sgdynamics.solvers.mean_field import solve_mean_field as solve_mean_field
    from sgdynamics.solvers.ode import solve_ode as solve_ode
    from sgdynamics.solvers.phases import phases as phases
    from sgdynamics.solvers.presets import best_share as best_share
    from sgdynamics.solvers.presets import fine_tuning as fine_tuning
    from sgdynamics.solvers.presets import gap_recovered as gap_recovered
    from sgdynamics.solvers.presets import model_collapse as model_collapse
    from sgdynamics.solvers.presets import self_distillation as self_distillation
    from sgdynamics.solvers.presets import weak_to_strong as weak_to_strong
    from sgdynamics.solvers.sde import solve_sde as solve_sde
    from sgdynamics.solvers.simulate import simulate as simulate
    from sgdynamics.solvers.stage_plan import Stage as Stage
    from sgdynamics.solvers.stages import stages as stages
    from sgdynamics.statics.bayes import bayes_optimal as bayes_optimal
    from sgdynamics.statics.erm import erm as erm
    from sgdynamics.statics.erm import max_margin as max_margin
    from sgdynamics.statics.samples_needed import samples_needed as samples_needed
    from sgdynamics.statics.weak_recovery import WeakRecovery as WeakRecovery
    from sgdynamics.statics.weak_recovery import weak_recovery as weak_recovery
    from sgdynamics.sweeps.power_law_fit import PowerLawFit as PowerLawFit
    from sgdynamics.sweeps.power_law_fit import fit_exponent as fit_exponent
    from sgdynamics.sweeps.sweeping import sweep as sweep

# The package that defines each public name. Names are imported on first access, because importing
# JAX takes seconds and `sgdynamics --help` does not need it.
_PACKAGE_OF = {
    "AMP": "sgdynamics.algorithms.amp",
    "Activation": "sgdynamics.problems.activations",
    "Certificate": "sgdynamics.analysis.certificate",
    "DMFT": "sgdynamics.fixed_data.options",
    "DataSpectrum": "sgdynamics.samples.real_data",
    "Dynamics": "sgdynamics.dynamics.protocol",
    "EarlyStopping": "sgdynamics.analysis.early_stopping",
    "EffectiveDynamics": "sgdynamics.analysis.effective.dynamics",
    "EffectiveScaling": "sgdynamics.analysis.effective.scaling",
    "EpochSGD": "sgdynamics.algorithms.epochs",
    "Equations": "sgdynamics.base.equations",
    "ExitTimes": "sgdynamics.analysis.exit_results",
    "Expectation": "sgdynamics.expectations.interface",
    "FixedPoint": "sgdynamics.analysis.fixed_points",
    "Forecast": "sgdynamics.scaling.forecast",
    "DeepLinear": "sgdynamics.problems.deep_linear",
    "DiagonalNetwork": "sgdynamics.problems.diagonal",
    "GaussianMixture": "sgdynamics.problems.mixture",
    "GradientDescent": "sgdynamics.algorithms.fixed_data",
    "HessianSpectrum": "sgdynamics.analysis.landscape",
    "Langevin": "sgdynamics.algorithms.fixed_data",
    "Moments": "sgdynamics.expectations.interface",
    "Monitor": "sgdynamics.scaling.forecast",
    "Move": "sgdynamics.problems.moves",
    "MultiIndex": "sgdynamics.problems.teacher_student",
    "MultiPassSGD": "sgdynamics.algorithms.fixed_data",
    "OnePassSGD": "sgdynamics.algorithms.one_pass",
    "OptimalProtocol": "sgdynamics.analysis.protocols.optimise",
    "PersistentSGD": "sgdynamics.algorithms.fixed_data",
    "Plateau": "sgdynamics.analysis.plateaus",
    "PowerLawFit": "sgdynamics.sweeps.power_law_fit",
    "Problem": "sgdynamics.problems.problem",
    "Regime": "sgdynamics.analysis.regimes",
    "Rule": "sgdynamics.problems.rule",
    "SampleComplexity": "sgdynamics.analysis.sample_complexity",
    "Stage": "sgdynamics.solvers.stage_plan",
    "Spectrum": "sgdynamics.samples.spectra",
    "SpikedTensor": "sgdynamics.problems.spiked_tensor",
    "Start": "sgdynamics.problems.starts",
    "TeacherStudent": "sgdynamics.problems.teacher_student",
    "Training": "sgdynamics.algorithms.from_training",
    "WeakRecovery": "sgdynamics.statics.weak_recovery",
    "WideNetwork": "sgdynamics.problems.wide_network",
    "Workers": "sgdynamics.algorithms.workers",
    "algorithm_of": "sgdynamics.results.datasets",
    "bayes_optimal": "sgdynamics.statics.bayes",
    "best_share": "sgdynamics.solvers.presets",
    "certify": "sgdynamics.analysis.certify",
    "cite": "sgdynamics.results.citing",
    "compare": "sgdynamics.analysis.comparison",
    "compile_cache": "sgdynamics.base.compile_cache",
    "contexts": "sgdynamics.problems.contexts",
    "early_stopping": "sgdynamics.analysis.early_stopping",
    "effective_dynamics": "sgdynamics.analysis.effective.dynamics",
    "effective_scaling": "sgdynamics.analysis.effective.scaling",
    "ensemble": "sgdynamics.problems.students",
    "erm": "sgdynamics.statics.erm",
    "exit_time": "sgdynamics.analysis.exit_times",
    "exit_time_of": "sgdynamics.analysis.exit_results",
    "expect": "sgdynamics.analysis.expect",
    "fine_tuning": "sgdynamics.solvers.presets",
    "fit_exponent": "sgdynamics.sweeps.power_law_fit",
    "fixed_points": "sgdynamics.analysis.fixed_points",
    "forecast": "sgdynamics.scaling.forecast",
    "from_network": "sgdynamics.problems.from_network",
    "from_torch": "sgdynamics.algorithms.from_torch",
    "from_training": "sgdynamics.algorithms.from_training",
    "functional": "sgdynamics.solvers",
    "gap_recovered": "sgdynamics.solvers.presets",
    "generative_exponent": "sgdynamics.analysis.exponents",
    "hermite_coefficients": "sgdynamics.analysis.hermite_series",
    "hermite_series": "sgdynamics.analysis.hermite_series",
    "hessian_spectrum": "sgdynamics.analysis.landscape",
    "increment_covariance": "sgdynamics.sde.covariance",
    "information_exponent": "sgdynamics.analysis.exponents",
    "labels": "sgdynamics.problems",
    "largest_stable_lr": "sgdynamics.algorithms.stable_rates",
    "leap_complexity": "sgdynamics.analysis.leap_complexity",
    "load": "sgdynamics.results.storage",
    "max_margin": "sgdynamics.statics.erm",
    "model_collapse": "sgdynamics.solvers.presets",
    "models": "sgdynamics.analysis",
    "monitor": "sgdynamics.scaling.forecast",
    "on_train": "sgdynamics.results.observables",
    "optimal_protocol": "sgdynamics.analysis.protocols.optimise",
    "optimal_schedule": "sgdynamics.analysis.protocols.schedules",
    "overlaps_of": "sgdynamics.problems.network_overlaps",
    "papers": "sgdynamics",
    "phases": "sgdynamics.solvers.phases",
    "piecewise_rate": "sgdynamics.base.controls",
    "plateau": "sgdynamics.analysis.plateaus",
    "plot": "sgdynamics.plotting",
    "polynomial": "sgdynamics.problems.activations",
    "power_law": "sgdynamics.samples.spectra",
    "problem_of": "sgdynamics.results.datasets",
    "random_start": "sgdynamics.problems.starts",
    "regime": "sgdynamics.analysis.regimes",
    "sample_complexity": "sgdynamics.analysis.sample_complexity",
    "samples_needed": "sgdynamics.statics.samples_needed",
    "save": "sgdynamics.results.storage",
    "scaling": "sgdynamics",
    "schedules": "sgdynamics.algorithms",
    "self_distillation": "sgdynamics.solvers.presets",
    "simulate": "sgdynamics.solvers.simulate",
    "solve_dmft": "sgdynamics.solvers.dmft",
    "solve_large_batch": "sgdynamics.solvers.large_batch",
    "solve_linear": "sgdynamics.solvers.linear",
    "solve_mean_field": "sgdynamics.solvers.mean_field",
    "solve_ode": "sgdynamics.solvers.ode",
    "solve_sde": "sgdynamics.solvers.sde",
    "spectrum_of": "sgdynamics.samples.real_data",
    "stages": "sgdynamics.solvers.stages",
    "start": "sgdynamics.problems.starts",
    "start_from": "sgdynamics.results.states",
    "supported": "sgdynamics.base.support",
    "sweep": "sgdynamics.sweeps.sweeping",
    "updates": "sgdynamics.algorithms",
    "weak_recovery": "sgdynamics.statics.weak_recovery",
    "weak_to_strong": "sgdynamics.solvers.presets",
    "worth_of_repeats": "sgdynamics.analysis.repeats",
}

__all__ = ["__version__", *_PACKAGE_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name on first access."""
    if name not in _PACKAGE_OF:
        message = f"module 'sgdynamics' has no attribute {name!r}{_suggestion(name)}"
        raise AttributeError(message, name=name, obj=sys.modules[__name__])
    package = import_module(_PACKAGE_OF[name])
    value = package.__dict__.get(name)
    if value is None:
        value = import_module(f"{_PACKAGE_OF[name]}.{name}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__]


def _suggestion(name: str) -> str:
    """Return what to write instead of the name that another library gives to an optimiser."""
    lower = name.lower()
    if name.startswith("_") or not name[:1].isupper():
        return ""
    if lower == "sgd":
        return (
            ": write sgd.OnePassSGD(lr=...) for fresh samples, "
            "sgd.EpochSGD(lr=..., samples_per_dimension=...) for a data set"
        )
    if lower == "adamw":
        return (
            ": write sgd.OnePassSGD(lr=..., update=sgd.updates.adam(memory=..., weight_decay=...))"
        )
    if lower in import_module("sgdynamics.algorithms.updates").__all__:
        return f": write sgd.OnePassSGD(lr=..., update=sgd.updates.{lower}(...))"
    return ""


def load_ipython_extension(shell: Any) -> None:
    """Show results in a notebook as a picture and a table, after ``%load_ext sgdynamics``.

    A Dataset that is not a result of this library is displayed as before.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The running IPython shell.
    """
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type_by_name("xarray.core.dataset", "Dataset", _html)


def unload_ipython_extension(shell: Any) -> None:
    """Restore xarray's own display of datasets, after ``%unload_ext sgdynamics``.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The running IPython shell.
    """
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.pop("xarray.core.dataset.Dataset", None)


def _html(result: object) -> str:
    return import_module("sgdynamics.plotting.display").html(result)
