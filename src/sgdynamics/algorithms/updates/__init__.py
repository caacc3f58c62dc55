"""Updates other than plain SGD; the exact chain, direct runs and the ODE follow from their steps.

A step is a function of rows, p x columns in any orthonormal frame, and of the gradient there:
G = dloss/dW of the mean loss of a batch and, if the head is trained, g = dloss/da as one more
column. ``|(G, g)|`` is the norm over all trained parameters. D is the unit of the learning rate,
which is d by default (``OnePassSGD(per=)``).

Weight decay of a problem is part of the loss for velocities and averages that are linear in the
gradient (``momentum`` to ``dana``) and for ``reuse``. The other updates change the gradient of the
loss of the data only, and the decay is added afterwards. On the sphere the rows are normalised
after every move. The clock is that of plain SGD: a step is one batch, and t = lr steps/D.

``saga``, ``svrg`` and ``pdhg`` act on single samples of a fixed data set and store values for them.
"""

from sgdynamics.algorithms.updates.adaptive import adagrad, adagrad_norm, adam, rmsprop, sign
from sgdynamics.algorithms.updates.additions import gradient_noise, weight_decay
from sgdynamics.algorithms.updates.compression import sparse
from sgdynamics.algorithms.updates.delays import delayed
from sgdynamics.algorithms.updates.inertia import inertia
from sgdynamics.algorithms.updates.momentum import (
    average,
    dana,
    momentum,
    nesterov,
    polyak,
    schedule_free,
)
from sgdynamics.algorithms.updates.muon import muon
from sgdynamics.algorithms.updates.own import own
from sgdynamics.algorithms.updates.primal_dual import pdhg
from sgdynamics.algorithms.updates.row_adam import row_adam
from sgdynamics.algorithms.updates.separate import separate
from sgdynamics.algorithms.updates.state_rate import state_rate
from sgdynamics.algorithms.updates.step_length import clipped, normalised, reuse, sam
from sgdynamics.algorithms.updates.update import Update, maker
from sgdynamics.algorithms.updates.variance_reduction import saga, svrg

__all__ = [
    "Update",
    "adagrad",
    "adagrad_norm",
    "adam",
    "average",
    "clipped",
    "dana",
    "delayed",
    "gradient_noise",
    "inertia",
    "maker",
    "momentum",
    "muon",
    "nesterov",
    "normalised",
    "own",
    "pdhg",
    "polyak",
    "reuse",
    "rmsprop",
    "row_adam",
    "saga",
    "sam",
    "schedule_free",
    "separate",
    "sign",
    "sparse",
    "state_rate",
    "svrg",
    "weight_decay",
]
