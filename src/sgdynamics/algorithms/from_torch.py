"""PyTorch's optimisers in the library's units. Nothing here imports torch: an optimiser is read by its name and its numbers."""

from __future__ import annotations

import math
from typing import Any

from sgdynamics import checks
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates import adagrad, adam, momentum, muon, nesterov, rmsprop, weight_decay
from sgdynamics.algorithms.updates.law import Update

KNOWN = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Muon")
# switches that change the step, and the value at which it is the one that is known here
OFF = {"maximize": False, "amsgrad": False, "centered": False, "lr_decay": 0}


def from_torch(optimiser: Any, *, dimension: int, batch: int = 1) -> OnePassSGD:
    """The algorithm that corresponds to a PyTorch optimiser at input dimension d, on the same mean loss.

    Parameters
    ----------
    optimiser : torch.optim.Optimizer
        SGD (with momentum, dampening, Nesterov's), Adam, AdamW, RMSprop, Adagrad or Muon, with its learning rate, betas and weight decay. A
        second group of parameters, of the head, may have a learning rate of its own.
    dimension : int
        The dimension d of the inputs.
    batch : int, default 1
        Samples in a step.

    Returns
    -------
    OnePassSGD
        With the update that takes the same steps: for ``sgd.simulate`` at this d and, as d -> infinity, ``sgd.solve_ode``.

    Raises
    ------
    ValueError
        If it is no optimiser that is known here, or has a switch that changes its steps.

    Notes
    -----
    The rows of the first layer are taken to be of O(1) norm and the inputs x ~ N(0, I). With lr_T PyTorch's learning rate: plain SGD
    lr = d lr_T; momentum mu: lr = d lr_T (1 - dampening)/(1 - mu), memory = d (1 - mu); Adam, RMSprop: lr = d lr_T, memory = d (1 - beta2);
    Adagrad: lr = sqrt(d) lr_T; Muon: lr = d lr_T, memory = d (1 - mu). Weight decay is the update's, coupled or not as PyTorch has it.
    PyTorch's first step of SGD with dampening is not damped, here it is.

    Examples
    --------
    >>> class SGD:  # stands for torch.optim.SGD(..., lr=0.002, momentum=0.9)
    ...     param_groups = [{"lr": 0.002, "momentum": 0.9, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}]
    >>> algorithm = sgd.from_torch(SGD(), dimension=1000)
    >>> round(algorithm.lr, 6), algorithm.update
    (20.0, momentum(memory=100))
    """
    d = checks.whole("dimension", dimension, 1)
    name, group, head_rate = type(optimiser).__name__, *_group(optimiser)
    if name not in KNOWN:
        raise checks.reject("optimiser", optimiser, f"{checks.did_you_mean(name, KNOWN)}give one of torch.optim.{', '.join(KNOWN)}")
    for switch, usual in OFF.items():
        if group.get(switch, usual) not in (usual, None):
            raise checks.reject("optimiser", f"{name}({switch}={group[switch]!r})", f"leave {switch} at {usual!r}")
    lr = checks.number("lr", _plain(group["lr"]), 0.0)
    decay = checks.number("weight_decay", _plain(group.get("weight_decay", 0.0)), 0.0)
    factor, update = _CONVERTED[name](group, d)
    if decay:
        update = weight_decay(decay, of=update, decoupled=name in ("AdamW", "Muon") or update is None)
    return OnePassSGD(lr=factor * lr, batch=batch, head_rate=head_rate, update=update)


def _plain(value: Any) -> Any:
    """A number out of a tensor."""
    return value.item() if hasattr(value, "item") else value


def _group(optimiser: Any) -> tuple[dict[str, Any], float]:
    """The numbers of the rows' group of parameters, and the head's rate beside them."""
    fix = "give a PyTorch optimiser of one group of parameters, or of two that differ in lr alone (rows, then head)"
    groups = getattr(optimiser, "param_groups", None)
    if isinstance(optimiser, type) or not isinstance(groups, (list, tuple)) or len(groups) not in (1, 2) or "lr" not in groups[0]:
        raise checks.reject("optimiser", optimiser, fix)
    first, last = ({name: value for name, value in group.items() if name != "params"} for group in (groups[0], groups[-1]))
    if {**first, "lr": 0, "initial_lr": 0} != {**last, "lr": 0, "initial_lr": 0}:
        raise checks.reject("optimiser", last, fix)
    rows, head = float(_plain(first["lr"])), float(_plain(last["lr"]))
    if head != rows and rows == 0:
        raise checks.reject("lr", rows, "the rows have a learning rate of 0 beside the head's: give one above 0")
    return first, 1.0 if head == rows else head / rows


def _sgd(group: dict[str, Any], d: int) -> tuple[float, Update | None]:
    mu = group.get("momentum", 0.0)
    if not mu:
        return float(d), None
    make = nesterov if group.get("nesterov") else momentum
    return d * (1 - group.get("dampening", 0.0)) / (1 - mu), make(memory=d * (1 - mu))


def _adam(group: dict[str, Any], d: int) -> tuple[float, Update | None]:
    first, second = group["betas"]
    if group.get("decoupled_weight_decay", False):
        # torch.optim.Adam(..., decoupled_weight_decay=True) is AdamW
        raise checks.reject("optimiser", "Adam(decoupled_weight_decay=True)", "give torch.optim.AdamW, which it is")
    return float(d), adam(memory=d * (1 - _plain(second)), eps=group["eps"], beta=_plain(first))


def _adamw(group: dict[str, Any], d: int) -> tuple[float, Update | None]:
    return _adam({**group, "decoupled_weight_decay": False}, d)


def _rmsprop(group: dict[str, Any], d: int) -> tuple[float, Update | None]:
    if group.get("momentum"):
        raise checks.reject("optimiser", f"RMSprop(momentum={group['momentum']})", "leave momentum at 0")
    return float(d), rmsprop(memory=d * (1 - group["alpha"]), eps=group["eps"])


def _adagrad(group: dict[str, Any], d: int) -> tuple[float, Update | None]:
    start = group.get("initial_accumulator_value", 0.0)
    if not start:
        fix = "give an initial_accumulator_value above 0, of order d: from 0 the first steps have no limit"
        raise checks.reject("optimiser", "Adagrad(initial_accumulator_value=0)", fix)
    return math.sqrt(d), adagrad(start=start / d, eps=group.get("eps", 0.0) / math.sqrt(d))


def _muon(group: dict[str, Any], d: int) -> tuple[float, Update | None]:
    if group.get("nesterov"):
        raise checks.reject("optimiser", "Muon(nesterov=True)", "give nesterov=False: a look ahead is not known here")
    return float(d), muon(memory=d * (1 - group["momentum"]), newton_schulz=True)


_CONVERTED = {"SGD": _sgd, "Adam": _adam, "AdamW": _adamw, "RMSprop": _rmsprop, "Adagrad": _adagrad, "Muon": _muon}
