"""Gaussian mixtures at snr = infinity: a vector field that jumps, and its Filippov solutions.

Clusters sit at their means: binary +mu (y = 1) and -mu (y = 0), weight w = 1/2; XOR +-mu (y = 1)
and +-nu (y = 0), w = 1/4. With m_i^q = W_i.q, a head a, h_i = s m_i^q on the cluster c = (q, s),
f_c = sum_i a_i relu(h_i), e_c = sigmoid(f_c) - y_c:

    dm_i^q/dt = - al m_i^q - a_i w sum_s s 1{s m_i^q > 0} e_(q,s)
    da_i/dt   = - head_rate (al a_i + w sum_c relu(h_i) e_c)
    dR/dt     = - 2 al R,   Q = R + sum_q m^q m^qT

Why Filippov. At finite snr a field is h_i ~ N(s m_i, Q_ii/snr), so 1{s m_i > 0} is the probability
Phi(s z), z = m_i sqrt(snr/Q_ii), and all else is continuous in h. As snr -> infinity the layer
|z| = O(1) shrinks to the surface m_i^q = 0, on which

    dm_i^q/dt = p right + (1 - p) left,   p = Phi(z),
    right = - a_i w e_(q,+),   left = a_i w e_(q,-)

Only the rate of m_i^q jumps there, and this rate depends on no other coordinate's p. A state on
several surfaces at once is therefore decided coordinate by coordinate.

- right and left of one sign (y differs across the surface: binary): the solution crosses.
- right < 0 < left (XOR: m^nu where a_i > 0, m^mu where a_i < 0): z settles where the mean vanishes,
  and m_i^q stays at exactly 0 (it slides).
- right > 0 > left: the surface repels, and only a start lies on it. There z = 0, p = 1/2: the mean
  (right + left)/2 decides the side, and the solution leaves at once (it takes a time of order
  snr^(-1/2)). Where f_(q,+) = f_(q,-) the mean vanishes too, and its rate of change decides. Where
  that vanishes as well (mirror symmetry, or m^q = 0 for all units), the solution stays. W_i = 0 is
  read as the limit R_ii -> 0.

These three cases suffice. Past a surface the field of the near side, continued linearly, keeps its
direction (XOR: a_i > 0 and m^nu past 0 remain so; binary likewise). A sign change between the ends
of a step is therefore never missed. The smallest |m_i^q| falls through 0 once, and there the
solution meets its first surface. A sliding coordinate slides for ever: with m_i^mu = 0 and a_i < 0,
the remaining terms of da_i/dt keep a_i < 0. After its crossing a binary unit has a_i m_i > 0, and
this sign never changes. So a unit meets at most one surface after its start.

Source: Ben Arous, Gheissari, Jagannath, High-dimensional limit theorems for SGD, Props. 4.2 and
F.3, completed by the cases above. `ode.sliding_solver` integrates these equations.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from sgdynamics.base import checks
from sgdynamics.base.arrays import Numeric, Parameters, Scalar
from sgdynamics.problems.mixture import CLUSTERS

# Labels of the clusters (+q, -q), for each direction q.
LABELS = {
    kind: tuple(zip(*[iter(label for _, _, label in clusters)] * 2, strict=True))
    for kind, clusters in CLUSTERS.items()
}
# A difference below this value, relative to its terms, is rounding.
TIE = 1e-13


def cluster_parameters(kind: str) -> dict[str, np.ndarray]:
    """Labels (q, 2) of the clusters +q and -q, and the weight (q) of each."""
    labels = np.array(LABELS[checks.choice("kind", kind, LABELS)])
    return {"labels": labels, "weights": np.full(len(labels), 1.0 / labels.size)}


def _residuals(
    clusters: Parameters,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    side: Float[Numeric, "..."],
) -> tuple[Any, Any]:
    """relu(h) (K, q, 2) with the active set of `side` (K, q), and w e (q, 2).

    The last axis is the sign of the cluster, + then -.
    """
    sign = jnp.array([1.0, -1.0])
    relu = jnp.where(side[..., None] == sign, sign * M[..., None], 0.0)
    # sigmoid(f) - y = (1 - 2 y) sigmoid((1 - 2 y) f), without cancellation
    flip = 1.0 - 2.0 * clusters["labels"]
    outputs = jnp.einsum("i,iqs->qs", a, relu)
    return relu, clusters["weights"][:, None] * flip * jax.nn.sigmoid(flip * outputs)


def smooth_field(
    clusters: Parameters,
    decay: Scalar,
    head_rate: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    side: Float[Numeric, "..."],
) -> tuple[Any, Any]:
    """(dM/dt, da/dt) on one side of every surface, continued smoothly beyond it.

    `side` (K, q) is +1, -1, or 0 where m_i^q stays 0.
    """
    relu, e = _residuals(clusters, M, a, side)
    # s e_(q,s) of the cluster on this side
    active_error = jnp.where(side > 0, e[:, 0], -e[:, 1])
    dM = jnp.where(side == 0, 0.0, -decay * M - a[:, None] * active_error)
    return dM, -head_rate * (decay * a + jnp.einsum("iqs,qs->i", relu, e))


def choose_sides(
    clusters: Parameters,
    decay: Scalar,
    head_rate: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
) -> Float[Numeric, "K q"]:
    """Side of each surface on which the solution continues; 0 where it slides or stays.

    It is the sign of m_i^q, and on the surface the three cases of the module.
    """
    sign = jnp.sign(M)
    _, e = _residuals(clusters, M, a, sign)
    right, left = -a[:, None] * e[:, 0], a[:, None] * e[:, 1]

    def terms(M: Float[Numeric, "..."], a: Float[Numeric, "..."]) -> Float[Numeric, "K q 2"]:
        return a[:, None, None] * _residuals(clusters, M, a, sign)[0]

    # f_(q,+) - f_(q,-) and its rate of change: e grows with f, so that where the labels agree they
    # have the signs of e_+ - e_- and of its rate.
    values, rates = jax.jvp(terms, (M, a), smooth_field(clusters, decay, head_rate, M, a, sign))
    difference_sign, rate_sign = (
        _sign(x[..., 0].sum(axis=0) - x[..., 1].sum(axis=0), jnp.abs(x).sum(axis=(0, 2)))
        for x in (values, rates)
    )
    repelled = -jnp.sign(a)[:, None] * jnp.where(difference_sign == 0, rate_sign, difference_sign)
    crosses = jnp.sign(right) == jnp.sign(left)
    on_surface = jnp.where(crosses, jnp.sign(right), jnp.where(right > left, repelled, 0.0))
    return jnp.where(M == 0, on_surface, sign)


def _sign(difference: Float[Numeric, "..."], scale: Float[Numeric, "..."]) -> Float[Numeric, "..."]:
    """The sign of a difference, 0 where it is rounding."""
    return jnp.where(jnp.abs(difference) <= TIE * scale, 0.0, jnp.sign(difference))


def infinite_snr_sides(
    kind: str,
    weight_decay: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    head_rate: Scalar = 1.0,
) -> Float[Numeric, "K q"]:
    """Side (K, q) of each surface m_i^q = 0 on which the solution continues.

    It is +1 or -1, or 0 where the solution slides or stays: the sign of m_i^q, and where m_i^q = 0
    exactly, by the rates right and left of the surface (see the module). Pure JAX, one state.
    """
    clusters = cluster_parameters(kind)
    return choose_sides(clusters, weight_decay, head_rate, jnp.asarray(M), jnp.asarray(a))


def infinite_snr_drift(
    kind: str,
    weight_decay: Scalar,
    M: Float[Numeric, "..."],
    a: Float[Numeric, "..."],
    side: Float[Numeric, "..."] | None = None,
    head_rate: Scalar = 1.0,
) -> tuple[Any, Any]:
    """(dM/dt, da/dt) at snr = infinity in the state M (K, q), a (K): the equations of the module.

    `side` (K, q) freezes the active sets (+1, -1; 0: m_i^q stays 0), which makes the field smooth;
    by default they are those of the Filippov solution in this state. Pure JAX, one state: jit, vmap
    and grad are supported (the sides are locally constant).
    """
    clusters, M, a = cluster_parameters(kind), jnp.asarray(M), jnp.asarray(a)
    if side is None:
        side = choose_sides(clusters, weight_decay, head_rate, M, a)
    frozen = jax.lax.stop_gradient(jnp.asarray(side))
    return smooth_field(clusters, weight_decay, head_rate, M, a, frozen)


def _outputs(
    kind: str, M: Float[Numeric, "..."], a: Float[Numeric, "..."]
) -> tuple[np.ndarray, np.ndarray]:
    """f (..., q, 2) on the clusters, and 2 y - 1."""
    labels = cluster_parameters(kind)["labels"]
    shape = np.shape(M)
    if len(shape) < 2 or shape[-1] != len(labels):
        raise ValueError(
            f"M has shape {shape}: a {kind} mixture has {len(labels)} directions. Give shape "
            f"(..., K, {len(labels)}), units x directions."
        )
    M = checks.array("M", M, shape, "units x directions")
    a = checks.array("a", a, shape[:-1], "one head weight per unit, with the leading axes of M")
    h = np.stack([M, -M], axis=-1)
    return np.einsum("...i,...iqs->...qs", a, np.maximum(h, 0.0)), 2 * labels - 1


def _scalar_or_array(value: np.ndarray) -> float | np.ndarray:
    return float(value) if np.ndim(value) == 0 else value


def infinite_snr_risk(
    kind: str, M: Float[Numeric, "..."], a: Float[Numeric, "..."]
) -> float | np.ndarray:
    """The cross-entropy sum_c w [log(1 + exp f_c) - y_c f_c] at snr = infinity.

    Weight decay is not included. M (..., K, q), a (..., K).
    """
    f, sign = _outputs(kind, M, a)
    # log(1 + exp f) - y f = log(1 + exp(-(2 y - 1) f)), which does not overflow
    return _scalar_or_array(np.logaddexp(0.0, -sign * f).mean(axis=(-2, -1)))


def infinite_snr_accuracy(
    kind: str, M: Float[Numeric, "..."], a: Float[Numeric, "..."]
) -> float | np.ndarray:
    """The accuracy sum_c w [1{f_c has the sign of the label} + 1{f_c = 0}/2] at snr = infinity.

    M (..., K, q), a (..., K). A cluster on which no unit is active has f_c = 0 and counts 1/2: the
    accuracy is a function of the state there, not the limit of finite snr, which depends on the
    units that slide along the cluster's surface (with p = P(h_i > 0) in (0, 1)).
    """
    f, sign = _outputs(kind, M, a)
    return _scalar_or_array((0.5 + 0.5 * np.sign(sign * f)).mean(axis=(-2, -1)))
