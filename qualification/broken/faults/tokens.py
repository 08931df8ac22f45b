"""Bugs of ids and masks: what is trained is not what was sampled."""

import copy
from typing import Any

import torch

from gymqual.qualification.broken.faults.catalogue import fault
from gymqual.trainer.grpo.trainer import GymTrainer

TRUNCATING = {"max_completion_tokens": 67, "mask_truncated": True, "groups_per_step": 2}
"""A budget that cuts off the last turn of some rollouts, which are then to be left out."""


class _Generated(GymTrainer):
    """A trainer that changes what generation made."""

    def _changed(self, ids: list[list[int]], masks: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        raise NotImplementedError

    def _generate(self, prompts: list[Any]) -> Any:
        made = list(super()._generate(prompts))
        made[1], made[2] = self._changed(copy.deepcopy(made[1]), copy.deepcopy(made[2]))
        return tuple(made)


@fault("AUDIT-01", "mask", resembles="NovaSky-AI/SkyRL #710")
class MaskOffByOne(_Generated):
    """The loss mask is shifted by one position."""

    def _changed(self, ids: Any, masks: Any) -> Any:
        return ids, [[1, *mask[:-1]] for mask in masks]


@fault("AUDIT-01", "mask", resembles="NovaSky-AI/SkyRL #710")
class ObservationTrained(_Generated):
    """What the tools showed is trained like what the model wrote."""

    def _changed(self, ids: Any, masks: Any) -> Any:
        return ids, [[1] * len(mask) for mask in masks]


@fault("AUDIT-01", "mask", "gradient")
class LaterTurnsUntrained(_Generated):
    """Only the first turn is trained."""

    def _changed(self, ids: Any, masks: Any) -> Any:
        return ids, [[on if 0 not in mask[:position] else 0 for position, on in enumerate(mask)] for mask in masks]


@fault("AUDIT-01", "mask", resembles="NovaSky-AI/SkyRL #758")
class EndUntrained(_Generated):
    """The end of a turn is left out of the mask."""

    def _changed(self, ids: Any, masks: Any) -> Any:
        pairs = zip(ids, masks, strict=True)
        return ids, [[on * (i not in self.eos_token_ids) for i, on in zip(row, m, strict=True)] for row, m in pairs]


@fault("AUDIT-01", "mask", resembles="NVIDIA-NeMo/Gym #1612")
class NothingTrained(_Generated):
    """All masks are zero: there were no log-probabilities, so nobody knew which ids were sampled."""

    def _changed(self, ids: Any, masks: Any) -> Any:
        return ids, [[0] * len(mask) for mask in masks]


@fault("AUDIT-01", "mask", "gradient", resembles="huggingface/trl #6439")
class MaskedInTheLossAlone(GymTrainer):
    """The mask is right when it is made and another one when it is used."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        return {**inputs, "tool_mask": torch.ones_like(inputs["tool_mask"])}


@fault("AUDIT-01", "mask", "gradient", resembles="huggingface/trl #6369", settings=TRUNCATING)
class TruncatedTrained(GymTrainer):
    """Rollouts that a budget ended are trained, though they were to be left out."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self.mask_truncated_completions = False
        return super()._generate_and_score_completions(inputs)


@fault("AUDIT-02", "rows", "recorded", resembles="huggingface/trl #5224")
class Retokenised(_Generated):
    """A token of the first turn is decoded and encoded again, as the characters it stands for."""

    def _changed(self, ids: Any, masks: Any) -> Any:
        for row, mask in zip(ids, masks, strict=True):
            texts = [self._tokenizer.decode([token]) for token in row]
            special = set(self._tokenizer.all_special_ids)
            at = next(n for n, text in enumerate(texts) if len(text) > 1 and row[n] not in special and "<" not in text)
            anew = [token for character in texts[at] for token in self._tokenizer.encode(character)]
            row[at : at + 1], mask[at : at + 1] = anew, [1] * len(anew)
        return ids, masks


@fault("AUDIT-02", "rows", resembles="NVIDIA-NeMo/RL #2305")
class RowTrainedTwice(GymTrainer):
    """One rollout is trained in the place of another."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        copied = {name: value.clone() if value.dim() else value for name, value in inputs.items()}
        for value in copied.values():
            if value.dim():
                value[0] = value[-1]
        return copied


@fault("AUDIT-02", "rows", "gradient", resembles="huggingface/trl #4543")
class PromptCutInTheLoss(GymTrainer):
    """The loss sees a shorter prompt than the sampler did."""

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        inputs = super()._prepare_inputs(generation_batch)
        mask = inputs["prompt_mask"].clone()
        mask[:, : mask.size(1) // 2] = 0
        return {**inputs, "prompt_mask": mask}
