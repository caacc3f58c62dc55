"""The formulas of an algorithm as LaTeX: its step, its clock, and its hyperparameters by symbol."""

from __future__ import annotations

from typing import Any

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import FixedData, Langevin, MultiPassSGD, PersistentSGD
from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.updates.law import Law, hyperparameter_symbol, step_equation
from sgdynamics.algorithms.updates.update import Update
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base.equations import Section

DIVISORS = {"dimension": "D = d", "trace": r"D = \sum_b n_b l_b", "step": "D = 1"}


def one_pass_section(
    algorithm: OnePassSGD,
    *,
    trains_head: bool,
    has_decay: bool,
    on_sphere: bool,
    move: str = r"\frac{\partial \ell_\mu}{\partial W}",
    head_move: str = r"\frac{\partial \ell_\mu}{\partial a}",
) -> Section:
    """Return the step of one-pass SGD on a fresh batch, and its clock.

    `move` and `head_move` are the directions of one sample in the rows and in the head, by default
    the gradients of its loss.
    """
    stated = algorithm.stated or algorithm
    law = algorithm.law
    penalty = r" + \mathrm{al} W" if has_decay and (law is None or law.decay_inside) else ""
    steps = (step_equation("G"),) if law is None else law.equations
    lines = [
        rf"G = \frac{{1}}{{B}} \sum_{{\mu=1}}^{{B}} {move}"
        rf"{penalty}\quad \text{{on a fresh batch}}",
        *steps,
    ]
    if has_decay and not penalty:
        lines.append(step_equation(r"\mathrm{al} W"))
    if on_sphere:
        lines.append(r"w_i \leftarrow \frac{w_i}{\left|w_i\right|}")
    if trains_head and algorithm.has_static_head:
        lines.append(r"a \text{ is the optimum of the risk for the present rows}")
    elif trains_head and law is None:
        head = rf"\frac{{1}}{{B}} \sum_{{\mu=1}}^{{B}} {head_move}"
        decay = r" + \mathrm{al} a" if has_decay else ""
        rate = r"\frac{\mathrm{head\_rate} \, \mathrm{lr}}{D}"
        lines.append(rf"a \leftarrow a - {rate} \left({head}{decay}\right)")
    elif trains_head:
        lines.append(
            r"a \text{ is one more column of } W \text{, with the rate } \mathrm{head\_rate}"
        )
    clock = r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{D}"
    if algorithm.scheduled:
        clock = r"t = \int \frac{\mathrm{lr}}{B} d\alpha"
    lines.append(
        rf"{clock},\quad \alpha = \frac{{B \cdot \mathrm{{steps}}}}{{d}},\quad "
        f"{DIVISORS[stated.per]}"
    )
    return Section("Algorithm", tuple(lines))


def one_pass_values(algorithm: OnePassSGD, trains_head: bool) -> dict[str, Any]:
    """Return the hyperparameters of one-pass SGD by symbol."""
    stated = algorithm.stated or algorithm
    values: dict[str, Any] = {r"\mathrm{lr}": stated.lr, "B": stated.batch}
    if trains_head and not stated.has_static_head:
        values[r"\mathrm{head\_rate}"] = stated.head_rate
    if stated.has_thermal_noise:
        values["T"] = stated.temperature
    if stated.update is not None:
        values |= update_values(stated.update)
    return values


def worker_lines(algorithm: Workers) -> list[str]:
    """Return the rounds of several workers, each of which takes the steps of one-pass SGD."""
    lines = [
        r"\text{worker } k \le K \text{ takes these steps on samples of its own, from } "
        r"W^{\left(k\right)} = W",
        r"\text{after } \tau d \text{ samples of each:}\quad "
        r"\overline{W} = \frac{1}{K} \sum_{k=1}^{K} W^{\left(k\right)}",
    ]
    if algorithm.averages:
        return [*lines, r"W \leftarrow \overline{W}"]
    return [
        *lines,
        r"\Gamma = W - \overline{W},\quad V \leftarrow \mu V + \Gamma,\quad "
        r"W \leftarrow W - \eta \left(\Gamma + \mu V\right),\quad V = 0 \text{ at the start}",
    ]


def worker_values(algorithm: Workers) -> dict[str, Any]:
    """Return the hyperparameters of the rounds by symbol."""
    values: dict[str, Any] = {"K": algorithm.workers, r"\tau": algorithm.every}
    if not algorithm.averages:
        values |= {r"\eta": algorithm.outer_lr, r"\mu": algorithm.outer_momentum}
    return values


def update_values(update: Update) -> dict[str, Any]:
    """Return the hyperparameters of an update, and of the one that it extends, by symbol."""
    values: dict[str, Any] = {}
    for name, value in update.numbers.items():
        if isinstance(value, Update):
            values |= update_values(value)
        else:
            values[hyperparameter_symbol(name)] = value
    return values


