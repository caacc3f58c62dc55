"""Two-layer PyTorch networks and their losses, read without importing torch.

Modules are recognised by their class names and attributes. The network that was read is compared
with the output of the module itself on a few random inputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.algorithms.from_torch import find_group
from sgdynamics.base import checks
from sgdynamics.problems.activations import Activation, ActivationLike
from sgdynamics.problems.activations import activation as find_activation
from sgdynamics.problems.network_overlaps import as_array


@runtime_checkable
class Tensor(Protocol):
    """A parameter or a batch, as ``torch.Tensor`` has it."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def dtype(self) -> object: ...


@runtime_checkable
class Module(Protocol):
    """A network or a layer, as ``torch.nn.Module`` has it."""

    def named_modules(self) -> Iterable[tuple[str, Any]]: ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]: ...

    def __call__(self, *inputs: object) -> object: ...


@runtime_checkable
class Optimiser(Protocol):
    """An optimiser, as ``torch.optim.Optimizer`` has it."""

    param_groups: list[dict[str, Any]]


# A name in SQUARED_LOSSES, or a function loss(output, target).
Loss = str | Callable[..., object]

# Number of random inputs on which a network is compared with the layers that were read.
PROBES = 16
HALF_PRECISION = ("float16", "bfloat16")
EXPECTED = (
    "Pass torch.nn.Sequential(Linear(d, p, bias=False), activation, Linear(p, 1, bias=False))."
)
ACTIVATION_ARGUMENTS = {"network": "activation", "teacher": "teacher_activation"}
# Modules that only reshape.
NO_EFFECT = ("Flatten", "Unflatten")
# Ratio of the loss of a batch to the mean of (f - y)^2/2.
SQUARED_LOSSES = {"mse": 2.0, "half_mse": 1.0}


# Activations are cached, so that equal functions are identical and share one compiled program.


@lru_cache(maxsize=64)
def _leaky_relu(slope: float) -> Activation:
    return Activation(lambda x: jnp.where(x > 0, x, slope * x), kinks=(0.0,), name="leaky_relu")


@lru_cache(maxsize=64)
def _elu(alpha: float) -> Activation:
    return Activation(lambda x: jax.nn.elu(x, alpha), kinks=(0.0,), name="elu")


@lru_cache(maxsize=64)
def _softplus(beta: float) -> Activation:
    if beta == 1:
        return find_activation("softplus")
    return Activation(lambda x: jax.nn.softplus(beta * x) / beta, name="softplus")


@lru_cache(maxsize=2)
def _gelu(approximate: str) -> Activation:
    if approximate == "none":
        return find_activation("gelu")
    return Activation(lambda x: jax.nn.gelu(x, approximate=True), name="gelu_tanh")


@lru_cache(maxsize=64)
def _shift_activation(function: Activation, offset: float) -> Activation:
    """Return the activation s(x + b) of units with the same bias b."""
    kinks = tuple(kink - offset for kink in function.kinks)
    return Activation(
        lambda x: function.f(x + offset), kinks=kinks, name=f"{function.label}_shifted"
    )


# Activation of the library by class name of a PyTorch module.
MODULES: dict[str, Callable[[Any], Activation]] = {
    "Identity": lambda module: find_activation("linear"),
    "ReLU": lambda module: find_activation("relu"),
    "Tanh": lambda module: find_activation("tanh"),
    "GELU": lambda module: _gelu(getattr(module, "approximate", "none")),
    "Softplus": lambda module: _softplus(float(getattr(module, "beta", 1.0))),
    "Sigmoid": lambda module: Activation(jax.nn.sigmoid, name="sigmoid"),
    "SiLU": lambda module: Activation(jax.nn.silu, name="silu"),
    "LeakyReLU": lambda module: _leaky_relu(float(getattr(module, "negative_slope", 0.01))),
    "ELU": lambda module: _elu(float(getattr(module, "alpha", 1.0))),
}


@dataclass(frozen=True)
class TwoLayers:
    """A network f(x) = output_scale sum_i head_i s(input_scale w_i.x), and its parameters."""

    weights: np.ndarray  # (p, d)
    head: np.ndarray  # (p,)
    activation: Activation
    output_scale: float
    first: Tensor  # parameter of the first layer
    second: Tensor | None  # parameter of the second layer, if there is one


def is_module(value: object) -> TypeGuard[Module]:
    """Whether a value looks like torch.nn.Module."""
    return callable(getattr(value, "named_modules", None)) and not isinstance(value, type)


