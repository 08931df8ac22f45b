"""How rollouts are sampled: exact to the bits of plain TRL, or cached and held to the audit's bands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import GenerationConfig

from gymqual.__main__ import main
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.broken.generation import DEFECTS, SEEN_IN
from gymqual.qualification.broken.planted import audited, stopped_by
from gymqual.qualification.support.training.small_run import train_small
from gymqual.trainer.audit import sampling_recorder
from gymqual.trainer.grpo import adapter_forward
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.grpo.turn_cache import TurnCache
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.profiling.plain import PlainTRL
from gymqual.trainer.replay import audit as replay_audit
from gymqual.trainer.runs.config import CONFIG, training_config, write_config
from gymqual.trainer.runs.errors import AuditError

pytestmark = [pytest.mark.filterwarnings("ignore")]


def draws_of(kind: type[GymTrainer], folder: Path, **settings: Any) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """Train without an audit; return (ids, log-probabilities) of every row of every turn, and the adapter after."""
    noted: list[Any] = []

    class Noting(kind):
        def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
            with sampling_recorder.recording(self.model) as sampler:
                made = super()._generate_single_turn(*arguments, **named)
            noted.append([(ids, sampler.logprobs(row, ids)) for row, ids in enumerate(made[0])])
            return made

    trainer, _ = audited(Noting, folder, with_audit=False, **{"learning_rate": 5e-3, **settings})
    trainer.train()
    return noted, {name: p.detach().clone() for name, p in trainer.model.named_parameters() if p.requires_grad}


@pytest.mark.cpu_qualification
@check("SAMPLE-01", broken="the_scaling_is_forgotten")
def test_the_exact_mode_samples_the_bits_of_plain_trl(tmp_path: Path, evidence: Evidence) -> None:
    """Ids, log-probabilities and trained weights MUST be the bits of plain TRL, over steps that move the adapter."""
    settings = [{}, {"groups_per_step": 2, "temperature": 0.9}, {"max_completion_tokens": 66}]
    seen = []
    for number, each in enumerate(settings):
        plain, weights = draws_of(PlainTRL, tmp_path / f"{number}-plain", **each)
        exact, others = draws_of(GymTrainer, tmp_path / f"{number}-exact", **each)
        moved = any(bool(value.any()) for name, value in weights.items() if "lora_B" in name)
        same = all(torch.equal(value, others[name]) for name, value in weights.items())
        seen.append((exact == plain, same, moved))
    evidence.measure(seen=seen)
    assert seen == [(True, True, True)] * len(settings), explain(
        subject="(equal draws, equal weights, the adapter moved) by configuration",
        expected="all of them",
        got=seen,
        cause="a layer computes in another order while sampling, or something was left out that is not constant",
    )


CACHED: dict[str, dict[str, Any]] = {
    "one group": {},
    "two groups, prompts of other lengths": {"groups_per_step": 2},
    "a budget that cuts": {"max_completion_tokens": 66, "groups_per_step": 2},
    "an adapter that moves far": {"learning_rate": 5e-3},
}


@pytest.mark.cpu_qualification
@check("SAMPLE-02", broken="padding_is_attended_to")
def test_the_cached_mode_is_let_through_and_computes_less(tmp_path: Path, evidence: Evidence) -> None:
    """A cached training MUST be let through by every rule, MUST run over less of its contexts and never begin anew."""
    seen: dict[str, object] = {}
    for name, settings in CACHED.items():
        trainer, audit = audited(GymTrainer, tmp_path / name, generation="cached", **settings)
        try:
            trainer.train()
        except AuditError as error:
            seen[name] = str(error)
            continue
        counts = trainer.sampler.counts
        seen[name] = (counts["computed_tokens"] < counts["context_tokens"], counts["restarts"])
        gap = max(step.logprob_gap_max or 0.0 for step in audit.steps)
        evidence.measure(**{name: {**counts, "logprob_gap": gap}})
    assert seen == dict.fromkeys(CACHED, (True, 0)), explain(
        subject="(fewer tokens computed than given, calls that began anew) by configuration",
        expected=(True, 0),
        got=seen,
        cause="rows are not recognised as going on, or what is kept is laid out wrongly",
    )


@pytest.mark.cpu_qualification
@check("SAMPLE-03", broken="the_mean_is_compared")
def test_a_sampler_that_is_fast_and_wrong_is_stopped(tmp_path: Path, evidence: Evidence) -> None:
    """Unmasked padding, a cache or merged weights kept over an update, a scaling forgotten MUST stop the run."""
    seen = {}
    for name, defect in DEFECTS.items():
        with pytest.MonkeyPatch.context() as patch:
            defect(patch)
            seen[name] = stopped_by(GymTrainer, tmp_path / name, **SEEN_IN[name])
    evidence.measure(seen=seen)
    expected = dict.fromkeys(DEFECTS, ("log-probability gap", True))
    assert seen == expected, explain(
        subject="(rule that stopped it, nothing trained beyond) by defect of the sampler",
        expected=expected,
        got=seen,
        cause="the sampler is not held to the loss, id by id",
    )


@pytest.mark.self_test
def test_a_later_turn_is_worth_what_a_whole_prefill_says() -> None:
    """Rows that ended early, a subset of them, behind suffixes of other lengths MUST get a full prefill's values."""
    model, config = load_policy("mini4").model.eval(), _config(24)
    torch.manual_seed(1)
    turns = TurnCache(model)
    prompts = [list(range(5, 5 + length)) for length in (9, 17, 4, 12)]
    first = _sampled(turns, prompts, config)
    suffixes = {0: [7] * 3, 2: [9, 11] * 5, 3: [8]}
    contexts = [prompts[row] + first[row][0] + suffix for row, suffix in suffixes.items()]
    second = _sampled(turns, contexts, config)
    gaps = []
    for context, (ids, logprobs) in zip(contexts, second, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context + ids])).logits[0, len(context) - 1 : -1]
        due = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids)[:, None]).squeeze(1)
        gaps.append((torch.tensor(logprobs) - due).abs().max().item())
    ended = len({len(ids) for ids, _ in first}) > 1
    assert (ended, turns.restarts, max(gaps) < 1e-4) == (True, 0, True), explain(
        subject="a second turn by the cache: (first turns of several lengths, began anew, near a full prefill)",
        expected=(True, 0, True),
        got=(ended, turns.restarts, gaps),
        cause="places, masks or positions of what is kept are not those of the rows",
    )


