"""The formulas of a problem as LaTeX: the law of its samples, the network and the loss.

The formulas of activations and losses are here, next to their code in `activations` and `losses`;
`tests/problems/test_equations.py` evaluates them and compares them with that code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sgdynamics.base.equations import (
    Section,
    assignments,
    function_formula,
    function_symbol,
    join_in_lines,
    join_terms,
    number,
    operator,
    parameter_symbol,
    text,
)
from sgdynamics.base.pytrees import to_python_scalar
from sgdynamics.problems.activations import Activation
from sgdynamics.problems.bias_losses import BiasLoss
from sgdynamics.problems.contexts import Contexts
from sgdynamics.problems.losses import (
    LOSSES,
    ClusterLoss,
    CommitteeLoss,
    ContextLoss,
    GatedLoss,
    Loss,
    NetworkLoss,
    OuterLoss,
)
from sgdynamics.problems.problem import Problem
from sgdynamics.problems.student_losses import StudentsLoss
from sgdynamics.problems.user_losses import RuleLoss, UserLoss
from sgdynamics.samples.draws import Draw
from sgdynamics.samples.input_covariance import eigenvalues, fractions

# Activation and derivative as functions of x; polynomials are written from their coefficients.
ACTIVATIONS = {
    "erf": (
        r"\operatorname{erf}\left(\frac{x}{\sqrt{2}}\right)",
        r"\sqrt{\frac{2}{\pi}} e^{-\frac{x^2}{2}}",
    ),
    "relu": (r"\max\left(0, x\right)", r"\Theta\left(x\right)"),
    "tanh": (r"\tanh\left(x\right)", r"1 - \tanh\left(x\right)^2"),
    "gelu": (
        r"\frac{x}{2} \left(1 + \operatorname{erf}\left(\frac{x}{\sqrt{2}}\right)\right)",
        r"\frac{1}{2} \left(1 + \operatorname{erf}\left(\frac{x}{\sqrt{2}}\right)\right)"
        r" + \frac{x}{\sqrt{2 \pi}} e^{-\frac{x^2}{2}}",
    ),
    "softplus": (r"\log\left(1 + e^{x}\right)", r"\frac{1}{1 + e^{-x}}"),
    "sigmoid": (r"\frac{1}{1 + e^{-x}}", r"\frac{e^{-x}}{\left(1 + e^{-x}\right)^2}"),
    "silu": (
        r"\frac{x}{1 + e^{-x}}",
        r"\frac{1 + e^{-x} + x e^{-x}}{\left(1 + e^{-x}\right)^2}",
    ),
    "abs": (r"\left|x\right|", r"\operatorname{sgn}\left(x\right)"),
    "sign": (r"\operatorname{sgn}\left(x\right)", "0"),
}
# Losses of output and label, and their derivatives with respect to the output.
OUTER_LOSSES = {
    "squared": (r"\frac{1}{2} \left(f - y\right)^2", r"\left(f - y\right)"),
    "correlation": ("-f y", r"\left(-y\right)"),
    "logistic": (r"\log\left(1 + e^{-f y}\right)", r"\frac{-y}{1 + e^{f y}}"),
}


def activation_formulas(activation: Activation) -> tuple[str, str | None]:
    """Return an activation and its derivative as functions of x; a user's own by its name."""
    if activation.coefficients is not None:
        slope = tuple(degree * value for degree, value in enumerate(activation.coefficients))[1:]
        return _polynomial(activation.coefficients), _polynomial(slope)
    if activation.is_named and activation.name in ACTIVATIONS:
        return ACTIVATIONS[activation.name]
    formula = function_formula(activation.f)
    name = activation.label
    symbol = operator("activation" if name == "<lambda>" else name)
    return formula or rf"{symbol}\left(x\right)", None


