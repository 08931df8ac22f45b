"""German number forms: one table, exact values, nothing guessed.

Accepted
    ======================  ==========================================================
    ``0``  ``7``  ``407``   integer without a leading zero
    ``1.234`` ``1.234.567`` point between groups of exactly three digits: thousands
    ``0,5`` ``1.234,50``    comma with digits on both sides: decimals
    ``-3`` ``\u22123``          one minus (ASCII or U+2212) directly before a non-zero number
    ======================  ==========================================================

Refused, because a reader could take them for two different numbers or for none
    ``1.5`` ``12.34`` ``0.500`` ``1.23.456`` (a point that does not group thousands), ``,5``, ``5,``,
    ``007``, ``-0``, ``+3``, ``1e3``, ``1 234``, ``1'234``, ``50 %``, ``5 EUR``, ``(5)``, digits that are
    not ASCII, two numbers, more than ``MAX_DIGITS`` digits, any surrounding text.

``1.234`` is always one thousand two hundred thirty-four: the German reading, stated here once.
"""

import re
from fractions import Fraction

MAX_DIGITS = 15

_UNSIGNED = re.compile(r"(0|[1-9][0-9]{0,2}(?:\.[0-9]{3})+|[1-9][0-9]*)(?:,([0-9]+))?", re.ASCII)


class NumberError(ValueError):
    """The text is not exactly one number of the accepted table; the message is German."""


def parse_unsigned(text: str) -> Fraction:
    """Return the exact value of an accepted form without sign.

    Raises NumberError for everything else. Work is bounded by ``2 * MAX_DIGITS`` characters.
    """
    if len(text) > 2 * MAX_DIGITS:
        raise NumberError("Zahl zu lang")
    match = _UNSIGNED.fullmatch(text)
    if match is None:
        raise NumberError("keine eindeutige Zahl")
    whole, decimals = match[1].replace(".", ""), match[2] or ""
    if len(whole) + len(decimals) > MAX_DIGITS:
        raise NumberError("Zahl zu lang")
    return Fraction(int(whole + decimals), 10 ** len(decimals))


def parse(text: str) -> Fraction:
    """Return the exact value of an accepted form, sign included; raises NumberError."""
    negative = text[:1] in ("-", "\u2212")
    value = parse_unsigned(text[1:] if negative else text)
    if negative and value == 0:
        raise NumberError("keine eindeutige Zahl")
    return -value if negative else value


def render(value: Fraction) -> str:
    """Write a value without grouping: ``407``, ``-0,5``; a non-terminating one as ``1/3``.

    ``parse(render(v)) == v`` for every terminating value of at most ``MAX_DIGITS`` digits.
    """
    if value.denominator == 1:
        return str(value.numerator)
    rest, twos, fives = value.denominator, 0, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{'-' if value < 0 else ''}{digits[:-places]},{digits[-places:]}"
