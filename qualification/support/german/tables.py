"""Every form, expression, call and message once, with what it must come to."""

import json
from fractions import Fraction
from typing import Any

from hypothesis import Phase

from gymqual.gyms.german import tools
from gymqual.gyms.german.numbers import MAX_DIGITS

REFUSED = "refused"
Reading = Fraction | str

ACCEPTED = {
    "0": "0", "7": "7", "407": "407", "1234": "1234", "1.234": "1234", "12.345": "12345", "1.234.567": "1234567",
    "100.000": "100000", "999999999999999": "999999999999999", "999.999.999.999.999": "999999999999999",
    "0,5": "0.5", "0,0": "0", "3,0": "3", "0,10": "0.1", "1234,5": "1234.5", "1.234,5": "1234.5",
    "1.234,56": "1234.56", "1.234.567,89": "1234567.89", "0,00000000000001": "0.00000000000001",
    "-3": "-3", "\u22123": "-3", "-1.000": "-1000", "\u22121.000": "-1000", "-0,5": "-0.5", "-1.234,50": "-1234.5",
}  # fmt: skip
NOT_ONE_NUMBER = (
    # A point that does not group thousands, or a comma without digits on both sides.
    "1.5", "12.34", "0.500", "00.500", "0.123", "1.23.456", "1.234.56", "1.2345", "1234.567", "1..234", ".5", "5.",
    ".234", "1.234.", ",5", "5,", ",", ".", "1,2,3", "1,234.56", "1.234,567.8", "1,234,567", "840.,", "2,552,004.",
    # Signs and zeros.
    "007", "004", "00", "00,5", "01.234", "-0", "-0,0", "\u22120", "-007", "+3", "--3", "- 3", "3-", "-", "\u20133",
    "\ufe633", "\uff0d3", "-\u22123",
    # Other groupings.
    "1 234", "1 234,5", "1\u00a0234", "1\u00a0234,5", "1\u202f234", "1\u202f234,5", "1\u2009234", "1'234", "1'234,5",
    "1\u2019234", "1_234", "1\u00ad234", "1\u066c234",
    # Units, brackets and words.
    "(5)", "(1.000)", "50 %", "50%", "1,5 %", "1,5\u00a0%", "5 EUR", "EUR 1,5", "1,5 €", "€1,5", "5 Stück", "=5",
    "**5**", "fünf", "", " ", " 7", "7 ", "7\n", "\n7", "\u00a07", "7\u200b", "\ufeff7", "7\x00",
    # Other notations.
    "1e3", "1E+3", "1e-3", "1,5e3", "0x10", "0b1", "1/2", "1j", "NaN", "nan", "inf", "-inf", "Infinity", "∞", "None",
    "½", "5½", "²", "10²", "Ⅻ", "①", "\uff11\uff12", "٣", "1٣", "१२", "𝟙",
    # Several numbers, dates, and more digits than are allowed.
    "12, 13", "12 13", "12 oder 13", "12;13", "3+4", "31.12.2027", "31.12.27", "1.1.2027", "12:30", "2027-12-31",
    "1" * (MAX_DIGITS + 1), "0," + "0" * MAX_DIGITS, "1.000.000.000.000.000", "9" * 400, "-" + "9" * 400,
    "1" + ".000" * 100, "0," + "1" * 5000,
)  # fmt: skip
TABLE: dict[str, Reading] = {
    **{text: Fraction(value) for text, value in ACCEPTED.items()},
    **dict.fromkeys(NOT_ONE_NUMBER, REFUSED),
}

