"""Ready models: attention, sequences, autoencoders, perceptrons, GANs, deep networks,
softmax classification and LoRA.

The decorator `model` turns a function that states a problem into a further model.
"""

from sgdynamics.analysis.sequence_exponent import sequence_information_exponent
from sgdynamics.problems.models import (
    attention,
    autoencoder,
    gan,
    lora,
    mlp,
    model,
    perceptron,
    positional_semantic,
    sequence_single_index,
    softmax,
)

__all__ = [
    "attention",
    "autoencoder",
    "gan",
    "lora",
    "mlp",
    "model",
    "perceptron",
    "positional_semantic",
    "sequence_information_exponent",
    "sequence_single_index",
    "softmax",
]
