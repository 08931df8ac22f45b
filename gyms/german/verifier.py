"""The verdict of an episode: a pure function of (task, calls, answer).

Strict success: the right record and only that record was looked up, a calculator call over revealed
numbers gave the right value after that, and the final message is exactly that number in the accepted
format. Strict success alone is ever reported as success; ``shaped`` is for training only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .calculator import CalculatorError, evaluate
from .numbers import NumberError, parse
from .tasks import Task
from .tools import ArgumentError, Call, decode_arguments, observe

MAX_ANSWER_CHARS = 100

OUTCOMES = {
    "truncated": "a budget cut the episode off, so that its final message may be a part",
    "no_answer": "the final message is empty or missing",
    "malformed_answer": "the final message is not exactly one number",
    "foreign_record": "a record other than the task's was asked for",
    "no_lookup": "the task's record was never looked up",
    "wrong_answer": "the final number is not the right one",
    "no_calculation": "the number is right, but no calculator call over revealed numbers gave it",
    "solved": "strict success",
}
"""Every outcome and what it means; an episode has the first that applies."""


@dataclass(frozen=True)
class Verdict:
    """What an episode is worth."""

    strict: bool
    """Strict success."""
    outcome: str
    """One of OUTCOMES."""
    parts: dict[str, float]
    """Milestones: ``lookup``, ``calculation``, ``answer`` are 0 or 1; ``errors`` counts error observations."""
    truncated: bool
    """The episode was cut off by a budget."""

    @property
    def reward(self) -> float:
        """1.0 for strict success, else 0.0."""
        return float(self.strict)


def judge(task: Task, calls: Sequence[Call], answer: str | None, truncated: bool = False) -> Verdict:
    """Judge the calls and the final message. Total: every input has a verdict."""
    foreign = looked_up = calculated = False
    errors = 0
    revealed: set[Fraction] = set()
    right = Fraction(task.answer)
    for call in calls:
        errors += observe(task, call).is_error
        try:
            value = decode_arguments(call.tool, call.arguments)
        except ArgumentError:
            continue
        if call.tool == "lookup":
            looked_up = looked_up or value == task.record_id
            foreign = foreign or value != task.record_id
            if looked_up:
                revealed.update(map(Fraction, task.quantities))
            continue
        try:
            calculation = evaluate(value)
        except CalculatorError:
            continue
        # A number is revealed if a tool has shown it: by lookup, or as the result over revealed numbers.
        if len(calculation.literals) > 1 and revealed.issuperset(calculation.literals):
            revealed.add(calculation.value)
            calculated = calculated or calculation.value == right

    stated = _number(answer)
    correct = stated == right
    lookup = looked_up and not foreign
    if truncated:
        # A message cut after "40" of "407" must not pass where 40 is right.
        outcome = "truncated"
    elif answer is None or not answer.strip(" \t\n"):
        outcome = "no_answer"
    elif stated is None:
        outcome = "malformed_answer"
    elif foreign:
        outcome = "foreign_record"
    elif not looked_up:
        outcome = "no_lookup"
    elif not correct:
        outcome = "wrong_answer"
    elif not calculated:
        outcome = "no_calculation"
    else:
        outcome = "solved"
    parts = {
        "lookup": float(lookup),
        "calculation": float(lookup and calculated),
        "answer": float(correct),
        "errors": float(errors),
    }
    return Verdict(outcome == "solved", outcome, parts, truncated)


def shaped(verdict: Verdict) -> float:
    """Training-only reward in [0, 1]: 1.0 for strict success alone, milestones at most 0.5.

    A right number without the path earns nothing, and no failure earns less than doing nothing.
    """
    if verdict.strict:
        return 1.0
    milestones = 0.2 * verdict.parts["lookup"] + 0.3 * verdict.parts["calculation"]
    return max(0.0, milestones - 0.02 * min(verdict.parts["errors"], 5.0))


def _number(answer: str | None) -> Fraction | None:
    if answer is None or len(answer) > MAX_ANSWER_CHARS:
        return None
    try:
        return parse(answer.strip(" \t\n"))
    except NumberError:
        return None
