"""`from_network`: a small network of Equinox, Flax, PyTorch or plain JAX as a problem and a start.

The network reads its inputs through one linear layer. Its weight W becomes the rows, and all other
parameters the top. With the identity in place of W, the network maps the fields W x to its
output: this is the function on top of the rows, whatever library wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, Numeric, Parameters, PyTree
from sgdynamics.base.precision import float64
from sgdynamics.problems.losses import LOSSES, OuterLoss, squared
from sgdynamics.problems.models.model import validate_noise
from sgdynamics.problems.network_overlaps import as_array
from sgdynamics.problems.overlap_starts import Start
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.starts import start
from sgdynamics.problems.torch_modules import trace_module

PROBES = 8  # random inputs on which the function of the fields is compared with the network
TOLERANCE = 1e-4  # relative, as networks are usually in single precision
EXPECTED = (
    "give a network that reads its inputs through one linear layer: an Equinox, Flax NNX or "
    "PyTorch module, a Flax Linen module with its parameters, or a JAX function(parameters, x) "
    "with its parameters"
)


@dataclass(frozen=True)
class JaxNetwork:
    """A network as a JAX function.

    Attributes
    ----------
    apply : callable
        Function of the parameters by name and of one input, which returns the output.
    parameters : dict of str to ndarray
        All parameters by name.
    frozen : frozenset of str
        Names of parameters that are not trained.
    """

    apply: Callable[[dict[str, Any], Any], Any]
    parameters: dict[str, np.ndarray]
    frozen: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class ModuleLoss:
    """The loss of a network as a function of the fields of its first layer.

    Attributes
    ----------
    network : JaxNetwork
        The network.
    first : str
        Name of the weight of the first layer, a square matrix here.
    target : callable
        Function of the signals that returns the label.
    function : callable
        Loss of an output and a label.
    """

    network: JaxNetwork
    first: str
    target: Function
    function: OuterLoss

    @property
    def outer(self) -> OuterLoss | None:
        """The squared loss, whose label noise adds a constant to the risk; None for others."""
        return squared if self.function is squared else None

    @property
    def top(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the trained parameters on top of the first layer."""
        return {
            name: value.shape
            for name, value in self.network.parameters.items()
            if name != self.first and name not in self.network.frozen
        }

    def output(self, fields: Float[Numeric, " p"], top: dict[str, Any]) -> Numeric:
        """Return the output of the network, a number if there is only one."""
        constants = {
            name: jnp.asarray(self.network.parameters[name], fields.dtype)
            for name in self.network.frozen
        }
        identity = jnp.eye(fields.shape[0], dtype=fields.dtype)
        value = self.network.apply({**constants, **top, self.first: identity}, fields)
        value = jnp.asarray(value)
        return value.reshape(()) if value.size == 1 else value

    def __call__(
        self,
        fields: Float[Numeric, " p"],
        signals: Float[Numeric, " K"],
        top: dict[str, Any],
        noise_draw: Numeric,
        parameters: Parameters,
    ) -> Float[Numeric, ""]:
        label = self.target(signals)
        if self.function is squared:
            label = label + jnp.sqrt(parameters["noise"]) * noise_draw
        return self.function(self.output(fields, top), label)


