"""JAX functions of small arrays as straight-line code on single values, for a GPU kernel.

Triton has no small matrices: its arrays are powers of two spread over threads, without indexing,
concatenation or QR decompositions. A step of one run is therefore unrolled. Each entry of its
arrays becomes a vector with one value per lane, which stays in registers, and an array is a NumPy
array of such objects, with known constants among them (`scalars`).

`prepare` traces a function once and returns a `LaneFunction`::

    function = prepare(f, uniform_example, *lane_examples)
    flat = function.pack_uniform(uniform_leaves)      # outside of the kernel
    uniform = function.read_uniform(lambda k: ref[k]) # inside
    outputs = function.run(uniform, lane_arrays)      # inside, once per step or tile
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from sgdynamics.base.arrays import Function, Numeric, PyTree
from sgdynamics.simulation.gpu import array_rules, scalars
from sgdynamics.simulation.gpu.program import (
    ClosedJaxpr,
    Equation,
    Jaxpr,
    NotUnrollable,
    Operand,
    Program,
    Split,
    closed_jaxpr,
    evaluate_uniform,
    program_from_jaxpr,
    split_program,
    trace,
)
from sgdynamics.simulation.gpu.scalars import Entry, object_array
from sgdynamics.simulation.gpu.special import erf, erfc

# Largest number of iterations of a loop that is unrolled.
MAX_LOOP = 64

# Primitives that act on single values and that Triton's lowering in JAX supports.
ELEMENTWISE_NAMES = """
neg abs sign floor ceil exp exp2 expm1 log log1p sqrt rsqrt cbrt sin cos tan asin acos atan atan2
sinh cosh tanh asinh acosh atanh add add_any sub mul div rem pow integer_pow max min eq ne lt le gt
ge and or xor not select_n clamp logistic is_finite square convert_element_type copy copy_p
"""
ELEMENTWISE = frozenset(ELEMENTWISE_NAMES.split())
# Comparisons in the total order of floats, which Triton lacks, and plain ones in their place. They
# differ only at NaN: a binary search compares with NaN to sort it last.
COMPARISONS = {"lt_to": jax.lax.lt_p, "le_to": jax.lax.le_p, "eq_to": jax.lax.eq_p}
# Elementwise functions that Triton lacks in float64.
SPECIAL: dict[str, Function] = {"erf": erf, "erfc": erfc, "one_minus_square": lambda x: 1.0 - x * x}


@dataclass(frozen=True, eq=False)
class LaneFunction:
    """A function of uniform and of varying arguments, ready to run inside of a kernel.

    Attributes
    ----------
    program : Program
        The equations of the function.
    split : Split
        The equations by whether all lanes share their values.
    lane_inputs : list of int
        Variables of the varying arguments.
    """

    program: Program
    split: Split
    lane_inputs: list[int]

    def pack_uniform(self, leaves: Sequence[Numeric]) -> Float[Array, " values"]:
        """All uniform values that a kernel reads, as one array; a single 0 if there are none.

        Parameters
        ----------
        leaves : sequence of array
            Leaves of the uniform arguments.
        """
        arrays = evaluate_uniform(self.program, self.split, leaves)
        flat = [jnp.ravel(jnp.asarray(array)).astype(jnp.float64) for array in arrays]
        # Kernels take no arrays of size 0: the leading 0 stays if nothing follows it.
        return jnp.concatenate([jnp.zeros(1), *flat])[bool(arrays) :]

    def read_uniform(self, load: Callable[[int], Entry]) -> dict[int, np.ndarray]:
        """The uniform arrays inside of a kernel; `load(k)` reads value k of `pack_uniform`."""
        values, first = {}, 0
        for variable in self.split.transferred:
            kind = self.program.variables[variable]
            size = math.prod(kind.shape)
            # The flat array is float64; integers and booleans return to their dtype.
            entries = [load(first + k).astype(kind.dtype) for k in range(size)]
            values[variable] = object_array(entries, kind.shape)
            first += size
        return values

    def run(
        self, uniform: dict[int, np.ndarray], lane_arrays: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Outputs of the function, from arrays of entries.

        Parameters
        ----------
        uniform : dict
            Uniform arrays, from `read_uniform`.
        lane_arrays : sequence of ndarray
            Leaves of the varying arguments as arrays of entries.
        """
        values = uniform | dict(zip(self.lane_inputs, lane_arrays, strict=True))
        return run_equations(self.program, self.split.varying, values)

    def count_operations(self, lane_shapes: Sequence[tuple[int, ...]], lanes: int | None) -> int:
        """Number of operations of the unrolled function, by which compilation time is judged.

        Parameters
        ----------
        lane_shapes : sequence of tuple of int
            Shape of one entry of each varying argument, for instance (32,).
        lanes : int or None
            Number of values of an entry of a uniform array, None for a scalar.
        """
        # Unrolled on abstract vectors: nothing is compiled.
        uniform_shape = () if lanes is None else (lanes,)
        entry_shapes = dict.fromkeys(self.split.transferred, uniform_shape)
        entry_shapes |= dict(zip(self.lane_inputs, lane_shapes, strict=True))
        kinds = {variable: self.program.variables[variable] for variable in entry_shapes}
        examples = [
            jax.ShapeDtypeStruct((math.prod(kinds[variable].shape), *shape), kinds[variable].dtype)
            for variable, shape in entry_shapes.items()
        ]

        def flat_outputs(*arrays: Numeric) -> list[Any]:
            values = {
                # Iteration over the leading axis gives one vector per entry.
                variable: object_array(list(array), kind.shape)
                for array, (variable, kind) in zip(arrays, kinds.items(), strict=True)
            }
            outputs = run_equations(self.program, self.split.varying, values)
            return [entry for output in outputs for entry in output.reshape(-1)]

        return len(jax.make_jaxpr(flat_outputs)(*examples).jaxpr.eqns)


