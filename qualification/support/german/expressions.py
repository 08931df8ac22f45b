"""Random expressions with their exact value, and the work that evaluating a text takes."""

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import strategies as st

from gymqual.gyms.german import calculator
from gymqual.gyms.german.calculator import MAX_CHARS
from gymqual.qualification.support.german.tables import CALCULATOR_REFUSALS, REFUSED, Reading

OPERATORS: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
SUM, PRODUCT, SIGNED, ATOM = range(4)


@dataclass(frozen=True)
class Expression:
    """An expression tree written down with no more brackets than it needs, and its value."""

    text: str
    value: Reading
    literals: tuple[Fraction, ...]
    binding: int
    """SUM binds loosest; what binds looser than its place allows is bracketed."""
    plain: bool
    """Integers with + - * only: Python's grammar reads it in the same way."""

    def at(self, binding: int) -> str:
        return self.text if self.binding >= binding else f"({self.text})"


def literal(whole: int, decimals: str, grouped: bool) -> Expression:
    text = (f"{whole:,}".replace(",", ".") if grouped else str(whole)) + ("," if decimals else "") + decimals
    value = Fraction(f"{whole}.{decimals or 0}")
    return Expression(text, value, (value,), ATOM, text.isdecimal())


def negated(inner: Expression) -> Expression:
    value = -inner.value if isinstance(inner.value, Fraction) else REFUSED
    return Expression(f"-{inner.at(ATOM)}", value, inner.literals, SIGNED, inner.plain)


def joined(left: Expression, symbol: str, right: Expression, gap: str) -> Expression:
    binding = SUM if symbol in "+-" else PRODUCT
    value: Reading = REFUSED
    if isinstance(left.value, Fraction) and isinstance(right.value, Fraction) and (symbol != "/" or right.value):
        value = OPERATORS[symbol](left.value, right.value)
    # Operators of one level group from the left, so an equal on the right is bracketed.
    text = f"{left.at(binding)}{gap}{symbol}{gap}{right.at(binding + 1)}"
    return Expression(
        text, value, left.literals + right.literals, binding, left.plain and right.plain and symbol != "/"
    )


def bracketed(inner: Expression) -> Expression:
    return Expression(f"({inner.text})", inner.value, inner.literals, ATOM, inner.plain)


# Small literals, and at most five, keep every result that is no long fraction within what the tool shows.
LITERALS = st.builds(
    literal, st.integers(0, 12) | st.integers(0, 9999), st.sampled_from(["", "", "1", "5", "05", "25"]), st.booleans()
)


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    """Random trees: neighbours are joined in any order until one is left."""
    parts = draw(st.lists(LITERALS | LITERALS.map(negated), min_size=1, max_size=5))
    while len(parts) > 1:
        at = draw(st.integers(0, len(parts) - 2))
        whole = joined(parts[at], draw(st.sampled_from("+-*/")), parts[at + 1], draw(st.sampled_from(["", " "])))
        dress = draw(st.sampled_from([None, None, negated, bracketed]))
        parts[at : at + 2] = [dress(whole) if dress else whole]
    return parts[0]


@dataclass
class Work:
    """What evaluating a text took, counted, and what came of it."""

    operations: int = 0
    """Literals read and operations done on exact values."""
    bits: int = 0
    """Length of the longest value on the way."""
    reply: str = ""

    def fault(self, hostile: bool) -> str:
        """What is wrong with it, empty if nothing is; a hostile text must be refused."""
        if self.operations > 2 * MAX_CHARS or self.bits > 8 * MAX_CHARS:
            return f"{self.operations} operations on values of up to {self.bits} bits"
        a_number = not hostile and re.fullmatch(r"-?[0-9]+([,/][0-9]+)?", self.reply, re.ASCII)
        return "" if a_number or self.reply in CALCULATOR_REFUSALS else f"the reply {self.reply[:80]!r}"


def counted(text: str) -> Work:
    """Evaluate a text with numbers that count what is done with them."""
    work = Work()

    def note(value: Fraction) -> Fraction:
        work.operations += 1
        work.bits = max(work.bits, abs(value.numerator).bit_length() + value.denominator.bit_length())
        return counting_type(value)

    def counting(name: str) -> Callable[..., Fraction]:
        return lambda *operands: note(getattr(Fraction, name)(*operands))

    names = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg")
    counting_type = type("Counting", (Fraction,), {f"__{name}__": counting(f"__{name}__") for name in names})
    with pytest.MonkeyPatch.context() as patch:
        parse_unsigned = calculator.parse_unsigned
        patch.setattr(calculator, "parse_unsigned", lambda literal: note(parse_unsigned(literal)))
        try:
            calculation = calculator.evaluate(text)
        except Exception as error:
            work.reply = str(error) if isinstance(error, calculator.CalculatorError) else repr(error)
        else:
            work.operations = max(work.operations, calculation.steps)
            work.reply = calculation.text
    return work
