"""Ready models: functions that state a `Problem` or a `Rule` from its parameters."""

from sgdynamics.problems.models.attention import attention, positional_semantic
from sgdynamics.problems.models.autoencoder import autoencoder
from sgdynamics.problems.models.gan import gan
from sgdynamics.problems.models.lora import lora
from sgdynamics.problems.models.mlp import mlp
from sgdynamics.problems.models.model import MODELS, model
from sgdynamics.problems.models.perceptron import perceptron
from sgdynamics.problems.models.sequences import sequence_single_index
from sgdynamics.problems.models.softmax import softmax

__all__ = [
    "MODELS",
    "attention",
    "autoencoder",
    "gan",
    "lora",
    "mlp",
    "model",
    "perceptron",
    "positional_semantic",
    "sequence_single_index",
    "softmax",
]
