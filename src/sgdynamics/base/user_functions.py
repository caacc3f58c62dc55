"""Functions of users as arguments: they are validated on shapes before anything is compiled."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from sgdynamics.base import checks
from sgdynamics.base.arrays import PyTree
from sgdynamics.base.identity import function_identity as function_identity
from sgdynamics.base.precision import float64


def accepts_two_arguments(function: Callable) -> bool:
    """Whether a function can be called with two positional arguments."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


@float64
def output_structure(function: Callable, *arguments: PyTree) -> PyTree:
    """The output of a JAX function as shapes and types.

    An index out of bounds raises IndexError; JAX itself would return the last entry. The function
    is traced in float64, as all later calls are, because JAX keeps a closed-over array in the
    precision in which it first appeared.
    """
    output = jax.eval_shape(function, *arguments)
    try:
        # NumPy arrays raise for such an index, and everything else is traced as before.
        with np.errstate(all="ignore"):
            jax.eval_shape(lambda: jnp.asarray(function(*arguments)))
    except IndexError:
        raise
    except Exception:  # the function needs methods that only JAX arrays have
        pass
    return output


def output_shape(function: Callable, *arguments: PyTree) -> tuple[int, ...]:
    """The shape that a JAX function returns."""
    return output_structure(function, *arguments).shape


# Operations that are smooth wherever a loss is finite, and operations that only move numbers. Roots
# and powers are not among them: sqrt(x^2) = |x|.
_SMOOTH = frozenset(
    [
        "add",
        "sub",
        "mul",
        "neg",
        "div",
        "integer_pow",
        "square",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log1p",
        "tanh",
        "sinh",
        "cosh",
        "logistic",
        "sin",
        "cos",
        "asinh",
        "atan",
        "erf",
        "erfc",
        "dot_general",
        "reduce_sum",
        "reduce_prod",
        "cumsum",
        "add_any",
        "broadcast_in_dim",
        "reshape",
        "transpose",
        "squeeze",
        "expand_dims",
        "slice",
        "concatenate",
        "stack",
        "unstack",
        "split",
        "pad",
        "copy",
        "rev",
        "convert_element_type",
    ]
)
# Primitives that only call another jaxpr.
CALL_PRIMITIVES = ("pjit", "jit", "custom_jvp_call", "closed_call", "core_call")


@float64
def analyse_function(
    function: Callable, *arguments: PyTree, random: Sequence[bool | Sequence[str]]
) -> tuple[bool, list[bool]]:
    """Whether a JAX function is smooth in its random arguments, and which arguments it reads.

    `random` says for each argument whether it is random: True, False, or for a dictionary the names
    of its random entries. Sums, products, exp, tanh, erf and similar operations are known to be
    smooth. Any other operation on a random number (abs, where, sign, roots, stopped gradients)
    counts as a kink, even if it is none.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    used |= {id(variable) for variable in jaxpr.outvars}
    counts = np.cumsum([0, *(len(jax.tree.leaves(argument)) for argument in arguments)])
    # The variables of the jaxpr that belong to each argument.
    variables = [jaxpr.invars[low:high] for low, high in itertools.pairwise(counts)]
    tainted = {
        id(variable)
        for argument, own_variables, names in zip(arguments, variables, random, strict=False)
        for variable in _random_variables(argument, own_variables, names)
    }
    reads = [any(id(variable) in used for variable in own) for own in variables]
    return _is_smooth(jaxpr, tainted), reads


def _random_variables(
    argument: PyTree, variables: list[Any], random: bool | Sequence[str]
) -> list[Any]:
    """The variables of an argument that are random."""
    if isinstance(random, bool):
        return variables if random else []
    paths: list[Any] = [path for path, _ in jax.tree_util.tree_leaves_with_path(argument)]
    pairs = zip(paths, variables, strict=True)
    return [variable for path, variable in pairs if path[0].key in random]


def _is_smooth(jaxpr: Jaxpr, tainted: set[int]) -> bool:
    """Whether all operations on tainted variables, given by their ids, are smooth."""
    for equation in jaxpr.eqns:
        if not any(id(variable) in tainted for variable in equation.invars):
            continue
        tainted |= {id(variable) for variable in equation.outvars}
        name = equation.primitive.name
        bodies = [body for body, _ in inner_jaxprs(equation)]
        if bodies and name not in CALL_PRIMITIVES:
            return False
        # A called function counts as smooth only if it is smooth in all of its arguments.
        if not all(_is_smooth(body, {id(variable) for variable in body.invars}) for body in bodies):
            return False
        real = all(
            jnp.issubdtype(variable.aval.dtype, jnp.floating) for variable in equation.outvars
        )
        if not bodies and (name not in _SMOOTH or not real):
            return False
    return True


@runtime_checkable
class Primitive(Protocol):
    """An elementary operation of JAX, as in `jax.extend.core.Primitive`."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class Equation(Protocol):
    """One operation of a jaxpr, as in `jax.extend.core.JaxprEqn`.

    It is a protocol, so that nothing experimental is imported.
    """

    @property
    def primitive(self) -> Primitive: ...
    @property
    def params(self) -> dict[str, Any]: ...
    @property
    def invars(self) -> Sequence[Any]: ...
    @property
    def outvars(self) -> Sequence[Any]: ...


