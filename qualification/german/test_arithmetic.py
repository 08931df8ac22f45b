"""The German task core: numbers read by a table or refused, exact arithmetic, bounded work.

The core is what every gym serves and what every verdict is replayed with, so its checks need no gym.
"""

from decimal import Decimal
from fractions import Fraction

import pytest
from babel.numbers import format_decimal
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from simpleeval import simple_eval

from gymqual.gyms.german import calculator, numbers
from gymqual.gyms.german.calculator import MAX_CHARS, MAX_RESULT_CHARS
from gymqual.gyms.german.numbers import MAX_DIGITS
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.support.german.expressions import Expression, counted, expressions
from gymqual.qualification.support.german.tables import HEAVY, HOSTILE, REFUSED, TABLE, UNSHRUNK, Reading, differences

pytestmark = pytest.mark.cpu_smoke


def reading(text: str) -> Reading:
    """What a text is read as: its exact value, or REFUSED."""
    try:
        return numbers.parse(text)
    except numbers.NumberError:
        return REFUSED


@st.composite
def terminating_values(draw: st.DrawFn) -> Decimal:
    """Decimals that are written with at most MAX_DIGITS digits, a leading zero included."""
    places = draw(st.integers(0, MAX_DIGITS - 1))
    digits = draw(st.integers(-(10**MAX_DIGITS - 1), 10**MAX_DIGITS - 1))
    return Decimal(digits).scaleb(-places)


@check("TASK-01", broken="naive_comma_swap")
@given(terminating_values())
def test_a_written_number_reads_back_as_itself(value: Decimal) -> None:
    """A terminating value of at most MAX_DIGITS digits MUST read back exactly, plain or with thousands points."""
    exact = Fraction(value)
    # Babel is asked to write, never to read: its reader takes 1.5 for fifteen.
    plain, grouped = numbers.render(exact), format_decimal(value, locale="de", decimal_quantization=False)

    got = {text: reading(text) for text in (plain, grouped)}

    assert set(got.values()) == {exact}, explain(
        subject=f"the value {value} in German",
        expected=exact,
        got=got,
        cause="points and commas are not read by the table of gyms/german/numbers.py",
    )


@check("TASK-02", broken="lenient_digits")
def test_every_form_of_a_number_has_its_stated_reading() -> None:
    """Every form in the table MUST have exactly its stated value, or be refused."""
    got = {text: reading(text) for text in TABLE}

    assert got == TABLE, explain(
        subject="forms read otherwise than the table states, as (expected, got)",
        expected="none",
        got=differences(TABLE, got),
        cause="the number pattern accepts or refuses more than its docstring says",
    )


def calculated(text: str) -> tuple[Reading, tuple[Fraction, ...]]:
    """The calculator's value and the literals it read; (REFUSED, ()) if it refuses."""
    try:
        calculation = calculator.evaluate(text)
    except calculator.CalculatorError:
        return REFUSED, ()
    except ArithmeticError as error:
        return repr(error), ()
    return calculation.value, calculation.literals


@check("TASK-03", broken="float_arithmetic")
@settings(max_examples=300)
@given(expressions())
def test_the_calculator_computes_exactly(expression: Expression) -> None:
    """An expression MUST evaluate to the exact value of its tree, and of Python's own reading where that applies."""
    shown = REFUSED if expression.value == REFUSED else numbers.render(Fraction(expression.value))
    assume(len(shown) <= MAX_RESULT_CHARS and len(expression.text) <= MAX_CHARS)
    oracle = Fraction(simple_eval(expression.text)) if expression.plain else expression.value
    expected = (expression.value, () if expression.value == REFUSED else expression.literals)

    got = calculated(expression.text)

    assert (got, got[0]) == (expected, oracle), explain(
        subject=f"calculator({expression.text})",
        expected=expected,
        got=got,
        cause="inexact arithmetic, or precedence or signs other than in arithmetic",
    )


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("0,1+0,2", "0,3"),
        ("1,5+2,5", "4"),
        ("1.000*2", "2000"),
        ("2--3", "5"),
        ("\u22122*-3", "6"),
        ("1/3*3", "1"),
        ("1/3", "1/3"),
        ("-7/2", "-3,5"),
        (" 17 * (4 - 1) ", "51"),
        ("2-3-4", "-5"),
        ("12/3/2", "2"),
    ],
)
def test_the_calculator_shows_a_plain_german_number(expression: str, shown: str) -> None:
    assert calculator.evaluate(expression).text == shown


@pytest.mark.parametrize(
    ("within", "beyond", "refusal"),
    [
        ("1+" * 99 + "11", "1+" * 99 + "111", "Ausdruck zu lang"),
        ("(" * 16 + "1" + ")" * 16, "(" * 17 + "1" + ")" * 17, "zu viele Klammern"),
        ("9" * 15, "9" * 16, "Zahl zu lang"),
        ("100000000000000*" * 2 + "10000000000", "100000000000000*" * 2 + "1000000000000", "Ergebnis zu lang"),
        ("1/8192/8192", "1/8192/8192/8192", "Ergebnis zu lang"),
    ],
)
def test_each_bound_of_the_calculator_refuses_what_lies_just_beyond(within: str, beyond: str, refusal: str) -> None:
    calculator.evaluate(within)

    with pytest.raises(calculator.CalculatorError) as refused:
        calculator.evaluate(beyond)

    assert str(refused.value) == refusal


@check("TASK-04", broken="unlimited_length")
@settings(phases=UNSHRUNK)
@given(st.lists(st.text(max_size=300) | st.text("0123456789.,+-*/() \u2212", max_size=210), max_size=5))
def test_no_text_costs_more_than_bounded_work(texts: list[str]) -> None:
    """Whatever is written, the calculator MUST do at most 2 * MAX_CHARS operations and answer in its own words."""
    works = {text: counted(text) for text in (*HOSTILE, *HEAVY, *texts)}

    faults = {text[:60]: fault for text, work in works.items() if (fault := work.fault(text in HOSTILE))}

    assert not faults, explain(
        subject="expressions that cost too much or were answered with something else",
        expected="none",
        got=faults,
        cause="work starts before the text is known to be small, or an error repeats what was written",
    )
