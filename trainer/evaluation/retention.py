"""Retention: what a policy still knows of grade-school mathematics, before and after training.

    gymqual retention --policy mini --data mgsm_de.tsv

Two measures over a TSV of question and integer answer (MGSM: 250 problems a language, CC-BY 4.0):

- exact match of a greedy answer, by one rule: the last number of the answer, read with thousands separators
  of either language removed, equals the gold number;
- teacher-forced negative log-likelihood per token of question and gold answer, which moves where the accuracy
  of a small model is 0.

Without ``--data`` the file is ``mgsm_LANGUAGE.tsv`` in the folder that ``GYMQUAL_MGSM`` names; ``--probe`` uses 40
problems of our own.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from cyclopts import Parameter
from pydantic import BaseModel, ConfigDict
from rich.console import Console
from torch.nn import functional

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.trainer.policy.loading import FOLDER, POLICY_HELP, Policy, load_policy
from gymqual.trainer.policy.transcripts import render_ids, token_id
from gymqual.trainer.runs.statistics import wilson

LANGUAGES = ("de", "en")
PROBE = FOLDER / "probe_de.tsv"
BATCH = 25
"""Problems together; a remainder gives a smaller batch."""
MAX_NEW_TOKENS = 64

_NUMBER = re.compile(r"-?[0-9]+(?:[.,][0-9]{3})*(?![0-9])")


@dataclass(frozen=True)
class Problem:
    """One question and its integer answer."""

    question: str
    answer: int


class Retention(BaseModel):
    """The result, as written with ``--out``."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["gymqual.retention/1"] = "gymqual.retention/1"
    policy: dict[str, Any]
    adapter: str | None
    data: str
    data_sha256: str
    problems: int
    exact: int
    accuracy: float
    interval: tuple[float, float]
    """95 % Wilson interval of the accuracy."""
    nll_per_token: float
    """Mean over all tokens of question and gold answer, nats."""
    tokens: int
    correct: list[bool] | None = None
    """Exact match of each problem, in the file's order; null in results of before there were any."""


class Assessed(NamedTuple):
    """What asking came to."""

    correct: list[bool]
    nll_per_token: float
    tokens: int


