"""Single-index models of sequences: a function of the L projections w.x_l of the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, Numeric, Parameters, Scalar
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems.losses import squared
from sgdynamics.problems.models.model import (
    model,
    parse_constraint,
    token_correlation_matrix,
    validate_noise,
)
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.spectra import Spectrum


def product(values: Float[Numeric, " tokens"]) -> Float[Numeric, ""]:
    """prod_l values_l."""
    return jnp.prod(values)


def total(values: Float[Numeric, " tokens"]) -> Float[Numeric, ""]:
    """sum_l values_l."""
    return jnp.sum(values)


# A function of the projections of all tokens.
SequenceFunction = Callable[[Float[Numeric, " tokens"]], Float[Numeric, ""]]

LINKS: dict[str, SequenceFunction] = {"product": product, "sum": total}


@dataclass(frozen=True)
class SequenceLoss:
    """(f(F) - g(F*) - noise)^2/2 with F = w.x and F* = w*.x of all tokens."""

    link: SequenceFunction
    target: SequenceFunction
    outer = staticmethod(squared)

    def __call__(
        self,
        fields: Float[Numeric, "1 tokens"],
        signals: Float[Numeric, "1 tokens"],
        head: Float[Numeric, " 1"],
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> Scalar:
        return squared(
            self.link(fields[0]),
            self.target(signals[0]) + jnp.sqrt(parameters["noise"]) * noise_draw,
        )


def resolve_link(argument: str, value: str | Function, tokens: int) -> SequenceFunction:
    """Return the function of a name, or a user's function of the projections of all tokens."""
    if isinstance(value, str):
        return LINKS[checks.choice(argument, value, LINKS)]
    validate_function(
        argument,
        value,
        (np.zeros(tokens),),
        takes="values",
        call=f"{tokens} numbers",
        differentiated=argument == "link",
    )
    return value


@model
def sequence_single_index(
    link: str | Function = "product",
    tokens: int = 2,
    *,
    target: str | Function | None = None,
    noise: float | Function = 0.0,
    constraint: str | None = "sphere",
    token_correlation: ArrayArgument | None = None,
    means: ArrayArgument | None = None,
    weight_decay: float | Function = 0.0,
    covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
) -> Problem:
    """A single-index model of sequences: labels depend on one direction in all tokens.

    ::

        y = g(w*.x_1, ..., w*.x_L) + noise,      output f(w.x_1, ..., w.x_L)

    Parameters
    ----------
    link : str or callable, default 'product'
        The function f: "product", "sum", or a JAX function of the vector of the L projections.
    tokens : int, default 2
        Number of inputs of a sequence, L.
    target : str or callable, optional
        The function g of the labels. Defaults to the link.
    noise : float or callable, default 0.0
        Variance of the label noise, or a function of alpha.
    constraint : str or None, default 'sphere'
        "sphere" keeps the row at norm 1; None ("none" in a problem file) leaves its norm free.
    token_correlation : float or array, optional
        Correlation between any two tokens, or the whole matrix. Defaults to none.
    means : array, optional
        Coefficients of the tokens' means on w*, (tokens, 1).
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the tokens' covariance, or ``sgd.Spectrum``.

    Returns
    -------
    Problem
        Problem of width 1 with 1 signal and the loss (f - y)^2/2.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    See Also
    --------
    sequence_information_exponent : the exponent, and the time to find w* from a random start.

    Notes
    -----
    On the sphere and for independent tokens the overlap m = w.w* obeys ::

        dm/dt = (1 - m^2) sum_n n b_n m^(n-1) - (lr/2) m E|h|^2

    where b_n is the sum of the products of the Hermite coefficients of degree n of f and g. The
    smallest n >= 1 with nonzero b_n is the information exponent. The product of n tokens has
    exponent n: from m = d^(-1/2), weak recovery takes the time t = O(1), log(d)/4 and sqrt(d)/3 for
    n = 1, 2, 3.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.sequence_single_index(tokens=3)
    >>> start = sgd.start(problem, M=[[0.2]], Q=[[1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), start, times=[1.0])
    >>> print(f"{float(path.M[0, 0, 0, 0]):.8f}")
    0.06386001
    """
    tokens = checks.integer("tokens", tokens, 1)
    f = resolve_link("link", link, tokens)
    loss = SequenceLoss(f, f if target is None else resolve_link("target", target, tokens))
    data = {
        "tokens": tokens,
        "token_correlation": token_correlation_matrix(tokens, token_correlation),
        "means": means,
        "covariance": covariance,
    }
    return Problem(  # type: ignore[arg-type]
        loss,
        1,
        1,
        parameters={"noise": validate_noise(noise)},
        constraint=parse_constraint(constraint),
        weight_decay=weight_decay,
        **data,
    )
