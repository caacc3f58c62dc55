"""The ODE as LaTeX: the drift of `ode.drift`, and the mean step of an update (`ode.update_step`).

`tests/ode/test_equations.py` evaluates the formulas and compares them with
`sgd.functional.drift`.
"""

from __future__ import annotations

from sgdynamics.algorithms.one_pass import OnePassSGD
from sgdynamics.algorithms.workers import Workers
from sgdynamics.base.equations import Section, join_terms, number
from sgdynamics.ode.static_top import RETURN
from sgdynamics.problems.equations import (
    Symbols,
    decay_of_overlaps,
    has_decay,
    head_gradient_of,
    symbols_of,
)
from sgdynamics.problems.losses import ContextLoss
from sgdynamics.problems.problem import Problem
from sgdynamics.samples import input_covariance


def mean(argument: str) -> str:
    """Return the expectation over a sample."""
    return rf"\mathbb{{E}}\left[{argument}\right]"


def drift_section(problem: Problem, algorithm: OnePassSGD, dimension: int | None) -> Section:
    """Return the ODE of plain one-pass SGD, also at finite d, and with a temperature."""
    lines = _overlap_lines(problem, algorithm, symbols_of(problem))
    if dimension is not None:
        lines += _finite_dimension_lines(problem)
    lines += sphere_lines(problem)
    lines += _static_head_lines(problem) if algorithm.has_static_head else _head_lines(problem)
    return Section("ODE", tuple(lines))


def _overlap_lines(problem: Problem, algorithm: OnePassSGD, symbols: Symbols) -> list[str]:
    """Return dM/dt and dQ/dt of free rows."""
    structure, loss = problem.structure, problem.structure.loss
    h, b = symbols.gradient, symbols.index
    several = symbols.tokens
    fields = symbols.fields(of_block=True)
    fields_T = symbols.fields(of_block=True, transposed=True)
    signals_T = symbols.signals(of_block=True, transposed=True)
    lines = []
    if structure.sample.noisy_inputs:
        # the drift of M sees the noise on the input along the signals
        signals_T = rf"\tilde{{\lambda}}{b}^{{*\top}}"
        lines.append(
            rf"\tilde{{\lambda}}{b}^{{*}} = W{b}^{{*}} \left(x{b} + \sqrt{{\nu}} \xi{b}\right)"
        )
    rows = ["A", "B"] if loss.reads_overlaps else []
    if getattr(loss, "moves_by_block", False):
        rows = ["A_b", "B_b"]
    A, B = rows or ("", "")
    rho = r"\rho " if "rates" in problem._parameters else ""
    dM = [rf"-{rho}\mathbb{{E}}\left[{h} {signals_T}\right]"]
    if rows:
        dM += [
            rf"-{rho}\mathbb{{E}}\left[{A}\right] M{b}",
            rf"-{rho}\mathbb{{E}}\left[{B}\right] P{b}",
        ]
    h_T = rf"{h}^\top"
    if rows:
        Y = [
            rf"{rho}\mathbb{{E}}\left[{h} {fields_T}\right]",
            rf"{rho}\mathbb{{E}}\left[{A}\right] Q{b}",
            rf"{rho}\mathbb{{E}}\left[{B}\right] M{b}^\top",
        ]
        dQ = [rf"-\left(Y{b} + Y{b}^\top\right)"]
        lines.append(f"Y{b} = {join_terms(Y)}")
    else:
        dQ = [rf"-\mathbb{{E}}\left[{h} {fields_T} + {fields} {h_T}\right]"]
    if has_decay(problem):
        dM.append(rf"-\mathrm{{al}} M{b}")
        dQ.append(decay_of_overlaps(problem))
    if not algorithm.flow:
        dQ.append(_noise_term(problem, symbols, rho))
    if algorithm.has_thermal_noise:
        dQ.append("2 T f_b I" if symbols.blocks else "2 T I")
    if problem.signals:
        lines.append(rf"\frac{{dM{b}}}{{dt}} = {join_terms(dM)}")
    lines.append(rf"\frac{{dQ{b}}}{{dt}} = {join_terms(dQ)}")
    if isinstance(loss, ContextLoss):
        lines.append(r"\mathbb{E}\left[\cdot\right] = \sum_c w_c \mathbb{E}_c\left[\cdot\right]")
    if several and structure.sample.tokens.correlated:
        lines.append(r"C_x \text{: correlation of the inputs of a sample}")
    return lines


