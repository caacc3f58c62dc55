"""The ODE of diagonal networks as LaTeX: the law of one variable per teacher weight."""

from __future__ import annotations

from sgdynamics.base.equations import Section
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.network_equations import diagonal_sections


def diagonal_drift_sections(problem: DiagonalNetwork) -> list[Section]:
    """Return the network, one-pass SGD, and the equations that `ode.diagonal` solves."""
    step = r"{0}_j \leftarrow {0}_j - \frac{{\mathrm{{lr}}}}{{B}} \sum_{{\mu=1}}^{{B}} "
    step += r"\frac{{\partial \ell_\mu}}{{\partial {0}_j}}"
    decay = r" - \frac{{\mathrm{{lr}}}}{{d}} \mathrm{{al}} {0}_j"
    step += decay if problem.weight_decay else ""
    algorithm = (
        step.format("u"),
        step.format("v"),
        r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{d},\quad "
        r"\alpha = \frac{B \cdot \mathrm{steps}}{d}",
    )
    shrinking = r"r l_b R" + (r" + 2 \mathrm{al}" if problem.weight_decay else "")
    lines = (
        r"c_b = \left|u^2 - v^2\right|,\quad "
        r"a = \frac{c_b}{2} \sinh\left(\vartheta\right),\quad r = \frac{\mathrm{lr}}{B}",
        r"d\vartheta = -2 l_b \left(a - w^*\right) dt + 2 \sqrt{r l_b R} \, dB_t"
        r"\quad \text{for each } w^* \text{ and block } b",
        rf"\frac{{d \log c_b}}{{dt}} = -\left({shrinking}\right)",
        r"R = \Delta + \sum_b f_b l_b \mathbb{E}\left[\left(a - w^*\right)^2\right]",
        r"\vartheta = T\left(z, t\right),\quad z \sim \mathcal{N}\left(0, 1\right)",
        r"\frac{\partial T}{\partial t} = -2 l_b \left(a\left(T\right) - w^*\right) + 2 r l_b R "
        r"\left(\frac{z}{\partial_z T} + \frac{\partial_z^2 T}{\left(\partial_z T\right)^2}\right)",
        r"\mathrm{risk} = \frac{R}{2}",
    )
    return [*diagonal_sections(problem), Section("Algorithm", algorithm), Section("ODE", lines)]
