"""A second implementation of the German task's rules, for audits only.

It knows a task's data (``gymqual.gyms.german.tasks``) and nothing else of the core: numbers, calculator, arguments,
observations, limits and verdict are written again from what the task's documented checks state, with other
means where there are any. A mistake in one of the two shows as a difference; ``qualification`` compares them.
"""

import json
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Context, Decimal, Inexact
from fractions import Fraction

from gymqual.gyms.german.tasks import FIELDS, Task, find_task

CALLS_EXECUTED = 64
"""Calls of an episode beyond these show a refusal and count for nothing."""

_DIGITS = frozenset("0123456789")
_MINUS = ("-", "\u2212")
_APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
# More digits than any terminating result of 200 characters has: what is inexact at this length never ends.
_EXACT = Context(prec=2000, traps=[Inexact])


class Refused(ValueError):
    """A German reason, as an error observation words it."""


@dataclass(frozen=True)
class Judgement:
    """What an episode shows and is worth; fields as in ``gymqual.harness.records.trace.Episode``."""

    observations: tuple[tuple[str, bool], ...]
    """(text, whether it is an error) of every call."""
    strict: bool
    reward: float
    parts: dict[str, float]
    outcome: str
    truncated: bool


def judge(task_id: str, calls: Sequence[tuple[str, str]], answer: str | None, truncated: bool = False) -> Judgement:
    """Judge an episode: calls as (tool, JSON text of the arguments), then the final message.

    Raises ``gymqual.gyms.german.tasks.UnknownTask`` for an id that names no task; every other input has a judgement.
    """
    course = _Course(find_task(task_id))
    observations = tuple(
        course.observe(tool, arguments) if number < CALLS_EXECUTED else (_error("zu viele Aufrufe"), True)
        for number, (tool, arguments) in enumerate(calls)
    )
    stated = _stated(answer)
    correct = stated == course.right
    reasons = (
        ("truncated", truncated),
        ("no_answer", not (answer or "").strip(" \t\n")),
        ("malformed_answer", stated is None),
        ("foreign_record", course.foreign),
        ("no_lookup", not course.found),
        ("wrong_answer", not correct),
        ("no_calculation", not course.calculated),
        ("solved", True),
    )
    outcome = next(name for name, applies in reasons if applies)
    lookup = course.found and not course.foreign
    parts = {
        "lookup": float(lookup),
        "calculation": float(lookup and course.calculated),
        "answer": float(correct),
        "errors": float(course.errors),
    }
    return Judgement(observations, outcome == "solved", float(outcome == "solved"), parts, outcome, truncated)


class _Course:
    """What an episode has come to, call by call."""

    def __init__(self, task: Task) -> None:
        self.task = task
        # The formula's text and this calculator, not the core's own solution.
        self.right, _ = calculate(task.formula.write(task.quantities))
        self.found = self.foreign = self.calculated = False
        self.errors = 0
        self._known: set[Fraction] = set()

    def observe(self, tool: str, arguments: str) -> tuple[str, bool]:
        try:
            if tool == "lookup":
                return self._look_up(read_argument(arguments, "record_id")), False
            if tool == "calculator":
                return self._calculate(read_argument(arguments, "expression")), False
            raise Refused("unbekanntes Werkzeug")
        except Refused as reason:
            self.errors += 1
            return _error(str(reason)), True

    def _look_up(self, record_id: str) -> str:
        if record_id != self.task.record_id:
            self.foreign = True
            raise Refused("unbekannter Datensatz")
        self.found = True
        self._known.update(map(Fraction, self.task.quantities))
        return "{" + ",".join(f'"{key}":{n}' for key, n in zip(FIELDS, self.task.quantities, strict=True)) + "}"

    def _calculate(self, expression: str) -> str:
        value, literals = calculate(expression)
        shown = write_number(value)
        if len(shown) > 40:
            raise Refused("Ergebnis zu lang")
        if len(literals) >= 2 and all(literal in self._known for literal in literals):
            self._known.add(value)
            self.calculated |= value == self.right
        return shown


