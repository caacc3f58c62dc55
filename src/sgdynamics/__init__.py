"""sgdynamics: the exact high-dimensional dynamics of SGD.

State a problem and an algorithm; get the theory, the finite-dimension simulation, and the two side by side.
"""

from sgdynamics import functional, plot
from sgdynamics.algorithms import OnePassSGD
from sgdynamics.comparison import compare
from sgdynamics.limits.ode import solve_ode
from sgdynamics.problems import Activation, MultiIndex, Problem, Start, TeacherStudent, polynomial, random_start, start
from sgdynamics.results import algorithm_of, load, problem_of, save, start_from
from sgdynamics.simulation import simulate
from sgdynamics.version import __version__

__all__ = [
    "Activation",
    "MultiIndex",
    "OnePassSGD",
    "Problem",
    "Start",
    "TeacherStudent",
    "__version__",
    "algorithm_of",
    "compare",
    "functional",
    "load",
    "plot",
    "polynomial",
    "problem_of",
    "random_start",
    "save",
    "simulate",
    "solve_ode",
    "start",
    "start_from",
]
