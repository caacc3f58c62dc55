"""Learning problems: `Problem`, its instances, and their initial conditions."""

from sgdynamics.problems.activations import Activation, polynomial
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.mixture import GaussianMixture
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.spiked_tensor import SpikedStart, SpikedTensor
from sgdynamics.problems.starts import random_start, start
from sgdynamics.problems.teacher_student import MultiIndex, TeacherStudent
from sgdynamics.problems.wide_network import WideNetwork

__all__ = [
    "Activation",
    "DeepLinear",
    "DiagonalNetwork",
    "GaussianMixture",
    "MultiIndex",
    "Problem",
    "SpikedStart",
    "SpikedTensor",
    "Start",
    "Structure",
    "TeacherStudent",
    "WideNetwork",
    "polynomial",
    "random_start",
    "start",
]