def _polynomial(coefficients: tuple[float, ...]) -> str:
    """Return c_0 + c_1 x + ... with the highest degree first."""
    terms = []
    for degree in range(len(coefficients) - 1, -1, -1):
        coefficient = coefficients[degree]
        if coefficient == 0:
            continue
        power = {0: "", 1: "x"}.get(degree, f"x^{{{degree}}}")
        if not power:
            terms.append(number(coefficient))
        elif abs(coefficient) == 1:
            terms.append(power if coefficient > 0 else f"-{power}")
        else:
            terms.append(f"{number(coefficient)} {power}")
    return join_terms(terms)


def outer_formulas(outer: OuterLoss) -> tuple[str, str]:
    """Return a loss of output and label, and its derivative with respect to the output."""
    for name, function in LOSSES.items():
        if function is outer:
            return OUTER_LOSSES[name]
    symbol = function_symbol(outer, "loss")
    formula = function_formula(outer) or rf"{symbol}\left(f, y\right)"
    return formula, r"\frac{\partial \ell}{\partial f}"


@dataclass(frozen=True)
class Symbols:
    """Symbols of the variables of one sample: vectors for one input, matrices for several.

    Attributes
    ----------
    tokens : bool
        Whether a sample has several inputs.
    blocks : bool
        Whether there are several covariance blocks, whose overlaps have the index b.
    """

    tokens: bool
    blocks: bool

    @property
    def index(self) -> str:
        """Index of the overlaps of a block; empty with a single block."""
        return "_b" if self.blocks else ""

    @property
    def gradient(self) -> str:
        """Gradient of the loss with respect to the fields."""
        return "H" if self.tokens else "h"

    def fields(self, of_block: bool = False, transposed: bool = False) -> str:
        """Fields, or the share of one block in them."""
        return self._symbol(of_block, r"\top" if transposed else "")

    def signals(self, of_block: bool = False, transposed: bool = False) -> str:
        """Projections on the signals, or the share of one block in them."""
        return self._symbol(of_block, r"*\top" if transposed else "*")

    def _symbol(self, of_block: bool, superscript: str) -> str:
        base = (r"\Lambda" if self.tokens else r"\lambda") + (self.index if of_block else "")
        return f"{base}^{{{superscript}}}" if superscript else base


def symbols_of(problem: Problem) -> Symbols:
    """Return the symbols of the variables of a problem."""
    structure = problem.structure
    return Symbols(structure.sample.tokens.count is not None, structure.blocks > 1)


def problem_sections(problem: Problem) -> tuple[Section, ...]:
    """Return the sections on the samples and on the loss of a problem."""
    return (
        Section("Samples", tuple(sample_lines(problem))),
        Section(_loss_heading(problem), tuple(loss_lines(problem, problem.structure.loss))),
    )


def _loss_heading(problem: Problem) -> str:
    return "Rule" if isinstance(problem.structure.loss, RuleLoss) else "Loss of one sample"


# The samples


def sample_lines(problem: Problem) -> list[str]:
    """Return the law of the inputs, the overlaps, and the law of the fields."""
    sample, symbols = problem.structure.sample, symbols_of(problem)
    several = symbols.tokens
    covariance = _covariance(problem)
    if several:
        noise = r"\left(C_x^{1/2}\right)_{l l'} \zeta_{l'}" if sample.tokens.correlated else ""
        noise = rf"\sum_{{l'}} {noise}" if noise else r"\zeta_l"
        mean = "" if sample.centred else "m_l + "
        lines = [
            rf"x_l = {mean}{noise},\quad \zeta_l \sim \mathcal{{N}}\left(0, {covariance}\right)"
            r",\quad l = 1, \ldots, L",
            r"X = \left(x_1, \ldots, x_L\right)^\top,\quad \Lambda = W X^\top"
            + (r",\quad \Lambda^{*} = W^* X^\top" if problem.signals else ""),
        ]
    else:
        noisy_input = "x" if not sample.noisy_inputs else r"\left(x + \sqrt{\nu} \xi\right)"
        mean = "0" if sample.centred else "m"
        lines = [
            rf"x \sim \mathcal{{N}}\left({mean}, {covariance}\right)",
            rf"\lambda = W {noisy_input}"
            + (r",\quad \lambda^{*} = W^* x" if problem.signals else ""),
        ]
    if sample.noisy_inputs:
        lines[-1] += r",\quad \xi \sim \mathcal{N}\left(0, I_d\right)"
    lines += _means(problem)
    b = symbols.index
    overlaps = rf"Q{b} = W{b} W{b}^\top"
    if problem.signals:
        overlaps = (
            rf"M{b} = W{b} W{b}^{{*\top}},\quad {overlaps},\quad P{b} = W{b}^{{*}} W{b}^{{*\top}}"
        )
    return [*lines, overlaps, *_field_law(problem)]


