"""Dynamical mean-field theory as LaTeX: the effective process of one sample, and its two-time
functions.

`fixed_data.dmft` samples the same process along paths, conditioned on the products of the data that
the algorithm has used. With W_t the rows at step t, the cavity argument gives for the gradient

    (1/n) sum_mu s_mu h_mu x_mu = sum_s K(t, s) W_s + K*(t) W* + zeta_t,

with zeta_t Gaussian of covariance V(t, s)/n per coordinate; the equations follow by multiplication
with W_t' and W*. `tests/fixed_data/test_equations.py` solves them for a linear student.
"""

from __future__ import annotations

from dataclasses import dataclass

from sgdynamics.algorithms.epochs import EpochSGD
from sgdynamics.algorithms.fixed_data import FixedData
from sgdynamics.base.equations import Section
from sgdynamics.problems.equations import has_decay, symbols_of
from sgdynamics.problems.problem import Problem
from sgdynamics.samples import input_covariance


def dmft_section(problem: Problem, algorithm: FixedData) -> Section:
    """Return the self-consistent equations of the limit d -> infinity at n = alpha d."""
    if algorithm.law is not None:
        lines = _update_lines(problem, algorithm)
    elif isinstance(algorithm, EpochSGD):
        lines = _epoch_lines(problem)
    else:
        lines = _step_lines(problem, algorithm)
    return Section("DMFT", tuple(lines))


@dataclass(frozen=True)
class _Terms:
    """Factors that depend on the samples of a problem."""

    problem: Problem

    @property
    def b(self) -> str:
        """Index of a covariance block."""
        return symbols_of(self.problem).index

    @property
    def eigenvalue(self) -> str:
        """Eigenvalue of a block as a factor; empty if it is 1."""
        if self.b:
            return "l_b "
        if "snr" in self.problem._parameters:
            return r"\frac{1}{\mathrm{snr}} "
        return (
            "" if float(input_covariance.eigenvalues(self.problem.parameters)[0]) == 1.0 else "l "
        )

    @property
    def share(self) -> str:
        """Contribution of a block to |x|^2/d as a factor."""
        return f"{self.eigenvalue}f_b " if self.b else self.eigenvalue

    @property
    def has_tokens(self) -> bool:
        return self.problem.structure.sample.tokens.count is not None

    @property
    def correlation(self) -> str:
        """Correlation of the inputs of a sample as a factor."""
        return " C_x" if self.problem.structure.sample.tokens.correlated else ""

    @property
    def drive(self) -> str:
        return "H" if self.has_tokens else "h"

    def response(self, first: str, second: str) -> str:
        """Return the response that acts on the fields, summed over blocks."""
        total = r"\sum_b " if self.b else ""
        return rf"{total}{self.share}R{self.b}\left({first}, {second}\right)"

    def laws(self, time: str, other: str) -> list[str]:
        """Return the law of the Gaussian drive eta of the fields and of the signals."""
        weight = rf"\sum_b {self.eigenvalue}" if self.b else self.eigenvalue
        first, second = rf"\eta_{time}", rf"\eta_{other}"
        if self.has_tokens:
            first, second = rf"\eta_{{{time} l}}", rf"\eta_{{{other} l}}"
        signals = r"\lambda^{*}_l" if self.has_tokens else r"\lambda^{*}"
        formulas = [
            rf"\operatorname{{Cov}}\left({first}, {second}\right) = "
            rf"{weight}C{self.b}({time}, {other})"
        ]
        if self.problem.signals:
            formulas += [
                rf"\operatorname{{Cov}}\left({first}, {signals}\right) = {weight}M{self.b}({time})",
                rf"\operatorname{{Cov}}\left({signals}, {signals}\right) = {weight}P{self.b}",
            ]
        lines = [",\\quad ".join(formulas)]
        if not self.problem.structure.sample.centred:
            index = "_l" if self.has_tokens else ""
            lines.append(
                rf"\mathbb{{E}}\left[{first}\right] = M({time}) c{index},\quad "
                rf"\mathbb{{E}}\left[{signals}\right] = P c{index}"
                rf"\quad \text{{for inputs of mean }} \textstyle\sum_r c_{{{index[1:]} r}} w^*_r"
            )
        return lines

    def gradient_mean(self, selection: str, time: str) -> str:
        """Return the mean of the gradient along the signals, K*, at one time."""
        if self.has_tokens:
            direct = rf"\frac{{\partial h_{{{time} l}}}}{{\partial \lambda^{{*}}_{{l'}}}}"
            sum_over = r"\sum_{l l'} C_{l l'} "
            if not self.correlation:
                direct, sum_over = direct.replace("l'", "l"), r"\sum_l "
        else:
            direct, sum_over = rf"\frac{{\partial h_{time}}}{{\partial \lambda^{{*}}}}", ""
        return rf"{sum_over}\mathbb{{E}}\left[{selection}{direct}\right]"

    def kernel(self, selection: str, time: str, other: str) -> str:
        """Return the memory kernel K at two times."""
        if not self.has_tokens:
            fraction = rf"\frac{{\partial h_{time}}}{{\partial \eta_{other}}}"
            return rf"\mathbb{{E}}\left[{selection}{fraction}\right]"
        second = "l'" if self.correlation else "l"
        sum_over = r"\sum_{l l'} C_{l l'} " if self.correlation else r"\sum_l "
        fraction = rf"\frac{{\partial h_{{{time} l}}}}{{\partial \eta_{{{other} {second}}}}}"
        return rf"{sum_over}\mathbb{{E}}\left[{selection}{fraction}\right]"


