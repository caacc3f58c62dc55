"""Traced functions as flat lists of equations, split by what they depend on.

A kernel runs one function in many lanes: one lane is one run of the chain, or one sample of a data
set. The equations of the function are of three kinds:

- constant: computed while the function is traced (`constant_folding`),
- uniform: equal in all lanes, computed before the kernel by XLA with whole arrays,
- varying: different in each lane, unrolled inside of the kernel (`unroll`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr

from sgdynamics.base.arrays import ArrayArgument, Function, Numeric, PyTree
from sgdynamics.simulation.gpu.constant_folding import Primitive, evaluate

# Largest number of values that the varying equations may produce. Compilation of more takes
# minutes.
MAX_VALUES = 40_000

# Primitives that call another jaxpr, and the parameters under which JAX stores that jaxpr.
CALL_NAMES = """
jit pjit closed_call core_call remat remat2 checkpoint custom_jvp_call custom_vjp_call
"""
CALLS = frozenset(CALL_NAMES.split())
CALLED_JAXPR = ("jaxpr", "call_jaxpr", "fun_jaxpr")

# An operand of an equation: the index of a variable, or a constant.
Operand = int | np.ndarray


class NotUnrollable(ValueError):
    """A function uses an operation that has no unrolled form; the message names it."""


class Equation(NamedTuple):
    """One primitive applied to operands.

    Attributes
    ----------
    primitive : Primitive
        The operation.
    inputs : list of Operand
        Indices of variables, or constants.
    outputs : list of int
        Indices of the variables that the equation defines.
    params : dict
        Static parameters of the primitive.
    """

    primitive: Primitive
    inputs: list[Operand]
    outputs: list[int]
    params: dict[str, Any]

    @property
    def input_variables(self) -> list[int]:
        """The operands that are variables."""
        return [operand for operand in self.inputs if isinstance(operand, int)]


def shape_struct(value: ArrayArgument | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an array, a number or a `jax.ShapeDtypeStruct`; hashable."""
    return jax.ShapeDtypeStruct(np.shape(value), jnp.result_type(value))