def prepare(function: Function, uniform: PyTree, *varying: PyTree) -> LaneFunction:
    """Trace `function(uniform, *varying)` and separate what all lanes share.

    Parameters
    ----------
    function : callable
        A function of pytrees of arrays, written for a single lane.
    uniform, *varying : pytree
        Arrays, or their shapes: the argument that all lanes share, and those of one lane.

    Raises
    ------
    NotUnrollable
        If the function has too many values to unroll. Unsupported primitives raise it later, in
        `LaneFunction.run` and `LaneFunction.count_operations`.
    """
    program = trace(function, uniform, *varying)
    # Leaves of the first argument are the first inputs of the program.
    count = len(jax.tree.leaves(uniform))
    split = split_program(program, program.inputs[:count])
    return LaneFunction(program, split, program.inputs[count:])


def run_equations(
    program: Program, equations: Sequence[Equation], values: dict[int, np.ndarray]
) -> list[np.ndarray]:
    """Unroll equations and return the outputs of the program.

    Parameters
    ----------
    program : Program
        The program to which the equations belong.
    equations : sequence of Equation
        Equations in the order of evaluation.
    values : dict
        Arrays of entries of all variables that the equations read and do not define.
    """
    values = dict(values)

    def read(operand: Operand) -> np.ndarray:
        if isinstance(operand, int):
            return values[operand]
        return scalars.constant_entries(operand)

    with scalars.common_subexpressions():
        for equation in equations:
            shapes = [program.variables[variable] for variable in equation.outputs]
            outputs = _unroll(equation, [read(operand) for operand in equation.inputs], shapes)
            values |= dict(zip(equation.outputs, outputs, strict=True))
    outputs = [read(operand) for operand in program.outputs]
    # The orthogonal factor of a QR decomposition is allowed only where nothing reads it.
    if any(entry is None for output in outputs for entry in output.reshape(-1)):
        raise NotUnrollable(scalars.MISSING_FACTOR)
    return outputs