def _noise_term(problem: Problem, symbols: Symbols, rho: str) -> str:
    """Return the noise of the gradient in dQ/dt."""
    h, sample = symbols.gradient, problem.structure.sample
    middle = "C_x " if symbols.tokens and sample.tokens.correlated else ""
    left, right = f"{rho}{h}", rf"{h}^\top" + (r" \rho^\top" if rho else "")
    factor = noise_factor(problem)
    variance = f"{left} {middle}{right}"
    if sample.context_spectra:
        # the eigenvalue belongs to the context, and is averaged with the gradient
        return rf"\frac{{\mathrm{{lr}}}}{{B}} \mathbb{{E}}\left[{factor}{variance}\right]"
    return rf"\frac{{\mathrm{{lr}}}}{{B}} {factor}{mean(variance)}"


def noise_factor(problem: Problem) -> str:
    """Return the share of a block in |x|^2/d as a factor; empty if it is 1."""
    structure = problem.structure
    several = structure.blocks > 1
    eigenvalue = "l_b " if several else ""
    if structure.sample.context_spectra:
        eigenvalue = "l_{c b} " if several else "l_c "
    elif "snr" in problem._parameters:
        eigenvalue = r"\frac{1}{\mathrm{snr}} "
    elif not several and float(input_covariance.eigenvalues(problem.parameters)[0]) != 1.0:
        eigenvalue = "l "
    if structure.sample.noisy_inputs:
        eigenvalue = rf"\left({eigenvalue.strip() or '1'} + \nu\right) "
    return eigenvalue + ("f_b " if several else "")


def _finite_dimension_lines(problem: Problem) -> list[str]:
    """Return the terms of relative order 1/d of the mean increment of one step."""
    symbols = symbols_of(problem)
    b, eigenvalue = symbols.index, noise_factor(problem).replace("f_b ", "")
    fields, fields_T = symbols.fields(True), symbols.fields(True, True)
    terms = [
        rf"\frac{{1}}{{B}} \mathbb{{E}}\left[\delta{b} h h^\top\right]",
        rf"\left(1 - \frac{{1}}{{B}}\right) \mathbb{{E}}\left[h x{b}^\top\right] "
        rf"\mathbb{{E}}\left[x{b} h^\top\right]",
    ]
    if has_decay(problem):
        terms += [
            rf"\mathrm{{al}}^2 Q{b}",
            rf"\mathrm{{al}} \mathbb{{E}}\left[h {fields_T} + {fields} h^\top\right]",
        ]
    lines = [
        rf"\frac{{dQ{b}}}{{dt}} \to \frac{{dQ{b}}}{{dt}} + \frac{{\mathrm{{lr}}}}{{d}} "
        rf"\left\{{{join_terms(terms)}\right\}}",
        rf"\delta{b} = \left|\Pi x{b}\right|^2 - {eigenvalue}(p + K),\quad "
        rf"\Pi \text{{ projects on the span of }} W{b} \text{{ and }} W{b}^{{*}}",
    ]
    if problem.structure.constraint.fixes_norms:
        lines.append(r"\text{and the mean of the normalisation beyond first order}")
    return lines


def sphere_lines(problem: Problem) -> list[str]:
    """Return the effect of the normalisation of the rows; nothing for free rows."""
    if not problem.structure.constraint.fixes_norms:
        return []
    b = symbols_of(problem).index
    growth = r"\frac{d Q_{i i}}{dt}"
    other = r"\frac{d Q_{j j}}{dt}"
    lines = []
    if problem.signals:
        m = f"M_{{{b[1:]} i}}" if b else "M_i"
        lines.append(rf"\frac{{d{m}}}{{dt}} \to \frac{{d{m}}}{{dt}} - \frac{{1}}{{2}} {m} {growth}")
    q = f"Q_{{{b[1:]} i j}}" if b else "Q_{i j}"
    lines.append(
        rf"\frac{{d{q}}}{{dt}} \to \frac{{d{q}}}{{dt}} - \frac{{1}}{{2}} {q} "
        rf"\left({growth} + {other}\right)"
    )
    return lines


