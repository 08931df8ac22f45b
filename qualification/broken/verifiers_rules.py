"""Defects of the rules in this process, beside those of the environment in its own."""

from collections.abc import Callable

import pytest

from gymqual.gyms.verifiers import rules


def positive_logprobs_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier that, like upstream, takes probabilities for their logarithms."""
    monkeypatch.setattr(rules, "lacking_tokens", lambda trace: "")


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {"positive_logprobs_pass": positive_logprobs_pass}
