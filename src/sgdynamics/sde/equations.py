"""The SDE as LaTeX: the increment due to one sample and its covariance (`sde.covariance`)."""

from __future__ import annotations

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.base.equations import Section
from sgdynamics.ode.equations import noise_factor
from sgdynamics.problems.equations import (
    decay_of_overlaps,
    has_decay,
    head_gradient_of,
    symbols_of,
)
from sgdynamics.problems.problem import Problem


def diffusion_section(
    problem: Problem, algorithm: OnePassSGD, *, has_workers: bool = False
) -> Section:
    """Return the SDE at dimension d around the drift of the section "ODE".

    With workers, the state has the overlaps C between the rows of any two of them.
    """
    structure, symbols = problem.structure, symbols_of(problem)
    h, b = symbols.gradient, symbols.index
    fields, fields_T = symbols.fields(True), symbols.fields(True, True)
    h_T = rf"{h}^\top"
    middle = "C_x " if structure.sample.tokens.correlated else ""
    trace = noise_factor(problem)
    rho, rho_T = (r"\rho ", r" \rho") if "rates" in problem._parameters else ("", "")
    pull = [("A", "B") if structure.loss.reads_overlaps else ("", "")][0]
    u_M = rf"-{rho}{h} {symbols.signals(True, True)}"
    u_Q = rf"-{rho}{h} {fields_T} - {fields} {h_T}{rho_T}"
    if pull[0]:
        u_M += rf" - {rho}\left(A M{b} + B P{b}\right)"
        Y = rf"{rho}\left(A Q{b} + B M{b}^\top\right)"
        u_Q += rf" - Y{b} - Y{b}^\top"
    u_Q += rf" + \frac{{\mathrm{{lr}}}}{{B}} {trace}{rho}{h} {middle}{h_T}{rho_T}"
    if has_decay(problem):
        u_M += rf" - \mathrm{{al}} M{b}"
        u_Q += f" - {decay_of_overlaps(problem)[1:]}"
    lines = []
    if problem.signals:
        lines.append(rf"u_{{M{b[1:]}}} = {u_M}" if not b else rf"u_{{M_b}} = {u_M}")
    lines.append(rf"u_{{Q{b}}} = {u_Q}")
    if pull[0]:
        lines.append(rf"Y{b} = {Y}")
    if structure.trained:
        gradient = head_gradient_of(problem)
        decay = r" + \mathrm{al} a" if has_decay(problem) else ""
        lines.append(rf"u_a = -\mathrm{{head\_rate}} \left({gradient}{decay}\right)")
    if structure.constraint.fixes_norms:
        lines.append(
            r"u_{M_i} \to u_{M_i} - \frac{1}{2} M_i u_{Q_{i i}},\quad "
            r"u_{Q_{i j}} \to u_{Q_{i j}} - \frac{1}{2} Q_{i j} "
            r"\left(u_{Q_{i i}} + u_{Q_{j j}}\right)",
        )
    if algorithm.has_thermal_noise:
        lines.append(
            r"u \to u + \sqrt{\frac{2 T B}{\mathrm{lr}}} \left(\text{a normal in each of the "
            r"directions of the rows and signals}\right)"
        )
    names = [*(["M"] if problem.signals else []), "Q"]
    if has_workers:
        first, second = r"\left(k\right)", r"\left(l\right)"
        decay = rf" - 2 \mathrm{{al}} C{b}" if has_decay(problem) else ""
        lines.append(
            rf"u_{{C{b}}} = -h^{{{first}}} {fields}^{{{second}\top}} - "
            rf"{fields}^{{{first}}} h^{{{second}\top}}{decay}"
        )
        names.append("C")
    state = r"\left(" + ", ".join(names) + (r", a\right)" if structure.trained else r"\right)")
    lines += [
        rf"s = {state},\quad ds = \frac{{ds}}{{dt}}\bigg|_{{\mathrm{{ODE}}}} dt + "
        r"\sqrt{\frac{\mathrm{lr}}{d B}} \Sigma^{1/2} dB_t",
        r"\Sigma = \operatorname{Cov}\left(u\right)",
    ]
    return Section("SDE", tuple(lines))
