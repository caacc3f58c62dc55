"""The theory of a PyTorch training: network, loss and optimiser in the library's units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import xarray as xr

from sgdynamics.algorithms.from_torch import (
    LayerScales,
    convert_layers,
    decay_of,
    find_group,
    head_rate_factor,
    parameter_groups,
    plain,
    relative_rate,
    same_options,
)
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.torch_network import (
    Loss,
    Module,
    Optimiser,
    TwoLayers,
    is_module,
    loss_scale,
    read_network,
)
from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, RealArray
from sgdynamics.base.controls import alpha_of_steps
from sgdynamics.base.progress import warn
from sgdynamics.base.support import require
from sgdynamics.problems.activations import Activation, ActivationLike
from sgdynamics.problems.activations import activation as find_activation
from sgdynamics.problems.frames import check_dimension
from sgdynamics.problems.network_overlaps import as_array, overlaps_of
from sgdynamics.problems.overlap_starts import AuxiliaryState, Start
from sgdynamics.problems.teacher_student import TeacherStudent
from sgdynamics.samples.spectra import Spectrum

Risk = TypeVar("Risk", float, np.ndarray, xr.DataArray)

# Largest batch: the loss is evaluated on one to find its scale.
MAX_BATCH = 10**6


@dataclass(frozen=True)
class Training:
    """A PyTorch training in the library's units, made by ``sgd.from_training``.

    It unpacks as ``problem, algorithm, start``.

    Attributes
    ----------
    problem : TeacherStudent
        Network, teacher and label noise.
    algorithm : OnePassSGD
        Optimiser.
    start : Start
        Overlaps and head of the network as it is now.
    dimension : int
        Input dimension d, for ``sgd.simulate`` and ``sgd.solve_ode``.
    loss_scale : float
        Ratio of the training loss to the library's risk: 2 for ``torch.nn.MSELoss()``.

    Examples
    --------
    >>> problem = sgd.TeacherStudent(width=1, activation="linear")
    >>> start = sgd.start(problem, M=[[0.0]], Q=[[0.0]])
    >>> algorithm = sgd.OnePassSGD(lr=0.4)
    >>> training = sgd.Training(problem, algorithm, start, dimension=100, loss_scale=2.0)
    >>> problem, algorithm, start = training
    >>> training.loss(0.5)
    1.0
    """

    problem: TeacherStudent
    algorithm: OnePassSGD
    start: Start
    dimension: int
    loss_scale: float

    def __iter__(self) -> Iterator[Any]:
        return iter((self.problem, self.algorithm, self.start))

    def alpha(self, steps: ArrayArgument) -> RealArray:
        """Convert steps of the training to the library's clock alpha = samples/d.

        Parameters
        ----------
        steps : int or array_like of int
            Numbers of optimiser steps from the start.

        Returns
        -------
        float or ndarray
            ``steps * batch / dimension``, for the argument ``alpha=`` of every solver.
        """
        return alpha_of_steps(np.asarray(steps), self.algorithm.batch, self.dimension)

    def loss(self, risk: Risk) -> Risk:
        """Convert a risk of the library to the loss of the training.

        Parameters
        ----------
        risk : float, ndarray or DataArray
            ``result.risk``, for the loss on noisy labels, or ``result.excess_risk``, for the loss
            on labels without noise.

        Returns
        -------
        float, ndarray or DataArray
            Mean squared error for ``torch.nn.MSELoss()``: twice the risk.
        """
        return self.loss_scale * risk


def from_training(
    network: Module,
    loss: Loss,
    optimiser: Optimiser,
    *,
    teacher: Module | ArrayArgument,
    teacher_head: ArrayArgument | None = None,
    teacher_activation: ActivationLike | None = None,
    noise: float | Function = 0.0,
    batch: int = 1,
    activation: ActivationLike | None = None,
    input_scale: float = 1.0,
    covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
) -> Training:
    """Convert a PyTorch training of a two-layer network: its problem, algorithm and start.

    Parameters
    ----------
    network : torch.nn.Module
        ``Sequential(Linear(d, p, bias=False), activation, Linear(p, 1, bias=False))``, or another
        module with two Linear layers whose output is proportional to
        ``second(activation(input_scale * first(x)))``. A single unit may lack the second layer.
        The network may be at any moment of its training.
    loss : callable or str
        Training loss of a batch: ``torch.nn.MSELoss()`` (mean or sum), any function
        ``loss(output, target)`` proportional to it, ``"mse"`` for the mean of (f - y)^2, or
        ``"half_mse"`` for the mean of (f - y)^2/2.
    optimiser : torch.optim.Optimizer
        SGD (momentum, dampening, Nesterov, weight decay), Adam, AdamW, RMSprop, Muon or, if the
        head is frozen, Adagrad. First layer and head may be in groups that differ in lr and
        weight_decay. A head with ``requires_grad=False``, or in no group, is frozen.
    teacher : torch.nn.Module or array_like
        Network that gives the labels, read like ``network``, or the rows of its first layer, (k,
        d).
    teacher_head : array_like, optional
        Head of a teacher that is an array of rows: y = sum_r teacher_head_r s*(w*_r.x). Defaults
        to 1 for a single row.
    teacher_activation : str, Activation or callable, optional
        Activation of the teacher. Defaults to that of the network.
    noise : float or callable, default 0.0
        Variance of the label noise.
    batch : int, default 1
        Batch size.
    activation : str, Activation or callable, optional
        Activation of a network that has no module for it. ``"erf"`` is erf(x/sqrt 2), for a
        ``forward`` that calls ``torch.erf(first(x) / 2**0.5)``.
    input_scale : float, default 1.0
        Factor that ``forward`` applies to ``first(x)``; ``d**-0.5`` for rows of norm sqrt(d). The
        rows of an array ``teacher`` are multiplied by it, too.
    covariance : sequence of (float, float) or Spectrum, optional
        Covariance of the inputs, as in ``sgd.TeacherStudent``. Defaults to the identity.

    Returns
    -------
    Training
        Unpacks as ``problem, algorithm, start``; ``dimension`` and ``loss`` are attributes.

    Raises
    ------
    ValueError
        If the network is not a two-layer network without trained biases, the loss is not a squared
        loss, or the optimiser has no counterpart; the message names the layer or option.

    Notes
    -----
    The theory assumes Gaussian inputs and a fresh batch in every step. The network
    f = c sum_i a'_i s(b w'_i.x), with output factor c and input factor b, is the library's
    f = (1/p) sum_i a_i s(w_i.x) with w = b w' and a = c p a'. A loss of r (f - y)^2/2, learning
    rates eta and eta', and weight decays v and v' of the two layers become ::

        lr = r b^2 eta d,             head_rate = (eta' c^2 p^2)/(eta b^2),
        decay of rows v/(r b^2),      decay of head v'/(r c^2 p^2).

    r = 2 for ``torch.nn.MSELoss()`` and 2 batch for its sum. Momentum changes lr as in
    ``sgd.from_torch``; steps of Adam, RMSprop, Adagrad and Muon do not depend on r, apart from
    their eps: they have lr = b eta d and head_rate = (eta' c p)/(eta b), and if eps or decay differ
    in the library's units of both layers, the update is ``sgd.updates.separate``. The factor c is
    measured: the network is called on a few random inputs, which also tests
    whether its layers were read correctly.

    Clock: n steps of the training are alpha = n batch/d, which is ``training.alpha(n)``, and
    t = lr n/d. The loss of the training is ``training.loss(result.risk)``: the mean squared error,
    which is twice the risk, for ``torch.nn.MSELoss()``. The learning rate is the current one. For a
    scheduler, replace it by a function of alpha: ``algorithm.replace(lr=...)``. Velocities that SGD
    has accumulated are part of the start. The state of another optimiser restarts, with a warning.

    Examples
    --------
    >>> import torch  # doctest: +SKIP
    >>> network = torch.nn.Sequential(torch.nn.Linear(200, 4, bias=False), torch.nn.ReLU(),
    ...                               torch.nn.Linear(4, 1, bias=False))  # doctest: +SKIP
    >>> optimiser = torch.optim.SGD(network.parameters(), lr=0.02)  # doctest: +SKIP
    >>> training = sgd.from_training(network, torch.nn.MSELoss(), optimiser, batch=8,
    ...                              teacher=np.eye(1, 200))  # doctest: +SKIP
    >>> training.algorithm.lr, training.algorithm.head_rate  # doctest: +SKIP
    (8.0, 16.0)
    """
    b = checks.number("input_scale", input_scale, above=0.0)
    batch = checks.integer("batch", batch, 1, MAX_BATCH)
    groups = parameter_groups(optimiser)
    layers = read_network("network", network, activation, b, groups)
    rows_group, head_group = _layer_groups(layers, optimiser, groups)
    p, d = layers.weights.shape
    r, c = loss_scale(loss, batch, layers.first), layers.output_scale
    labels = _read_teacher(teacher, teacher_head, teacher_activation, layers, b)

    # Ratios of the gradients that the optimiser receives to those of the library's loss.
    rows_scale, head_scale = r * b, r * c * p
    scales, converted, problem_decay = LayerScales(b, c * p, r), rows_group, 0.0
    if head_group is None and type(optimiser).__name__ == "SGD":
        # weight decay of the rows alone is that of a problem
        converted = {**rows_group, "weight_decay": 0.0}
        problem_decay = decay_of(rows_group) / (rows_scale * b)
    lr, update = convert_layers(optimiser, converted, head_group, d, scales)
    head_rate = 1.0
    if head_group is not None:
        rates = [float(plain(group["lr"])) for group in (rows_group, head_group)]
        head_rate = relative_rate(*rates) * head_rate_factor(optimiser, scales)
    problem = _problem(layers, labels, noise, head_group is not None, problem_decay, covariance)
    algorithm = OnePassSGD(lr=lr, batch=batch, head_rate=head_rate, update=update)
    require("simulate", problem, algorithm)
    algorithm.on(problem)  # raises ValueError for an update that the problem does not allow
    start = overlaps_of(
        layers.weights,
        labels.rows,
        layers.head,
        problem,
        input_scale=b,
        output_scale=c,
        teacher_scale=1.0,
    )
    velocity = _velocity(optimiser, layers, rows_group, head_group, (rows_scale, head_scale))
    if velocity is not None:
        start = replace(
            start,
            beside=_velocity_overlaps(start, problem, velocity, b * layers.weights, labels.rows),
        )
    return Training(problem, algorithm, start, d, r)


@dataclass(frozen=True)
class _Labels:
    """A teacher y = sum_r head_r s*(w*_r.x)."""

    rows: np.ndarray  # (k, d)
    head: np.ndarray  # (k,)
    activation: Activation


def _read_teacher(
    teacher: Module | ArrayArgument,
    head: ArrayArgument | None,
    activation: ActivationLike | None,
    student: TwoLayers,
    input_scale: float,
) -> _Labels:
    """The teacher from a module, or from the rows of its first layer."""
    if is_module(teacher):
        if head is not None:
            raise checks.reject(
                "teacher_head", head, "teacher is a network, which has a head. Omit teacher_head."
            )
        layers = read_network("teacher", teacher, activation, input_scale, [], student.activation)
        rows, head = layers.weights, layers.output_scale * layers.head
        function = layers.activation
    else:
        rows = as_array("teacher", teacher)
        if rows.ndim != 2 or 0 in rows.shape:
            raise checks.reject(
                "teacher",
                f"array of shape {rows.shape}",
                "Pass a network, or rows of shape (k, d).",
            )
        function = (
            student.activation
            if activation is None
            else find_activation(activation, "teacher_activation")
        )
        if head is None and len(rows) > 1:
            fix = (
                f"a teacher of {len(rows)} rows needs a head. Pass np.ones({len(rows)}) for their "
                f"sum, np.ones({len(rows)}) / {len(rows)} for their mean."
            )
            raise checks.reject("teacher_head", None, fix)
        head = np.ones(1) if head is None else as_array("teacher_head", head).reshape(-1)
    d = student.weights.shape[1]
    if rows.shape[1] != d:
        fix = f"it has {rows.shape[1]} inputs, the network has {d}. Pass rows of shape (k, {d})."
        raise checks.reject("teacher", f"rows of shape {rows.shape}", fix)
    if head.shape != (len(rows),):
        raise checks.reject(
            "teacher_head", head.tolist(), f"Pass {len(rows)} numbers, one per row of teacher."
        )
    return _Labels(input_scale * rows, head, function)


def _layer_groups(
    layers: TwoLayers, optimiser: Optimiser, groups: list[dict[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Parameter groups of the first layer and of the head; None for a frozen head."""
    rows, head = find_group(layers.first, groups), find_group(layers.second, groups)
    name = type(optimiser).__name__
    if rows is None:
        fix = (
            "it does not train the first layer of the network. Build it from network.parameters(), "
            "with lr above 0."
        )
        raise checks.reject("optimiser", name, fix)
    layer_options = ("params", "lr", "initial_lr", "weight_decay")
    if head is not None and not same_options(rows, head, layer_options):
        fix = (
            "the groups of first layer and head may differ only in lr and weight_decay. Use the "
            "same values of the other options."
        )
        raise checks.reject("optimiser", name, fix)
    return rows, head


def _problem(
    layers: TwoLayers,
    labels: _Labels,
    noise: float | Function,
    trained: bool,
    decay: float,
    covariance: Sequence[tuple[float, float]] | Spectrum | None,
) -> TeacherStudent:
    """The learning problem, with the teacher's Gram matrix in each covariance block."""
    (p, d), k = layers.weights.shape, len(labels.rows)
    problem = TeacherStudent(
        width=p,
        teacher_width=k,
        activation=layers.activation,
        teacher_activation=labels.activation,
        teacher_head=k * labels.head,
        noise=noise,
        head="trained" if trained else "fixed",
        weight_decay=decay,
        covariance=covariance,
    )
    check_dimension(problem, d, small=True)
    blocks = _block_rows(problem, labels.rows)
    return problem.replace(teacher_gram=np.stack([rows @ rows.T for rows in blocks]))


def _block_rows(problem: TeacherStudent, rows: np.ndarray) -> list[np.ndarray]:
    """Rows split into their covariance blocks."""
    return np.split(rows, np.cumsum(problem.block_dimensions(rows.shape[-1]))[:-1], axis=-1)


def _velocity(
    optimiser: Optimiser,
    layers: TwoLayers,
    rows_group: dict[str, Any],
    head_group: dict[str, Any] | None,
    gradient_scales: tuple[float, float],
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the velocities of rows and head that SGD has accumulated, in the library's units.

    PyTorch's buffer is B <- mu B + (1 - dampening) G', the library's V <- mu V + (1 - mu) G.
    """
    state = getattr(optimiser, "state", None) or {}
    rows = state.get(layers.first) or {}
    if not rows or plain(rows.get("step", 1)) == 0:  # Adagrad has a state before its first step
        return None
    if type(optimiser).__name__ != "SGD":
        warn(
            f"optimiser = {type(optimiser).__name__}: its averages after earlier steps are not "
            "part of the start. The theory starts them at 0, as a new optimiser does."
        )
        return None
    mu, dampening = (float(plain(rows_group.get(name, 0.0))) for name in ("momentum", "dampening"))
    head = (state.get(layers.second) or {}) if head_group is not None else {}
    velocities = []
    for buffers, scale, shape in zip(
        (rows, head), gradient_scales, (layers.weights.shape, layers.head.shape), strict=True
    ):
        buffer = buffers.get("momentum_buffer")
        average = (
            np.zeros(shape)
            if buffer is None
            else as_array("momentum_buffer", buffer).reshape(shape)
        )
        velocities.append(average * (1 - mu) / (1 - dampening) / scale)
    return (velocities[0], velocities[1]) if mu else None


def _velocity_overlaps(
    start: Start,
    problem: TeacherStudent,
    velocity: tuple[np.ndarray, np.ndarray],
    weights: np.ndarray,
    teacher: np.ndarray,
) -> AuxiliaryState:
    """Overlaps of weights and velocities, with each other and with the teacher."""
    rows = _block_rows(problem, np.concatenate([weights, velocity[0]]))
    signals = _block_rows(problem, teacher)
    M = np.stack([block @ signal.T for block, signal in zip(rows, signals, strict=True)])
    Q = np.stack([block @ block.T for block in rows])
    a = np.concatenate([start.a[0], velocity[1]])
    return AuxiliaryState(
        (("velocity",), (), ()),
        M[None],
        Q[None],
        a[None],
        np.zeros((1, 0)),
        np.zeros((1, 0, len(weights))),
    )