def _covariance(problem: Problem) -> str:
    """Return the covariance of the coordinates of an input."""
    if problem.structure.blocks > 1:
        return r"\operatorname{diag}\left(l_b\right)"
    return rf"{_eigenvalue(problem)}I_d"


def _eigenvalue(problem: Problem) -> str:
    """Return the eigenvalue of a block as a factor; empty if it is 1."""
    structure = problem.structure
    if "snr" in problem._parameters:
        return r"\frac{1}{\mathrm{snr}} "
    if structure.sample.context_spectra:
        return "l_{c b} " if structure.blocks > 1 else "l_c "
    if structure.blocks > 1:
        return "l_b "
    return "" if float(np.asarray(eigenvalues(problem.parameters))[0]) == 1.0 else "l "


def _means(problem: Problem) -> list[str]:
    """Return the means of the inputs, and the named draws of a sample."""
    sample, lines = problem.structure.sample, []
    index = "_l" if sample.tokens.count is not None else ""
    label = "y" if isinstance(problem.structure.loss, ClusterLoss) else r"\mathrm{label}"
    for weight, coefficients, value in problem.clusters:
        lines.append(
            rf"m{index} = {_combination(coefficients)},\quad {label} = {number(value)}"
            rf"\quad \text{{with probability }} {number(weight)}"
        )
    if callable(sample.means):
        function = function_symbol(sample.means, "means")
        lines.append(
            rf"m{index} = \sum_r c_{{{index[1:]} r}} w^*_r,\quad "
            rf"c = {function}\left(\text{{draws}}\right)"
        )
    elif sample.means:
        lines.append(rf"m{index} = \sum_r c_{{{index[1:]} r}} w^*_r")
        lines += assignments({"c": problem.parameters["means"]})
    has_own_draws = isinstance(problem.structure.loss, (GatedLoss, StudentsLoss))
    if sample.draws is not None and not has_own_draws:
        lines += join_in_lines([_draw(draw) for draw in sample.draws], 3)
    return lines


def _combination(coefficients: tuple[float, ...]) -> str:
    """Return the mean of a cluster as a combination of the signals."""
    terms = []
    for index, coefficient in enumerate(coefficients, start=1):
        factor = {1.0: "", -1.0: "-"}.get(coefficient, f"{number(coefficient)} ")
        if coefficient:
            terms.append(f"{factor}w^*_{{{index}}}")
    return join_terms(terms)


def _draw(draw: Draw) -> str:
    """Return the law of a named draw."""
    law = r"\mathcal{N}\left(0, 1\right)"
    if draw.law:
        law = rf"\text{{{text(draw.law.replace('_', ' '))}}}"
    elif draw.binary:
        law = r"\text{Bernoulli}"
    elif draw.outcomes:
        law = rf"\text{{categorical on }} \{{0, \ldots, {draw.outcomes - 1}\}}"
    return rf"\mathrm{{{text(draw.name)}}} \sim {law}"


