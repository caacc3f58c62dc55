"""Sequences seen through one direction: a function of the L numbers w.x_l learns the same function of w*.x_l."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, Numeric, Parameters, Scalar
from sgdynamics.base.user_functions import validate_function
from sgdynamics.problems.losses import squared
from sgdynamics.problems.models.model import correlated, model, noise_number, none_or
from sgdynamics.problems.problem import Problem
from sgdynamics.samples.spectra import Spectrum


def product(values: Float[Numeric, " tokens"]) -> Float[Numeric, ""]:
    """prod_l values_l."""
    return jnp.prod(values)


def total(values: Float[Numeric, " tokens"]) -> Float[Numeric, ""]:
    """sum_l values_l."""
    return jnp.sum(values)


LINKS = {"product": product, "sum": total}


@dataclass(frozen=True)
class SequenceLoss:
    """(f(F) - g(F*) - noise)^2/2."""

    link: Any
    target: Any
    outer = staticmethod(squared)

    def __call__(
        self,
        fields: Float[Numeric, "1 tokens"],
        signals: Float[Numeric, "1 tokens"],
        head: Any,
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> Scalar:
        return squared(
            self.link(fields[0]),
            self.target(signals[0]) + jnp.sqrt(parameters["noise"]) * noise_draw,
        )


def resolve_link(argument: str, value: Any, tokens: int) -> Any:
    """The function that a name stands for, or a user's function of the numbers of all tokens."""
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
    """One direction read through a function of a whole sequence, y = g(w*.x_1, ..., w*.x_L) + noise, f = f(w.x_1, ..., w.x_L).

    Parameters
    ----------
    link : str or callable, default 'product'
        f: "product", "sum", or a JAX function of the L numbers.
    tokens : int, default 2
        L: how many inputs a sequence has.
    target : str or callable, optional
        The function g. Defaults to the link.
    noise : float or callable, default 0.0
        Variance of the label noise, or a function of alpha.
    constraint : str or None, default 'sphere'
        Keeps the row of norm 1; None, or "none" in a file, lets it grow.
    token_correlation : float or array, optional
        Between any two tokens, or the whole matrix.
    means : array, optional
        Means of the tokens along w*, (tokens, 1).
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
    sequence_information_exponent : how long it takes to find w* from a random start.

    Notes
    -----
    On the sphere and for independent tokens, dm/dt = (1 - m^2) sum_n n b_n m^(n-1) - (lr/2) m E|h|^2 with b_n the common Hermite
    coefficients of f and g of degree n: the smallest n >= 1 with b_n not 0 is the exponent. The product of n tokens has exponent n:
    from m = d^(-1/2), t = O(1), log(d)/4 and sqrt(d)/3 for n = 1, 2, 3.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.sequence_single_index(tokens=3)
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.1), sgd.start(problem, M=[[0.2]], Q=[[1.0]]), times=[1.0])
    >>> print(f"{float(path.M[0, 0, 0, 0]):.8f}")
    0.06386001
    """
    tokens = checks.integer("tokens", tokens, 1)
    f = resolve_link("link", link, tokens)
    loss = SequenceLoss(f, f if target is None else resolve_link("target", target, tokens))
    data = {
        "tokens": tokens,
        "token_correlation": correlated(tokens, token_correlation),
        "means": means,
        "covariance": covariance,
    }
    return Problem(  # type: ignore[arg-type]
        loss,
        1,
        1,
        parameters={"noise": noise_number(noise)},
        constraint=none_or(constraint),
        weight_decay=weight_decay,
        **data,
    )