def _unroll(
    equation: Equation, inputs: list[np.ndarray], shapes: list[jax.ShapeDtypeStruct]
) -> list[np.ndarray]:
    """Arrays of entries of the outputs of one equation."""
    name, params = equation.primitive.name, equation.params
    # Entries may be known although the variable is not: an array is partly known after a move.
    if all(scalars.are_constant(entries) for entries in inputs):
        return array_rules.fold_constants(equation, inputs)
    if name in SPECIAL:
        return [scalars.map_entries(partial(_apply_special, equation), inputs)]
    if name in ELEMENTWISE or name in COMPARISONS:
        primitive = COMPARISONS.get(name, equation.primitive)
        operation = partial(
            scalars.apply_primitive, primitive, {} if name in COMPARISONS else params
        )
        # `select_n` and `clamp` take scalar operands next to arrays.
        arrays = np.broadcast_arrays(*inputs)
        dtype = shapes[0].dtype
        return [
            scalars.map_entries(
                lambda *operands: scalars.simplify(name, operation, operands, dtype), arrays
            )
        ]
    if name in array_rules.MOVES:
        return array_rules.move(equation, inputs)
    if name in array_rules.LINEAR:
        return array_rules.apply_linear(equation, inputs)
    # Hints for XLA and for derivatives, without effect on values.
    if name in ("optimization_barrier", "stop_gradient"):
        return inputs
    if name in array_rules.RULES:
        return array_rules.RULES[name](params, inputs, shapes)
    if name in CONTROL_FLOW:
        return CONTROL_FLOW[name](params, inputs)
    # `sort`, `while`, special functions without an elementary form, ...
    raise NotUnrollable(f"the primitive {name}")


def _apply_special(equation: Equation, entry: Entry) -> Entry:
    """A function of `SPECIAL`, by JAX itself for a constant among varying entries."""
    if scalars.is_constant(entry):
        return scalars.apply_primitive(equation.primitive, equation.params, entry)
    name = equation.primitive.name
    return scalars.compute_once(name, "", SPECIAL[name], (entry,))


# ---- control flow


def _cond(params: dict[str, Any], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """All branches of a `cond`, and a selection: lanes of one warp take the same instructions."""
    index, operands = inputs[0][()], inputs[1:]
    # Threads of a warp that disagreed would run both branches anyway.
    branches = [_run_inner(branch, operands) for branch in params["branches"]]
    if scalars.is_constant(index):
        return branches[int(np.clip(index, 0, len(branches) - 1))]
    return [
        scalars.map_entries(lambda *entries: scalars.choose(index, entries), outputs)
        for outputs in zip(*branches, strict=True)
    ]


def _scan(params: dict[str, Any], inputs: list[np.ndarray]) -> list[np.ndarray]:
    """A loop of known length, iteration by iteration."""
    if "num_consts" in params:
        n_constants, n_carry = params["num_consts"], params["num_carry"]
    else:  # JAX 0.11 and later
        n_constants, n_carry = (len(group) for group in params["ft_in"].unpack()[:2])
    length = params["length"]
    if length > MAX_LOOP:
        raise NotUnrollable(f"a loop of {length} iterations")
    constants, carry = inputs[:n_constants], inputs[n_constants : n_constants + n_carry]
    sequences = inputs[n_constants + n_carry :]
    # Outputs of each iteration, to be stacked along a new leading axis.
    stacked: list[Any] = [None] * length
    for iteration in range(length)[:: -1 if params["reverse"] else 1]:
        # A slice of length 1 keeps an array where an index would return the entry itself.
        elements = [
            sequence[iteration : iteration + 1].reshape(sequence.shape[1:])
            for sequence in sequences
        ]
        outputs = _run_inner(params["jaxpr"], [*constants, *carry, *elements])
        carry, stacked[iteration] = outputs[:n_carry], outputs[n_carry:]
    columns = zip(*stacked, strict=True)
    return [*carry, *(np.concatenate([array[None] for array in column]) for column in columns)]


def _run_inner(jaxpr: Jaxpr | ClosedJaxpr, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Unroll the jaxpr of a branch or of a loop body."""
    # Inputs may hold constants here: with them a loop body often folds to a few operations.
    program = program_from_jaxpr(closed_jaxpr(jaxpr))
    return run_equations(program, program.equations, dict(zip(program.inputs, inputs, strict=True)))


CONTROL_FLOW: dict[str, Callable[..., list[np.ndarray]]] = {"cond": _cond, "scan": _scan}