# Algorithms on a fixed data set


def fixed_data_section(
    algorithm: FixedData, *, trains_head: bool, has_decay: bool, on_sphere: bool
) -> Section:
    """Return the step on a fixed data set, and its clock."""
    decay = r" + \mathrm{al} W" if has_decay else ""
    update_lines: list[str] = []
    if algorithm.law is not None:
        update_lines = _update_lines(algorithm, algorithm.law, has_decay)
        decay = decay if algorithm.law.decay_inside else ""
    if isinstance(algorithm, EpochSGD):
        order = {
            "reshuffle": "a new random order in every epoch",
            "fixed": "the same order in every epoch",
            "replacement": "independent draws from the data set",
        }[algorithm.order]
        lines = [
            r"W \leftarrow W - \frac{\mathrm{lr}}{d} \left("
            rf"\frac{{1}}{{B}} \sum_{{\mu \in \mathrm{{batch}}}} h_\mu x_\mu^\top{decay}\right)",
            rf"\text{{the batches take the }} n = \alpha d \text{{ samples in {order}}}",
            r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{d}",
        ]
        if update_lines:
            gradient = r"\frac{1}{B} \sum_{\mu \in \mathrm{batch}} h_\mu x_\mu^\top"
            lines[0] = f"G = {gradient}{decay}"
            lines[1:1] = [*update_lines, "D = d"]
    else:
        selection = r"s_\mu " if algorithm.selects else ""
        divisor = "b n" if algorithm.divisor != 1.0 else "n"
        step = rf"\frac{{1}}{{{divisor}}} \sum_{{\mu=1}}^{{n}} {selection}h_\mu x_\mu^\top"
        if decay:
            step = rf"\left({step}{decay}\right)"
        noise = r" + \sqrt{\frac{2 T \mathrm{lr}}{d}} N" if algorithm.has_thermal_noise else ""
        lines = [rf"W \leftarrow W - \mathrm{{lr}} {step}{noise}"]
        if update_lines:
            thermal = [rf"W \leftarrow W{noise}"] if noise else []
            assert algorithm.law is not None
            if algorithm.law.on_sample is not None:
                step = rf"\frac{{1}}{{n}} \sum_{{\mu=1}}^{{n}} g_\mu x_\mu^\top{decay}"
            lines = [f"G = {step}", *update_lines, *thermal, "D = 1"]
        if isinstance(algorithm, PersistentSGD):
            lines.append(
                r"s_\mu: 0 \to 1 \text{ with probability } \frac{\mathrm{lr}}{\tau},\quad "
                r"1 \to 0 \text{ with } \frac{(1 - b) \mathrm{lr}}{b \tau} \text{ per step}"
            )
        elif algorithm.selects:
            lines.append(r"s_\mu \sim \text{Bernoulli}(b) \text{ at every step}")
        lines.append(r"t = \mathrm{lr} \cdot \mathrm{steps},\quad n = \alpha d")
    if on_sphere:
        lines.append(r"w_i \leftarrow \frac{w_i}{\left|w_i\right|}")
    if trains_head:
        lines.append(
            r"a \text{ takes the same steps with the rate } \mathrm{head\_rate} \, \mathrm{lr}"
        )
    return Section("Algorithm", tuple(lines))


def _update_lines(algorithm: FixedData, law: Law, has_decay: bool) -> list[str]:
    """Return the step of an update with the gradient G."""
    lines = list(law.equations)
    if has_decay and not law.decay_inside:
        lines.append(step_equation(r"\mathrm{al} W"))
    if law.noise and not isinstance(algorithm, EpochSGD):
        lines.append(r"N_{i j} \sim \mathcal{N}\left(0, \tfrac{1}{d}\right)")
    return lines


def fixed_data_values(algorithm: FixedData, trains_head: bool) -> dict[str, Any]:
    """Return the hyperparameters of an algorithm on a fixed data set by symbol."""
    stated = getattr(algorithm, "_stated", algorithm)
    values: dict[str, Any] = {
        r"\mathrm{lr}": stated.lr,
        r"\alpha = \frac{n}{d}": stated.samples_per_dimension,
    }
    if isinstance(stated, EpochSGD):
        values["B"] = stated.batch
    if isinstance(stated, MultiPassSGD):
        values["b"] = stated.batch_fraction
    if isinstance(stated, PersistentSGD):
        values[r"\tau"] = stated.persistence_time
    if isinstance(stated, Langevin):
        values["T"] = stated.temperature
    if trains_head:
        values[r"\mathrm{head\_rate}"] = stated.head_rate
    if stated.update is not None:
        values |= update_values(stated.update)
    return values