def _field_law(problem: Problem) -> list[str]:
    """Return the joint law of fields and signals of one input, given the overlaps."""
    sample, symbols = problem.structure.sample, symbols_of(problem)
    eigenvalue, b = _eigenvalue(problem), symbols.index
    mean = "0"
    if not sample.centred:
        mean = r"\left(W m_l, W^* m_l\right)" if symbols.tokens else r"\left(W m, W^* m\right)"
    if symbols.tokens:
        fields, signals = rf"W{b} x_{{l{b[1:]}}}", rf"W{b}^{{*}} x_{{l{b[1:]}}}"
    else:
        fields, signals = symbols.fields(of_block=True), symbols.signals(of_block=True)
    if not problem.signals:
        law = rf"{fields} \sim \mathcal{{N}}\left({mean}, {eigenvalue}Q{b}\right)"
    else:
        entries, factor = [f"Q{b}", f"M{b}", rf"M{b}^\top", f"P{b}"], eigenvalue
        if sample.noisy_inputs:
            noisy = rf"\left({eigenvalue.strip() or '1'} + \nu\right) "
            entries = [f"{noisy}{entries[0]}", *(f"{eigenvalue}{entry}" for entry in entries[1:])]
            factor = ""
        rows = rf"{entries[0]} & {entries[1]} \\ {entries[2]} & {entries[3]}"
        law = (
            rf"\left({fields}, {signals}\right) \sim "
            rf"\mathcal{{N}}\left({mean}, {factor}\begin{{pmatrix}} {rows} \end{{pmatrix}}\right)"
        )
    if not symbols.blocks:
        return [law]
    total = rf"{symbols.fields()} = \sum_b {symbols.fields(of_block=True)}"
    if problem.signals:
        total += rf",\quad {symbols.signals()} = \sum_b {symbols.signals(of_block=True)}"
    return [law, total]


# The loss


def loss_lines(problem: Problem, loss: Loss) -> list[str]:
    """Return network, label, loss and the gradient in the fields of one sample."""
    noise_law = problem.structure.sample.noise_law
    if isinstance(loss, GatedLoss):
        lines = _network_lines(loss.inner, "g_i a_i", noise_law)
        return [*lines, r"g_i \sim \text{Bernoulli}\left(u\right)\quad \text{for each sample}"]
    if isinstance(loss, NetworkLoss):
        return _network_lines(loss, "a_i", noise_law)
    if isinstance(loss, BiasLoss):
        return _bias_lines(loss, noise_law)
    if isinstance(loss, ClusterLoss):
        return [
            r"f = \sum_{i=1}^{p} a_i \sigma\left(\lambda_i\right)",
            *activation_lines("\\sigma", loss.student),
            r"\ell = \log\left(1 + e^{f}\right) - y f",
            r"h_i = a_i \sigma'\left(\lambda_i\right) \left(\frac{1}{1 + e^{-f}} - y\right)",
        ]
    if isinstance(loss, ContextLoss):
        lines = [r"\text{context } c \text{ with probability } w_c"]
        assert isinstance(problem, Contexts)
        for name, context in problem.problems.items():
            lines.append(rf"\text{{{text(name)}:}}")
            lines += loss_lines(context, context.structure.loss)
            lines += assignments(loss_values(context))
        return lines
    if isinstance(loss, RuleLoss):
        return _rule_lines(problem, loss)
    assert isinstance(loss, UserLoss)
    return _user_lines(problem, loss)


def activation_lines(symbol: str, activation: Activation, derivative: bool = True) -> list[str]:
    """Return the definition of an activation, and of its derivative if it has a formula."""
    value, slope = activation_formulas(activation)
    line = rf"{symbol}\left(x\right) = {value}"
    if not derivative or slope is None:
        return [line]
    return [line, rf"{symbol}'\left(x\right) = {slope}"]


def _bias_lines(loss: BiasLoss, noise_law: str | None) -> list[str]:
    """Return the formulas of a network whose units have biases."""
    plain = _network_lines(loss.inner, "a_i" if loss.trains_head else "", noise_law)
    shifted = r"\left(\lambda_i + b_i\right)"
    lines = [line.replace(r"\left(\lambda_i\right)", shifted) for line in plain]
    leaves = r"\left(a, b\right)" if loss.trains_head else "b"
    return [*lines, rf"\theta = {leaves}\quad \text{{on top of the rows}}"]


