"""PyTorch's optimisers in the library's units.

Nothing here imports torch: an optimiser is recognised by its class name and its `param_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, SupportsFloat, cast, runtime_checkable

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates import (
    adagrad,
    adam,
    momentum,
    muon,
    nesterov,
    rmsprop,
    separate,
    weight_decay,
)
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.base import checks

SUPPORTED = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Muon")
# Optimisers whose weight decay is not part of the gradient.
DECOUPLED = ("AdamW", "Muon")
# Options that change the step, with the value that the conversion assumes.
OFF = {
    "maximize": False,
    "amsgrad": False,
    "centered": False,
    "lr_decay": 0,
    "adjust_lr_fn": "original",
    "ns_steps": 5,
    "ns_coefficients": (3.4445, -4.7750, 2.0315),
}
HEAD_FIX = (
    "its accumulators of rows and head start at different values in the library's units. Freeze "
    "the head (requires_grad=False), or use torch.optim.Adam."
)


def from_torch(
    optimiser: object,
    *,
    dimension: int,
    batch: int = 1,
    input_scale: float = 1.0,
    network: object = None,
) -> OnePassSGD:
    """Convert a PyTorch optimiser, for a network and a loss in the library's units.

    Use ``sgd.from_training`` for any other network or loss: it reads both and converts them too.

    Parameters
    ----------
    optimiser : torch.optim.Optimizer
        SGD (with momentum, dampening, Nesterov), Adam, AdamW, RMSprop, Adagrad or Muon. A second
        parameter group, that of the head or top, may have its own learning rate.
    dimension : int
        Input dimension d.
    batch : int, default 1
        Batch size.
    input_scale : float, default 1.0
        Scale s of the inputs s x of the network, with x ~ N(0, I): rows of the library are s times
        the weight of PyTorch.
    network : torch.nn.Module, optional
        Module that ``sgd.from_network`` turned into a problem. The groups of the optimiser are then
        matched with its parameters, and the rates are those of the leaves of the top.

    Returns
    -------
    OnePassSGD
        Algorithm that takes the same steps in ``sgd.simulate`` at this d and, as d -> infinity, in
        ``sgd.solve_ode``.

    Raises
    ------
    ValueError
        If the optimiser is not in the list or has an option that changes its steps, if its groups
        differ in more than lr, or if it does not train the first layer of the network.

    Notes
    -----
    The network is assumed to be the library's, ::

        f = (1/p) sum_i a_i s(w_i.x),     x ~ N(0, I_d),     rows of norm O(1),
        loss (f - y)^2/2 averaged over the batch.

    With lr_T the learning rate of PyTorch: plain SGD lr = d lr_T; momentum mu:
    lr = d lr_T (1 - dampening)/(1 - mu), memory = d (1 - mu); Adam, RMSprop: lr = d lr_T,
    memory = d (1 - beta2); Adagrad: lr = sqrt(d) lr_T; Muon: lr = d lr_T, memory = d (1 - mu).
    A network that reads s x has lr = d s^2 lr_T and the head_rate 1/s^2 under SGD. Steps of the
    other optimisers do not depend on the scale of a gradient: lr has one factor s, and the
    head_rate is 1/s.
    Weight decay is coupled or decoupled as in PyTorch. With dampening, the library also damps the
    first step of SGD, and PyTorch does not.

    For another network or loss these values are wrong by constant factors. ``torch.nn.MSELoss`` is
    (f - y)^2 and doubles every gradient: lr = 2 d lr_T for SGD. A network whose output is the sum
    over its p units, as with ``torch.nn.Linear(p, 1)``, has head_rate = p^2 and a start with p
    times its head. ``sgd.from_training`` applies these factors.

    Examples
    --------
    >>> class SGD:  # stands for torch.optim.SGD(..., lr=0.002, momentum=0.9)
    ...     param_groups = [{"lr": 0.002, "momentum": 0.9, "dampening": 0.0, "nesterov": False}]
    >>> algorithm = sgd.from_torch(SGD(), dimension=1000)
    >>> round(algorithm.lr, 6), algorithm.update
    (20.0, momentum(memory=100))
    """
    d = checks.integer("dimension", dimension, 1)
    scales = LayerScales(inputs=checks.number("input_scale", input_scale, above=0.0))
    head_rate: float | dict[str, float]
    if network is None:
        group, head_rate = _single_group(optimiser)
    else:
        group, head_rate = _rates_by_leaf(optimiser, network, d)
    has_head = scales.inputs != 1.0
    lr, update = convert_layers(optimiser, group, group if has_head else None, d, scales)
    factor = head_rate_factor(optimiser, scales)
    if isinstance(head_rate, dict):
        head_rate = {name: factor * rate for name, rate in head_rate.items()}
    else:
        head_rate = factor * head_rate
    return OnePassSGD(lr=lr, batch=batch, head_rate=head_rate, update=update)


class LayerScales(NamedTuple):
    """Factors between a network of PyTorch and that of the library.

    Attributes
    ----------
    inputs : float
        Factor b of the rows, w = b w'.
    head : float
        Factor of the head, a = head a'.
    loss : float
        Factor of the loss.
    """

    inputs: float = 1.0
    head: float = 1.0
    loss: float = 1.0


def convert_layers(
    optimiser: object,
    rows: dict[str, Any],
    head: dict[str, Any] | None,
    d: int,
    scales: LayerScales,
) -> tuple[float, Update | None]:
    """Library lr and update, with weight decay, of the parameter groups of rows and head.

    Without a head, or with one of the same scale, both have the update of the rows.
    """
    b, outputs, r = scales
    lr, update = convert_group(optimiser, rows, d, r * b)
    decoupled = type(optimiser).__name__ in DECOUPLED
    decay = decay_of(rows) / (b if decoupled else r * b * b)
    if head is None or type(optimiser).__name__ == "SGD":
        head_decay = decay if head is None else decay_of(head) / (r * outputs**2)
        if decay or head_decay:
            update = with_weight_decay(
                optimiser, update, decay, None if head is None else head_decay
            )
        return lr * b, update
    # Steps of the same size for any size of the gradient: only eps and decay know their units.
    _, head_update = convert_group(optimiser, head, d, r * outputs)
    head_decay = decay_of(head) / (outputs if decoupled else r * outputs**2)
    if decay:
        update = with_weight_decay(optimiser, update, decay)
    if head_decay:
        head_update = with_weight_decay(optimiser, head_update, head_decay)
    if update == head_update:
        return lr * b, update
    if type(optimiser).__name__ == "Adagrad":
        raise checks.reject("optimiser", "Adagrad", HEAD_FIX)
    return lr * b, separate(rows=update, head=head_update)


def head_rate_factor(optimiser: object, scales: LayerScales) -> float:
    """Library head_rate of two layers with the same learning rate in PyTorch."""
    ratio = scales.head / scales.inputs
    return ratio**2 if type(optimiser).__name__ == "SGD" else ratio


def _rates_by_leaf(
    optimiser: object, network: Any, d: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """The options of the group of the first layer, and the relative rates of all other leaves."""
    if not callable(getattr(network, "named_parameters", None)):
        raise checks.reject("network", network, "Pass the torch.nn.Module that is trained.")
    groups = parameter_groups(optimiser)
    by_name: dict[str, dict[str, Any] | None] = {}
    first = None
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        by_name[name] = find_group(parameter, groups)
        shape = tuple(parameter.shape)
        if first is None and len(shape) == 2 and shape[1] == d:
            first = name
    if first is None or (rows := by_name.pop(first)) is None:
        fix = f"the optimiser does not train a first layer with {d} inputs. Add its weight."
        raise checks.reject("network", type(network).__name__, fix)
    rates = {}
    for name, group in by_name.items():
        if group is not None and not same_options(rows, group, ("params", "lr", "initial_lr")):
            fix = "the groups of an optimiser may differ only in lr."
            raise checks.reject("optimiser", f"the group of {name}", fix)
        rate = 0.0 if group is None else float(plain(group["lr"]))
        rates[name] = relative_rate(float(plain(rows["lr"])), rate)
    return rows, rates


def find_group(parameter: Any, groups: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the parameter group that trains a parameter; None if it is frozen or in no group."""
    if parameter is None or not getattr(parameter, "requires_grad", True):
        return None
    for group in groups:
        is_member = any(member is parameter for member in group.get("params", ()))
        if is_member and float(plain(group["lr"])) > 0:
            return group
    return None


