"""What is learned: `Problem`, its instances, and the laws of their starts."""

from sgdynamics.problems.activations import Activation, polynomial
from sgdynamics.problems.problem import Problem, Structure
from sgdynamics.problems.starts import Start, random_start, start
from sgdynamics.problems.teacher_student import MultiIndex, TeacherStudent

__all__ = [
    "Activation",
    "MultiIndex",
    "Problem",
    "Start",
    "Structure",
    "TeacherStudent",
    "polynomial",
    "random_start",
    "start",
]
