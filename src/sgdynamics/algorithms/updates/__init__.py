"""Updates other than plain SGD: each is one function of increments, from which exact chain, direct runs and ODE follow.

An update is a function of rows (p x columns of any orthonormal frame) and of the gradient there, G
= dloss/dW of a batch (mean loss) and, where the head is trained, g = dloss/da as one more column.
``|(G, g)|`` is the norm over all trained parameters. D is what the learning rate counts in, d
unless ``OnePassSGD(per=)`` says otherwise.

Weight decay of a problem: velocities and averages that are linear in the gradient (``momentum`` to
``dana``), and ``reuse``, treat it as part of the loss in every move; the others change the gradient
of the data's loss only, and the decay is added afterwards. On the sphere the rows are normalised
after every move. The clock does not change: a step is one batch, t = lr steps/D.
"""

from sgdynamics.algorithms.updates.adaptive import adagrad, adagrad_norm, adam, rmsprop, sign
from sgdynamics.algorithms.updates.additions import gradient_noise, weight_decay
from sgdynamics.algorithms.updates.momentum import (
    average,
    dana,
    momentum,
    nesterov,
    polyak,
    schedule_free,
)
from sgdynamics.algorithms.updates.muon import muon
from sgdynamics.algorithms.updates.state_rate import state_rate
from sgdynamics.algorithms.updates.step_length import clipped, normalised, reuse, sam
from sgdynamics.algorithms.updates.update import Update, maker, own

__all__ = [
    "Update",
    "adagrad",
    "adagrad_norm",
    "adam",
    "average",
    "clipped",
    "dana",
    "gradient_noise",
    "maker",
    "momentum",
    "muon",
    "nesterov",
    "normalised",
    "own",
    "polyak",
    "reuse",
    "rmsprop",
    "sam",
    "schedule_free",
    "sign",
    "state_rate",
    "weight_decay",
]