def convert_group(
    optimiser: object, group: dict[str, Any], d: int, gradient_scale: float = 1.0
) -> tuple[float, Update | None]:
    """Library lr and update, without weight decay, of a parameter group.

    ``gradient_scale`` is the ratio of the gradients that the optimiser receives to those of the
    library's loss. Plain and momentum steps are proportional to it; adaptive ones are invariant
    once their eps and initial accumulators are divided by it.
    """
    name = type(optimiser).__name__
    if name not in SUPPORTED:
        fix = (
            f"{checks.did_you_mean(name, SUPPORTED)}Pass one of torch.optim.{', '.join(SUPPORTED)}."
        )
        raise checks.reject("optimiser", optimiser, fix)
    for option, value in OFF.items():
        if group.get(option, value) not in (value, None):
            shown = f"{name}({option}={group[option]!r})"
            raise checks.reject("optimiser", shown, f"not supported. Leave {option} at {value!r}.")
    lr = checks.number("lr", plain(group["lr"]), 0.0)
    factor, update = _CONVERSIONS[name](group, d, gradient_scale)
    return factor * lr, update


def with_weight_decay(
    optimiser: object, update: Update | None, rate: float, head: float | None = None
) -> Update:
    """An update with the weight decay of the optimiser, coupled or decoupled as PyTorch has it."""
    decoupled = type(optimiser).__name__ in DECOUPLED or update is None
    return weight_decay(rate, of=update, decoupled=decoupled, head=head)


def decay_of(group: dict[str, Any]) -> float:
    """Weight decay of a parameter group."""
    return checks.number("weight_decay", plain(group.get("weight_decay", 0.0)), 0.0)


def plain(number: SupportsFloat) -> float:
    """Return an option of an optimiser, a number or a tensor, as a Python number."""
    return number.item() if isinstance(number, SupportsItem) else cast(float, number)


