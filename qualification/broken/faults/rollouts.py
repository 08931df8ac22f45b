"""Bugs of rollouts: ids, messages, environments, groups and tasks that do not belong together."""

from collections.abc import Iterator
from typing import Any

import torch
from trl.trainer.utils import RepeatSampler

from gymqual.gyms.base import InfrastructureError, Kind, Scope, Verdict
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalSession
from gymqual.qualification.broken.faults.catalogue import fault
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.runs.config import TrainingConfig

OTHER_TASK = "v1/train/43/15"


@fault("AUDIT-03", "messages", resembles="NVIDIA-NeMo/RL #2305")
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


@fault("AUDIT-03", "episode", resembles="NVIDIA-NeMo/Gym #2552")
class InfrastructureFailureScored(GymTrainer):
    """A tool that fails is what TRL makes of it: text for the model, and the rollout is worth 0."""

    def _generate(self, prompts: list[Any]) -> Any:
        environment = self.environments[0] if self.environments else None
        assert environment is not None
        broken = InfrastructureError(Kind.UNREACHABLE, Scope.SERVICE, "the service is gone")
        environment._session = _Broken(environment._session, broken)  # type: ignore[assignment]
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


@fault("AUDIT-03", "group", "tasks")
class GroupOverTwoPrompts(GymTrainer):
    """One member of a group answers another question."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        inputs[-1] = {**inputs[-1], "task_id": OTHER_TASK, "prompt": GermanOrders().prompt(OTHER_TASK)}
        return super()._generate_and_score_completions(inputs)


class _Observed(GymTrainer):
    """A trainer that hands on something else than what a tool showed."""

    def _instead(self, text: str) -> Any:
        raise NotImplementedError

    def _tool_call_loop(self, *arguments: Any, **named: Any) -> Any:
        for environment in self.environments or []:
            if "_call" not in vars(environment):
                environment._call = self._wrapped(environment._call)
        return super()._tool_call_loop(*arguments, **named)

    def _wrapped(self, call: Any) -> Any:
        return lambda tool, arguments: self._instead(call(tool, arguments))


@fault("AUDIT-03", "episode", resembles="huggingface/trl #5521")
class ObservationShortened(_Observed):
    """What a tool showed is cut before the model sees it."""

    def _instead(self, text: str) -> str:
        return text[:24]


@fault("AUDIT-03", "observation", "episode", resembles="the GRPO agent example of TRL's repository")
class ObservationNotRendered(_Observed):
    """A tool returns a list, of which the chat template shows nothing: the model is asked about an empty answer."""

    def _instead(self, text: str) -> list[tuple[str]]:
        return [(text,)]


class _OtherOrder(GymTrainer):
    """A trainer whose sampler yields other batches of rows."""

    def _batches(self, batches: list[list[int]]) -> list[list[int]]:
        raise NotImplementedError

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler: Any = super()._get_train_sampler(dataset)
        sampler.__class__ = _Reordered
        sampler.reorder = self._batches
        return sampler


class _Reordered(RepeatSampler):
    reorder: Any

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        rows = list(super().__iter__())
        size = self.batch_size * self.mini_repeat_count * self.repeat_count
        for batch in self.reorder([rows[start : start + size] for start in range(0, len(rows), size)]):
            yield from batch


@fault("AUDIT-10", "data", "tasks", resembles="huggingface/trl #7274")
class RowsRepeated(_OtherOrder):
    """One row of the dataset is trained over and over: the sampler starts anew at every step."""

    def _batches(self, batches: list[list[int]]) -> list[list[int]]:
        return [batches[0]] * len(batches)


@fault("AUDIT-10", "data", "tasks", resembles="NVIDIA-NeMo/RL #3599")
class RowsSkipped(_OtherOrder):
    """Every second batch of the dataset is never trained."""

    def _batches(self, batches: list[list[int]]) -> list[list[int]]:
        return batches[::2]


@fault("AUDIT-10", "tasks")
class EvaluationLeaked(GymTrainer):
    """The tasks that are evaluated on are in the training pool."""

    def __init__(self, config: TrainingConfig, *others: Any, **named: Any) -> None:
        leaked = tuple(f"v1/dev/0/{index}" for index in range(len(config.tasks)))
        super().__init__(config.model_copy(update={"tasks": leaked}), *others, **named)


@fault("")
class SystemPromptLost(GymTrainer):
    """The system message is dropped before the prompt is rendered, for sampler and loss alike."""

    def _generate(self, prompts: list[Any]) -> Any:
        return super()._generate([[m for m in prompt if m["role"] != "system"] for prompt in prompts])


@fault("AUDIT-08", "siblings", resembles="modelscope/ms-swift #7858")
class SiblingsCoupled(GymTrainer):
    """Members of a group are sampled with one seed: wherever they stand at the same place they draw the same."""

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        original = torch.multinomial

        def coupled(probabilities: torch.Tensor, *others: Any, **known: Any) -> torch.Tensor:
            drawn = original(probabilities, *others, **known)
            for row in range(1, len(drawn)):
                for earlier in range(row):
                    if torch.allclose(probabilities[row], probabilities[earlier], atol=1e-5):
                        drawn[row] = drawn[earlier]
                        break
            return drawn

        torch.multinomial = coupled
        try:
            return super()._generate_single_turn(*arguments, **named)
        finally:
            torch.multinomial = original


@fault("AUDIT-08", "random state")
class SameNoiseEveryStep(GymTrainer):
    """The sampler is seeded anew before every batch."""

    def _generate(self, prompts: list[Any]) -> Any:
        torch.manual_seed(0)
        return super()._generate(prompts)
