"""A small evaluator of LaTeX, with which tests compare printed formulas with code.

`evaluate(formula, values)` understands what `sgdynamics.base.equations` writes: sums, products by
juxtaposition, fractions, roots, powers, transposes, |x|, sums over an index, expectations and the
functions below. Arrays have the axes (..., rows, columns); a product of two matrices is their
matrix product, a product of two columns of equal length (of indexed symbols) is elementwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy import special

FUNCTIONS: dict[str, Callable[..., Any]] = {
    r"\operatorname{erf}": special.erf,
    r"\operatorname{sgn}": np.sign,
    r"\tanh": np.tanh,
    r"\log": np.log,
    r"\max": np.maximum,
    r"\min": np.minimum,
    r"\Theta": lambda x: (x > 0) * 1.0,
}
TOKEN = re.compile(
    r"\\operatorname\{\w+\}|\\mathrm\{(?:\\.|[^{}])*\}|\\mathbb\{E\}|\\left\||\\right\||\\left\(|\\right\)"
    r"|\\left\[|\\right\]|\\[a-zA-Z]+|\\[,\\;]|\d+\.\d+|\d+|[a-zA-Z]|[-+*/^_{}(),|'\[\]=]"
)
Evaluate = Callable[[str], Any]


def tokens_of(formula: str) -> list[str]:
    """The symbols of a formula, without spaces."""
    tokens = TOKEN.findall(formula)
    unknown = TOKEN.sub("", formula).strip()
    if unknown:
        raise ValueError(f"{formula}: cannot read {unknown!r}")
    return [token for token in tokens if token not in (r"\,", r"\;", r"\cdot")]


class Reader:
    """A recursive-descent reader that evaluates while it reads."""

    def __init__(self, formula: str, values: Mapping[str, Any]) -> None:
        self.tokens, self.values, self.position = tokens_of(formula), values, 0

    @property
    def next(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.next
        if expected is not None and token != expected:
            raise ValueError(f"{' '.join(self.tokens)}: {expected} expected at {self.position}")
        self.position += 1
        return token

    def total(self) -> Any:
        value = self.product(signed=True)
        while self.next in ("+", "-"):
            sign = 1.0 if self.take() == "+" else -1.0
            value = value + sign * self.product()
        return value

    def product(self, signed: bool = False) -> Any:
        sign = 1.0
        if signed and self.next == "-":
            self.take()
            sign = -1.0
        value = self.power()
        ends = ("", "+", "-", "}", r"\right)", r"\right]", r"\right|", ")", ",", "=")
        while self.next not in ends:
            value = times(value, self.power())
        return sign * value

    def power(self) -> Any:
        base = self.atom()
        while self.next == "^":
            self.take()
            exponent = self.group_text()
            if exponent == [r"\top"]:
                base = np.swapaxes(base, -1, -2)
            else:
                base = base ** Reader(" ".join(exponent), self.values).total()
        return base

    def group_text(self) -> list[str]:
        """The tokens of the next group {...}, or the next token."""
        if self.next != "{":
            return [self.take()]
        self.take()
        depth, inside = 1, []
        while depth:
            token = self.take()
            depth += (token == "{") - (token == "}")
            inside.append(token)
        return inside[:-1]

    def group(self) -> Any:
        return Reader(" ".join(self.group_text()), self.values).total()

    def atom(self) -> Any:
        token = self.take()
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return float(token)
        if token == r"\frac":
            numerator, denominator = self.group(), self.group()
            return numerator / denominator
        if token == r"\sqrt":
            return np.sqrt(self.group())
        if token in (r"\left(", "("):
            value = self.total()
            self.take(r"\right)" if token.startswith("\\") else ")")
            return value
        if token == r"\left|":
            value = self.total()
            self.take(r"\right|")
            return self.values.get("norm", np.abs)(value)
        if token == r"\mathbb{E}":
            self.take(r"\left[")
            value = self.total()
            self.take(r"\right]")
            return self.values["mean"](value)
        if token == r"\sum":
            self.take("_")
            self.group_text()
            self.take("^")
            self.group_text()
            # the sum extends over the product that follows
            return np.sum(self.product(), axis=-2, keepdims=True)
        if token == "e" and self.next == "^":
            self.take()
            return np.exp(self.group())
        if token == r"\pi":
            return np.pi
        return self.symbol(token)

    def symbol(self, token: str) -> Any:
        """A symbol with its star, prime and index, and with its arguments if it is a function."""
        name = token
        if token in (r"\tilde", r"\bar", r"\widetilde"):
            name = f"{token}{{{''.join(self.group_text())}}}"
        transposed = False
        while self.next in ("'", "^", "_"):
            if self.next == "'":
                name += self.take()
            elif self.next == "_":
                self.take()
                index = "".join(self.group_text())
                name += f"_{index}" if index not in ("i", "r") else ""
            else:
                position = self.position
                self.take()
                exponent = self.group_text()
                if exponent[0] != "*":
                    self.position = position
                    break
                name += "*"
                transposed = exponent[1:] == [r"\top"]
        function = FUNCTIONS.get(name) or self.values.get(name)
        if function is None:
            raise KeyError(f"{name} in {' '.join(self.tokens)}")
        if callable(function):
            self.take(r"\left(")
            arguments = [self.total()]
            while self.next == ",":
                self.take()
                arguments.append(self.total())
            self.take(r"\right)")
            return function(*arguments)
        return np.swapaxes(function, -1, -2) if transposed else function


def times(left: Any, right: Any) -> Any:
    """The product of two values: of matrices, of numbers, or of indexed symbols."""
    shapes = [np.shape(value)[-2:] for value in (left, right)]
    if any(shape in ((), (1, 1)) or len(shape) < 2 for shape in shapes):
        return left * right
    if shapes[0] == shapes[1] and shapes[0][1] == 1:
        return left * right
    if shapes[0][1] != shapes[1][0]:  # a column of factors of the rows
        return left * right
    return left @ right


def evaluate(formula: str, values: Mapping[str, Any]) -> Any:
    """The value of a formula."""
    reader = Reader(formula, values)
    value = reader.total()
    if reader.next:
        raise ValueError(f"{formula}: {reader.next!r} is left at {reader.position}")
    return value


def definitions(lines: tuple[str, ...]) -> dict[str, str]:
    """Left and right side of the formulas `left = right`, without conditions after a comma."""
    pairs = {}
    for line in lines:
        for equation in line.split(r",\quad "):
            left, equals, right = equation.partition(" = ")
            if equals:
                pairs[left] = right
    return pairs