@runtime_checkable
class SupportsItem(Protocol):
    """A tensor or array of one element."""

    def item(self) -> float: ...


def parameter_groups(optimiser: object) -> list[dict[str, Any]]:
    """The parameter groups of an optimiser; raise ValueError if it has none."""
    listed = getattr(optimiser, "param_groups", None)
    is_optimiser = isinstance(listed, (list, tuple)) and not isinstance(optimiser, type)
    groups: list[dict[str, Any]] = list(listed) if is_optimiser and listed else []
    if not groups or not all(isinstance(group, dict) and "lr" in group for group in groups):
        raise checks.reject(
            "optimiser",
            optimiser,
            "not a PyTorch optimiser. Pass torch.optim.SGD(...) or another one.",
        )
    return groups


def same_options(first: dict[str, Any], second: dict[str, Any], ignored: tuple[str, ...]) -> bool:
    """Whether two parameter groups agree in all but the ignored options."""
    groups = [
        {key: value for key, value in group.items() if key not in ignored}
        for group in (first, second)
    ]
    return groups[0] == groups[1]


def _single_group(optimiser: object) -> tuple[dict[str, Any], float]:
    """The options of the parameter group of the rows, and the relative rate of the head."""
    groups = parameter_groups(optimiser)
    fix = (
        "Pass an optimiser of one parameter group, or of two that differ only in lr (rows, then "
        "head)."
    )
    if len(groups) > 2:
        raise checks.reject("optimiser", f"{len(groups)} parameter groups", fix)
    rows, head = groups[0], groups[-1]
    if not same_options(rows, head, ("params", "lr", "initial_lr")):
        options = {key: head[key] for key in head if key != "params"}
        raise checks.reject("optimiser", options, fix)
    rows_rate, head_rate = float(plain(rows["lr"])), float(plain(head["lr"]))
    return rows, relative_rate(rows_rate, head_rate)


def relative_rate(rows: float, head: float) -> float:
    """Learning rate of the head relative to that of the rows."""
    if head == rows:
        return 1.0
    if rows == 0:
        raise checks.reject(
            "lr",
            rows,
            "the first layer is fixed and the head is trained. Use an lr above 0 for both.",
        )
    return head / rows


# Each conversion returns the library's lr over that of PyTorch, and the update.


def _sgd(group: dict[str, Any], d: int, scale: float) -> tuple[float, Update | None]:
    mu = checks.number("momentum", plain(group.get("momentum", 0.0)), 0.0)
    if not mu:
        return d * scale, None
    if mu >= 1:
        raise checks.reject(
            "optimiser", f"SGD(momentum={mu})", "the velocity never decays. Use a momentum below 1."
        )
    make = nesterov if group.get("nesterov") else momentum
    return d * scale * (1 - group.get("dampening", 0.0)) / (1 - mu), make(memory=d * (1 - mu))


def _adam(group: dict[str, Any], d: int, scale: float) -> tuple[float, Update | None]:
    first, second = group["betas"]
    if group.get("decoupled_weight_decay", False):
        # torch.optim.Adam(..., decoupled_weight_decay=True) is AdamW
        raise checks.reject(
            "optimiser",
            "Adam(decoupled_weight_decay=True)",
            "not supported. Use torch.optim.AdamW, which is the same.",
        )
    return float(d), adam(
        memory=d * (1 - plain(second)), eps=group["eps"] / scale, beta=plain(first)
    )


def _adamw(group: dict[str, Any], d: int, scale: float) -> tuple[float, Update | None]:
    return _adam({**group, "decoupled_weight_decay": False}, d, scale)


def _rmsprop(group: dict[str, Any], d: int, scale: float) -> tuple[float, Update | None]:
    if group.get("momentum"):
        raise checks.reject(
            "optimiser",
            f"RMSprop(momentum={group['momentum']})",
            "not supported. Leave momentum at 0.",
        )
    return float(d), rmsprop(memory=d * (1 - group["alpha"]), eps=group["eps"] / scale)


def _adagrad(group: dict[str, Any], d: int, scale: float) -> tuple[float, Update | None]:
    start = group.get("initial_accumulator_value", 0.0)
    if not start:
        fix = "from 0 the first steps have no limit. Use an initial_accumulator_value of order d."
        raise checks.reject("optimiser", "Adagrad(initial_accumulator_value=0)", fix)
    return math.sqrt(d), adagrad(
        start=start / d / scale**2, eps=group.get("eps", 0.0) / math.sqrt(d) / scale
    )


def _muon(group: dict[str, Any], d: int, scale: float) -> tuple[float, Update | None]:
    if group.get("nesterov"):
        raise checks.reject(
            "optimiser", "Muon(nesterov=True)", "not supported. Use nesterov=False."
        )
    return float(d), muon(memory=d * (1 - group["momentum"]), newton_schulz=True)


_CONVERSIONS: dict[str, Callable[[dict[str, Any], int, float], tuple[float, Update | None]]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adamw,
    "RMSprop": _rmsprop,
    "Adagrad": _adagrad,
    "Muon": _muon,
}