def read_problems(path: Path) -> list[Problem]:
    """Read a TSV of question and answer; raises HarnessError naming the line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"--data {path}: cannot be read ({error})") from None
    problems = []
    for number, line in enumerate(lines, start=1):
        question, tab, answer = line.partition("\t")
        digits = re.sub(r"[.,]", "", answer.strip())
        if not tab or not question or not re.fullmatch(r"-?[0-9]+", digits):
            raise HarnessError(f"--data {path}: line {number} is not a question, a tab and an integer")
        problems.append(Problem(question, int(digits)))
    if not problems:
        raise HarnessError(f"--data {path}: holds no problem")
    return problems


def stated_number(answer: str) -> int | None:
    """Return the last number of an answer, thousands separators removed; None if it has none."""
    found = _NUMBER.findall(answer)
    return int(re.sub(r"[.,]", "", found[-1])) if found else None


@torch.inference_mode()
def assess(policy: Policy, problems: list[Problem], say: Any) -> Assessed:
    """Ask every problem once, greedily."""
    correct: list[bool] = []
    total, tokens = 0.0, 0
    for start in range(0, len(problems), BATCH):
        batch = problems[start : start + BATCH]
        for problem in batch:
            loss, count = _likelihood(policy, problem)
            total, tokens = total + loss, tokens + count
        correct += [a == p.answer for a, p in zip(_answers(policy, batch), batch, strict=True)]
        say(f"{start + len(batch)} of {len(problems)} problems")
    return Assessed(correct, total / tokens, tokens)


def measure(
    policy: Policy, path: Path, say: Any, *, problems: int | None = None, adapter: str | None = None
) -> Retention:
    """Assess a policy on a file, or its first ``problems``; ``adapter`` is what the result calls the one it holds.

    Raises HarnessError.
    """
    asked = read_problems(path)[:problems]
    found = assess(policy, asked, say)
    exact = sum(found.correct)
    return Retention(
        policy=policy.identity.to_json(),
        adapter=adapter,
        data=path.name,
        data_sha256=sha256_file(path),
        problems=len(asked),
        exact=exact,
        accuracy=exact / len(asked),
        interval=wilson(exact, len(asked)),
        nll_per_token=found.nll_per_token,
        tokens=found.tokens,
        correct=found.correct,
    )


def _likelihood(policy: Policy, problem: Problem) -> tuple[float, int]:
    """Return the summed negative log-likelihood of question and answer, one row at a time: no padding moves it."""
    messages = [
        {"role": "user", "content": problem.question},
        {"role": "assistant", "content": str(problem.answer)},
    ]
    ids = torch.tensor([_fitting(policy, render_ids(policy.tokenizer, messages))], device=policy.model.device)
    logits = policy.model(input_ids=ids).logits[0, :-1].float()
    return functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item(), ids.shape[1] - 1


def _answers(policy: Policy, batch: list[Problem]) -> list[int | None]:
    tokenizer, padding = policy.tokenizer, token_id(policy.tokenizer.pad_token_id)
    prompts = [
        _fitting(policy, render_ids(tokenizer, [{"role": "user", "content": p.question}], add_generation_prompt=True))
        for p in batch
    ]
    longest = max(map(len, prompts))
    generate: Any = policy.model.generate
    device = policy.model.device
    output = generate(
        input_ids=torch.tensor([[padding] * (longest - len(ids)) + ids for ids in prompts], device=device),
        attention_mask=torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompts], device=device),
        max_new_tokens=MAX_NEW_TOKENS,
        do_sample=False,
        eos_token_id=token_id(tokenizer.eos_token_id),
        pad_token_id=padding,
    )
    return [stated_number(str(tokenizer.decode(row, skip_special_tokens=True))) for row in output[:, longest:]]


def _fitting(policy: Policy, ids: list[int]) -> list[int]:
    # A long problem may not fit a small model: its end, with the question, is kept.
    room = int(policy.model.config.max_position_embeddings) - MAX_NEW_TOKENS
    return ids[-room:]


def command(
    *,
    policy: Annotated[str, Parameter(help=POLICY_HELP)] = "mini",
    adapter: Annotated[Path | None, Parameter(help="LoRA adapter on top of the policy.")] = None,
    data: Annotated[
        Path | None, Parameter(help="TSV of question and integer answer: a file in GYMQUAL_MGSM without it.")
    ] = None,
    language: Annotated[Literal["de", "en"], Parameter(help="Of the file in GYMQUAL_MGSM.")] = "de",
    probe: Annotated[bool, Parameter(help="40 German problems of our own instead.")] = False,
    out: Annotated[Path | None, Parameter(help="File that gets the result as JSON, too.")] = None,
) -> None:
    """Measure what a policy still knows of other problems: exact match and likelihood."""
    torch.set_num_threads(1)
    path = _data(data, probe, language)
    # Before the policy is loaded, which takes longer.
    read_problems(path)
    loaded_policy = load_policy(policy, adapter)
    console = Console(highlight=False, soft_wrap=True)
    with console.status("") as status:
        result = measure(loaded_policy, path, status.update, adapter=str(adapter) if adapter else None)
    if out:
        write_atomically(out, readable_json(result.model_dump(mode="json")))
    low, high = result.interval
    problems = f"{result.exact} of {result.problems}"
    console.print(
        f"{loaded_policy.identity.name} on {path.name}, {result.problems} problems, sha256 {result.data_sha256[:16]}"
    )
    console.print(f"exact match: {problems} = {result.accuracy:.3f} [{low:.3f}, {high:.3f}]")
    console.print(f"negative log-likelihood: {result.nll_per_token:.6f} nats a token over {result.tokens} tokens")


def _data(named: Path | None, probe: bool, language: str) -> Path:
    if probe and named is not None:
        raise HarnessError("--probe and --data exclude each other; leave one out")
    if probe:
        return PROBE
    if named is not None:
        return named
    folder = os.environ.get("GYMQUAL_MGSM")
    if not folder:
        raise HarnessError("no problems: name a file with --data, a folder with GYMQUAL_MGSM, or use --probe")
    return Path(folder) / f"mgsm_{language}.tsv"
