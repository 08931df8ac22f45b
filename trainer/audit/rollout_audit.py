"""One generation batch: what was sampled, shown and paid, and every row rebuilt from that alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from trl.chat_template_utils import parse_response

from gymqual.harness.records.trace import Call, Episode, Objective, Row, finite
from gymqual.trainer.audit import grpo_oracle, sampling_recorder, training_rows
from gymqual.trainer.audit.data_order import Pool
from gymqual.trainer.audit.generation_recorder import GenerationRecorder
from gymqual.trainer.audit.independence import RandomStates, Siblings
from gymqual.trainer.audit.logprob_rules import LogprobRules
from gymqual.trainer.audit.trl_settings import ends_of
from gymqual.trainer.runs.config import Bands
from gymqual.trainer.runs.distributed import merged, ranks_of
from gymqual.trainer.runs.errors import AuditError, Findings

ADVANTAGE_ROUNDING = 2e-3
"""TRL takes equal rewards' mean in single precision and divides what is left of them by 1e-4."""

NO_PROMPT = [{"role": "user", "content": ""}]
"""What TRL begins a prompt with where the dataset has none and environments say all of it."""

Drawn = dict[int, list[float | None]]
"""By rollout, the sampler's log-probability of every completion id; None where none was drawn."""
EpisodeOf = Callable[[Any], Episode]
RewardsOf = Callable[[Episode], dict[str, float | None]]


@dataclass
class Batch:
    """The records of one generation batch, of all processes, in order of rollouts."""

    calls: list[Call]
    episodes: list[Episode]
    rows: list[Row]
    drawn: Drawn
    own: list[Row]
    """The rows of this process."""