@dataclass
class Program:
    """A function as a list of equations without calls, in single-assignment form.

    Attributes
    ----------
    variables : list of jax.ShapeDtypeStruct
        Shape and dtype of each variable.
    equations : list of Equation
        Equations in an order in which they can be evaluated.
    inputs : list of int
        Variables of the flattened arguments.
    outputs : list of Operand
        Variables or constants of the flattened result.
    """

    variables: list[jax.ShapeDtypeStruct] = field(default_factory=list)
    equations: list[Equation] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)

    def add_variable(self, aval: Any) -> int:
        """Add a variable with the shape and dtype of `aval` and return its index."""
        self.variables.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
        return len(self.variables) - 1

    def inline(
        self, jaxpr: Jaxpr, constants: Sequence[Any], arguments: Sequence[Operand]
    ) -> list[Operand]:
        """Append the equations of a jaxpr and of the jaxprs it calls; return its outputs."""
        # Variables of this jaxpr as operands of the program; an inlined jaxpr has its own.
        operands: dict[Any, Operand] = dict(
            zip(
                [*jaxpr.constvars, *jaxpr.invars],
                [*(np.asarray(constant) for constant in constants), *arguments],
                strict=True,
            )
        )

        def read(atom: Any) -> Operand:
            # Literals of a jaxpr carry their value; variables do not.
            if hasattr(atom, "val"):
                return np.asarray(atom.val, atom.aval.dtype)
            return operands[atom]

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            if equation.primitive.name in CALLS:
                outputs = self._inline_call(equation.params, inputs)
            elif not any(isinstance(operand, int) for operand in inputs):
                # Constants only: the equation disappears, and what follows from it may too.
                outputs = evaluate(equation.primitive, equation.params, inputs)
            else:
                outputs = [self.add_variable(atom.aval) for atom in equation.outvars]
                self.equations.append(
                    Equation(equation.primitive, inputs, outputs, equation.params)
                )
            operands |= dict(zip(equation.outvars, outputs, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def _inline_call(self, params: dict[str, Any], inputs: list[Operand]) -> list[Operand]:
        """Append the equations of a called jaxpr, which JAX stores closed or with no constants."""
        called = closed_jaxpr(next(params[name] for name in CALLED_JAXPR if name in params))
        return self.inline(called.jaxpr, called.consts, inputs)

    def drop_unused(self) -> None:
        """Remove equations on which no output depends, for instance unused derivatives."""
        # Backwards: an equation is needed if a later needed equation reads one of its outputs.
        needed = {operand for operand in self.outputs if isinstance(operand, int)}
        equations = []
        for equation in reversed(self.equations):
            if needed & set(equation.outputs):
                equations.append(equation)
                needed.update(equation.input_variables)
        self.equations = equations[::-1]


def trace(function: Function, *examples: PyTree) -> Program:
    """Trace a function of pytrees of arrays; inputs and outputs of the program are their leaves."""
    return program_from_jaxpr(jax.make_jaxpr(function)(*examples))


def program_from_jaxpr(jaxpr: ClosedJaxpr) -> Program:
    """The program of a jaxpr, without the equations that its outputs do not need."""
    program = Program()
    # Inputs are the first variables, in the order of the flattened arguments.
    program.inputs = [program.add_variable(variable.aval) for variable in jaxpr.jaxpr.invars]
    program.outputs = program.inline(jaxpr.jaxpr, jaxpr.consts, program.inputs)
    program.drop_unused()
    return program


def closed_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> ClosedJaxpr:
    """A jaxpr with its constants; JAX stores those of branches and loops in both forms."""
    return jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ())


class Split(NamedTuple):
    """The equations of a program by whether all lanes share their values.

    Attributes
    ----------
    uniform : list of Equation
        Equations that depend on uniform inputs only.
    varying : list of Equation
        All other equations.
    transferred : list of int
        Uniform variables that the varying equations or the outputs read, in rising order.
    """

    uniform: list[Equation]
    varying: list[Equation]
    transferred: list[int]


def split_program(program: Program, uniform_inputs: Sequence[int]) -> Split:
    """Split a program by which of its inputs all lanes share.

    Raises
    ------
    NotUnrollable
        If the varying equations produce more than `MAX_VALUES` values.
    """
    uniform_variables, uniform, varying = set(uniform_inputs), [], []
    for equation in program.equations:
        if uniform_variables.issuperset(equation.input_variables):
            uniform.append(equation)
            uniform_variables.update(equation.outputs)
        else:
            varying.append(equation)
    # A kernel loads only those uniform arrays that it reads, not the intermediate ones.
    read = {operand for operand in program.outputs if isinstance(operand, int)}
    read.update(variable for equation in varying for variable in equation.input_variables)
    # Each value of a varying variable becomes an entry of its own in the unrolled code.
    values = sum(
        int(np.prod(program.variables[variable].shape))
        for equation in varying
        for variable in equation.outputs
    )
    if values > MAX_VALUES:
        raise NotUnrollable(f"{values} values to unroll, at most {MAX_VALUES} are supported")
    return Split(uniform, varying, sorted(read & uniform_variables))


def evaluate_uniform(program: Program, split: Split, inputs: Sequence[Numeric]) -> list[Array]:
    """Arrays of the transferred variables, from the values of the uniform inputs (traced)."""
    # The uniform inputs come first; the varying ones have no value here.
    values: dict[int, Any] = dict(zip(program.inputs, inputs, strict=False))
    for equation in split.uniform:
        operands = [
            values[operand] if isinstance(operand, int) else jnp.asarray(operand)
            for operand in equation.inputs
        ]
        # Bound inside of the caller's trace: XLA compiles these equations with its own fusion, and
        # eigendecompositions or other primitives without an unrolled form are allowed.
        outputs = equation.primitive.bind(*operands, **equation.params)
        outputs = outputs if equation.primitive.multiple_results else [outputs]
        values |= dict(zip(equation.outputs, outputs, strict=True))
    return [values[variable] for variable in split.transferred]