HOSTILE = (
    # Code.
    "__import__('os').system('id')", "().__class__.__bases__[0].__subclasses__()", "(1).__class__", "1..real",
    "lambda: 1", "(lambda x: x)(1)", "[x for x in (1,2)]", "{1: 2}", "(x:=1)", "f'{1}'", "'a'*10**9", '"a"*1000000000',
    "x", "e", "pi", "abs(1)", "round(1,5)", "max(1;2)", "print(1)", "a.b", "1 if 1 else 2", "1 and 2", "not 1", "1<2",
    "1==1", "=1+1", "1;2", "1\n+1", "1#2", "1\\", "$1", "@", "~1", "!1", "5!", "1//2", "7%2", "1|1", "1^1", "1&1",
    # Powers, shifts and long literals.
    "2**3", "9**9**9", "((9**64)**64)**64", "10**1000*10**1000", "2^64", "0**-1", "pow(9;999999999)", "1<<99999999",
    "1>>1", "9" * 5000, "9" * 199, "1+" + "9" * 197, "*".join(["999999999999999"] * 12), "1,5" * 60,
    "*".join(["0,00000000000001"] * 11),
    # Length and depth.
    "(" * 10_000 + "1" + ")" * 10_000, "(" * 99 + "1" + ")" * 99, "(" * 200, ")" * 200, "1+" * 50_000 + "1",
    "1+" * 100 + "1", "-" * 200, "\u2212" * 150, "\t" * 300, "," * 200, "." * 200,
    # No arithmetic.
    "", " ", "()", "((1)", "(1))", "--1", "+1", "1+", "*1", "1*", "1 2", "1 (2)", "(1)(2)", "1/0", "1/(1-1)", "1/0,0",
    "0/0", "1e308*10", "1e3", "1E5", "inf", "nan", "1_000", "0x1F", "1.5*2", "007+1", "1+\x00", "\ud800",
    # Digits and operators of other scripts.
    "\uff11+\uff12", "٣+٣", "१*२", "²", "½+½", "𝟙+𝟙", "1×2", "2÷1", "1\u00a0+\u00a01", "1\u202f000", "1\u200b+1",
    "\ufeff1+1",
)  # fmt: skip
# As much work as an accepted expression can ask for.
HEAVY = (
    "1+" * 99 + "1", "1*" * 99 + "1", "-1-" * 66 + "1", "1/1*" * 49 + "1", "(1)+" * 49 + "1", "0,1+" * 49 + "0,1",
    "1/" * 99 + "3", "+".join(["1/7", "1/11", "1/13"] * 12),
)  # fmt: skip
# Every refusal is one of these texts, so nothing of what was written can stand in it.
CALCULATOR_REFUSALS = {
    "Ausdruck zu lang",
    "Ausdruck nicht lesbar",
    "Ergebnis zu lang",
    "Division durch null",
    "Zahl zu lang",
    "keine eindeutige Zahl",
    "unerlaubtes Zeichen",
    "zu viele Klammern",
}

ANSWERS = {
    "{plain}": "solved",
    "{grouped}": "solved",
    "{plain},0": "solved",
    " \t{plain}\n": "solved",
    "{next}": "wrong_answer",
    "-{plain}": "wrong_answer",
    "{plain}.": "malformed_answer",
    "{plain} Stück": "malformed_answer",
    "Antwort: {plain}": "malformed_answer",
    "**{plain}**": "malformed_answer",
    "{plain} oder {next}": "malformed_answer",
    "{next}\n{plain}": "malformed_answer",
    "{plain}\n{plain}": "malformed_answer",
    "+{plain}": "malformed_answer",
    "0{plain}": "malformed_answer",
    "{plain}\u00a0": "malformed_answer",
    "{plain}\r\n": "malformed_answer",
    "\ufeff{plain}": "malformed_answer",
    "{expression}": "malformed_answer",
    " " * 200 + "{plain}": "malformed_answer",
    "": "no_answer",
    " \n": "no_answer",
}

# Messages about a call that ran nothing. Closed and without digits: neither input nor facts fit in.
CALL_REFUSALS = {
    "unbekanntes Werkzeug",
    "unbekannter Datensatz",
    "Argumente zu lang",
    "Argumente zu tief verschachtelt",
    "Argumente sind kein JSON-Objekt",
    "genau ein Text record_id erwartet",
    "genau ein Text expression erwartet",
}