def _step_lines(problem: Problem, algorithm: FixedData) -> list[str]:
    """Return the equations in steps, at the finite learning rate of the algorithm."""
    structure, terms = problem.structure, _Terms(problem)
    b, l_b, h = terms.b, terms.eigenvalue, terms.drive
    s_t, s_u = ("s_t ", "s_u ") if algorithm.selects else ("", "")
    divided = algorithm.divisor != 1.0
    rate = r"\frac{\mathrm{lr}}{b}" if divided else r"\mathrm{lr}"
    memory = r"\frac{\mathrm{lr}}{b \alpha}" if divided else r"\frac{\mathrm{lr}}{\alpha}"
    noise = r"\frac{\mathrm{lr}^2}{b^2 \alpha}" if divided else r"\frac{\mathrm{lr}^2}{\alpha}"
    decay = r"\left(1 - \mathrm{lr} \, \mathrm{al}\right) " if has_decay(problem) else ""
    fields = r"\Lambda" if terms.has_tokens else r"\lambda"
    C_x = terms.correlation
    lines = [
        rf"{fields}_t = \eta_t - {memory} \sum_{{u < t}} {terms.response('t', 'u + 1')} "
        rf"{s_u}{h}_u{C_x}",
        *terms.laws("t", "u"),
        rf"K(t, u) = {terms.kernel(s_t, 't', 'u')},\quad "
        rf"V(t, u) = \mathbb{{E}}\left[{s_t}{s_u}{h}_t{C_x} {h}_u^\top\right]",
    ]
    pull, pull_C = "", ""
    if problem.signals:
        lines.append(rf"K^*(t) = {terms.gradient_mean(s_t, 't')}")
        pull, pull_C = rf" + K^*(t) P{b}", rf" + K^*(t) M{b}(t')^\top"
    mean, mean_C = "", ""
    if not structure.sample.centred:
        lines.append(rf"\bar{{h}}(t) = \mathbb{{E}}\left[{s_t}{h}_t c^\top\right]")
        mean = rf" - {rate} \bar{{h}}(t) P{b}"
        mean_C = rf" - {rate} \bar{{h}}(t) M{b}(t')^\top"
    if problem.signals:
        lines.append(
            rf"M{b}(t + 1) = {decay}M{b}(t) - {rate} {l_b}\left("
            rf"\sum_{{u \le t}} K(t, u) M{b}(u){pull}\right){mean}"
        )
    thermal = ""
    if algorithm.has_thermal_noise:
        fraction = "f_b " if b else ""
        thermal = rf" + 2 T \mathrm{{lr}} {fraction}R{b}(t', t + 1)^\top"
    lines += [
        rf"R{b}(t + 1, t') = {decay}R{b}(t, t') - {rate} {l_b}\sum_{{u = t'}}^{{t}} K(t, u) "
        rf"R{b}(u, t'),\quad R{b}(t', t') = I",
        rf"C{b}(t + 1, t') = {decay}C{b}(t, t') - {rate} {l_b}\left("
        rf"\sum_{{u \le t}} K(t, u) C{b}(u, t'){pull_C}\right){mean_C}",
        rf"\qquad + {noise} {terms.share}\sum_{{u < t'}} V(t, u) R{b}(t', u + 1)^\top{thermal}",
    ]
    if structure.constraint.fixes_norms:
        lines.append(
            r"\text{row } i \text{ of } M, R \text{ and } C \text{ is then divided by the norm }"
            r" \sqrt{C_{i i}(t + 1, t + 1)}"
        )
    if structure.trained:
        decay_a = r" + \mathrm{al} a_t" if has_decay(problem) else ""
        factor = r"\frac{1}{b} " if divided else ""
        lines.append(
            r"a_{t+1} = a_t - \mathrm{head\_rate} \, \mathrm{lr} \left("
            rf"{factor}\mathbb{{E}}\left[{s_t}\frac{{\partial \ell_t}}{{\partial a}}\right]"
            rf"{decay_a}\right)"
        )
    lines.append(rf"Q{b}(t) = C{b}(t, t),\quad R(t', t) = 0 \text{{ for }} t' < t")
    return lines


