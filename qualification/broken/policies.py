"""Defects of the policy code, one for each check of ``qualification/training/test_policy.py``."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gymqual.trainer.evaluation import evaluate, retention, rollout
from gymqual.trainer.policy import sft, transcripts
from gymqual.trainer.runs import statistics


def a_file_is_edited(patch: pytest.MonkeyPatch) -> None:
    """One file is not what it was when the sums were taken."""
    digest = sft.sha256_file
    patch.setattr(sft, "sha256_file", lambda file: "0" * 64 if file.name == "config.json" else digest(file))


def half_the_layers_are_silent(patch: pytest.MonkeyPatch) -> None:
    """The upper layers are lost on loading: the model still talks, and knows less."""
    play = evaluate.play

    def silent(model: Any, *arguments: Any) -> Any:
        layers = model.model.layers
        model.model.layers = torch.nn.ModuleList(list(layers)[:1])
        try:
            return play(model, *arguments)
        finally:
            model.model.layers = layers

    patch.setattr(evaluate, "play", silent)


def siblings_share_a_seed(patch: pytest.MonkeyPatch) -> None:
    """Rows with the same context draw the same ids: duplicate rollouts from a coupled seed."""
    generate = rollout._generate

    def coupled(model: Any, tokenizer: Any, contexts: list[list[int]], sampling: Any) -> list[list[int]]:
        drawn: dict[tuple[int, ...], list[int]] = {}
        for context, sampled in zip(contexts, generate(model, tokenizer, contexts, sampling), strict=True):
            drawn.setdefault(tuple(context), sampled)
        return [drawn[tuple(context)] for context in contexts]

    patch.setattr(rollout, "_generate", coupled)


def the_mask_is_shifted(patch: pytest.MonkeyPatch) -> None:
    """The loss mask is off by one: framing is trained and the end of turn is not."""
    encode = transcripts.encode

    def shifted(*arguments: Any) -> list[transcripts.Tokens]:
        return [replace(tokens, mask=[*tokens.mask[1:], 0]) for tokens in encode(*arguments)]

    patch.setattr(transcripts, "encode", shifted)


def the_first_call_is_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A tool call is not parsed and taken for the final message."""
    patch.setattr(rollout, "parse_response", lambda tokenizer, ids, prefix: {"content": tokenizer.decode(ids)})


def pairs_are_not_paired(patch: pytest.MonkeyPatch) -> None:
    """Outcomes are sorted before they are compared, so that only totals count."""
    paired = statistics.paired
    patch.setattr(statistics, "paired", lambda before, after: paired(sorted(before), sorted(after)))


def likelihood_of_the_answer_alone(patch: pytest.MonkeyPatch) -> None:
    """The question is left out of the likelihood."""
    likelihood = retention._likelihood
    patch.setattr(retention, "_likelihood", lambda policy, problem: likelihood(policy, replace(problem, question="")))


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        a_file_is_edited,
        half_the_layers_are_silent,
        siblings_share_a_seed,
        the_mask_is_shifted,
        the_first_call_is_the_answer,
        pairs_are_not_paired,
        likelihood_of_the_answer_alone,
    )
}