@float64
def from_network(
    network: Any,
    parameters: PyTree = None,
    *,
    teacher: ArrayArgument,
    target: Function,
    loss: str | Function = "squared",
    noise: float | Function = 0.0,
    weight_decay: float | Function | Mapping[str, Any] = 0.0,
    input_scale: float = 1.0,
) -> tuple[Problem, Start]:
    """Turn a small network into a problem with a trained top, and its parameters into a start.

    The weight of its first linear layer becomes the rows, and all other parameters become the
    leaves of the top, under their names in the network.

    Parameters
    ----------
    network : module or callable
        An Equinox, Flax NNX or PyTorch module of one input, a Flax Linen module, or a JAX
        function ``network(parameters, x)``. The network may be at any moment of its training.
    parameters : pytree, optional
        Parameters of a Linen module or of a function; other modules contain theirs.
    teacher : array_like
        Directions (K, d) on which the labels depend.
    target : callable
        JAX function of the K signals ``teacher @ x`` that returns the label, of any shape.
    loss : str or callable, default "squared"
        "squared" is (f - y)^2/2; or a JAX function of the output of the network and the label that
        returns a number.
    noise : float or callable, default 0.0
        Variance of the label noise, for the squared loss, or a function of alpha.
    weight_decay : float, callable or dict, default 0.0
        Weight decay, as of ``Problem``, also by leaf.
    input_scale : float, default 1.0
        Scale s of the inputs s x of the network, with x ~ N(0, I).

    Returns
    -------
    problem : Problem
        Problem whose top has the parameters of the network.
    start : Start
        Overlaps of the first layer with itself and with the teacher, and the top.

    Raises
    ------
    ValueError
        If the network does not read its inputs through one linear layer only, or an argument is
        invalid. The message names the argument, the value and the fix.

    Notes
    -----
    A network that is trained by plain SGD with one learning rate lr_T on inputs s x has
    ``lr = d s^2 lr_T`` and ``head_rate = 1/s^2``, with lr doubled for the loss (f - y)^2 of
    ``torch.nn.MSELoss``. Parameters of PyTorch with ``requires_grad=False`` stay fixed; for others,
    set a head_rate of 0. The function of the fields is compared with the network itself on random
    inputs.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> def network(parameters, x):
    ...     return parameters["u"] @ jnp.tanh(parameters["W"] @ x + parameters["b"])
    >>> parameters = {"W": np.eye(2, 50), "b": np.zeros(2), "u": np.ones(2)}
    >>> problem, start = sgd.from_network(
    ...     network, parameters, teacher=np.eye(1, 50), target=lambda z: jnp.tanh(z[0] - 0.5)
    ... )
    >>> problem.structure.top.names
    ('b', 'u')
    """
    read = read_network(network, parameters)
    rows = as_array("teacher", teacher)
    if rows.ndim != 2 or 0 in rows.shape:
        raise checks.reject("teacher", f"array of shape {rows.shape}", "give directions (K, d)")
    if not callable(target):
        raise checks.reject("target", target, "give a JAX function of the signals")
    scale = checks.number("input_scale", input_scale, above=0.0)
    outer = LOSSES.get(loss) if isinstance(loss, str) else loss
    if not callable(outer):
        fix = f"give one of {', '.join(LOSSES)} or a JAX function of (output, label)"
        raise checks.reject("loss", loss, fix)
    variance = validate_noise(noise)
    if outer is not squared and (callable(noise) or noise != 0.0):
        raise checks.reject("noise", noise, 'only for loss="squared". Put it into the loss')
    if not np.isfinite(gram := _gram(rows)).all():
        raise checks.reject("teacher", "rows beyond float64", "give rows of norm O(1)")
    sample_loss, weight = _find_first_layer(read, rows.shape[1], target, outer)
    if not sample_loss.top:
        raise checks.reject("network", type(network).__name__, f"it has no top. {EXPECTED}")
    problem = Problem(
        sample_loss,
        len(weight),
        len(rows),
        gram=gram,
        top=sample_loss.top,
        weight_decay=weight_decay,
        parameters={"noise": variance},
    )
    weight = scale * weight
    values = {name: read.parameters[name] for name in sample_loss.top}
    with np.errstate(over="ignore", invalid="ignore"):  # `start` names what is not finite
        M = weight @ rows.T
    return problem, start(problem, M=M, Q=_gram(weight), top=values)


