"""The formulas of deep linear, infinitely wide and diagonal networks as LaTeX: data and network."""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.base.equations import Section
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.equations import activation_lines
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.samples import input_covariance

COVARIANCE = r"C = \operatorname{diag}\left(l_b\right)"
SQUARED_LOSS = r"\ell = \frac{1}{2} \left(f - y\right)^2"
NOISE = r"\sqrt{\Delta} z,\quad z \sim \mathcal{N}\left(0, 1\right)"


def deep_linear_sections(problem: DeepLinear) -> list[Section]:
    """Return the law of the data, and the network with its random start."""
    product = r"w^\top W_{L-1} \cdots W_1 x"
    samples = (
        rf"x \sim \mathcal{{N}}\left(0, C\right),\quad {COVARIANCE}",
        rf"y = w^* \cdot x + {NOISE}",
    )
    network = (
        rf"f = \frac{{1}}{{c}} {product},\quad W_1 \in \mathbb{{R}}^{{N \times d}},\quad "
        r"W_l \in \mathbb{R}^{N \times N},\quad N = \nu d",
        r"\left(W_1\right)_{i j} \sim \mathcal{N}\left(0, \frac{s^2}{d}\right),\quad "
        r"\left(W_l\right)_{i j}, w_i \sim \mathcal{N}\left(0, \frac{s^2}{N}\right)"
        r"\quad \text{at the start}",
        SQUARED_LOSS,
    )
    return [Section("Samples", samples), Section("Loss of one sample", network)]


def deep_linear_values(problem: DeepLinear) -> dict[str, Any]:
    """Return the parameters of a deep linear network by symbol."""
    gain, rates = problem.gain_and_rates(problem.width_per_dimension)
    values: dict[str, Any] = {
        "L": problem.depth,
        r"\nu": problem.width_per_dimension,
        r"\gamma_0": problem.gamma0,
        "c": gain,
        "r_l": rates,
        "s": problem.start_scale,
        r"\Delta": problem.noise,
        r"\mathrm{al}": problem.weight_decay,
        r"\left|w^*_b\right|": np.asarray(problem.parameters["teacher"]),
    }
    return values | _covariance_values(problem)


def wide_network_sections(problem: WideNetwork) -> list[Section]:
    """Return the data, and the network with its random start."""
    network = (
        r"h_1 = \frac{1}{\sqrt{D}} W_1 x,\quad h_{l+1} = V_l \sigma\left(h_l\right),\quad "
        r"V_l = \frac{1}{\sqrt{N}} W_l",
        r"f = \frac{1}{\gamma_0 N} w \cdot \sigma\left(h_L\right) - f_0,\quad "
        r"f_0 \text{: its value at the start}",
        *activation_lines("\\sigma", problem.activation),
        r"\left(W_l\right)_{i j}, w_i \sim \mathcal{N}\left(0, 1\right)\quad \text{at the start}",
        SQUARED_LOSS,
    )
    samples = (r"\left(x_\mu, y_\mu\right),\quad \mu = 1, \ldots, P \text{: the given data}",)
    return [Section("Samples", samples), Section("Loss of one sample", network)]


def wide_network_values(problem: WideNetwork) -> dict[str, Any]:
    """Return the parameters of an infinitely wide network by symbol."""
    return {
        "L": problem.hidden_layers,
        "P": problem.samples,
        "D": problem.input_dimension,
        r"\gamma_0": problem.gamma0,
    }


def diagonal_sections(problem: DiagonalNetwork) -> list[Section]:
    """Return the law of the data, and the network."""
    total = r"\frac{1}{\sqrt{d}} \sum_{j=1}^{d}"
    samples = (
        rf"x \sim \mathcal{{N}}\left(0, C\right),\quad {COVARIANCE}",
        rf"y = {total} w^*_j x_j + {NOISE},\quad w^*_j \sim \text{{law of the teacher}}",
    )
    network = (rf"f = {total} a_j x_j,\quad a_j = u_j v_j", SQUARED_LOSS)
    return [Section("Samples", samples), Section("Loss of one sample", network)]


def diagonal_values(problem: DiagonalNetwork) -> dict[str, Any]:
    """Return the parameters of a diagonal network by symbol."""
    atoms, shares = np.array(problem.teacher, np.float64).T
    values: dict[str, Any] = {
        "w^*": atoms,
        r"\text{shares of } w^*": shares,
        r"\left(u, v\right) \text{ at the start}": np.array(problem.start, np.float64),
        r"\Delta": problem.noise,
        r"\mathrm{al}": problem.weight_decay,
    }
    return values | _covariance_values(problem)


def _covariance_values(problem: DeepLinear | DiagonalNetwork) -> dict[str, Any]:
    """Return the eigenvalues of the covariance and their shares of the coordinates."""
    parameters = problem.parameters
    return {
        "l_b": np.asarray(input_covariance.eigenvalues(parameters), np.float64),
        "f_b": np.asarray(input_covariance.fractions(parameters), np.float64),
    }
