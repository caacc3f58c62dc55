"""LaTeX of `problem.equations` as MathML, which browsers typeset themselves."""

from __future__ import annotations

import re
from html import escape

from sgdynamics.base.equations import Equations

TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\s+|.", flags=re.DOTALL)
IDENTIFIERS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "Delta": "Δ",
    "varepsilon": "ε",
    "epsilon": "ϵ",
    "kappa": "κ",
    "lambda": "λ",
    "mu": "μ",
    "omega": "ω",
    "Omega": "Ω",
    "pi": "π",
    "sigma": "σ",
    "theta": "θ",
    "Theta": "Θ",
    "ell": "ℓ",
    "infty": "∞",
    "partial": "∂",
    "top": "⊤",
    "max": "max",
    "min": "min",
    "log": "log",
    "exp": "exp",
    "tanh": "tanh",
}
OPERATORS = {
    "sim": "∼",
    "leftarrow": "←",
    "to": "→",
    "cdot": "·",
    "circ": "∘",
    "times": "×",
    "le": "≤",
    "ge": "≥",
    "in": "∈",
    "_": "_",
    "|": "‖",
    "{": "{",
    "}": "}",
}
WITH_LIMITS = {"sum": "<mo>∑</mo>", "lim": "<mo>lim</mo>"}
SPACES = {"quad": 1.0, "qquad": 2.0, ",": 0.17, ";": 0.28, " ": 0.3}
TEXTS = {"mathrm": "mi", "operatorname": "mi", "text": "mtext"}
LETTERS = {"mathbb": {"E": "𝔼", "R": "ℝ", "P": "ℙ"}, "mathcal": {"N": "𝒩", "L": "ℒ"}}
ACCENTS = {"hat": "^", "bar": "¯", "dot": "˙", "tilde": "~"}


def mathml(formula: str) -> str:
    """Return a formula as a MathML element.

    A command that is unknown is shown by its name, as LaTeX users know it.
    """
    reader = _Reader(TOKEN.findall(formula))
    content = reader.row(())
    return f'<math display="block"><mrow>{content}</mrow></math>'


def sections(equations: Equations) -> list[dict[str, object]]:
    """Return headings and formulas of equations, as the page shows them."""
    return [
        {"heading": section.heading, "formulas": [mathml(line) for line in section.lines]}
        for section in equations.sections
    ]


class _Reader:
    """A recursive-descent reader of the tokens of a formula."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position = tokens, 0

    @property
    def next(self) -> str:
        """The next token; spaces have no meaning outside of texts."""
        while self.position < len(self.tokens) and self.tokens[self.position].isspace():
            self.position += 1
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.next
        self.position += 1
        return token

    def row(self, ends: tuple[str, ...]) -> str:
        """Elements up to one of these tokens, which is not taken, or to the end."""
        elements = []
        while self.next and self.next not in ends:
            elements.append(self.scripts())
        return "".join(elements)

    def scripts(self) -> str:
        """One element with its subscript, superscript and primes."""
        has_limits = self.next[1:] in WITH_LIMITS
        base, lower, upper = self.element(), "", ""
        while self.next in ("_", "^", "'"):
            mark = self.take()
            if mark == "_":
                lower += self.element()
            else:
                upper += "<mo>′</mo>" if mark == "'" else self.element()
        below, above, both = ("munder", "mover", "munderover")
        if not has_limits:
            below, above, both = ("msub", "msup", "msubsup")
        lower, upper = (f"<mrow>{text}</mrow>" if text else "" for text in (lower, upper))
        if lower and upper:
            return f"<{both}>{base}{lower}{upper}</{both}>"
        if lower:
            return f"<{below}>{base}{lower}</{below}>"
        return f"<{above}>{base}{upper}</{above}>" if upper else base

    def element(self) -> str:
        token = self.take()
        if token == "{":
            content = self.row(("}",))
            self.take()
            return f"<mrow>{content}</mrow>"
        if token.startswith("\\") and len(token) > 1:
            return self.command(token[1:])
        if token[:1].isdigit():
            return f"<mn>{token}</mn>"
        if token.isalpha():
            return f"<mi>{escape(token)}</mi>"
        return f"<mo>{escape('−' if token == '-' else token)}</mo>" if token != "&" else ""

    def command(self, name: str) -> str:
        if name == "frac":
            return f"<mfrac>{self.element()}{self.element()}</mfrac>"
        if name == "sqrt":
            return f"<msqrt>{self.element()}</msqrt>"
        if name in ACCENTS:
            return f'<mover accent="true">{self.element()}<mo>{ACCENTS[name]}</mo></mover>'
        if name in TEXTS:
            return self.text(TEXTS[name])
        if name in LETTERS:
            letter = self.group()
            return f"<mi>{escape(LETTERS[name].get(letter, letter))}</mi>"
        if name == "left":
            return self.brackets()
        if name == "begin":
            return self.matrix()
        if name in WITH_LIMITS:
            return WITH_LIMITS[name]
        if name in SPACES:
            return f'<mspace width="{SPACES[name]}em"></mspace>'
        if name in OPERATORS:
            return f"<mo>{escape(OPERATORS[name])}</mo>"
        return f"<mi>{escape(IDENTIFIERS.get(name, name))}</mi>"

    def group(self) -> str:
        """The text of a group in braces, with its spaces."""
        self.take()
        end = self.tokens.index("}", self.position)
        text = "".join(self.tokens[self.position : end])
        self.position = end + 1
        return text.replace("\\", "")

    def text(self, tag: str) -> str:
        """A group of words."""
        words = self.group()
        style = ' mathvariant="normal"' if tag == "mi" and len(words) == 1 else ""
        return f"<{tag}{style}>{escape(words).replace(' ', chr(160))}</{tag}>"

    def brackets(self) -> str:
        """An expression between \\left and \\right, with brackets that grow."""
        opening = self.bracket()
        content = self.row(("\\right",))
        self.take()
        return f"<mrow>{opening}{content}{self.bracket()}</mrow>"

    def bracket(self) -> str:
        token = self.take().removeprefix("\\")
        symbol = {"|": "|", ".": ""}.get(token, token)
        return f'<mo stretchy="true">{escape(symbol)}</mo>' if symbol else ""

    def matrix(self) -> str:
        """An environment of rows and columns; pmatrix has round brackets."""
        name = self.group()
        rows, cells = [], [""]
        while self.next and self.next != "\\end":
            cells[-1] += self.row(("&", "\\\\", "\\end"))
            if self.next == "&":
                cells.append("")
                self.take()
            elif self.next == "\\\\":
                rows.append(cells)
                cells = [""]
                self.take()
        rows.append(cells)
        self.take()
        self.group()
        lines = "".join(
            f"<mtr>{''.join(f'<mtd>{cell}</mtd>' for cell in cells)}</mtr>" for cells in rows
        )
        table = f"<mtable>{lines}</mtable>"
        return f"<mrow><mo>(</mo>{table}<mo>)</mo></mrow>" if name == "pmatrix" else table