def read_network(
    argument: str,
    network: Module,
    activation: ActivationLike | None,
    input_scale: float,
    groups: list[dict[str, Any]],
    default: Activation | None = None,
) -> TwoLayers:
    """Read the layers of a network, and compare them with its output on random inputs.

    ``groups`` are the parameter groups of its optimiser: trained biases raise ValueError.
    ``default`` is the activation of a network without a module for it.
    """
    if not is_module(network):
        raise checks.reject(argument, network, f"not a PyTorch module. {EXPECTED}")
    linear, other = _leaves(network)
    _check_parameters(argument, network, [module for _, module in linear])
    first, second = _two_layers(argument, linear)
    weights = as_array(f"{argument}, weight of the first layer", first.weight)
    head = np.ones(1)
    if second is not None:
        head = as_array(f"{argument}, weight of the second layer", second.weight)[0]
    biases = {
        name: module.bias for name, module in linear if getattr(module, "bias", None) is not None
    }
    function = _activation(argument, other, activation, default)
    shift = _common_bias(argument, linear, biases, groups)
    if shift:
        function = _shift_activation(function, input_scale * shift)
    scale = _output_scale(argument, network, first.weight, weights, head, function, input_scale)
    return TwoLayers(weights, head, function, scale, first.weight, getattr(second, "weight", None))


def _leaves(network: Module) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """The Linear layers of a network and its other modules without children, in their order."""
    linear, other = [], []
    for name, module in network.named_modules():
        if hasattr(module, "children") and any(True for _ in module.children()):
            continue
        kind = type(module).__name__
        if any(base.__name__ == "Linear" for base in type(module).__mro__):
            linear.append((name, module))
        elif module is not network and kind not in NO_EFFECT and not kind.endswith("Loss"):
            other.append((name, module))
    return linear, other


def _check_parameters(argument: str, network: Module, layers: list[Any]) -> None:
    """Raise ValueError if the network has parameters that are not in its Linear layers."""
    layer_parameters = {
        id(getattr(layer, name, None)) for layer in layers for name in ("weight", "bias")
    }
    for name, parameter in network.named_parameters():
        if id(parameter) not in layer_parameters:
            fix = f"not a parameter of the two Linear layers. {EXPECTED}"
            raise checks.reject(argument, f"{type(network).__name__} with parameter {name!r}", fix)


def _two_layers(argument: str, linear: list[tuple[str, Any]]) -> tuple[Any, Any]:
    """First and second layer; a network without a second one must have a single unit."""
    shapes = [tuple(module.weight.shape) for _, module in linear]
    if len(linear) == 2 and shapes[1] == (1, shapes[0][0]):
        return linear[0][1], linear[1][1]
    if len(linear) == 1 and shapes[0][0] == 1:
        return linear[0][1], None
    described = " and ".join(f"Linear{shape[::-1]}" for shape in shapes) or "no Linear layer"
    raise checks.reject(
        argument,
        f"a network with {described}",
        f"not a two-layer network with one output. {EXPECTED}",
    )


def _activation(
    argument: str,
    other: list[tuple[str, Any]],
    activation: ActivationLike | None,
    default: Activation | None,
) -> Activation:
    """The activation between the layers: the argument, or that of the module in between."""
    name = ACTIVATION_ARGUMENTS[argument]
    if activation is not None:
        return find_activation(activation, name)
    kinds = [type(module).__name__ for _, module in other]
    if len(kinds) == 1 and kinds[0] in MODULES:
        return MODULES[kinds[0]](other[0][1])
    if not kinds:
        # The comparison with the output of the network tests this assumption.
        return default or find_activation("linear")
    fix = (
        "the modules between its layers are not a known activation. Use one of "
        f"torch.nn.{', '.join(MODULES)}, or set {name}=."
    )
    raise checks.reject(argument, f"a network with {', '.join(kinds)}", fix)


def _common_bias(
    argument: str,
    linear: list[tuple[str, Any]],
    biases: dict[str, Any],
    groups: list[dict[str, Any]],
) -> float:
    """Return the common value of the frozen biases of the first layer.

    It becomes part of the activation. Raises ValueError for trained biases, and for frozen ones
    that no activation can contain.
    """
    shift = 0.0
    for name, bias in biases.items():
        layer = f"{argument}.{name}.bias" if name else f"{argument}.bias"
        if find_group(bias, groups) is not None:
            fix = (
                "trained biases are not supported. Build the layer with bias=False, or set the "
                "bias to 0 and freeze it (requires_grad=False)."
            )
            raise checks.reject(layer, f"a trained parameter of shape {tuple(bias.shape)}", fix)
        values = as_array(layer, bias)
        if name == linear[0][0] and np.all(values == values[0]):
            shift = float(values[0])
        elif np.any(values != 0):
            fix = (
                "frozen biases must be 0, or equal in all units of the first layer. Build the "
                "layer with bias=False, or set the bias to 0."
            )
            raise checks.reject(layer, values.round(3).tolist(), fix)
    return shift