def _gram(rows: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return rows @ rows.T


def read_network(network: Any, parameters: PyTree = None) -> JaxNetwork:
    """Return a module or a function as a JAX function of its parameters by name."""
    if parameters is not None:
        is_linen = callable(getattr(network, "init", None))
        apply = getattr(network, "apply", None) if is_linen else network
        if not callable(apply) or isinstance(network, type):
            raise checks.reject("network", network, EXPECTED)
        if not isinstance(parameters, Mapping) or jax.tree.leaves(parameters) == [parameters]:
            fix = "give the dictionary of parameters that the function or module takes"
            raise checks.reject("parameters", parameters, fix)
        return _from_pytree(lambda tree, x: apply(tree, x), parameters)
    if isinstance(network, type) or not callable(network):
        raise checks.reject("network", network, EXPECTED)
    if callable(getattr(network, "named_parameters", None)):
        return _from_torch(network)
    if any(base.__module__.startswith("flax.nnx") for base in type(network).__mro__):
        return _from_nnx(network)
    if jax.tree.leaves(network) == [network]:
        fix = f"a function needs its parameters. {EXPECTED[0].upper()}{EXPECTED[1:]}"
        raise checks.reject("parameters", None, fix)
    return _from_pytree(lambda tree, x: tree(x), network)


def _from_pytree(apply: Callable[[PyTree, Any], Any], tree: PyTree) -> JaxNetwork:
    """Return the network of a pytree whose floating-point arrays are the parameters."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [leaf for _, leaf in paths]
    names = [_name(path) for path, _ in paths]
    values = {
        name: as_array(name, leaf)
        for name, leaf in zip(names, leaves, strict=True)
        if _is_parameter(leaf)
    }

    def apply_by_name(by_name: dict[str, Any], x: Any) -> Any:
        current = [by_name.get(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        return apply(jax.tree.unflatten(structure, current), x)

    return JaxNetwork(apply_by_name, values)


def _is_parameter(leaf: object) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and np.issubdtype(np.dtype(dtype), np.floating)


def _name(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf joined by points, without Flax's collection "params"."""
    keys = [
        str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path
    ]
    keys = keys[1:] if keys[0] == "params" and len(keys) > 1 else keys
    return ".".join(key for key in keys if key != "value") or "theta"


def _from_torch(network: Any) -> JaxNetwork:
    apply = trace_module(network)
    values, frozen = {}, set()
    for name, parameter in network.named_parameters():
        values[name] = as_array(name, parameter)
        if not parameter.requires_grad:
            frozen.add(name)
    for name, buffer in network.named_buffers():
        values[name] = as_array(name, buffer)
        frozen.add(name)
    result = JaxNetwork(apply, values, frozenset(frozen))
    weight = next((value for value in values.values() if value.ndim == 2), None)
    if weight is not None:
        _compare_with_torch(result, network, weight.shape[1])
    return result


def _compare_with_torch(read: JaxNetwork, network: Any, dimension: int) -> None:
    """Raise ValueError if the traced function differs from the module on random inputs."""
    torch = import_module("torch")
    probes = np.random.default_rng(1).standard_normal((PROBES, dimension)) / dimension**0.5
    dtype = next(network.parameters()).dtype
    with torch.no_grad():
        expected = as_array("network", network(torch.as_tensor(probes, dtype=dtype)))
    for x, output in zip(probes, expected, strict=True):
        if not _are_close(np.asarray(read.apply(read.parameters, jnp.asarray(x))), output):
            fix = (
                "its forward pass was not read correctly. Write it as a JAX function(parameters, "
                "x), and pass both"
            )
            raise checks.reject("network", type(network).__name__, fix)


def _from_nnx(network: Any) -> JaxNetwork:
    nnx = import_module("flax.nnx")
    graph, state = nnx.split(network)
    return _from_pytree(lambda tree, x: nnx.merge(graph, tree)(x), state)


def _find_first_layer(
    network: JaxNetwork, dimension: int, target: Function, function: OuterLoss
) -> tuple[ModuleLoss, np.ndarray]:
    """Return the loss and the weight (p, d) of the only layer that reads the inputs.

    Every matrix with d rows or columns is tried, and the network with the identity in its place is
    compared with the network itself.
    """
    probes = np.random.default_rng(0).standard_normal((PROBES, dimension))
    reasons = []
    for name, value in network.parameters.items():
        if value.ndim != 2 or dimension not in value.shape or name in network.frozen:
            continue
        for weight in (value, value.T):
            if weight.shape[1] != dimension:
                continue
            loss = ModuleLoss(network, name, target, function)
            try:
                if _is_first_layer(loss, weight, probes):
                    return loss, weight
            except Exception as error:  # shapes that do not fit: another layer
                reasons.append(f"{name}: {checks.reason(error)}")
    fix = (
        f"no layer with d = {dimension} inputs (as teacher has) is the only one that reads them"
        + (f" ({reasons[0]})" if reasons else "")
        + f". {EXPECTED[0].upper()}{EXPECTED[1:]}"
    )
    shapes = ", ".join(f"{name} {value.shape}" for name, value in network.parameters.items())
    raise checks.reject("network", f"a network with the parameters {shapes}", fix)


def _is_first_layer(loss: ModuleLoss, weight: np.ndarray, probes: np.ndarray) -> bool:
    """Whether the network of the fields W x equals the network of the inputs x."""
    parameters = {name: jnp.asarray(value) for name, value in loss.network.parameters.items()}
    top = {name: parameters[name] for name in loss.top}
    for x in probes:
        expected = np.asarray(loss.network.apply(parameters, jnp.asarray(x)))
        output = np.asarray(loss.output(jnp.asarray(weight @ x), top))
        if not _are_close(output.reshape(-1), expected.reshape(-1)):
            return False
    return True


def _are_close(first: np.ndarray, second: np.ndarray) -> bool:
    first, second = first.reshape(-1), second.reshape(-1)
    scale = max(float(np.abs(second).max(initial=0.0)), 1e-3)
    return first.shape == second.shape and float(np.abs(first - second).max()) < TOLERANCE * scale