def _network_lines(loss: NetworkLoss, head: str, noise_law: str | None) -> list[str]:
    """Return the formulas of a student network and its label."""
    z = r"\mathcal{N}\left(0, 1\right)"
    if noise_law is not None:
        z = rf"\text{{{text(noise_law.replace('_', ' '))} of variance 1, or of scale 1}}"
    lines = [rf"f = \frac{{1}}{{p}} \sum_{{i=1}}^{{p}} {head} \sigma\left(\lambda_i\right)"]
    lines += activation_lines("\\sigma", loss.student)
    if isinstance(loss, CommitteeLoss):
        same = loss.teacher == loss.student
        teacher = "\\sigma" if same else "\\sigma_*"
        label = rf"\frac{{1}}{{k}} \sum_{{r=1}}^{{k}} a^*_r {teacher}\left(\lambda^{{*}}_r\right)"
        if not same:
            lines += activation_lines(teacher, loss.teacher, derivative=False)
    else:
        (target, _), *_ = loss.label_functions().values()
        symbol = function_symbol(target, "target")
        label = function_formula(target) or rf"{symbol}\left(\lambda^{{*}}\right)"
    formula, slope = outer_formulas(loss.outer)
    return [
        *lines,
        rf"y = {label} + \sqrt{{\Delta}} z,\quad z \sim {z}",
        rf"\ell = {formula}",
        rf"h_i = \frac{{1}}{{p}} {head} \sigma'\left(\lambda_i\right) {slope}",
    ]


def _user_lines(problem: Problem, loss: UserLoss) -> list[str]:
    """Return the loss that a user has written, by its name or its formula."""
    symbols = symbols_of(problem)
    arguments = [symbols.fields()]
    if problem.signals:
        arguments.append(symbols.signals())
    arguments += ["a", _draw_argument(problem)]
    if "user" in loss.extra:
        arguments.append(r"\vartheta")
    if loss.reads_overlaps:
        arguments += ["Q", "M", "P"]
    name = problem.kind if problem._model is not None else None
    symbol = operator(name) if name else function_symbol(loss.function, "loss")
    stated = function_formula(loss.function)
    lines = [rf"\ell = {symbol}\left({', '.join(arguments)}\right)"]
    if stated:
        lines = list(stated.split("\n"))
    gradient = rf"\frac{{\partial \ell}}{{\partial {symbols.fields()}}}"
    lines.append(rf"{symbols.gradient} = {gradient}")
    if loss.reads_overlaps:
        lines.append(
            r"A = \frac{\partial \ell}{\partial Q} + \left(\frac{\partial \ell}{\partial Q}"
            r"\right)^\top,\quad B = \frac{\partial \ell}{\partial M}"
        )
    return lines


def _draw_argument(problem: Problem) -> str:
    """Return the symbol of what the loss sees of the draws."""
    sample = problem.structure.sample
    if sample.draws is not None:
        return r"\text{draws}"
    return r"\mathrm{label}" if sample.clusters else "z"


def _rule_lines(problem: Problem, loss: RuleLoss) -> list[str]:
    """Return the rule of a user, by its name or its formula."""
    symbols = symbols_of(problem)
    arguments = [symbols.fields()]
    if problem.signals:
        arguments.append(symbols.signals())
    arguments += ["a", _draw_argument(problem), "Q", "M", "P"]
    symbol = function_symbol(loss.update, "update")
    stated = function_formula(loss.update)
    moves = (
        rf"\left({symbols.gradient}, A, B, g\right) = {symbol}\left({', '.join(arguments)}\right)"
    )
    lines = stated.split("\n") if stated else [moves]
    if loss.risk is not None:
        risk = function_symbol(loss.risk, "risk")
        lines.append(rf"\mathrm{{risk}} = \mathbb{{E}}\left[{risk}\right]")
    return lines


# Values of the parameters