def _head_lines(problem: Problem) -> list[str]:
    """Return da/dt of a trained head."""
    structure = problem.structure
    if not structure.trained:
        return []
    if structure.top is not None:
        return _top_lines(problem)
    context, weight = ("", "") if structure.heads == 1 else ("^{(c)}", "w_c ")
    gradient = (
        mean("g")
        if head_gradient_of(problem) == "g"
        else mean(rf"\frac{{\partial \ell}}{{\partial a{context}}}")
    )
    if structure.heads > 1:
        gradient = gradient.replace(r"\mathbb{E}", r"\mathbb{E}_c")
    decay = rf" + \mathrm{{al}} a{context}" if has_decay(problem) else ""
    inner = f"{weight}{gradient}{decay}"
    if decay:
        inner = rf"\left({inner}\right)"
    return [rf"\frac{{da{context}}}{{dt}} = -\mathrm{{head\_rate}} \, {inner}"]


def _static_head_lines(problem: Problem) -> list[str]:
    """Return da/dt of a head, or a top, that stays at its optimum (`ode.static_top`)."""
    head = r"\theta" if problem.structure.top is not None else "a"
    decay = rf" + \mathrm{{al}} {head}" if has_decay(problem) else ""
    gradient = mean(rf"\frac{{\partial \ell}}{{\partial {head}}}")
    return [
        rf"G_{head}\left(M, Q, {head}\right) = {gradient}{decay},\quad "
        rf"J = \frac{{\partial G_{head}}}{{\partial {head}}}",
        rf"\frac{{d{head}}}{{dt}} = -J^{{+}} \left("
        rf"\frac{{\partial G_{head}}}{{\partial M}} \frac{{dM}}{{dt}} + "
        rf"\frac{{\partial G_{head}}}{{\partial Q}} \frac{{dQ}}{{dt}} + "
        rf"{number(RETURN)} \, G_{head}\right),\quad G_{head} = 0 \text{{ at the start}}",
    ]


def worker_lines(problem: Problem, algorithm: Workers) -> list[str]:
    """Return the rates of the overlaps C between two workers, and the end of a round."""
    symbols = symbols_of(problem)
    b, fields_T, fields = symbols.index, symbols.fields(True, True), symbols.fields(True)
    first, second = r"\left(k\right)", r"\left(l\right)"
    fields_T = fields_T.removesuffix(r"^{\top}")
    dC = [
        rf"-\mathbb{{E}}\left[h^{{{first}}} {fields_T}^{{{second}\top}} + "
        rf"{fields}^{{{first}}} h^{{{second}\top}}\right]"
    ]
    if has_decay(problem):
        dC.append(rf"-2 \mathrm{{al}} C{b}")
    return [
        rf"C{b} = W{b}^{{{first}}} W{b}^{{{second}\top}} \text{{ of two workers }} k \ne l",
        rf"\frac{{dC{b}}}{{dt}} = {join_terms(dC)}",
        *_round_lines(symbols.index, algorithm),
    ]


def _round_lines(b: str, algorithm: Workers) -> list[str]:
    """Return the map of the overlaps at the end of a round."""
    if not algorithm.averages:
        return [
            r"\text{end of a round: } "
            rf"M{b} \leftarrow R M{b},\quad Q{b} \leftarrow R Q{b} R^\top \text{{, where }}"
            r" \left(W^{\left(1\right)}, \ldots, W^{\left(K\right)}, W, V\right) \leftarrow R "
            r"\left(W^{\left(1\right)}, \ldots, W^{\left(K\right)}, W, V\right)"
        ]
    if algorithm.problems is None:
        M, Q = f"M{b}", rf"\frac{{1}}{{K}} Q{b} + \left(1 - \frac{{1}}{{K}}\right) C{b}"
    else:
        M = rf"\frac{{1}}{{K}} \sum_k M{b}^{{\left(k\right)}}"
        Q = (
            rf"\frac{{1}}{{K^2}} \left(\sum_k Q{b}^{{\left(k\right)}} + "
            rf"\sum_{{k \ne l}} C{b}^{{\left(k l\right)}}\right)"
        )
    return [
        r"\text{end of a round: } "
        rf"M{b} \leftarrow {M},\quad Q{b} \leftarrow {Q},\quad C{b} \leftarrow Q{b}"
    ]


def _top_lines(problem: Problem) -> list[str]:
    """Return dtheta/dt of a network on top of the rows, leaf by leaf."""
    gradient = mean(r"\frac{\partial \ell}{\partial \theta_j}")
    decay = r" + \mathrm{al}_j \theta_j" if has_decay(problem) else ""
    inner = rf"\left({gradient}{decay}\right)" if decay else gradient
    return [rf"\frac{{d\theta_j}}{{dt}} = -\mathrm{{head\_rate}}_j \, {inner}"]


# Updates


