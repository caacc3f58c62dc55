"""PyTorch modules as JAX functions, by the graph that ``torch.fx`` traces of their forward pass.

Operations are recognised by their names, and the JAX function is compared with the module itself
on random inputs by the caller. PyTorch is imported only if a module is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

from sgdynamics.base import checks
from sgdynamics.base.arrays import Function, Numeric

# Axes of a reduction, as PyTorch takes them
Dims = int | Sequence[int] | None


def _reduction_arguments(dim: Dims, keepdim: bool) -> dict[str, Any]:
    axis = tuple(dim) if isinstance(dim, (list, tuple)) else dim
    return {"axis": axis, "keepdims": keepdim}


def _mean(x: Numeric, dim: Dims = None, keepdim: bool = False) -> Numeric:
    return jnp.mean(x, **_reduction_arguments(dim, keepdim))


def _sum(x: Numeric, dim: Dims = None, keepdim: bool = False) -> Numeric:
    return jnp.sum(x, **_reduction_arguments(dim, keepdim))


def _softmax(x: Numeric, dim: int = -1, **options: object) -> Numeric:
    return jax.nn.softmax(x, axis=-1 if dim is None else dim)


def _log_softmax(x: Numeric, dim: int = -1, **options: object) -> Numeric:
    return jax.nn.log_softmax(x, axis=-1 if dim is None else dim)


def _gelu(x: Numeric, approximate: str = "none") -> Numeric:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _softplus(x: Numeric, beta: float = 1.0, threshold: float = 20.0) -> Numeric:
    return jax.nn.softplus(beta * x) / beta


def _activation(function: Callable[[Any], Numeric]) -> Callable[..., Numeric]:
    """Return the function without PyTorch's option to overwrite its argument."""
    return lambda x, inplace=False: function(x)


def _flatten(x: Numeric, start_dim: int = 0, end_dim: int = -1) -> Numeric:
    last = end_dim % x.ndim
    return jnp.reshape(x, (*x.shape[:start_dim], -1, *x.shape[last + 1 :]))


def _chunk(x: Numeric, chunks: int, dim: int = 0) -> list[Numeric]:
    return list(jnp.array_split(x, chunks, axis=dim))


def _cat(arrays: Sequence[Numeric], dim: int = 0) -> Numeric:
    return jnp.concatenate(list(arrays), axis=dim)


def _reshape(x: Numeric, *shape: int | Sequence[int]) -> Numeric:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return jnp.reshape(x, sizes)


def _squeeze(x: Numeric, dim: int | None = None) -> Numeric:
    # PyTorch leaves an axis of another length than 1 as it is
    if dim is not None and x.shape[dim] != 1:
        return x
    return jnp.squeeze(x, axis=dim)


def _unsqueeze(x: Numeric, dim: int) -> Numeric:
    return jnp.expand_dims(x, dim)


def _linear(x: Numeric, weight: Numeric, bias: Numeric | None = None) -> Numeric:
    return x @ weight.T if bias is None else x @ weight.T + bias


# Functions, operators and methods of tensors by name.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, alpha=1: x + alpha * y,
    "iadd": lambda x, y: x + y,
    "sub": lambda x, y, alpha=1: x - alpha * y,
    "mul": lambda x, y: x * y,
    "truediv": lambda x, y: x / y,
    "div": lambda x, y: x / y,
    "neg": lambda x: -x,
    "pow": lambda x, exponent: x**exponent,
    "matmul": lambda x, y: x @ y,
    "getitem": lambda x, index: x[index],
    "square": lambda x: x * x,
    "sqrt": jnp.sqrt,
    "rsqrt": lambda x: 1 / jnp.sqrt(x),
    "exp": jnp.exp,
    "log": jnp.log,
    "abs": jnp.abs,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "erf": jax.scipy.special.erf,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "relu": _activation(jax.nn.relu),
    "silu": _activation(jax.nn.silu),
    "gelu": _gelu,
    "softplus": _softplus,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "mean": _mean,
    "sum": _sum,
    "flatten": _flatten,
    "reshape": _reshape,
    "view": _reshape,
    "squeeze": _squeeze,
    "unsqueeze": _unsqueeze,
    "chunk": _chunk,
    "cat": _cat,
    "linear": _linear,
    "contiguous": lambda x: x,
}


def _layer_norm(module: Any, x: Numeric, own: Mapping[str, Numeric]) -> Numeric:
    axes = tuple(range(-len(module.normalized_shape), 0))
    centred = x - jnp.mean(x, axis=axes, keepdims=True)
    variance = jnp.mean(centred**2, axis=axes, keepdims=True)
    return _rescale(centred / jnp.sqrt(variance + module.eps), own)


def _rms_norm(module: Any, x: Numeric, own: Mapping[str, Numeric]) -> Numeric:
    axes = tuple(range(-len(module.normalized_shape), 0))
    eps = jnp.finfo(x.dtype).eps if module.eps is None else module.eps
    return _rescale(x / jnp.sqrt(jnp.mean(x**2, axis=axes, keepdims=True) + eps), own)


