"""sgdynamics: the exact high-dimensional dynamics of SGD.

State a problem and an algorithm; get the theory, the finite-dimension simulation, and the two side by side.
"""

# ruff: noqa: F405
import re
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sgdynamics.version import __version__

if TYPE_CHECKING:
    # the one list of names is below: a test holds it against `public`
    from sgdynamics.public import *  # noqa: F403

__all__ = [
    "Activation",
    "Certificate",
    "DataSpectrum",
    "Dynamics",
    "EarlyStopping",
    "EffectiveDynamics",
    "EffectiveScaling",
    "EpochSGD",
    "ExitTimes",
    "Expectation",
    "FixedPoint",
    "GaussianMixture",
    "GradientDescent",
    "HessianSpectrum",
    "Langevin",
    "Moments",
    "Move",
    "MultiIndex",
    "MultiPassSGD",
    "OnePassSGD",
    "OptimalProtocol",
    "OptimalSchedule",
    "PersistentSGD",
    "Plateau",
    "PowerLaw",
    "Problem",
    "Regime",
    "Rule",
    "SampleComplexity",
    "Spectrum",
    "SpikedTensor",
    "Start",
    "TeacherStudent",
    "Training",
    "__version__",
    "algorithm_of",
    "certify",
    "compare",
    "contexts",
    "early_stopping",
    "effective_dynamics",
    "effective_scaling",
    "exit_time",
    "exit_time_of",
    "expect",
    "fit_exponent",
    "fixed_points",
    "from_torch",
    "from_training",
    "functional",
    "generative_exponent",
    "hermite_coefficients",
    "hermite_series",
    "hessian_spectrum",
    "increment_covariance",
    "information_exponent",
    "labels",
    "leap_complexity",
    "load",
    "mean_field_density",
    "mean_field_random_start",
    "models",
    "on_train",
    "optimal_protocol",
    "optimal_schedule",
    "overlaps_of",
    "papers",
    "phases",
    "piecewise_rate",
    "plateau",
    "plot",
    "polynomial",
    "power_law",
    "problem_of",
    "random_start",
    "regime",
    "sample_complexity",
    "save",
    "scaling",
    "simulate",
    "solve_dmft",
    "solve_large_batch",
    "solve_linear",
    "solve_mean_field",
    "solve_ode",
    "solve_sde",
    "spectrum_of",
    "start",
    "start_from",
    "supported",
    "sweep",
    "updates",
    "worth_of_repeats",
]


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Where each public name lives, read off `public.py`: to import that would import everything, and the first result wait for it."""
    found = find_spec("sgdynamics.public")
    source = getattr(found.loader, "get_source", lambda _: None)("sgdynamics.public") if found else None
    lines = re.findall(r"^from (\S+) import (\w+) as (\w+)$", source or "", flags=re.MULTILINE)
    return {public: (module, own) for module, own, public in lines}


def __getattr__(name: str) -> Any:
    """Public names are loaded when first asked for: JAX takes seconds to import, and `sgdynamics --help` does not need it."""
    if not name.startswith("_"):
        try:
            return import_module(f"sgdynamics.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"sgdynamics.{name}":
                raise
    if name in __all__:
        module, own = _homes().get(name, ("sgdynamics.public", name))
        home = import_module(module)
        globals()[name] = getattr(home, own) if hasattr(home, own) else import_module(f"{module}.{own}")
        return globals()[name]
    raise AttributeError(f"module 'sgdynamics' has no attribute {name!r}{_hint(name)}", name=name, obj=sys.modules[__name__])


def _hint(name: str) -> str:
    """What to write in place of an optimiser's name in other libraries."""
    lower = name.lower()
    if name.startswith("_") or not name[:1].isupper():
        return ""
    if lower == "sgd":
        return ": write sgd.OnePassSGD(lr=...) for fresh samples, sgd.EpochSGD(lr=..., samples_per_dimension=...) for a data set"
    if lower == "adamw":
        return ": write sgd.OnePassSGD(lr=..., update=sgd.updates.adam(memory=..., weight_decay=...))"
    if lower in import_module("sgdynamics.algorithms.updates").__all__:
        return f": write sgd.OnePassSGD(lr=..., update=sgd.updates.{lower}(...))"
    return ""


def __dir__() -> list[str]:
    return [*__all__]


def _show_results_in_notebooks() -> None:
    """Let IPython, where this is one, show results by `display`, which is loaded then. A Dataset of others looks as it did."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        formatter = shell.display_formatter.formatters["text/html"]
        formatter.for_type_by_name("xarray.core.dataset", "Dataset", lambda result: import_module("sgdynamics.display").html(result))


_show_results_in_notebooks()
