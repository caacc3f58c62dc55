"""Functions of one sample that a user writes: their arguments, and properties found by tracing.

A loss, an update or a risk has the arguments (fields, signals, head, draws), followed by those of
`overlaps` and `parameters` that it asks for. JAX traces such a function once, on arguments of the
right shapes, to see whether it is smooth and what it reads. Expectations depend on the answers: a
smooth loss needs fewer quadrature nodes, and a loss that ignores the draws needs none for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from sgdynamics.base.arrays import Function, Parameters, PyTree
from sgdynamics.base.user_functions import analyse_function
from sgdynamics.problems.moves import BlockOverlaps, LossOverlaps, RecordedOverlaps
from sgdynamics.problems.structure import Structure
from sgdynamics.samples.sample import (
    apply_means,
    example_argument,
    example_draws,
    sampled_arguments,
)

# A user's function, with the names of its arguments after the draws (see `extra_arguments`).
SampleFunction = tuple[Function, tuple[str, ...]]

# Number of the arguments that every function of one sample has: fields, signals, head and draws.
COMMON_ARGUMENTS = 4


def argument_names(structure: Structure, extra: Sequence[str] = ()) -> str:
    """Return the names of the arguments of a function of one sample, as text for messages."""
    draws = "noise_draw" if structure.sample.draws is None else "draws"
    names = ("parameters" if name == "user" else name for name in extra)
    head = "head" if structure.top is None else "top"
    return ", ".join(["fields", "signals", head, draws, *names])


def example_arguments(
    structure: Structure, parameters: Parameters, extra: Sequence[str] = ()
) -> tuple[PyTree, ...]:
    """Return zeros with the shapes of the arguments of a function of one sample.

    Parameters
    ----------
    structure : Structure
        Structure of the problem.
    parameters : dict
        Parameters of the problem at one time, without schedules.
    extra : sequence of str
        Names of the arguments after the draws: "user" (the problem's parameters) or "overlaps".
    """
    p, k, blocks = structure.width, structure.signals, structure.blocks
    sample = structure.sample
    tokens = sample.tokens.inputs_per_sample
    block_overlaps = BlockOverlaps(
        Q=np.zeros((blocks, p, p)),
        M=np.zeros((blocks, p, k)),
        P=np.zeros((blocks, k, k)),
        eigenvalues=np.zeros(blocks),
        fractions=np.zeros(blocks),
    )
    overlaps = LossOverlaps(
        Q=np.zeros((p, p)),
        M=np.zeros((p, k)),
        P=np.zeros((k, k)),
        lengths=np.zeros((tokens, tokens)) if structure.loss.reads_lengths else None,
        blocks=block_overlaps,
    )
    extra_values = {**parameters, "overlaps": overlaps}
    return (
        np.zeros((p, *sample.tokens.shape)),
        np.zeros((k, *sample.tokens.shape)),
        _example_head(structure),
        example_argument(sample, parameters),
        *(extra_values[name] for name in extra),
    )


def _example_head(structure: Structure) -> PyTree:
    """Return zeros with the shape of the third argument: the head, or the pytree on top."""
    zeros = np.zeros(structure.head_size)
    return zeros if structure.top is None else structure.top.unravel(zeros)


def reads_block_overlaps(
    structure: Structure, parameters: Parameters, sample_function: SampleFunction
) -> bool:
    """Return whether a function reads `overlaps.blocks`, by one trial call."""
    function, extra = sample_function
    if "overlaps" not in extra:
        return False
    position = COMMON_ARGUMENTS + extra.index("overlaps")
    calls = []

    def call(*arguments: PyTree) -> PyTree:
        overlaps = RecordedOverlaps(arguments[position])
        calls.append(overlaps)
        return function(*arguments[:position], overlaps, *arguments[position + 1 :])

    jax.eval_shape(call, *example_arguments(structure, parameters, extra))
    return calls[-1].blocks_read


def analyse_smoothness(
    structure: Structure, parameters: Parameters, sample_functions: Sequence[SampleFunction]
) -> tuple[bool, bool]:
    """Return whether a loss made of these functions is smooth, and whether it reads the draws.

    A loss is smooth if no operation with a kink acts on the fields, the signals or the random
    draws. Functions may also declare that they are, by a true attribute `smooth`.
    """
    sample = structure.sample
    random_draws = sampled_arguments(sample)
    smooth, reads_draws = not structure.kinks, False
    for function, extra in sample_functions:
        is_smooth, is_read = analyse_function(
            function,
            *example_arguments(structure, parameters, extra),
            random=(True, True, False, random_draws),
        )
        smooth = smooth and is_smooth
        reads_draws = reads_draws or is_read[3]
    if smooth and callable(sample.means):
        # The fields contain the means, which may have a kink as a function of a normal draw.
        draw_names = random_draws if isinstance(random_draws, tuple) else ("noise",)
        smooth, _ = analyse_function(
            partial(apply_means, sample, parameters),
            example_draws(sample, parameters),
            random=(draw_names,),
        )
    is_declared_smooth = all(getattr(function, "smooth", False) for function, _ in sample_functions)
    return smooth or is_declared_smooth, reads_draws