def update_section(problem: Problem, algorithm: OnePassSGD) -> Section:
    """Return the mean step of an update for D -> infinity."""
    law = algorithm.law
    assert law is not None
    symbols = symbols_of(problem)
    if law.image:
        lines = _image_lines(problem, algorithm, symbols, law.image)
    elif law.equivalent_rate:
        lines = [
            r"\text{plain SGD at the rate } "
            rf"\widetilde{{\mathrm{{lr}}}} = {law.equivalent_rate} \text{{, in }} "
            r"t = \frac{\mathrm{lr} \cdot \mathrm{steps}}{D}:"
        ]
        plain = _overlap_lines(problem, algorithm, symbols)
        factor = r"\frac{\widetilde{\mathrm{lr}}}{\mathrm{lr}}"
        for line in plain:
            left, equals, right = line.partition(" = ")
            if left.startswith(r"\frac{dM") or left.startswith(r"\frac{dQ"):
                right = right.replace(r"\mathrm{lr}", r"\widetilde{\mathrm{lr}}")
                line = rf"{left}{equals}{factor} \left({right}\right)"
            lines.append(line)
    else:
        lines = _mean_step_lines(problem, law.rows)
    lines += sphere_lines(problem)
    if problem.structure.trained and (law.image or law.equivalent_rate):
        lines += _head_lines(problem) if law.image == r"\frac{h}{B}" else []
    return Section("ODE", tuple(lines))


def _image_lines(
    problem: Problem, algorithm: OnePassSGD, symbols: Symbols, image: str
) -> list[str]:
    """Return the ODE of an update without memory, which acts on the gradients in the fields."""
    b = symbols.index
    fields, fields_T = symbols.fields(True), symbols.fields(True, True)
    signals_T = symbols.signals(True, True)
    subscript = "_i" if "h_i" in image else (r"_\mu" if "h_\\mu" in image else "")
    dM = [rf"-\mathbb{{E}}\left[\tilde{{h}} {signals_T}\right]"]
    dQ = [rf"-\mathbb{{E}}\left[\tilde{{h}} {fields_T} + {fields} \tilde{{h}}^\top\right]"]
    if has_decay(problem):
        dM.append(rf"-\mathrm{{al}} M{b}")
        dQ.append(decay_of_overlaps(problem))
    dQ.append(
        rf"\mathrm{{lr}} {noise_factor(problem)}"
        r"\mathbb{E}\left[\tilde{h} \tilde{h}^\top\right]"
    )
    if algorithm.has_thermal_noise:
        dQ.append("2 T f_b I" if symbols.blocks else "2 T I")
    lines = [
        r"h = \left(h_1, \ldots, h_B\right) \in \mathbb{R}^{p \times B} \text{ and likewise } "
        rf"{symbols.fields()}"
        + (rf", {symbols.signals()}" if problem.signals else "")
        + r" \text{: the samples of a batch}",
        rf"\tilde{{h}}{subscript} = {image}"
        + (r",\quad l_1 = \sum_b f_b l_b" if "l_1" in image else ""),
    ]
    if problem.signals:
        lines.append(rf"\frac{{dM{b}}}{{dt}} = {join_terms(dM)}")
    return [*lines, rf"\frac{{dQ{b}}}{{dt}} = {join_terms(dQ)}"]


def _mean_step_lines(problem: Problem, rows: tuple[str, ...]) -> list[str]:
    """Return the mean of a step of all sets of rows, and of the scalars of the update."""
    factor = r"\lim_{D \to \infty} \frac{D}{\mathrm{lr}}"
    sets = "W" if not rows else r"\left(W; \text{" + ", ".join(rows) + r"}\right)"
    lines = [
        rf"Z = {sets},\quad \Delta Z, \Delta s \text{{: change of rows and scalars in one step}}",
    ]
    if problem.signals:
        lines.append(
            rf"\frac{{d\left(Z W^{{*\top}}\right)}}{{dt}} = {factor} " + mean(r"\Delta Z W^{*\top}")
        )
    lines += [
        rf"\frac{{d\left(Z Z^\top\right)}}{{dt}} = {factor} "
        + mean(r"Z \Delta Z^\top + \Delta Z Z^\top + \Delta Z \Delta Z^\top"),
        rf"\frac{{ds}}{{dt}} = {factor} \mathbb{{E}}\left[\Delta s\right]",
    ]
    if problem.structure.blocks > 1:
        lines.append(r"\text{in each block } b \text{ of the covariance}")
    return lines
