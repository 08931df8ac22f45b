"""Trainer bugs that an audit must stop: each a few lines on a real TRL trainer, beneath the audit.

All but two (LaterTurnsUntrained, RewardNotFinite) change every trainable tensor within four steps, with finite values:
what the usual evidence looks at is intact.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, set_seed

from gyms.base import InfrastructureError, Kind, Scope, Verdict
from gyms.german_orders import GermanOrders
from gyms.local import LocalGym, LocalSession
from trainer.audit import attach
from trainer.config import TrainingConfig
from trainer.errors import AuditError
from trainer.grpo import GymTrainer, episode_of, rewards_of
from trainer.policy import load_policy

POOL = tuple(f"v1/train/43/{index}" for index in range(16))


class Untouched(GymTrainer):
    """The trainer as it is: the control."""


class MaskOffByOne(GymTrainer):
    """The loss mask is shifted by one position."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        made[2] = [[1, *mask[:-1]] for mask in made[2]]
        return tuple(made)


class ObservationTrained(GymTrainer):
    """What the tools showed is trained like what the model wrote."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        made[2] = [[1] * len(mask) for mask in made[2]]
        return tuple(made)


class LaterTurnsUntrained(GymTrainer):
    """Only the first turn is trained."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        made[2] = [[on if 0 not in mask[:position] else 0 for position, on in enumerate(mask)] for mask in made[2]]
        return tuple(made)


class EndUntrained(GymTrainer):
    """The end of a turn is left out of the mask."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        pairs = zip(made[1], made[2], strict=True)
        made[2] = [[on * (i not in self.eos_token_ids) for i, on in zip(ids, m, strict=True)] for ids, m in pairs]
        return tuple(made)


class MaskedInTheLossAlone(GymTrainer):
    """The mask is right when it is made and another one when it is used."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        return {**inputs, "tool_mask": torch.ones_like(inputs["tool_mask"])}


class Retokenised(GymTrainer):
    """A token of the first turn is decoded and encoded again, as the characters it stands for."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        ids, masks = copy.deepcopy(made[1]), copy.deepcopy(made[2])
        for row, mask in zip(ids, masks, strict=True):
            texts = [self._tokenizer.decode([token]) for token in row]
            special = set(self._tokenizer.all_special_ids)
            at = next(n for n, text in enumerate(texts) if len(text) > 1 and row[n] not in special and "<" not in text)
            anew = [token for character in texts[at] for token in self._tokenizer.encode(character)]
            row[at : at + 1], mask[at : at + 1] = anew, [1] * len(anew)
        made[1], made[2] = ids, masks
        return tuple(made)


class RowTrainedTwice(GymTrainer):
    """One rollout is trained in the place of another."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        copied = {name: value.clone() if value.dim() else value for name, value in inputs.items()}
        for value in copied.values():
            if value.dim():
                value[0] = value[-1]
        return copied


class RolloutsSwapped(GymTrainer):
    """Ids of two rollouts of a group change places; messages, environments and rewards stay."""

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        ids, masks = list(made[1]), list(made[2])
        order = sorted(range(len(ids)), key=lambda row: ids[row])
        first, last = order[0], order[-1]
        for values in (ids, masks):
            values[first], values[last] = values[last], values[first]
        made[1], made[2] = ids, masks
        return tuple(made)


class InfrastructureFailureScored(GymTrainer):
    """A tool that fails is what TRL makes of it: text for the model, and the rollout is worth 0."""

    def _generate(self, prompts: list[Any]) -> Any:
        environment = self.environments[0] if self.environments else None
        assert environment is not None
        session = environment._session
        broken = InfrastructureError(Kind.UNREACHABLE, Scope.SERVICE, "the service is gone")
        environment._session = _Broken(session, broken)  # type: ignore[assignment]
        environment._raise_fault = lambda: None
        return super()._generate(prompts)


class _Broken(LocalSession):
    """A session whose every call fails, and whose verdict is 0."""

    def __init__(self, session: Any, fault: InfrastructureError) -> None:
        self._fault = fault

    def call(self, tool: str, arguments: str) -> Any:
        raise self._fault

    def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        return Verdict(0.0, False, {"lookup": 0.0, "calculation": 0.0, "answer": 0.0, "errors": 0.0}, "no_lookup")


class _Rewards(GymTrainer):
    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def _calculate_rewards(self, *arguments: Any, **named: Any) -> Any:
        return self._changed(super()._calculate_rewards(*arguments, **named))


class RewardsPermuted(_Rewards):
    """The rewards of a group belong to other members."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        return values.sort(dim=0).values if (values.sort(dim=0).values != values).any() else values.flip(0)


class RewardNotFinite(_Rewards):
    """A reward that overflowed."""

    def _changed(self, values: torch.Tensor) -> torch.Tensor:
        values[0] = float("inf")
        return values


class _Advantages(GymTrainer):
    def _changed(self, values: torch.Tensor, output: dict[str, Any]) -> torch.Tensor:
        raise NotImplementedError

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        return {**output, "advantages": self._changed(output["advantages"], output)}


class AdvantagesNegated(_Advantages):
    """The sign is wrong."""

    def _changed(self, values: torch.Tensor, output: dict[str, Any]) -> torch.Tensor:
        return -values


class NoBaseline(_Advantages):
    """The advantage is the reward: it learns faster than the healthy one, and is not what was configured."""

    def _changed(self, values: torch.Tensor, output: dict[str, Any]) -> torch.Tensor:
        return torch.tensor([float(verdict.strict) for verdict in self.verdicts])


class AdvantagesSwapped(GymTrainer):
    """Advantages and rows part when the batch is shuffled."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        return {**inputs, "advantages": inputs["advantages"].sort().values.flip(0) * 0.5}