def _rescale(x: Numeric, own: Mapping[str, Numeric]) -> Numeric:
    """Return x times the weight of a norm layer, plus its bias, if it has them."""
    x = x * own["weight"] if "weight" in own else x
    return x + own["bias"] if "bias" in own else x


# Modules by class name: functions of the module, its input and its own parameters.
MODULES: dict[str, Callable[[Any, Any, Mapping[str, Any]], Any]] = {
    "Linear": lambda module, x, own: _linear(x, own["weight"], own.get("bias")),
    "Identity": lambda module, x, own: x,
    "Dropout": lambda module, x, own: x,  # only in the test mode, or of probability 0
    "ReLU": lambda module, x, own: jax.nn.relu(x),
    "Tanh": lambda module, x, own: jnp.tanh(x),
    "Sigmoid": lambda module, x, own: jax.nn.sigmoid(x),
    "SiLU": lambda module, x, own: jax.nn.silu(x),
    "GELU": lambda module, x, own: _gelu(x, module.approximate),
    "Softplus": lambda module, x, own: _softplus(x, module.beta),
    "LeakyReLU": lambda module, x, own: jnp.where(x > 0, x, module.negative_slope * x),
    "ELU": lambda module, x, own: jax.nn.elu(x, module.alpha),
    "Softmax": lambda module, x, own: _softmax(x, module.dim),
    "LogSoftmax": lambda module, x, own: _log_softmax(x, module.dim),
    "Flatten": lambda module, x, own: _flatten(x, module.start_dim, module.end_dim),
    "LayerNorm": _layer_norm,
    "RMSNorm": _rms_norm,
}


def trace_module(module: Any) -> Callable[[Mapping[str, Any], Any], Any]:
    """Return the forward pass as a JAX function (parameters by name, one input) -> output.

    Raises ValueError for an operation that has no counterpart here.
    """
    try:
        graph_module = import_module("torch.fx").symbolic_trace(module)
    except Exception as error:
        fix = (
            f"its forward pass could not be traced: {checks.reason(error)}. Write it as a JAX "
            "function(parameters, x), and pass both"
        )
        raise checks.reject("network", type(module).__name__, fix) from error
    nodes, children = list(graph_module.graph.nodes), dict(graph_module.named_modules())
    for node in nodes:
        _require_known(node, children)

    def apply(parameters: Mapping[str, Any], x: Numeric) -> Any:
        values: dict[Any, Any] = {}
        for node in nodes:
            if node.op == "output":
                return _lookup(node.args[0], values)[0]
            values[node] = _evaluate(node, values, parameters, children, x)
        raise AssertionError("a traced graph has an output")

    return apply


def _require_known(node: Any, children: Mapping[str, Any]) -> None:
    """Raise ValueError for an operation without a counterpart."""
    if node.op == "call_module":
        module = children[node.target]
        name = type(module).__name__
        if name == "Dropout" and module.training and module.p > 0:
            fix = "dropout is random. Use network.eval(), or a Dropout of probability 0"
            raise checks.reject("network", f"a module with {name}", fix)
        operations: Mapping[str, Any] = MODULES
    elif node.op in ("call_function", "call_method"):
        name, operations = _function_name(node.target), FUNCTIONS
    else:
        return
    if name not in operations:
        fix = (
            f"supported are {', '.join(operations)}. Write the network as a JAX "
            "function(parameters, x), and pass both"
        )
        raise checks.reject("network", f"a module with {name}", fix)


def _function_name(target: Function | str) -> str:
    return (target if isinstance(target, str) else target.__name__).strip("_")


def _evaluate(
    node: Any,
    values: Mapping[Any, Any],
    parameters: Mapping[str, Any],
    children: Mapping[str, Any],
    x: Numeric,
) -> Any:
    """Return the value of one node of the graph. The input has a leading axis of length 1."""
    if node.op == "placeholder":
        return x[None]
    if node.op == "get_attr":
        return parameters[node.target]
    arguments = _lookup(list(node.args), values)
    if node.op == "call_module":
        prefix = f"{node.target}."
        own = {
            name.removeprefix(prefix): value
            for name, value in parameters.items()
            if name.startswith(prefix)
        }
        module = children[node.target]
        return MODULES[type(module).__name__](module, arguments[0], own)
    options = _lookup(dict(node.kwargs), values)
    return FUNCTIONS[_function_name(node.target)](*arguments, **options)


def _lookup(argument: object, values: Mapping[Any, Any]) -> Any:
    """Return an argument with the nodes in it replaced by their values."""
    if isinstance(argument, (list, tuple)):
        return type(argument)(_lookup(item, values) for item in argument)
    if isinstance(argument, dict):
        return {name: _lookup(item, values) for name, item in argument.items()}
    if isinstance(argument, slice):
        return argument
    return values[argument] if _is_node(argument) and argument in values else argument


def _is_node(argument: object) -> bool:
    return type(argument).__name__ == "Node"
