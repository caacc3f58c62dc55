"""Ready models, each stated in a screenful: attention, sequences, autoencoders, perceptrons, GANs; `model` makes one of your own."""

from sgdynamics.analysis.sequence_exponent import sequence_information_exponent
from sgdynamics.problems.models import (
    attention,
    autoencoder,
    gan,
    model,
    perceptron,
    positional_semantic,
    sequence_single_index,
)

__all__ = [
    "attention",
    "autoencoder",
    "gan",
    "model",
    "perceptron",
    "positional_semantic",
    "sequence_information_exponent",
    "sequence_single_index",
]