class HalfTheLoss(GymTrainer):
    """Scaled once too often, as with accumulation or several processes."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return super()._compute_loss(model, inputs) * 0.5


class WrongSign(GymTrainer):
    """The loss is maximised."""

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        return -super()._compute_loss(model, inputs)


class GradientOfOneRow(GymTrainer):
    """All rows but the first lose their gradient."""

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        logps, *others = super()._get_per_token_logps_and_entropies(*arguments, **named)
        return (torch.cat([logps[:1], logps[1:].detach()]), *others)


class StalePolicy(GymTrainer):
    """Rollouts are sampled by the policy as it was before training."""

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        with self.accelerator.unwrap_model(self.model).disable_adapter():
            return super()._generate_single_turn(*arguments, **named)


class HiddenTemperature(GymTrainer):
    """The sampler divides its logits once more than it says."""

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        head = self.accelerator.unwrap_model(self.model).get_base_model().lm_head
        hook = head.register_forward_hook(lambda module, given, logits: logits / 0.7)
        try:
            return super()._generate_single_turn(*arguments, **named)
        finally:
            hook.remove()


class OtherSampling(GymTrainer):
    """The sampler cuts the distribution off, the trainer does not."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.generation_config.top_k = 5


class WrongReference(GymTrainer):
    """The KL is taken against another model than the one that training began with."""

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        made = super()._get_per_token_logps_and_entropies(*arguments, **named)
        return made if torch.is_grad_enabled() else (made[0] - 1e-6, *made[1:])


class GroupOverTwoPrompts(GymTrainer):
    """One member of a group answers another question."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        other = {**inputs[-1], "task_id": POOL[-1], "prompt": GermanOrders().prompt(POOL[-1])}
        inputs[-1] = other
        return super()._generate_and_score_completions(inputs)


PLANTED: dict[str, dict[type[GymTrainer], str]] = {
    "mask": {
        MaskOffByOne: "mask",
        ObservationTrained: "mask",
        LaterTurnsUntrained: "mask",
        EndUntrained: "mask",
        MaskedInTheLossAlone: "mask",
    },
    "rows": {Retokenised: "rows", RowTrainedTwice: "rows"},
    "rollouts": {RolloutsSwapped: "messages", InfrastructureFailureScored: "episode", GroupOverTwoPrompts: "group"},
    "rewards": {
        RewardsPermuted: "reward",
        RewardNotFinite: "finite",
        AdvantagesNegated: "advantage",
        NoBaseline: "advantage",
        AdvantagesSwapped: "advantage",
    },
    "gradient": {HalfTheLoss: "gradient", WrongSign: "gradient", GradientOfOneRow: "gradient"},
    "policy": {
        StalePolicy: "log-probability gap",
        HiddenTemperature: "log-probability gap",
        OtherSampling: "sampling",
        WrongReference: "reference",
    },
}
"""By check: trainers, and the rule that must stop each."""


def stopped_by(trainer: type[GymTrainer], folder: Path, **settings: Any) -> tuple[str | None, bool]:
    """Train four steps with a planted bug; return the rule that stopped it, and whether the weights were spared.

    Spared are weights that are still those that the stopped step began with.
    """
    made, audit = audited(trainer, folder / trainer.__name__, **settings)
    before = audit.policy_digest()
    try:
        made.train()
    except AuditError as error:
        return error.rule, audit.policy_digest() == (audit.steps[-1].policy_after if audit.steps else before)
    finally:
        audit.close()
    return None, False


def sampled_ids(folder: Path, with_audit: bool, **settings: Any) -> list[Any]:
    """Train two steps; return all completions, or the rule that stopped it."""
    noted: list[Any] = []

    class Noting(GymTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            made = super()._generate(prompts)
            noted.extend(made[1])
            return made

    made, audit = audited(Noting, folder, with_audit, steps=2, **settings)
    try:
        made.train()
    except AuditError as error:
        noted.append(str(error))
    if audit:
        audit.close()
    return noted


def audited(trainer: type[GymTrainer], folder: Path, with_audit: bool = True, **settings: Any) -> tuple[Any, Any]:
    """Return a trainer of mini4 on tasks played in this process, and its audit, None without one."""
    config = TrainingConfig(policy="mini4", tasks=POOL, **{"steps": 4, "oracle_steps": "every", **settings})
    tasks = GermanOrders()
    set_seed(config.seed)
    made: Any = trainer(config, load_policy("mini4"), LocalGym(tasks), tasks, folder / "trl")  # type: ignore[arg-type]
    made.remove_callback(PrinterCallback)
    if not with_audit:
        return made, None
    audit = attach(
        made,
        folder / "trace.jsonl",
        bands=config.bands,
        oracle_at=config.oracle_at,
        episodes=episode_of,
        rewards=rewards_of(config.shaping),
    )
    return made, audit