def _config(new_tokens: int) -> GenerationConfig:
    """Return one under which a draw is from the model's own distribution."""
    end = load_policy("mini4").tokenizer.eos_token_id
    return GenerationConfig(
        max_new_tokens=new_tokens, do_sample=True, top_k=0, top_p=1.0, pad_token_id=end, eos_token_id=[end]
    )


def _sampled(turns: TurnCache, contexts: list[list[int]], config: Any) -> list[tuple[list[int], list[float]]]:
    """Return by row what one call sampled, up to its end, and its log-probabilities, nats."""
    width = max(map(len, contexts))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in contexts])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in contexts])
    with sampling_recorder.recording(turns._model) as sampler:
        made = turns(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
    [end] = config.eos_token_id
    cut = [row[: row.index(end) + 1] if end in row else row for row in made]
    return [(row, sampler.logprobs(number, row)) for number, row in enumerate(cut)]


@pytest.mark.self_test
def test_rows_that_go_on_from_nothing_kept_begin_anew() -> None:
    """A call of which one row continues no kept one MUST be computed whole, and counted."""
    turns, config = TurnCache(load_policy("mini4").model.eval()), _config(4)
    [(ids, _), _] = _sampled(turns, [[5, 6, 7], [8, 9]], config)
    contexts = [[5, 6, 7, *ids, 10], [8, 11, 12]]
    computed = turns.computed_tokens
    _sampled(turns, contexts, config)
    seen = (turns.restarts, turns.computed_tokens - computed)
    assert seen == (1, sum(map(len, contexts))), explain(
        subject="(calls that began anew, tokens computed) of a row that changed its past",
        expected=(1, sum(map(len, contexts))),
        got=seen,
        cause="a row is taken to go on from one that it does not begin with",
    )


class _Two(nn.Module):
    """Two layers, of which one has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 5, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


def _two_adapters(model: Any) -> None:
    model.add_adapter("other", model.peft_config["default"])
    model.base_model.set_adapter(["default", "other"])


def _hooked(model: Any) -> None:
    for layer in adapter_forward.layers_of(model):
        layer.base_layer.register_forward_hook(lambda module, given, made: made.neg())


KINDS: dict[str, tuple[int, dict[str, Any], Callable[[Any], object]]] = {
    "plain": (2, {}, nn.Module.eval),
    "half precision": (2, {}, lambda model: model.to(torch.bfloat16)),
    "as peft begins": (2, {"init_lora_weights": True}, nn.Module.eval),
    "a variant": (0, {"use_dora": True}, nn.Module.eval),
    "a bias of the adapter": (0, {"lora_bias": True}, nn.Module.eval),
    "dropout": (0, {"lora_dropout": 0.5}, nn.Module.eval),
    "disabled": (0, {}, lambda model: model.base_model.disable_adapter_layers()),
    "merged": (0, {}, lambda model: model.merge_adapter()),
    "two adapters": (0, {}, _two_adapters),
    "hooked": (0, {}, _hooked),
}
"""Layers that compute without peft, settings of the adapter, and what is done to the model."""


@pytest.mark.self_test
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_that_is_not_plain_stays_pefts(kind: str) -> None:
    """Whatever the adapter, a layer MUST give peft's bits, and only a plain one MUST compute without peft."""
    plain, settings, change = KINDS[kind]
    torch.manual_seed(1)
    wanted = LoraConfig(
        r=3, lora_alpha=5, target_modules=["first", "second"], **{"init_lora_weights": False, **settings}
    )
    model: Any = get_peft_model(_Two(), wanted)  # type: ignore[arg-type]
    change(model.eval())
    x = torch.randn(4, 8, dtype=next(model.parameters()).dtype)
    with torch.no_grad():
        due = model(x)
        with adapter_forward.standing_in(adapter_forward.layers_of(model), adapter_forward.lean):
            standing = sum("forward" in vars(layer) for layer in adapter_forward.layers_of(model))
            seen = model(x)
    left = sum("forward" in vars(layer) for layer in adapter_forward.layers_of(model))
    expected = (plain, True, 0)
    assert (standing, torch.equal(seen, due), left) == expected, explain(
        subject=f"(layers that compute without peft, equal bits, left behind) with {kind}",
        expected=expected,
        got=(standing, torch.equal(seen, due), left),
        cause="a layer is taken for plain that is not, or the order of operations is another",
    )


@pytest.mark.self_test
def test_a_layer_that_changes_amid_a_batch_goes_back_to_peft() -> None:
    """An adapter that is disabled, or a gradient that is asked for, while layers stand in MUST be computed by peft."""
    torch.manual_seed(1)
    config = LoraConfig(r=3, target_modules=["first", "second"], init_lora_weights=False)
    model: Any = get_peft_model(_Two(), config)  # type: ignore[arg-type]
    x = torch.randn(4, 8)
    with torch.no_grad(), model.disable_adapter():
        due = model(x)
    with adapter_forward.standing_in(adapter_forward.layers_of(model), adapter_forward.merged):
        with torch.no_grad(), model.disable_adapter():
            disabled = torch.equal(model(x), due)
        model(x).sum().backward()
    trained = all(p.grad is not None for p in model.parameters() if p.requires_grad)
    assert (disabled, trained) == (True, True), explain(
        subject="(bits of the model without its adapter, every trained tensor has a gradient) amid a batch",
        expected=(True, True),
        got=(disabled, trained),
        cause="what stands in does not look at the layer's state when it computes",
    )


@pytest.mark.self_test
def test_a_cached_run_is_derived_again_whole(tmp_path: Path) -> None:
    """Every claim of a cached run MUST hold in the replay audit, and its card and configuration MUST name the mode."""
    folder = train_small(tmp_path / "run", generation="cached")
    broken = [line for line in replay_audit.audit(folder).lines if not line.startswith("held")]
    named = ["cached" in (folder / name).read_text() for name in (CONFIG, "README.md")]
    assert (broken, named) == ([], [True, True]), explain(
        subject="claims of a cached run that are not held, and whether its configuration and card name the mode",
        expected=([], [True, True]),
        got=(broken, named),
        cause="the replay takes a run for another than it is",
    )


@pytest.mark.self_test
def test_an_unknown_generation_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A configuration with another generation MUST be refused by one line that names field and choices."""
    path = tmp_path / CONFIG
    write_config(training_config("mini4", "", "nemo", 43).model_copy(update={"generation": "fast"}), path)
    code = main(["train", str(path)])
    said = capsys.readouterr().err
    expected = f"gymqual train: {path}: generation: Input should be 'exact' or 'cached'\n"
    assert (code, said) == (2, expected), explain(
        subject="a training.json with generation fast",
        expected=(2, expected),
        got=(code, said),
        cause="the field is not validated, or its error is not read out",
    )