@runtime_checkable
class Jaxpr(Protocol):
    """The operations of a traced function, as in `jax.extend.core.Jaxpr`."""

    @property
    def constvars(self) -> Sequence[Any]: ...
    @property
    def invars(self) -> Sequence[Any]: ...
    @property
    def outvars(self) -> Sequence[Any]: ...
    @property
    def eqns(self) -> Sequence[Equation]: ...


@runtime_checkable
class ClosedJaxpr(Protocol):
    """A jaxpr with the values of its constants."""

    @property
    def jaxpr(self) -> Jaxpr: ...
    @property
    def consts(self) -> Sequence[Any]: ...


def inner_jaxprs(equation: Equation) -> list[tuple[Any, Sequence[Any]]]:
    """The jaxprs among the parameters of an equation, each with the values of its constants."""
    leaves = jax.tree.leaves(list(equation.params.values()), is_leaf=_is_jaxpr)
    return [
        (getattr(leaf, "jaxpr", leaf), getattr(leaf, "consts", ()))
        for leaf in leaves
        if _is_jaxpr(leaf)
    ]


def _is_jaxpr(value: object) -> bool:
    return hasattr(value, "eqns") or hasattr(getattr(value, "jaxpr", None), "eqns")


def validate_function(
    argument: str,
    function: object,
    arguments: tuple[Any, ...],
    *,
    takes: str,
    call: str,
    differentiated: bool = True,
    label: str | None = None,
    one_number: bool = True,
) -> None:
    """Raise ValueError unless this is a JAX function from these arguments to one real number.

    Without `one_number` it may return an array. `takes` names its arguments, and `call` what it is
    called on. If it is `differentiated`, integers raise too, because they have no gradient. `label`
    is shown in place of the function where that is a wrapper of the library.
    """
    shown = function if label is None else label
    if not callable(function):
        raise checks.reject(argument, shown, f"give a JAX function of ({takes})")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise checks.reject(argument, shown, f"must take the arguments ({takes}).") from None
    except ValueError:
        pass  # some callables have no signature to read; the call below still runs them
    try:
        output = output_structure(function, *arguments)
    except Exception as error:
        hint = ""
        if isinstance(error, jax.errors.TracerBoolConversionError):
            hint = "; a Python `if` cannot look at a JAX number: use jnp.where"
        elif isinstance(
            error, (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError)
        ):
            hint = "; use jax.numpy in place of NumPy and of float()"
        raise checks.reject(
            argument, shown, f"calling it on {call} failed with: {checks.reason(error)}{hint}"
        ) from error
    shape, kind = (
        getattr(output, "shape", None),
        getattr(getattr(output, "dtype", None), "kind", None),
    )
    if shape is None or kind is None:
        returned = f"a {type(output).__name__}."
        if output is None:
            returned = "None. Check that it has a return statement."
        raise checks.reject(
            argument, shown, f"must return a scalar for {call}, but returned {returned}"
        )
    if one_number and shape != ():
        raise checks.reject(
            argument, shown, f"must return a scalar for {call}, but returned shape {shape}."
        )
    if jnp.issubdtype(output.dtype, jnp.complexfloating):
        raise checks.reject(
            argument,
            shown,
            f"must return a real scalar for {call}, but returned a complex one. "
            "Take its real part.",
        )
    if differentiated and not jnp.issubdtype(output.dtype, jnp.floating):
        raise checks.reject(
            argument,
            shown,
            f"returns numbers of type {output.dtype}, which have no gradient. Write 1.0 for 1, or "
            "multiply by 1.0.",
        )