def _output_scale(
    argument: str,
    network: Module,
    parameter: Tensor,
    weights: np.ndarray,
    head: np.ndarray,
    function: Activation,
    input_scale: float,
) -> float:
    """Return the ratio of the output of the network to sum_i head_i s(input_scale w_i.x).

    The ratio is a least-squares fit on random inputs, rounded to 1, 1/p or 1/sqrt(p) if close.
    Raises ValueError if the two are not proportional on random inputs.
    """
    p, d = weights.shape
    inputs = np.random.default_rng(0).standard_normal((PROBES, d))
    output = _call_module(argument, network, tensor_like(parameter, inputs))
    if output.size != PROBES:
        raise checks.reject(
            argument,
            f"a network with outputs of shape {output.shape[1:]}",
            f"it has several outputs. {EXPECTED}",
        )
    output = output.reshape(-1)
    fields = input_scale * inputs @ weights.T
    with jax.enable_x64(True):
        units = np.asarray(jax.vmap(jax.vmap(function.f))(jnp.asarray(fields)))
    expected = units @ head
    precision = str(getattr(parameter, "dtype", "")).rpartition(".")[2]
    tolerance = 0.05 if precision in HALF_PRECISION else 1e-3
    size = float(np.linalg.norm(expected))
    scale = float(output @ expected) / size**2 if size > 0 else 1.0
    for candidate in (1.0, 1 / p, p**-0.5):
        if abs(scale / candidate - 1) < tolerance:
            scale = candidate
    if np.linalg.norm(output - scale * expected) > tolerance * max(np.linalg.norm(output), 1e-12):
        fix = (
            f"its output is not proportional to second({function.label}(input_scale first(x))). "
            f"Set {ACTIVATION_ARGUMENTS[argument]}= and input_scale= as in its forward(), and "
            "disable dropout."
        )
        raise checks.reject(argument, type(network).__name__, fix)
    if scale <= 0:
        raise checks.reject(
            argument,
            f"a network whose output has the factor {scale:.3g}",
            "the factor must be above 0.",
        )
    return scale


def tensor_like(parameter: Tensor, values: np.ndarray) -> Tensor:
    """Return values as a tensor of the type and device of a parameter.

    For a parameter without `new_tensor` they stay a NumPy array.
    """
    new_tensor = getattr(parameter, "new_tensor", None)
    return cast(Tensor, new_tensor(values)) if callable(new_tensor) else values


def _call_module(argument: str, function: Callable[..., object], *arguments: object) -> np.ndarray:
    """Return the output of a module as an array."""
    try:
        value = function(*arguments)
    except Exception as error:
        raise checks.reject(
            argument, function, f"calling it failed with {checks.reason(error)}."
        ) from error
    return as_array(f"output of {argument}", value)


def loss_scale(loss: Loss, batch: int, parameter: Tensor) -> float:
    """Ratio of a loss over a batch to the mean of (f - y)^2/2 over it.

    2 for ``torch.nn.MSELoss()``, 2 batch for ``reduction="sum"``, 1 for a halved mean.
    """
    expected = (
        "Pass torch.nn.MSELoss() (mean or sum), a function loss(output, target) proportional to "
        "it, or 'mse' for the mean of (f - y)^2, 'half_mse' for the mean of (f - y)^2/2."
    )
    if isinstance(loss, str):
        if loss not in SQUARED_LOSSES:
            raise checks.reject(
                "loss", loss, f"{checks.did_you_mean(loss, SQUARED_LOSSES)}{expected}"
            )
        return SQUARED_LOSSES[loss]
    if isinstance(loss, type) or not callable(loss):
        raise checks.reject("loss", loss, f"not a loss function. {expected}")
    for target_shape in ((batch, 1), (batch,)):
        ratio = _constant_ratio(loss, batch, target_shape, parameter)
        if ratio is not None and ratio > 0:
            return ratio
    raise checks.reject(
        "loss", loss, f"its values are not proportional to the squared error. {expected}"
    )


def _constant_ratio(
    loss: Callable[..., object], batch: int, target_shape: tuple[int, ...], parameter: Tensor
) -> float | None:
    """Ratio of a loss to the mean of (f - y)^2/2, or None if it varies between random batches."""
    generator, ratios = np.random.default_rng(1), []
    for size in (0.3, 1.0, 3.0, 10.0):
        output, target = size * generator.standard_normal((2, batch))
        arguments = (
            tensor_like(parameter, output[:, None]),
            tensor_like(parameter, target.reshape(target_shape)),
        )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch warns of shapes that it broadcasts
                value = as_array("output of loss", loss(*arguments))
        except Exception:
            # The loss does not accept these shapes or types: it is not a squared loss of them.
            return None
        if value.size != 1:
            return None
        ratios.append(float(value.reshape(())) / float(np.mean((output - target) ** 2) / 2))
    ratio = float(np.mean(ratios))
    if np.ptp(ratios) > 1e-2 * abs(ratio):
        return None
    # In single precision the ratio has an error of 1e-6. Multiples of 1/2 are meant exactly.
    nearest = round(2 * ratio) / 2
    return nearest if nearest and abs(ratio / nearest - 1) < 1e-3 else ratio