def loss_values(problem: Problem) -> dict[str, Any]:
    """Return the parameters of the loss of a problem by symbol."""
    loss, parameters = problem.structure.loss, problem._parameters
    inner = loss.inner if isinstance(loss, (GatedLoss, BiasLoss)) else loss
    values: dict[str, Any] = {}
    if isinstance(inner, CommitteeLoss):
        values["k"] = problem.signals
        if np.any(np.asarray(parameters["teacher_head"]) != 1.0):
            values["a^*"] = parameters["teacher_head"]
        else:
            values["a^*_r"] = 1.0
    if isinstance(inner, NetworkLoss):
        values[r"\Delta"] = parameters["noise"]
    values |= {
        parameter_symbol(name): value for name, value in (parameters.get("user") or {}).items()
    }
    return values


def problem_values(problem: Problem) -> dict[str, Any]:
    """Return all parameters of a problem by symbol."""
    structure, parameters = problem.structure, problem.parameters
    values: dict[str, Any] = {"p": problem.width}
    if problem.signals and not isinstance(structure.loss, (CommitteeLoss, GatedLoss)):
        values["K"] = problem.signals
    if structure.sample.tokens.count is not None:
        values["L"] = structure.sample.tokens.count
    if structure.sample.tokens.correlated:
        values["C_x"] = parameters["token_correlation"]
    values |= loss_values(problem)
    stated = problem._parameters
    values |= {
        symbol: stated[name]
        for name, symbol in (
            ("snr", r"\mathrm{snr}"),
            ("keep", "u"),
            ("gain", r"\mathrm{gain}"),
            ("input_noise", r"\nu"),
            ("rates", r"\rho"),
            ("probabilities", "w"),
        )
        if name in stated
    }
    if r"\rho" in values:
        values[r"\operatorname{diag}\left(\rho\right)"] = values.pop(r"\rho")
    if isinstance(values.get("w"), tuple):
        assert isinstance(problem, Contexts)
        values |= {
            rf"w_{{\text{{{text(name)}}}}}": "equal share of the rest" if share is None else share
            for name, share in problem.shares.items()
        }
        del values["w"]
    if structure.sample.context_spectra:
        values["l_{c b}"] = np.asarray(parameters["context_eigenvalues"])
    elif structure.blocks > 1 or _eigenvalue(problem) == "l ":
        values["l_b" if structure.blocks > 1 else "l"] = (
            np.asarray(eigenvalues(parameters))
            if structure.blocks > 1
            else float(np.asarray(eigenvalues(parameters))[0])
        )
    if structure.blocks > 1:
        values["f_b"] = np.asarray(fractions(parameters))
    gram = np.asarray(parameters["gram"])
    if problem.signals and structure.blocks == 1:
        identity = np.array_equal(gram[0], np.eye(problem.signals))
        values["P"] = "identity" if identity and problem.signals > 3 else gram[0]
    if has_decay(problem):
        decay: Any = stated.get("weight_decay", problem.weight_decay)
        is_column = not callable(decay) and np.ndim(decay) > 0
        symbol = r"\operatorname{diag}\left(\mathrm{al}\right)" if is_column else r"\mathrm{al}"
        values[symbol] = decay.ravel() if is_column else decay
    return {symbol: _plain(value) for symbol, value in values.items()}


def _plain(value: Any) -> Any:
    return value if isinstance(value, str) else to_python_scalar(value)


def has_decay(problem: Problem) -> bool:
    """Whether the weight decay of the problem is a function or not 0."""
    decay = problem.weight_decay
    return callable(decay) or bool(np.any(np.asarray(decay) != 0.0))


def decay_of_overlaps(problem: Problem) -> str:
    """Return the effect of the weight decay on dQ/dt: of a number, or of one number per row."""
    b = symbols_of(problem).index
    if np.ndim(problem._parameters["weight_decay"]):
        return rf"-\left(\mathrm{{al}} Q{b} + Q{b} \mathrm{{al}}\right)"
    return rf"-2 \mathrm{{al}} Q{b}"


def head_gradient_of(problem: Problem) -> str:
    """Return the gradient in the head: that of the loss, or the one that the loss states."""
    states_gradient = isinstance(problem.structure.loss, (RuleLoss, StudentsLoss))
    return "g" if states_gradient else r"\frac{\partial \ell}{\partial a}"
