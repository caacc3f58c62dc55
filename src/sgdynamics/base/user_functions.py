"""Users' functions as arguments: checked on shapes before anything is compiled from them."""

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
    """Whether a function can be called with two arguments in a row."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


@float64
def output_structure(function: Callable, *arguments: PyTree) -> Any:
    """What a JAX function returns, as shapes and types; IndexError where it asks for an entry that is not there.

    JAX would answer that with the last entry. Traced in float64 as everything later: JAX keeps a closed-over array in the precision that
    it first saw.
    """
    output = jax.eval_shape(function, *arguments)
    try:
        # NumPy's arrays refuse such an index, and everything else is traced as before
        with np.errstate(all="ignore"):
            jax.eval_shape(lambda: jnp.asarray(function(*arguments)))
    except IndexError:
        raise
    except Exception:  # it does with its arguments what only JAX's arrays can
        pass
    return output


def output_shape(function: Callable, *arguments: PyTree) -> tuple[int, ...]:
    """The shape that a JAX function returns."""
    return output_structure(function, *arguments).shape


# operations that are smooth wherever a loss is finite, and those that only move numbers about; roots and powers are not: sqrt(x^2) = |x|
_SMOOTH = frozenset(
    (
        *(
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
        ),
        *(
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
        ),
        *(
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
        ),
        *("pad", "copy", "rev", "convert_element_type"),
    )
)
CALL_PRIMITIVES = (
    "pjit",
    "jit",
    "custom_jvp_call",
    "closed_call",
    "core_call",
)  # primitives that only call another jaxpr


@float64
def analyse_function(
    function: Callable, *arguments: Any, random: Sequence[Any]
) -> tuple[bool, list[bool]]:
    """Whether a JAX function is smooth in its random arguments as far as its operations tell, and which arguments it uses at all.

    `random` says for each argument whether it is: True, False, or for a dictionary the names of what is.

    Sums, products, exp, tanh, erf and their kind are known to be smooth. Whatever else is done with a random number (abs, where, sign,
    roots, a gradient that is stopped) counts as a kink, also where it is none.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    used = {id(one) for equation in jaxpr.eqns for one in equation.invars} | {
        id(one) for one in jaxpr.outvars
    }
    counts = np.cumsum([0, *(len(jax.tree.leaves(argument)) for argument in arguments)])
    parts = [jaxpr.invars[low:high] for low, high in itertools.pairwise(counts)]
    tainted = {
        id(one)
        for argument, part, which in zip(arguments, parts, random, strict=False)
        for one in _chosen(argument, part, which)
    }
    return _smooth(jaxpr, tainted), [any(id(one) in used for one in part) for part in parts]


def _chosen(argument: Any, variables: list[Any], which: Any) -> list[Any]:
    """The variables of an argument that are random."""
    if isinstance(which, bool):
        return variables if which else []
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(argument)]
    return [one for path, one in zip(paths, variables, strict=True) if path[0].key in which]


def _smooth(jaxpr: Any, random: set[int]) -> bool:
    """Whether all that is done with random variables is smooth; `random` are the ids of those among its arguments."""
    for equation in jaxpr.eqns:
        if not any(id(one) in random for one in equation.invars):
            continue
        random |= {id(one) for one in equation.outvars}
        name = equation.primitive.name
        bodies = [body for body, _ in inner_jaxprs(equation)]
        if bodies and (
            name not in CALL_PRIMITIVES
            or not all(_smooth(body, {id(one) for one in body.invars}) for body in bodies)
        ):
            return False
        real = all(jnp.issubdtype(one.aval.dtype, jnp.floating) for one in equation.outvars)
        if not bodies and (name not in _SMOOTH or not real):
            return False
    return True


@runtime_checkable
class Equation(Protocol):
    """One operation of a jaxpr, as `jax.extend.core.JaxprEqn` has it; a protocol, so that nothing experimental is imported."""

    @property
    def primitive(self) -> Any: ...
    @property
    def params(self) -> dict[str, Any]: ...
    @property
    def invars(self) -> Sequence[Any]: ...
    @property
    def outvars(self) -> Sequence[Any]: ...


@runtime_checkable
class Jaxpr(Protocol):
    """Operations of a traced function, as `jax.extend.core.Jaxpr` has them."""

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


def _is_jaxpr(value: Any) -> bool:
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
    """Refuse what is no JAX function from these arguments to one real number (or an array of them), and say why.

    `takes` names its arguments and `call` what it was called on. Where it is `differentiated`, whole numbers are refused too: no gradient
    goes through them. `label` is shown in place of the function, where that is a wrapper of the library's.
    """
    shown = function if label is None else label
    if not callable(function):
        raise checks.reject(argument, shown, f"give a JAX function of ({takes})")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        raise checks.reject(argument, shown, f"calling it failed: it must take ({takes})") from None
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
        what = "None: is a return missing?" if output is None else f"a {type(output).__name__}"
        raise checks.reject(argument, shown, f"{call} must give one number, but it gave {what}")
    if one_number and shape != ():
        raise checks.reject(
            argument, shown, f"{call} must give one number, but it gave shape {shape}"
        )
    if jnp.issubdtype(output.dtype, jnp.complexfloating):
        raise checks.reject(
            argument,
            shown,
            f"{call} must give one real number, but it gave a complex one: take its real part",
        )
    if differentiated and not jnp.issubdtype(output.dtype, jnp.floating):
        raise checks.reject(
            argument,
            shown,
            f"it gives values of type {output.dtype}, through which no gradient goes: write 1.0 for 1, or multiply by 1.0",
        )