def read_argument(text: str, parameter: str) -> str:
    """Return the one text parameter of a call's arguments; raises Refused."""
    if len(text) > 2000:
        raise Refused("Argumente zu lang")
    if sum(character in "{[" for character in text) > 16:
        raise Refused("Argumente zu tief verschachtelt")
    try:
        value = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant).decode(text)
    except ValueError:
        raise Refused("Argumente sind kein JSON-Objekt") from None
    match value:
        case {**items} if list(items) == [parameter] and isinstance(items[parameter], str):
            return items[parameter]
    raise Refused(f"genau ein Text {parameter} erwartet")


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def read_number(text: str) -> Fraction:
    """Return the value of exactly one German number without sign; raises Refused."""
    if len(text) > 30:
        raise Refused("Zahl zu lang")
    whole, comma, decimals = text.partition(",")
    first, *groups = whole.split(".")
    grouped = len(first) <= 3 and first != "0" and all(len(group) == 3 for group in groups)
    if (
        not _is_digits(first)
        or (first[0] == "0" and first != "0")
        or (groups and not (grouped and all(map(_is_digits, groups))))
        or (comma and not _is_digits(decimals))
    ):
        raise Refused("keine eindeutige Zahl")
    digits = first + "".join(groups)
    if len(digits + decimals) > 15:
        raise Refused("Zahl zu lang")
    return Fraction(f"{digits}.{decimals or 0}")


def _is_digits(text: str) -> bool:
    return bool(text) and _DIGITS.issuperset(text)


def _stated(answer: str | None) -> Fraction | None:
    """Return the number that a final message states, None if it is not exactly one."""
    if answer is None or len(answer) > 100:
        return None
    text = answer.strip(" \t\n")
    try:
        value = read_number(text.removeprefix("-") if text.startswith("-") else text.removeprefix("\u2212"))
    except Refused:
        return None
    if not text.startswith(_MINUS):
        return value
    return -value if value else None


def write_number(value: Fraction) -> str:
    """Write a value as the calculator shows it: plain, with a decimal comma, or as a fraction if it never ends."""
    try:
        quotient = _EXACT.divide(Decimal(value.numerator), Decimal(value.denominator))
    except Inexact:
        return f"{value.numerator}/{value.denominator}"
    return f"{quotient:f}".replace(".", ",")


@dataclass
class _Level:
    """One level of brackets on the way from left to right: a sum of finished products, and the present product."""

    total: Fraction = Fraction(0)
    sign: str = "+"
    """How the present product joins the sum."""
    product: Fraction | None = None
    factor: str = "*"
    """How the next operand joins the product."""
    minus: bool = False
    """The next operand has a minus before it."""

    def take(self, operand: Fraction) -> None:
        operand = -operand if self.minus else operand
        if self.factor == "/" and not operand:
            raise Refused("Division durch null")
        self.product = operand if self.product is None else _APPLY[self.factor](self.product, operand)
        self.factor, self.minus = "*", False

    def value(self) -> Fraction:
        assert self.product is not None, "a sum is asked for after an operand"
        return _APPLY[self.sign](self.total, self.product)

    def take_operator(self, symbol: str) -> None:
        if symbol in "*/":
            self.factor = symbol
        else:
            self.total, self.sign, self.product = self.value(), symbol, None


@dataclass
class _Calculation:
    levels: list[_Level] = field(default_factory=lambda: [_Level()])
    after_operand: bool = False

    def feed(self, token: str | Fraction) -> None:
        level = self.levels[-1]
        if isinstance(token, Fraction) and not self.after_operand:
            level.take(token)
            self.after_operand = True
        elif token == ")" and self.after_operand and len(self.levels) > 1:
            inner = self.levels.pop()
            self.levels[-1].take(inner.value())
        elif isinstance(token, str) and token in _APPLY and self.after_operand:
            level.take_operator(token)
            self.after_operand = False
        elif token == "-" and not self.after_operand and not level.minus:
            level.minus = True
        elif token == "(" and not self.after_operand:
            if len(self.levels) > 16:
                raise Refused("zu viele Klammern")
            self.levels.append(_Level())
        else:
            raise Refused("Ausdruck nicht lesbar")


def calculate(expression: str) -> tuple[Fraction, list[Fraction]]:
    """Return the exact value of an expression and the literals in it, in order; raises Refused."""
    if len(expression) > 200:
        raise Refused("Ausdruck zu lang")
    tokens = list(_tokens(expression))
    calculation = _Calculation()
    for token in tokens:
        calculation.feed(token)
    if not calculation.after_operand or len(calculation.levels) > 1:
        raise Refused("Ausdruck nicht lesbar")
    return calculation.levels[0].value(), [token for token in tokens if isinstance(token, Fraction)]


def _tokens(expression: str) -> Iterator[str | Fraction]:
    literal = ""
    # The blank at the end completes a last literal.
    for character in f"{expression} ":
        if character in _DIGITS or character in ".,":
            literal += character
            continue
        if literal:
            yield read_number(literal)
            literal = ""
        if character in _MINUS:
            yield "-"
        elif character in "+*/()":
            yield character
        elif character not in " \t":
            raise Refused("unerlaubtes Zeichen")


def _error(reason: str) -> str:
    return json.dumps({"fehler": reason}, ensure_ascii=False, separators=(",", ":"))
