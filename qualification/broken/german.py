"""Defects of the German task core, one for each check of ``qualification/german``.

Each patches the smallest thing that a real fault would have changed, where the name is used.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from random import Random

import pytest

from gymqual.gyms.german import calculator, episode, numbers, tasks, tools, verifier


def naive_comma_swap(patch: pytest.MonkeyPatch) -> None:
    """Reads ``1.234`` as 1.234: the comma is swapped for a point and the rest left to the language."""

    def parse_unsigned(text: str) -> Fraction:
        try:
            return Fraction(text.replace(",", "."))
        except ValueError:
            raise numbers.NumberError("keine eindeutige Zahl") from None

    patch.setattr(numbers, "parse_unsigned", parse_unsigned)


def lenient_digits(patch: pytest.MonkeyPatch) -> None:
    r"""Accepts any Unicode digit and leading zeros: what ``\d`` does when nobody restricts it."""
    patch.setattr(numbers, "_UNSIGNED", re.compile(r"(\d{1,3}(?:\.\d{3})+|\d+)(?:,(\d+))?"))


def float_arithmetic(patch: pytest.MonkeyPatch) -> None:
    """Computes in binary floating point, where 0,1 + 0,2 is not 0,3."""
    patch.setattr(calculator, "parse_unsigned", lambda text: Fraction(float(numbers.parse_unsigned(text))))


def unlimited_length(patch: pytest.MonkeyPatch) -> None:
    """Starts on an expression of any length: 100 kB of ``1+1+...`` hold up every other session."""
    patch.setattr(calculator, "MAX_CHARS", 10**9)


def shared_records(patch: pytest.MonkeyPatch) -> None:
    """Lets the split choose the order of the records only, so that training has seen the test records."""
    patch.setattr(tasks, "_record_ids", lambda split: tuple(range(1000, 10_000)))


def salted_hash(patch: pytest.MonkeyPatch) -> None:
    """Seeds a task with ``hash()`` of text, which Python salts anew in every process."""
    patch.setattr(tasks, "_random", lambda *parts: Random(hash(parts)))


def last_answer_wins(patch: pytest.MonkeyPatch) -> None:
    """Judges every finish anew, so that a second answer can repair the first."""

    def finish(self: episode.Episode, answer: str | None, truncated: bool = False) -> verifier.Verdict:
        self._verdict = verifier.judge(self.task, self.calls, answer, truncated)
        return self._verdict

    patch.setattr(episode.Episode, "finish", finish)


def repaired_arguments(patch: pytest.MonkeyPatch) -> None:
    """Runs a call whose arguments name a key twice, with the last value, as plain ``json.loads`` does."""
    patch.setattr(tools, "_unique", dict)


def costly_tries(patch: pytest.MonkeyPatch) -> None:
    """Lets failed calls cost more than silence, so that training learns to do nothing."""

    def shaped(verdict: verifier.Verdict) -> float:
        parts = verdict.parts
        return 1.0 if verdict.strict else 0.2 * parts["lookup"] + 0.3 * parts["calculation"] - 0.02 * parts["errors"]

    patch.setattr(verifier, "shaped", shaped)


def telling_errors(patch: pytest.MonkeyPatch) -> None:
    """Words an error with the hidden record in it, as a traceback or a helpful message does."""

    def observe(task: tasks.Task, call: tools.Call) -> tools.Observation:
        shown = tools.observe(task, call)
        if not shown.is_error:
            return shown
        return tools.Observation(tools.as_json({"fehler": f"erwartet: {task.quantities}"}), is_error=True)

    patch.setattr(episode, "observe", observe)


def package_in_the_core(patch: pytest.MonkeyPatch) -> None:
    """Lets a convenient package into the core, which a gym's own environment may not have."""
    read_text = Path.read_text

    def with_import(self: Path, *args: str, **kwargs: str) -> str:
        return ("import babel\n" if self.name == "numbers.py" else "") + read_text(self, *args, **kwargs)

    patch.setattr(Path, "read_text", with_import)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        naive_comma_swap,
        lenient_digits,
        float_arithmetic,
        unlimited_length,
        shared_records,
        salted_hash,
        last_answer_wins,
        repaired_arguments,
        costly_tries,
        telling_errors,
        package_in_the_core,
    )
}