def _update_lines(problem: Problem, algorithm: FixedData) -> list[str]:
    """Return the effective process of an update, by conditioning on the products of the data."""
    b = _Terms(problem).b
    s_t = r"s_t " if algorithm.selects else ""
    divisor = r"b n" if algorithm.divisor != 1.0 else "n"
    vector = rf"\frac{{{s_t}h}}{{{divisor}}}"
    if algorithm.law is not None and algorithm.law.on_sample is not None:
        vector = r"\frac{1}{n} \left(g_1, \ldots, g_n\right)"
    lines = [
        r"W = \sum_k W_k e_k,\quad \lambda = \sum_k A_k W_k,\quad A_k = X e_k",
        rf"g = {vector},\quad \rho = g - \sum_j P_j \langle P_j, g \rangle",
        rf"G = X^\top g = \sum_k \langle A_k, g \rangle e_k + \sqrt{{d{b and '_b'}}} \, |\rho| \, "
        r"e_{\mathrm{new}}",
        rf"A_{{\mathrm{{new}}}} = \sqrt{{d{b and '_b'}}} \frac{{\rho}}{{|\rho|}} "
        r"+ \left(1 - P P^\top\right) Z,\quad Z_\mu \sim \mathcal{N}(0, 1)",
    ]
    if isinstance(algorithm, EpochSGD):
        lines.append(r"\text{with the mean gradient } G \text{ of a cell of an epoch}")
    return lines


def _epoch_lines(problem: Problem) -> list[str]:
    """Return the equations of epochs, in the time e in epochs and with gamma = lr/B."""
    terms = _Terms(problem)
    b, l_b, h = terms.b, terms.eigenvalue, terms.drive
    al = r" - \gamma \alpha \, \mathrm{al} " if has_decay(problem) else ""
    decay = {
        name: f"{al}{value}" if al else ""
        for name, value in {"M": f"M{b}(e)", "R": f"R{b}(e, e')", "C": f"C{b}(e, e')"}.items()
    }
    fields = r"\Lambda" if terms.has_tokens else r"\lambda"
    dN, C_x = r"\frac{dN(e)}{de} ", terms.correlation
    kernel = terms.kernel(dN, "e", "s")
    pull, pull_C, mean, mean_C = "", "", "", ""
    lines = [
        r"\gamma = \frac{\mathrm{lr}}{B},\quad e = \frac{B \cdot \mathrm{steps}}{n},\quad "
        r"N \text{ counts the visits of a sample}",
        rf"{fields}_e = \eta_e - \gamma \sum_{{\mathrm{{visits}}\ s < e}} "
        rf"{terms.response('e', 's^+')} {h}_s{C_x}",
        *terms.laws("e", "s"),
        rf"K(e, s) = {kernel},\quad V(e, s) = \mathbb{{E}}\left[{dN}\frac{{dN(s)}}{{ds}} "
        rf"{h}_e{C_x} {h}_s^\top\right]",
    ]
    if problem.signals:
        lines.append(rf"K^*(e) = {terms.gradient_mean(dN, 'e')}")
        pull, pull_C = rf" + K^*(e) P{b}", rf" + K^*(e) M{b}(e')^\top"
    if not problem.structure.sample.centred:
        lines.append(rf"\bar{{h}}(e) = \mathbb{{E}}\left[{dN}{h}_e c^\top\right]")
        mean = rf" - \gamma \alpha \bar{{h}}(e) P{b}"
        mean_C = rf" - \gamma \alpha \bar{{h}}(e) M{b}(e')^\top"
    if problem.signals:
        lines.append(
            rf"\partial_e M{b}(e) = -\gamma \alpha {l_b}\left(\int K(e, s) M{b}(s) ds{pull}\right)"
            rf"{mean}{decay['M']}"
        )
    lines += [
        rf"\partial_e R{b}(e, e') = -\gamma \alpha {l_b}\int K(e, s) R{b}(s, e') ds"
        rf"{decay['R']},\quad R{b}(e', e') = I",
        rf"\partial_e C{b}(e, e') = -\gamma \alpha {l_b}\left("
        rf"\int K(e, s) C{b}(s, e') ds{pull_C}\right){mean_C}{decay['C']}",
        rf"\qquad + \gamma^2 \alpha {terms.share}\int V(e, s) R{b}(e', s^+)^\top ds",
    ]
    if problem.structure.trained:
        decay_a = r" + \mathrm{al} a" if has_decay(problem) else ""
        lines.append(
            r"\partial_e a = -\mathrm{head\_rate} \, \gamma \alpha \left("
            rf"\mathbb{{E}}\left[{dN}\frac{{\partial \ell}}{{\partial a}}\right]{decay_a}\right)"
        )
    lines.append(rf"Q{b}(e) = C{b}(e, e)")
    return lines
