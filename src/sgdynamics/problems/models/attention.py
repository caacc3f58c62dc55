"""Models of attention: a softmax head with a teacher, and attention by position or content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import ArrayArgument, Function, Numeric, Parameters, Scalar
from sgdynamics.problems.losses import squared
from sgdynamics.problems.models.model import (
    model,
    parse_constraint,
    token_correlation_matrix,
    validate_noise,
)
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.structure import LossDependence, Structure
from sgdynamics.samples.spectra import Spectrum


def read(
    queries: Float[Numeric, " tokens"], values: Float[Numeric, " tokens"]
) -> Float[Numeric, ""]:
    """sum_l softmax(queries)_l values_l."""
    return jnp.sum(jax.nn.softmax(queries) * values)


class AttentionLoss:
    """(f - y)^2/2, with f and y the outputs of two softmax heads."""

    outer = staticmethod(squared)
    latex = (
        r"f = \sum_{l=1}^{L} \operatorname{softmax}\left(\Lambda_q\right)_l \Lambda_{v l}"
        "\n"
        r"y = \sum_{l=1}^{L} \operatorname{softmax}\left(\Lambda^*_q\right)_l \Lambda^*_{v l}"
        r" + \sqrt{\mathrm{noise}} z,\quad z \sim \mathcal{N}\left(0, 1\right)"
        "\n"
        r"\ell = \frac{1}{2} \left(f - y\right)^2"
    )
    # The softmax subtracts its largest entry, an operation with kinks, but does not depend on it.
    smooth = True

    def __call__(
        self,
        fields: Float[Numeric, "2 tokens"],
        signals: Float[Numeric, "2 tokens"],
        head: Float[Numeric, " 2"],
        noise_draw: Scalar,
        parameters: Parameters,
    ) -> Scalar:
        return squared(read(*fields), read(*signals) + jnp.sqrt(parameters["noise"]) * noise_draw)

    def loss_dependence(self, structure: Structure) -> LossDependence | None:
        """State the dependence for two tokens, in which

            f = v.(x1 + x2)/2 + tanh(q.(x1 - x2)/2) v.(x1 - x2)/2.

        The label noise has its own coordinate, for any variance.
        """
        if structure.sample.tokens.count != 2:
            return None
        q, v, q_star, v_star = np.eye(4)
        differences = [np.r_[row, -row, 0.0] for row in (q_star, q, v_star, v)]
        error_and_noise = [np.r_[v - v_star, v - v_star, 0.0], np.r_[np.zeros(8), 1.0]]
        rows = [tuple(row.tolist()) for row in (*differences, *error_and_noise)]
        # A move is quadratic in v.(x1 - x2) and e, and linear in the noise.
        # The loss is quadratic in all of them.
        # An exchange of two tokens of the same law changes the sign of all differences.
        return LossDependence(
            tuple(rows[:2]),
            tuple(rows[2:]),
            (3, 3, 3, 2),
            (4, 4, 4, 2),
            is_mirrored=structure.sample.centred and not structure.sample.tokens.correlated,
            risk_node_counts=(2, 2, 2, 2),
        )


attention_loss = AttentionLoss()


@model
def attention(
    tokens: int = 2,
    *,
    noise: float | Function = 0.0,
    token_correlation: ArrayArgument | None = None,
    gram: ArrayArgument | None = None,
    constraint: str | None = None,
    weight_decay: float | Function = 0.0,
    covariance: Sequence[tuple[float, float]] | Spectrum | None = None,
) -> Problem:
    """One softmax attention head that learns from another.

    The rows are q and v; f = sum_l softmax(q.x)_l v.x_l, and y is the same with q*, v*.

    Parameters
    ----------
    tokens : int, default 2
        Number of inputs of a sequence.
    noise : float or callable, default 0.0
        Variance of the label noise, or a function of alpha.
    token_correlation : float or array, optional
        Correlation between any two tokens of a sequence, or the whole matrix. Defaults to none.
    gram : array, optional
        Gram matrix of (q*, v*). Defaults to the identity.
    constraint : str, optional
        "sphere" keeps q and v at norm 1.
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.
    covariance : sequence of (float, float) or Spectrum, optional
        Blocks (eigenvalue, fraction of d) of the tokens' covariance, or ``sgd.Spectrum``.

    Returns
    -------
    Problem
        Problem of width 2 (q, then v) with 2 signals (q*, v*) and the loss (f - y)^2/2.

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    With e = f - y and A = softmax(q.x), the gradient in the fields is h_q,l = e A_l (v.x_l - f) and
    h_v,l = e A_l. Two tokens of one variance enter only through x_1 - x_2 and, linearly, x_1 + x_2:
    their expectations are integrals in the plane of (q.(x_1 - x_2), q*.(x_1 - x_2)), computed to
    rounding. Those of more tokens are sampled, and the result contains their error.

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.attention(noise=0.1)
    >>> start = sgd.start(problem, M=[[0.3, 0.1], [-0.2, 0.4]], Q=[[1.0, 0.2], [0.2, 0.8]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=1.0), start, times=[0.0, 10.0])
    >>> [round(float(value), 4) for value in path.excess_risk[0]]
    [0.3635, 0.0659]
    """
    tokens = checks.integer("tokens", tokens, 2)
    parameters = {"noise": validate_noise(noise)}
    correlation = token_correlation_matrix(tokens, token_correlation)
    common = {
        "gram": gram,
        "constraint": constraint,
        "weight_decay": weight_decay,
        "covariance": covariance,
    }
    return Problem(  # type: ignore[arg-type]
        attention_loss,
        2,
        2,
        tokens=tokens,
        token_correlation=correlation,
        parameters=parameters,
        **common,
    )


def self_attention(fields: Float[Numeric, " 2"]) -> Float[Numeric, " 2"]:
    """Return A_ll of two tokens, the softmax of F_l F_m over m; its other entry is 1 - A_ll."""
    return jax.nn.sigmoid(fields * (fields - fields[::-1]))


def positional_loss(
    fields: Float[Numeric, "1 2"],
    signals: Float[Numeric, "2 2"],
    head: Float[Numeric, " 1"],
    noise_draw: Scalar,
    parameters: Parameters,
) -> Float[Numeric, ""]:
    """|A - A*|^2/2 of the attention matrix A, with A* a mixture of content and position."""
    # Both rows of a 2 x 2 attention matrix sum to 1: each contributes two equal squares.
    k, omega = parameters["contrast"], parameters["omega"]
    target = (1 - omega) * self_attention(signals[0]) + omega * jax.nn.sigmoid(2 * k)
    return jnp.sum((self_attention(fields[0]) - target) ** 2)


def positional_means(draws: dict[str, Any], parameters: Parameters) -> Float[Numeric, "2 2"]:
    """Means of the two tokens: c0 and -c0 times the second signal."""
    return parameters["encoding"] * jnp.array([[0.0, 1.0], [0.0, -1.0]])


@model
def positional_semantic(
    omega: float = 0.3,
    *,
    encoding: float = 1.0,
    contrast: float = 0.75**2,
    constraint: str | None = "sphere",
    weight_decay: float | Function = 0.0,
) -> Problem:
    """Dot-product attention of two tokens whose target mixes content and position.

    Parameters
    ----------
    omega : float, default 0.3
        Share of the target that goes by position.
    encoding : float, default 1.0
        Size c0 of the positional encoding: tokens are z_1 + c0 pos and z_2 - c0 pos.
    contrast : float, default 0.5625
        k: the positional target is the softmax of [[k, -k], [-k, k]].
    constraint : str or None, default 'sphere'
        "sphere" keeps the row at norm 1; None ("none" in a problem file) leaves its norm free.
    weight_decay : float or callable, default 0.0
        Weight decay, as of ``Problem``.

    Returns
    -------
    Problem
        Problem of width 1 with 2 signals: w* (content) and pos (position).

    Raises
    ------
    ValueError
        If an argument is invalid. The message names the argument, the value and the fix.

    Notes
    -----
    A = softmax_m(F_l F_m) of F = w.x, target (1 - omega) softmax(F* F*^T) +
    omega softmax([[k, -k], [-k, k]]), loss abs(A - A*)^2/2. From the origin and without noise the
    overlap with w* grows at the rate .2205022 (1 - omega), that with pos at
    c0^2 (-.1332601 + .1533972 omega): it is unstable for omega above .868726, and the faster of the
    two above .946143 at c0 = 1.
    After Cui, Behrens, Krzakala, Zdeborova, "A phase transition between positional and semantic
    learning" (2024).

    Examples
    --------
    >>> import sgdynamics as sgd
    >>> problem = sgd.models.positional_semantic(omega=0.3)
    >>> start = sgd.start(problem, M=[[0.1, 0.1]], Q=[[1.0]])
    >>> path = sgd.solve_ode(problem, sgd.OnePassSGD(lr=0.5), start, times=[0.0, 10.0])
    >>> [round(float(value), 3) for value in path.M[0, -1, 0]]
    [0.412, 0.031]
    """
    share = checks.number("omega", omega, minimum=0.0)
    if share > 1.0:
        raise checks.reject("omega", omega, "give a share between 0 and 1")
    parameters = {
        "omega": share,
        "encoding": checks.number("encoding", encoding),
        "contrast": checks.number("contrast", contrast),
    }
    common = {"constraint": parse_constraint(constraint), "weight_decay": weight_decay}
    return Problem(  # type: ignore[arg-type]
        positional_loss, 1, 2, tokens=2, means=positional_means, parameters=parameters, **common
    )