class GenerationAudit:
    """Follows a trainer from its dataset to its advantages."""

    def __init__(
        self,
        trainer: Any,
        made_of: Objective,
        bands: Bands,
        findings: Findings,
        episode_of: EpisodeOf | None,
        rewards_of: RewardsOf | None,
        tasks: Sequence[str] | None,
    ) -> None:
        self.consumed: dict[str, int] = {}
        self.episodes = self.observations = 0
        self.objective = made_of
        self.findings = findings
        self._trainer = trainer
        self._ranks = ranks_of(trainer)
        self._episode_of = episode_of
        self._rewards_of = rewards_of
        self._pool = Pool(trainer, tasks)
        self._siblings = Siblings(bands.siblings)
        self._random_states = RandomStates()
        self._recorder = GenerationRecorder(trainer, findings, self._random_states)
        self._logprobs = LogprobRules(trainer, bands, findings)
        self._generations = 0

    @property
    def hooks(self) -> dict[str, Callable[..., Any]]:
        """What stands in for the trainer's own methods, by name."""
        return self._recorder.hooks

    def state(self) -> dict[str, Any]:
        """Return what no trace tells of the batches so far, for ``restore``."""
        return {"siblings": self._siblings.state(), "random_states": self._random_states.state()}

    def restore(self, state: Mapping[str, Any], episodes: Sequence[Episode], rows_so_far: Sequence[Row]) -> None:
        """Go on behind the batches of an earlier part of the run."""
        self._siblings.restore(state["siblings"])
        self._random_states.restore(state["random_states"])
        self._generations = 1 + max((row.generation for row in rows_so_far), default=-1)
        self._pool.skip(len(rows_so_far) // self.objective.group_size)
        for episode in episodes:
            self._count(episode)

    def _count(self, episode: Episode) -> None:
        self.consumed[episode.task_id] = self.consumed.get(episode.task_id, 0) + 1
        self.episodes += 1
        self.observations += len(episode.calls)

    def require_inputs(self, inputs: Sequence[Any]) -> None:
        """Hold the rows that a batch begins with to the ones that are due."""
        with self.findings.rule():
            self._pool.require_next(inputs, self.objective.group_size)

    def records(self, output: dict[str, Any], inputs: list[Any], first: int, policy: str) -> Batch:
        """Return the records of a batch whose first rollout is number ``first``, all of them held to each other."""
        made = self._rows(output, inputs, first)
        calls, drawn = self._calls(made, policy)
        episodes = self._environment_episodes(made)
        for row in made:
            self._logprobs.require_old(row, drawn[row.rollout])
        self._logprobs.require_reference(made[0])
        parts = self._ranks.gather((calls, episodes, made, drawn, self._random_states.since()))
        by_kind: Any = list(zip(*parts, strict=True))
        calls, episodes, rows = (merged(each) for each in by_kind[:3])
        with self.findings.rule():
            RandomStates.require_apart(by_kind[4])
        self._require_independence(calls)
        for episode in episodes:
            self._count(episode)
        self._generations += 1
        return Batch(calls, episodes, rows, {key: value for each in by_kind[3] for key, value in each.items()}, made)

    def _rows(self, output: dict[str, Any], inputs: list[Any], first: int) -> list[Row]:
        size, own = self.objective.group_size, self._ranks.rank * len(inputs)
        if self._ranks.count * len(inputs) % size:
            raise AuditError("group", f"{self._ranks.count * len(inputs)} rollouts are no whole groups of {size}")
        # TRL's are those of all processes: a group may be spread over several.
        weighted = grpo_oracle.weighted(self._recorder.rewards, self.objective.reward_weights)
        expected = grpo_oracle.advantages(weighted, self.objective)[own:]
        rewards, first = self._recorder.rewards[own:], first + own
        made = []
        for index, completion in enumerate(self._recorder.completion_ids):
            rollout, advantage = first + index, output["advantages"][index].item()
            with self.findings.rule():
                self._require_group(index, inputs, rollout)
            with self.findings.rule():
                _require_reward(rewards[index], advantage, expected[index], rollout)
            mask = self._recorder.tool_mask[index] if self._recorder.tool_mask is not None else [1] * len(completion)
            spans, cut = [], 0
            with self.findings.rule():
                if len(mask) != len(completion):
                    raise AuditError("lengths", f"{len(mask)} mask entries for {len(completion)} ids", rollout=rollout)
                budget = self.objective.max_completion_tokens
                spans, cut = training_rows.rebuild(
                    self._recorder.prompt_ids[index], completion, self._recorder.turns, budget, rollout
                )
                training_rows.require_mask(mask, spans, rollout)
            truncated = not completion or completion[-1] not in self._ends
            if self.objective.mask_truncated and truncated:
                mask = [0] * len(completion)
            made.append(
                Row(
                    generation=self._generations,
                    rollout=rollout,
                    group=rollout // size,
                    prompt=list(self._recorder.prompt_ids[index]),
                    completion=list(completion),
                    mask=list(mask),
                    spans=spans,
                    cut=cut,
                    rewards=rewards[index],
                    advantage=advantage,
                    old_logprobs=_unpadded(output.get("old_per_token_logps"), index, len(completion)),
                    reference_logprobs=_unpadded(output.get("ref_per_token_logps"), index, len(completion)),
                )
            )
        return made

    def _require_group(self, index: int, inputs: list[Any], rollout: int) -> None:
        """Hold a rollout to its group's row of the dataset; only what its own environment said first may differ."""
        # A group that began in another process is held to the dataset by each of the two.
        member = max(0, index - rollout % self.objective.group_size)
        own, other = self._recorder.prompts[index], self._recorder.prompts[member]
        alike = self._recorder.prompt_ids[index] == self._recorder.prompt_ids[member]
        if not alike and self._trainer.environment_factories is not None:
            alike = own != other and training_rows.begins(own, inputs[index].get("prompt", NO_PROMPT))
        row, first = inputs[index], inputs[member]
        same = row.keys() == first.keys() and all(
            training_rows.equal(value, first[name]) for name, value in row.items()
        )
        if not same or not alike:
            raise AuditError("group", "members of a group have different prompts", rollout=rollout)

    def _require_independence(self, calls: Sequence[Call]) -> None:
        """Hold repetitions among siblings to what independent draws give, wherever they saw the very same ids."""
        alike: dict[tuple[int, tuple[int, ...]], list[tuple[tuple[int, ...], float]]] = {}
        for call in calls:
            place = (call.group, tuple(call.context))
            alike.setdefault(place, []).append((tuple(call.sampled), sum(call.logprobs)))
        for draws in alike.values():
            with self.findings.rule():
                self._siblings.add(draws)

    @property
    def _ends(self) -> set[int]:
        return ends_of(self._trainer)

    def _calls(self, made: Sequence[Row], policy: str) -> tuple[list[Call], Drawn]:
        """Return the records of this process's calls, and the log-probabilities they were drawn with."""
        assert self._recorder.sampling is not None
        calls, by_rollout = [], {}
        for row, said in zip(made, self._recorder.messages, strict=True):
            by_rollout[row.rollout] = [None] * len(row.completion)
            draws = list(training_rows.draws_of(row, self._recorder.turns))
            if not isinstance(said, str):  # A plain text prompt is answered in plain text: there are no messages.
                with self.findings.rule():
                    training_rows.require_messages(row, [self._parsed(drawn, row) for drawn, _ in draws], said)
                    training_rows.require_shown(row, self._trainer._tokenizer.decode(training_rows.external(row)), said)
            for turn, (drawn, start) in enumerate(draws):
                with self.findings.rule():
                    _require_finite(drawn, row.rollout, turn)
                kept = min(len(drawn.sampled), len(row.completion) - start)
                by_rollout[row.rollout][start : start + kept] = drawn.logprobs[:kept]
                calls.append(
                    Call(
                        generation=row.generation,
                        rollout=row.rollout,
                        group=row.group,
                        turn=turn,
                        policy=policy,
                        sampling=self._recorder.sampling,
                        context=drawn.context,
                        sampled=drawn.sampled,
                        logprobs=drawn.logprobs,
                        stop="end" if drawn.sampled and drawn.sampled[-1] in self._trainer.eos_token_ids else "length",
                    )
                )
        unmatched = sum(not drawn.used for turn in self._recorder.turns for drawn in turn)
        with self.findings.rule():
            if unmatched:
                raise AuditError("recorded", f"{unmatched} sampled rows are in no trained rollout")
        return calls, by_rollout

    def _parsed(self, drawn: sampling_recorder.Drawn, row: Row) -> Any:
        """Return the message that a draw's trained ids are, as TRL parses it; None where no id was kept."""
        kept = drawn.sampled[: len(row.prompt) + len(row.completion) - len(drawn.context)]
        if not kept:
            return None
        tools: Any = self._trainer.tools or None
        return parse_response(self._trainer._tokenizer, kept, prefix=drawn.context, tools=tools)

    def _environment_episodes(self, made: Sequence[Row]) -> list[Episode]:
        """Return what the environments recorded, once it agrees with what the trainer shows of each rollout."""
        if self._episode_of is None or not self._trainer.environments:
            return []
        told = []
        for row, environment, messages in zip(made, self._trainer.environments, self._recorder.messages, strict=True):
            episode = self._episode_of(environment).model_copy(update={"rollout": row.rollout})
            with self.findings.rule():
                training_rows.require_episode(episode, messages)
            with self.findings.rule():
                self._pool.require_task(episode.task_id, row.group, row.rollout)
            with self.findings.rule():
                if self._rewards_of is not None and row.rewards != self._rewards_of(episode):
                    detail = f"paid {row.rewards}, its episode is worth {self._rewards_of(episode)}"
                    raise AuditError("reward", detail, rollout=row.rollout)
            told.append(episode)
        return told


def _unpadded(values: torch.Tensor | None, index: int, length: int) -> list[float] | None:
    return None if values is None else values[index, :length].float().cpu().tolist()


def _require_reward(rewards: dict[str, float | None], advantage: float, due: float, rollout: int) -> None:
    if not finite([value for value in rewards.values() if value is not None]):
        raise AuditError("finite", f"the rewards are {rewards}", rollout=rollout)
    if not abs(advantage - due) <= ADVANTAGE_ROUNDING * max(1.0, abs(due)):
        detail = f"the advantage is {advantage:.6g}, its group's rewards give {due:.6g}"
        raise AuditError("advantage", detail, rollout=rollout)


def _require_finite(drawn: sampling_recorder.Drawn, rollout: int, turn: int) -> None:
    if len(drawn.logprobs) != len(drawn.sampled) or not finite(drawn.logprobs):
        detail = f"{len(drawn.logprobs)} log-probabilities of {len(drawn.sampled)} ids, all finite: "
        raise AuditError("finite", detail + str(finite(drawn.logprobs)), rollout=rollout, turn=turn)
