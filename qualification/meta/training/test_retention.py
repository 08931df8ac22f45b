"""Retention on MGSM itself: the published problems, the rule on their own answers, a measure that repeats."""

import os
from pathlib import Path

import pytest

from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import NotTestable
from gymqual.harness.records.files import sha256_file
from gymqual.trainer.evaluation import retention
from gymqual.trainer.policy.loading import Policy

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.needs_data("GYMQUAL_MGSM")]

PUBLISHED = {
    "de": "4dfea30fede44b813e2e496f5f0534049e83c7cc8aed6e00600b30ec62053626",
    "en": "50021d0f28cc957edcb44e7806425b1c7fbd648ddcb9e0a8ec689d10e57d40fa",
}
"""sha256 of the files in google-research/url-nlp at 452a21a."""
SCORED = 40
"""Problems of the repeated measure; all 250 would take minutes."""


@pytest.fixture(params=retention.LANGUAGES)
def mgsm(request: pytest.FixtureRequest) -> Path:
    """The file of one language."""
    path = Path(os.environ.get("GYMQUAL_MGSM", "")) / f"mgsm_{request.param}.tsv"
    if not path.is_file():
        raise NotTestable(f"{path} is missing; set GYMQUAL_MGSM to the folder with mgsm_de.tsv and mgsm_en.tsv")
    return path


def test_mgsm_is_what_was_published(mgsm: Path, evidence: Evidence) -> None:
    """All 250 problems of a language MUST be read, from the very bytes that were published."""
    read, digest = len(retention.read_problems(mgsm)), sha256_file(mgsm)
    evidence.measure(problems=read, sha256=digest)
    expected = (250, PUBLISHED[mgsm.stem.removeprefix("mgsm_")])
    assert (read, digest) == expected, explain(
        subject=f"problems and sha256 of {mgsm.name}",
        expected=expected,
        got=(read, digest),
        cause="another edition of the data, or lines are lost on reading",
    )


ANSWERS = {
    "as in the file": "{raw}",
    "digits alone": "{number}",
    "a German sentence": "Zuerst 3 mal 12, dann 7 dazu: Die Antwort ist {german}.",
    "an English sentence": "First 3 times 12, then 7 more: the answer is ${english}.",
    "an equation": "12 + 7 = {number}\n",
}


@pytest.mark.parametrize("written", ANSWERS)
def test_mgsm_gold_answers_score_in_full(mgsm: Path, written: str) -> None:
    """The gold number MUST count as right however a German or English text writes it, and its successor as wrong."""
    problems = retention.read_problems(mgsm)
    raws = [line.split("\t")[1] for line in mgsm.read_text(encoding="utf-8").splitlines()]
    right = wrong = 0
    for problem, raw in zip(problems, raws, strict=True):
        english = f"{problem.answer:,}"
        forms = {"raw": raw, "number": problem.answer, "english": english, "german": english.replace(",", ".")}
        stated = retention.stated_number(ANSWERS[written].format(**forms))
        right += stated == problem.answer
        wrong += stated == problem.answer + 1
    assert (right, wrong) == (250, 0), explain(
        subject=f"gold answers of {mgsm.name} written as {ANSWERS[written]!r}: right, taken for the successor",
        expected=(250, 0),
        got=(right, wrong),
        cause="thousands separators, signs or an earlier number are read as the answer",
    )


def test_mgsm_likelihood_repeats(mgsm: Path, mini: Policy, evidence: Evidence) -> None:
    """The negative log-likelihood of the same problems MUST be the same number twice, to the last bit."""
    problems = retention.read_problems(mgsm)[:SCORED]
    first, again = (retention.assess(mini, problems, lambda text: None) for _ in range(2))
    evidence.measure(exact=sum(first.correct), nats_per_token=first.nll_per_token, tokens=first.tokens)
    assert first == again, explain(
        subject=f"matches, nats a token and tokens of the first {SCORED} problems of {mgsm.name}",
        expected=first,
        got=again,
        cause="something is left undetermined: threads, batches or sampling",
    )
