"""Ready models: attention, sequences, autoencoders, perceptrons and GANs.

The decorator `model` turns a function that states a problem into a further model.
"""

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
