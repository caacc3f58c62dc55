"""Limits of deep linear, infinitely wide and diagonal networks as LaTeX.

All of them condition Gaussian matrices on the products that the steps have used
(`fixed_data.matrix_conditioning`). The steps are those of `fixed_data.deep_linear`,
`fixed_data.wide_network` and `fixed_data.diagonal`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from sgdynamics.algorithms.equations import fixed_data_values, one_pass_values
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.equations import Section
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.network_equations import (
    deep_linear_sections,
    deep_linear_values,
    diagonal_sections,
    diagonal_values,
    wide_network_sections,
    wide_network_values,
)
from sgdynamics.problems.wide_network import WideNetwork

Network = DeepLinear | WideNetwork | DiagonalNetwork
Algorithm = OnePassSGD | FixedData
DATA_CLOCK = r"t = \mathrm{lr} \cdot \mathrm{steps}"
SELECTION = r"s_\mu \sim \text{Bernoulli}(b) \text{ at every step}"
# A Gaussian matrix that has been multiplied with q_k from the right and with p_j from the left.
LEFT_PRODUCT = r"\sum_j p_j \left\langle {0}^\top p_j, q\right\rangle"
RIGHT_PRODUCT = r"\sum_k q_k \left\langle {0} q_k, p\right\rangle"
BASES = (
    r"p_j, q_k \text{: orthonormal bases of the left and right vectors so far},\quad "
    r"q \perp q_k,\quad p \perp p_j"
)


def network_sections(
    problem: Network, algorithm: Algorithm
) -> tuple[list[Section], dict[str, Any]]:
    """Return the sections on a network and its limit, and the values of their parameters."""
    if _has_data(algorithm):
        values = fixed_data_values(cast(FixedData, algorithm), trains_head=False)
    else:
        values = one_pass_values(cast(OnePassSGD, algorithm), trains_head=False)
    sections_of, values_of, limit = _FORMULAS[problem.kind]
    # The data of a wide network are given: P and D are among its own parameters.
    own_values = values_of(problem)
    if "P" in own_values:
        values = {symbol: value for symbol, value in values.items() if "alpha" not in symbol}
    return [*sections_of(problem), *limit(problem, algorithm)], own_values | values


def _has_data(algorithm: Algorithm) -> bool:
    return isinstance(algorithm, FixedData)


def _selects(algorithm: Algorithm) -> bool:
    return getattr(algorithm, "selects", False)


def _mean_over_data(algorithm: Algorithm, count: str = "n") -> str:
    """Return the mean of a step over the data set, or over its random part."""
    if not _selects(algorithm):
        return rf"\frac{{1}}{{{count}}} \sum_{{\mu=1}}^{{{count}}} "
    return rf"\frac{{1}}{{b {count}}} \sum_{{\mu=1}}^{{{count}}} s_\mu "


def _velocity(algorithm: Algorithm, symbol: str, gradient: str) -> tuple[list[str], str]:
    """Return the line of the velocity of an update, and the direction of a step."""
    update = getattr(algorithm, "update", None)
    if update is None:
        return [], gradient
    line = rf"{symbol} \leftarrow \beta {symbol} + {gradient}"
    if update.law.name == "nesterov":
        return [line], rf"\left({gradient} + \beta {symbol}\right)"
    return [line], symbol


# Deep linear networks


def _deep_linear(problem: DeepLinear, algorithm: Algorithm) -> list[Section]:
    """Return the step and the deterministic recursion of the proportional limit."""
    on_data = _has_data(algorithm)
    mean = _mean_over_data(algorithm)
    if not on_data:
        mean = r"\frac{1}{B} \sum_{\mu=1}^{B} "
    rate = r"\mathrm{lr}" if on_data else r"\frac{\mathrm{lr}}{d}"
    decay = r" + \mathrm{al} W_l" if problem.weight_decay else ""
    velocity, direction = _velocity(algorithm, "V_l", "G_l")
    steps = [
        r"g_{L-1} = w,\quad g_{l-1} = W_l^\top g_l,\quad v = \frac{g_0}{c}",
        rf"h_0 = {mean}\left(y_\mu - v \cdot x_\mu\right) x_\mu,\quad h_l = W_l h_{{l-1}}",
        rf"G_l = -\frac{{1}}{{c}} g_l h_{{l-1}}^\top{decay},\quad W_L = w,\quad g_L = 1",
        *velocity,
        rf"W_l \leftarrow W_l - {rate} c^2 r_l {direction}",
        f"{DATA_CLOCK},\\quad n = \\alpha d"
        if on_data
        else r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{d},\quad "
        r"\alpha = \frac{B \cdot \mathrm{steps}}{d},\quad \text{on fresh batches}",
    ]
    if _selects(algorithm):
        steps.append(SELECTION)
    names = r"\left\{Z, W_l(0)\right\}" if on_data else r"\left\{W_l(0)\right\}"
    matrices = (
        rf"A \in {names} \text{{ has }} m \text{{ rows and }} k \text{{ columns}}"
        r",\quad A_{i j} \sim \mathcal{N}\left(0, s_A^2\right)"
    )
    limit = [
        matrices,
        rf"A q = {LEFT_PRODUCT.format('A')} + s_A \sqrt{{m}} \, e_{{\mathrm{{new}}}},\quad "
        rf"A^\top p = {RIGHT_PRODUCT.format('A')} + s_A \sqrt{{k}} \, e_{{\mathrm{{new}}}}",
        BASES,
    ]
    if on_data:
        limit.insert(0, r"x_\mu = C^{1/2} z_\mu,\quad Z = \left(z_1, \ldots, z_n\right)^\top")
    else:
        # A velocity of fixed beta is plain SGD at the rate lr/(1 - beta) in this limit.
        divisor = r"\left(1 - \beta\right) B m_c" if velocity else "B m_c"
        length = rf"\frac{{\mathrm{{lr}}}}{{{divisor}}}"
        limit.append(
            r"h_0 = C u + \sqrt{m_c \left(u^\top C u + \Delta\right)} \, C^{1/2} "
            r"e_{\mathrm{new}} \text{ for } m_c \to \infty \text{ steps of length } "
            rf"{length} \text{{ per unit of }} \alpha"
        )
    if _selects(algorithm):
        limit.append(
            r"\left(s_\mu \rho_\mu\right) = b \rho + \sqrt{b \left(1 - b\right)} \left|\rho\right| "
            r"e_{\mathrm{new}},\quad \rho = y - X v"
        )
    limit.append(r"\mathrm{risk} = \frac{1}{2} \left(u^\top C u + \Delta\right),\quad u = w^* - v")
    return [Section("Algorithm", tuple(steps)), Section("DMFT", tuple(limit))]


# Infinitely wide networks


def _wide_network(problem: WideNetwork, algorithm: Algorithm) -> list[Section]:
    """Return the step and the law of one neuron per layer."""
    mean = _mean_over_data(algorithm, "P")
    velocity, direction = _velocity(algorithm, "Y", "G")
    steps = [
        r"e_\mu = y_\mu - f_\mu,\quad g_L = \sigma'\left(h_L\right) \circ w,\quad "
        r"g_l = \sigma'\left(h_l\right) \circ \left(V_l^\top g_{l+1}\right)",
        rf"G_{{V_l}} = \frac{{1}}{{N}} {mean}e_\mu g_{{l+1,\mu}} "
        r"\sigma\left(h_{l,\mu}\right)^\top",
        rf"G_w = {mean}e_\mu \sigma\left(h_{{L,\mu}}\right),\quad "
        rf"G_{{h_1(x)}} = {mean}e_\mu g_{{1,\mu}} \frac{{x_\mu \cdot x}}{{D}}",
        *velocity,
        r"\theta \leftarrow \theta + \mathrm{lr} \, \gamma_0 "
        rf"{direction} \text{{ with }} G = G_\theta \text{{ for }} \theta = V_l, w, h_1(x)",
        DATA_CLOCK,
    ]
    if _selects(algorithm):
        steps.append(SELECTION)
    limit = [
        r"E, \Pi \text{: orthonormal bases of all } \sigma\left(h_l\right) \text{ and all } "
        r"g_{l+1} \text{ so far},\quad A = V_l E,\quad F = V_l^\top \Pi",
        r"V_l e_{\mathrm{new}} = \Pi F^\top e_{\mathrm{new}} + \left(1 - \Pi \Pi^\top\right) \zeta"
        r",\quad V_l^\top p_{\mathrm{new}} = E A^\top p_{\mathrm{new}} + "
        r"\left(1 - E E^\top\right) \zeta'",
        r"\zeta, \zeta' \text{: one standard normal variable per neuron, of length 1 for } "
        r"N \to \infty",
        r"f(x) = \frac{1}{\gamma_0} \left\langle w \, \sigma\left(h_L(x)\right)\right\rangle - f_0"
        r",\quad \left\langle\cdot\right\rangle \text{: mean over the neurons of a layer}",
        r"\mathrm{risk} = \frac{1}{2 P} \sum_{\mu=1}^{P} \left(f_\mu - y_\mu\right)^2",
    ]
    return [Section("Algorithm", tuple(steps)), Section("DMFT", tuple(limit))]


# Diagonal networks


def _diagonal(problem: DiagonalNetwork, algorithm: Algorithm) -> list[Section]:
    """Return the step and the process of one coordinate."""
    mean = _mean_over_data(algorithm)
    decay = r" + \mathrm{al} u_j" if problem.weight_decay else ""
    step = r"u_j \leftarrow u_j - \mathrm{lr} "
    step += rf"\left(G_j v_j{decay}\right)" if decay else "G_j v_j"
    steps = [
        rf"G_j = \sqrt{{d}} {mean}\left(f_\mu - y_\mu\right) x_{{\mu j}}",
        step,
        step.replace("v_j", "#").replace("u_j", "v_j").replace("#", "u_j"),
        rf"{DATA_CLOCK},\quad n = \alpha d",
    ]
    if _selects(algorithm):
        steps.append(SELECTION)
    limit = [
        r"x_{\mu j} = \sqrt{l_b} Z_{\mu j},\quad f - y = Z q - \sqrt{\Delta} z,\quad "
        r"q_j = \sqrt{\frac{l_b}{d}} \left(u_j v_j - w^*_j\right)",
        rf"Z q = {LEFT_PRODUCT.format('Z')} + \sqrt{{n}} \, e_{{\mathrm{{new}}}}",
        rf"Z^\top p = {RIGHT_PRODUCT.format('Z')} + "
        r"\left(1 - \sum_k q_k q_k^\top\right) \zeta,\quad "
        r"\zeta_j \sim \mathcal{N}\left(0, 1\right)",
        BASES,
        r"\mathrm{risk} = \frac{1}{2} \left(\Delta + \sum_b f_b l_b "
        r"\mathbb{E}\left[\left(u v - w^*\right)^2\right]\right)",
    ]
    return [Section("Algorithm", tuple(steps)), Section("DMFT", tuple(limit))]


# Data and network, values of the parameters, and limit, by kind of problem.
_FORMULAS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    DeepLinear.kind: (deep_linear_sections, deep_linear_values, _deep_linear),
    WideNetwork.kind: (wide_network_sections, wide_network_values, _wide_network),
    DiagonalNetwork.kind: (diagonal_sections, diagonal_values, _diagonal),
}
