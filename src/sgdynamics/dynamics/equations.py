"""`problem.equations(algorithm)`: the equations of a solver, put together from the packages.

The formulas stand next to the code that they describe: samples and losses in `problems.equations`,
steps in the laws of updates and `algorithms.equations`, the drift in `ode.equations`, the SDE in
`sde.equations`, DMFT in `fixed_data.equations`. Those of spiked tensors and of a user's dynamics
are below; their code is in this package.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sgdynamics.algorithms.equations import (
    fixed_data_section,
    fixed_data_values,
    one_pass_section,
    one_pass_values,
    worker_lines,
    worker_values,
)
from sgdynamics.algorithms.fixed_data import FixedData, validate_fixed_data
from sgdynamics.algorithms.one_pass import OnePassSGD, validate_algorithm
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base import checks
from sgdynamics.base.equations import (
    Equations,
    Section,
    assignments,
    function_formula,
    join_terms,
    operator,
    parameter_symbol,
    text,
)
from sgdynamics.base.support import require
from sgdynamics.dynamics.choice import dynamics_of
from sgdynamics.dynamics.protocol import Dynamics
from sgdynamics.fixed_data.equations import dmft_section
from sgdynamics.fixed_data.network_equations import network_sections
from sgdynamics.ode.diagonal_equations import diagonal_drift_sections
from sgdynamics.ode.equations import drift_section, update_section
from sgdynamics.ode.equations import worker_lines as overlap_lines
from sgdynamics.problems.deep_linear import DeepLinear
from sgdynamics.problems.diagonal import DiagonalNetwork
from sgdynamics.problems.equations import (
    has_decay,
    loss_values,
    problem_sections,
    problem_values,
)
from sgdynamics.problems.network_equations import diagonal_values
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.spiked_tensor import SpikedTensor
from sgdynamics.problems.student_equations import student_sections, student_values
from sgdynamics.problems.student_losses import StudentsLoss
from sgdynamics.problems.students import Students
from sgdynamics.problems.user_losses import RuleLoss
from sgdynamics.problems.wide_network import WideNetwork
from sgdynamics.sde.equations import diffusion_section

# The solvers whose equations can be shown, by the argument `of`.
SOLVERS = {"ode": "solve_ode", "sde": "solve_sde", "dmft": "solve_dmft"}


def equations_of(problem: Any, algorithm: Any, of: str | None, dimension: int | None) -> Equations:
    """Return the equations of a solver; see `HasEquations.equations`."""
    on_data = isinstance(algorithm, FixedData)
    kind = checks.choice("of", of or ("dmft" if on_data else "ode"), SOLVERS)
    require(SOLVERS[kind], problem, algorithm)
    if dimension is not None:
        dimension = checks.integer("dimension", dimension, 1)
        _check_dimension(problem, algorithm, kind)
    if isinstance(problem, DeepLinear | WideNetwork | DiagonalNetwork):
        return _networks(problem, algorithm, kind)
    if kind == "dmft":
        return _on_data(problem, validate_fixed_data(algorithm))
    if isinstance(algorithm, Workers):
        return _workers(problem, algorithm, kind)
    if isinstance(problem, Dynamics):
        return _own_dynamics(problem, validate_algorithm(algorithm), kind)
    if isinstance(problem, SpikedTensor):
        return _spiked_tensor(
            problem, validate_algorithm(algorithm, problem=problem), kind, dimension
        )
    one_pass = validate_algorithm(algorithm, problem=problem)
    if one_pass.law is not None and one_pass.law.no_limit and kind == "ode":
        raise checks.reject("update", one_pass.update, f"it has no ODE: {one_pass.law.no_limit}")
    plain = one_pass.update is None
    drift = (
        drift_section(problem, one_pass, dimension) if plain else update_section(problem, one_pass)
    )
    sections = [
        *_sections_of(problem),
        _steps_of(problem, one_pass),
        drift,
    ]
    if kind == "sde":
        sections.append(diffusion_section(problem, one_pass))
    values = student_values(problem) if isinstance(problem, Students) else problem_values(problem)
    values |= one_pass_values(one_pass, problem.structure.trained)
    if dimension is not None:
        values["d"] = dimension
    return _equations(problem, one_pass, kind, sections, values, dimension)


def _sections_of(problem: Problem) -> tuple[Section, ...]:
    """Return the sections on the samples and on the losses."""
    if isinstance(problem, Students):
        return student_sections(problem)
    return problem_sections(problem)


def _steps_of(problem: Problem, algorithm: OnePassSGD) -> Section:
    """Return the step of one-pass SGD, which follows the gradient of a loss or a stated move."""
    loss, options = problem.structure.loss, _options(problem)
    if not isinstance(loss, (RuleLoss, StudentsLoss)):
        return one_pass_section(algorithm, **options)
    several = problem.structure.sample.tokens.count is not None
    inputs = r"H_\mu X_\mu" if several else r"h_\mu x_\mu^\top"
    if isinstance(loss, RuleLoss):
        inputs = rf"\rho \left({inputs} + A_\mu W + B_\mu W^*\right)"
    return one_pass_section(algorithm, **options, move=inputs, head_move=r"g_\mu")


def _check_dimension(problem: Any, algorithm: Any, kind: str) -> None:
    """Raise ValueError where the corrections at finite d have no formula here."""
    fix = (
        "the equations at finite d are written for the ODE of one input per sample and plain "
        "steps. Omit dimension for the limit d -> infinity."
    )
    is_plain = isinstance(algorithm, OnePassSGD) and algorithm.stepping is None
    is_simple = isinstance(problem, SpikedTensor) or (
        isinstance(problem, Problem)
        and problem.structure.sample.tokens.count is None
        and problem.structure.sample.centred
        and not problem.structure.sample.noisy_inputs
        and not problem.structure.sample.contexts
        and not problem.structure.loss.reads_overlaps
        and not isinstance(problem, Students)
    )
    if kind != "ode" or not is_plain or not is_simple:
        raise checks.reject("dimension", "a number", fix)


def _options(problem: Problem) -> dict[str, Any]:
    """Return what the step of an algorithm depends on."""
    structure = problem.structure
    return {
        "trains_head": structure.trained,
        "has_decay": has_decay(problem),
        "on_sphere": structure.constraint.fixes_norms,
    }


def _equations(
    problem: Any,
    algorithm: Any,
    kind: str,
    sections: list[Section],
    values: dict[str, Any],
    dimension: int | None = None,
) -> Equations:
    """Return the sections with a title and the values of the parameters."""
    name = getattr(problem, "kind", type(problem).__name__)
    limit = "" if kind == "sde" else f", {_size_of(problem)} -> infinity"
    if dimension is not None:
        limit = f", d = {dimension}"
    method = {"ode": "ODE", "sde": "SDE", "dmft": "DMFT"}[kind]
    update = getattr(algorithm, "update", None)
    step = f"{type(algorithm).__name__}" + (f" with {update.kind}" if update is not None else "")
    title = f"{method} of {name} under {step}{limit}"
    return Equations(title, (*sections, Section("Parameters", assignments(values))))


def _size_of(problem: Any) -> str:
    """Return the sizes that are infinite in the limit of a problem."""
    if isinstance(problem, WideNetwork):
        return "N"
    return "d and N" if isinstance(problem, DeepLinear) else "d"


def _on_data(problem: Problem, algorithm: FixedData) -> Equations:
    """Return the DMFT of an algorithm on a fixed data set."""
    structure = problem.structure
    sections = [
        *problem_sections(problem),
        fixed_data_section(algorithm, **_options(problem)),
        dmft_section(problem, algorithm),
    ]
    values = problem_values(problem) | fixed_data_values(algorithm, structure.trained)
    return _equations(problem, algorithm, "dmft", sections, values)


def _workers(problem: Problem, algorithm: Workers, kind: str) -> Equations:
    """Return the equations of several workers whose rows are averaged in rounds."""
    inner = validate_algorithm(algorithm.algorithm, problem=problem)
    steps = _steps_of(problem, inner)
    drift = drift_section(problem, inner, None)
    samples, losses = problem_sections(problem)
    values = problem_values(problem)
    for number, own in enumerate(algorithm.problems or (), start=1):
        own_values = loss_values(own)
        lines = losses.lines if number > 1 else ()
        loss = (*problem_sections(own)[-1].lines, *assignments(own_values))
        losses = Section("Losses of the workers", (*lines, rf"\text{{worker {number}:}}", *loss))
        values = {symbol: value for symbol, value in values.items() if symbol not in own_values}
    sections = [
        samples,
        losses,
        Section("Algorithm", (*steps.lines, *worker_lines(algorithm))),
        Section("ODE", (*drift.lines, *overlap_lines(problem, algorithm))),
    ]
    if kind == "sde":
        sections.append(diffusion_section(problem, inner, has_workers=True))
    values |= one_pass_values(inner, problem.structure.trained) | worker_values(algorithm)
    return _equations(problem, algorithm, kind, sections, values)


# Networks with equations of their own


def _networks(problem: Any, algorithm: Any, kind: str) -> Equations:
    """Return the equations of deep linear, infinitely wide and diagonal networks."""
    validated = dynamics_of(SOLVERS[kind], problem, algorithm).algorithm
    if isinstance(problem, DiagonalNetwork) and kind == "ode":
        sections, values = diagonal_drift_sections(problem), diagonal_values(problem)
        values |= {r"\mathrm{lr}": validated.lr, "B": validated.batch}
        return _equations(problem, algorithm, kind, sections, values)
    sections, values = network_sections(problem, validated)
    return _equations(problem, algorithm, kind, sections, values)


# Spiked tensors: the code is in `spiked_equations`


def _spiked_tensor(
    problem: SpikedTensor, algorithm: OnePassSGD, kind: str, dimension: int | None
) -> Equations:
    """Return the equations of a spiked tensor, with k the order."""
    ridge = problem.ridge != 0
    penalty = r" + \frac{\mathrm{al}}{2} \left|x\right|^2" if ridge else ""
    loss = rf"\ell = \left|Y - x^{{\otimes k}}\right|^2{penalty}"
    samples = (
        r"Y = \mathrm{snr} \, v^{\otimes k} + N,\quad N_{i_1 \ldots i_k} \sim \mathcal{N}(0, 1)",
        r"m = \left\langle x, v \right\rangle,\quad r_2 = \left|x\right|^2 - m^2",
    )
    pull = join_terms([r"2 k R^{2 k - 2}", *([r"\mathrm{al}"] if ridge else [])])
    lines = [
        rf"R = \sqrt{{m^2 + r_2}},\quad \pi = {pull}",
        r"\frac{dm}{dt} = 2 k \mathrm{snr} m^{k - 1} - \pi m",
        r"\frac{dr_2}{dt} = -2 \pi r_2 + \frac{\mathrm{lr}}{B} 4 k R^{2 k - 2}",
    ]
    radial = r"\frac{4 k \left(k - 1\right) R^{2 k - 4}}{B}"
    across = r"\frac{4 k R^{2 k - 2}}{B}"
    if dimension is not None:
        lines[2] += (
            r" + \frac{\mathrm{lr}}{n} "
            rf"\left(\left(\pi^2 + {radial}\right) r_2 - {across}\right)"
        )
    sections = [
        Section("Samples", samples),
        Section("Loss of one sample", (loss,)),
        Section(
            "Algorithm",
            (
                r"x \leftarrow x - \frac{\mathrm{lr}}{n} \frac{1}{B} \sum_{\mu=1}^{B} "
                r"\frac{\partial \ell_\mu}{\partial x},\quad "
                r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{n}",
            ),
        ),
        Section("ODE", tuple(lines)),
    ]
    if kind == "sde":
        noise = (
            r"d\left(m, r_2\right) = \frac{d\left(m, r_2\right)}{dt}\bigg|_{\mathrm{ODE}} dt + "
            r"\sqrt{\frac{\mathrm{lr}}{n}} \Sigma^{1/2} dB_t",
            rf"\Sigma_{{m m}} = {radial} m^2 + {across}",
            rf"\Sigma_{{m r_2}} = 2 {radial} m r_2",
            rf"\Sigma_{{r_2 r_2}} = 4 r_2 \left({radial} r_2 + {across}\right)",
        )
        sections.append(Section("SDE", noise))
    values = {
        "k": problem.order,
        r"\mathrm{snr}": problem.snr,
        **({r"\mathrm{al}": problem.ridge} if ridge else {}),
        r"\mathrm{lr}": algorithm.lr,
        "B": algorithm.batch,
        **({"n": dimension} if dimension is not None else {}),
    }
    return _equations(problem, algorithm, kind, sections, values, dimension)


# A user's dynamics


def _own_dynamics(problem: Dynamics, algorithm: OnePassSGD, kind: str) -> Equations:
    """Return the equations of a user's dynamics: its methods by name, or their formulas."""
    name = operator(type(problem).__name__)
    state = [parameter_symbol(variable) for variable in problem.variables]
    arguments = ", ".join(state)
    rate = function_formula(type(problem).rate)
    lines = [
        rf"\frac{{d{symbol}}}{{dt}} = {name}.\mathrm{{rate}}_{{{symbol}}}\left({arguments}\right)"
        for symbol in state
    ]
    sections = [
        Section(
            "Variables",
            tuple(
                rf"{symbol}:\quad \text{{{text(str(meaning[0]))}}}"
                for symbol, meaning in zip(state, problem.variables.values(), strict=True)
            ),
        ),
        Section("Algorithm", (r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{d}",)),
        Section("ODE", tuple(rate.split("\n")) if rate else tuple(lines)),
    ]
    if kind == "sde":
        noise = function_formula(type(problem).noise)
        stated = [
            rf"d{symbol} = \frac{{d{symbol}}}{{dt}}\bigg|_{{\mathrm{{ODE}}}} dt + "
            rf"{name}.\mathrm{{noise}}_{{{symbol}}}\left({arguments}\right) dB_t"
            for symbol in state
        ]
        sections.append(Section("SDE", tuple(noise.split("\n")) if noise else tuple(stated)))
    values = {
        parameter_symbol(parameter): value
        for parameter, value in problem.parameters.items()
        if np.ndim(value) <= 2 and not isinstance(value, dict)
    }
    return _equations(
        problem,
        algorithm,
        kind,
        sections,
        values | {r"\mathrm{lr}": algorithm.lr, "B": algorithm.batch},
    )
