"""Exact arithmetic over literals: ``+ - * /``, one unary minus, parentheses. Nothing else.

Work is bounded before anything is computed: an expression has at most ``MAX_CHARS`` characters,
and without powers the size of every intermediate value is linear in that length. ``Calculation.steps``
counts tokens read and operations done, so that a test can hold the bound by counting, not by timing.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from .numbers import NumberError, parse_unsigned, render

MAX_CHARS = 200
MAX_DEPTH = 16
MAX_RESULT_CHARS = 40

_TOKEN = re.compile(r"[ \t]*(?:([0-9.,]+)|([-+*/()\u2212]))", re.ASCII)


class CalculatorError(ValueError):
    """The expression is refused; the message is German and holds nothing of the input."""


@dataclass(frozen=True)
class Calculation:
    """One evaluated expression."""

    value: Fraction
    """Exact result."""
    literals: tuple[Fraction, ...]
    """Numbers that stood in the expression, in order."""
    steps: int
    """Tokens read plus operations done; at most ``2 * MAX_CHARS``."""

    @property
    def text(self) -> str:
        """The result as the tool shows it."""
        return render(self.value)


def evaluate(expression: str) -> Calculation:
    """Evaluate ``expression`` exactly; raises CalculatorError with a German reason."""
    if len(expression) > MAX_CHARS:
        raise CalculatorError("Ausdruck zu lang")
    parser = _Parser(_tokens(expression))
    value = parser.sum(depth=0)
    if parser.peek() is not None:
        raise CalculatorError("Ausdruck nicht lesbar")
    # A cheap bound before the result is written: numerator and denominator of under 4 bits a digit each.
    if abs(value.numerator).bit_length() + value.denominator.bit_length() > 8 * MAX_RESULT_CHARS:
        raise CalculatorError("Ergebnis zu lang")
    result = Calculation(value, tuple(parser.literals), parser.steps)
    if len(result.text) > MAX_RESULT_CHARS:
        raise CalculatorError("Ergebnis zu lang")
    return result


def _tokens(expression: str) -> list[str | Fraction]:
    tokens: list[str | Fraction] = []
    expression = expression.rstrip(" \t")
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise CalculatorError("unerlaubtes Zeichen")
        position = match.end()
        number, symbol = match.groups()
        try:
            tokens.append("-" if symbol == "\u2212" else symbol if symbol else parse_unsigned(number))
        except NumberError as error:
            raise CalculatorError(str(error)) from None
    return tokens


class _Parser:
    """Recursive descent: sum := product (+|- product)*; product := factor (*|/ factor)*."""

    def __init__(self, tokens: list[str | Fraction]) -> None:
        self._tokens = tokens
        self._position = 0
        self.literals: list[Fraction] = []
        self.steps = 0

    def peek(self) -> str | Fraction | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def take(self) -> str | Fraction | None:
        token = self.peek()
        self._position += 1
        self.steps += 1
        return token

    def sum(self, depth: int) -> Fraction:
        value = self.product(depth)
        while self.peek() in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            value += sign * self.product(depth)
            self.steps += 1
        return value

    def product(self, depth: int) -> Fraction:
        value = self.factor(depth)
        while self.peek() in ("*", "/"):
            operator, right = self.take(), self.factor(depth)
            if operator == "/" and right == 0:
                raise CalculatorError("Division durch null")
            value = value * right if operator == "*" else value / right
            self.steps += 1
        return value

    def factor(self, depth: int) -> Fraction:
        sign = 1
        if self.peek() == "-":
            self.take()
            sign = -1
        token = self.take()
        if isinstance(token, Fraction):
            self.literals.append(token)
            return sign * token
        if token != "(":
            raise CalculatorError("Ausdruck nicht lesbar")
        if depth >= MAX_DEPTH:
            raise CalculatorError("zu viele Klammern")
        value = self.sum(depth + 1)
        if self.take() != ")":
            raise CalculatorError("Ausdruck nicht lesbar")
        return sign * value