def malformed_calls(record_id: str) -> list[tools.Call]:
    """Calls that must run nothing; repaired by whatever guess, most of them would show the record."""
    right = f'{{"record_id":"{record_id}"}}'
    number = record_id[2:]
    broken = [
        # Not JSON.
        "", " ", "{", "}", right[:-1], right[:-2], right[1:], right[:-1] + ",}", right.replace('"', "'"), record_id,
        right.replace('"record_id"', "record_id"), f"record_id={record_id}", f"```json\n{right}\n```", "NaN",
        f"{right} danke", f"/* */{right}", f"{right}// ", right + right, f"{right}\n{right}", f"\ufeff{right}",
        f"\u00a0{right}", right.replace("L-", "L\n-"), right.replace("L", "\\x4c"), "undefined", "True", "-Infinity",
        # JSON, but no object with exactly the one text.
        "null", "true", "4", "4.5", "1e999", "[]", "{}", '""', f'"{record_id}"', f'["{record_id}"]', f"[{right}]",
        json.dumps(right), f'{{"id":"{record_id}"}}', f'{{"RECORD_ID":"{record_id}"}}',
        f'{{"record_id ":"{record_id}"}}',
        f'{{"":"{record_id}"}}', f'{{"record_id":["{record_id}"]}}', f'{{"record_id":{right}}}', '{"record_id":null}',
        f'{{"record_id":{number}}}', '{"record_id":true}', '{"record_id":NaN}', '{"record_id":1e999}',
        f'{{"record_id":"{record_id}","expression":"1"}}', f'{{"record_id":"{record_id}","format":NaN}}',
        f'{{"arguments":{right}}}', f'{{"name":"lookup","arguments":{right}}}', '{"record_id":' + "9" * 1900 + "}",
        # The same key twice, plain or escaped: which one counts is anybody's guess.
        f'{{"record_id":"L-1","record_id":"{record_id}"}}', f'{{"record_id":"{record_id}","record_id":"{record_id}"}}',
        f'{{"record_id":1,"record\\u005fid":"{record_id}"}}',
        # Size and depth.
        right + " " * 2000,
        f'{{"record_id":"{record_id}"{" " * 10**6}}}', f'{{"record_id":"{"L" * 10**6}"}}', "[" * 1000 + "]" * 1000,
        '{"record_id":' * 1000, '{"a":' * 1000 + right + "}" * 1000, "[" * 17 + right + "]" * 17,
        # Another text than the record's id, however alike it looks.
        '{"record_id":"L-Müller"}', '{"record_id":"L-Mu\u0308ller"}',
        '{"record_id":"\\ud800"}', '{"record_id":"\ud800"}',
        f'{{"record_id":"{record_id} "}}', f'{{"record_id":" {record_id}"}}', f'{{"record_id":"l-{number}"}}',
        f'{{"record_id":"L\u2010{number}"}}', f'{{"record_id":"\uff2c-{number}"}}',
        f'{{"record_id":"L-\u00ad{number}"}}',
        f'{{"record_id":"L-{number}\\u0000"}}', f'{{"record_id":"L{number}"}}', f'{{"record_id":"{number}"}}',
        '{"record_id":""}', '{"record_id":"../reward"}', '{"record_id":"*"}', '{"record_id":"L-%"}',
    ]  # fmt: skip
    sums = ['{"expression":"1+1"', '{"expression":2}', '{"expression":["1+1"]}', '{"expression":"1","expression":"2"}']
    others = ["", "Lookup", "lookup ", "nachschlagen", "reset", "close", "__class__", "\ud800", "unknown", "l" * 10**6]
    return [
        *(tools.Call("lookup", text) for text in broken),
        *(tools.Call("calculator", text) for text in (*sums, right, "{}", "null", '"1+1"', "1+1")),
        *(tools.Call(tool, right) for tool in others),
    ]


OUTCOMES = {
    "oracle": "solved",
    "wrong": "wrong_answer",
    "noop": "no_answer",
    "malformed": "malformed_answer",
    "spam": "foreign_record",
    "foreign": "foreign_record",
    "guess": "no_lookup",
    "no_calculation": "no_calculation",
}


# For checks whose message names the culprit already: a smaller failing draw would say no more, and cost minutes.
UNSHRUNK = (Phase.explicit, Phase.generate)


def differences(expected: dict[Any, Any], got: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """The rows of a table that came out otherwise, as (expected, got)."""
    return {key: (expected.get(key), got.get(key)) for key in expected | got if expected.get(key) != got.get(key)}
