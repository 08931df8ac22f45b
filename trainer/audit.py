"""An audit on any TRL ``GRPOTrainer``: what it samples is recorded, what it trains is held against that.

    from trainer.audit import attach
    audit = attach(trainer, "run/trace.jsonl")

It changes nothing of what the trainer does: sampled ids are the same bits with and without it. The run is stopped,
by an ``AuditError`` that names rule, rollout, turn and offset, before an optimizer step is taken on

- a row that cannot be rebuilt from what was sampled, or whose trained ids are not the sampled ones (a budget's cut
  is recorded and allowed), or a loss mask that is not exactly the sampled ids;
- a group that lacks members, an advantage that is not its rewards', a reward that is not finite;
- an episode of the environment that is not the rollout's;
- a policy that samples with other weights than it is trained with, by digest and by the gap between the sampler's
  log-probabilities and the loss's; sampling parameters under which the two cannot agree;
- a gradient that is not the one computed again, row by row, from recorded ids and rewards;
- with a KL term: a KL at the first step that is not exactly 0.

Why these and not "all tensors changed": 20 of the 22 bugs in qualification/training/planted.py change every trainable
tensor within four steps, with finite values.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from transformers import TrainerCallback
from trl.chat_template_utils import parse_response
from trl.trainer.grpo_trainer import GRPOTrainer

from trainer import objective, recorder, rows
from trainer.config import Bands
from trainer.errors import AuditError
from trainer.objective import TrainedRow
from trainer.settings import ends_of, objective_of, require_agreeing
from trainer.tensors import tensors_digest
from trainer.trace import Call, Episode, Header, Oracle, Pass, Row, Sampling, Step, TraceWriter, finite

ADVANTAGE_ROUNDING = 2e-3
"""TRL takes equal rewards' mean in single precision and divides what is left of them by 1e-4."""

OracleAt = Callable[[int], bool]


def attach(
    trainer: GRPOTrainer,
    trace: str | Path,
    *,
    bands: Bands | None = None,
    oracle_at: OracleAt | None = None,
    episodes: Callable[[Any], Episode] | None = None,
    rewards: Callable[[Episode], dict[str, float | None]] | None = None,
) -> "Audit":
    """Record and audit a trainer from now on; raises AuditError for what cannot be audited.

    ``trace`` must not exist yet. ``oracle_at`` says at which optimizer steps, from 1, the gradient is computed again:
    1, 2 and the last by default. ``episodes`` returns what an environment recorded of its rollout, if it does, and
    ``rewards`` what an episode must be paid, by column.
    """
    last = trainer.args.max_steps
    chosen = oracle_at or (lambda step: step in (1, 2, last))
    return Audit(trainer, TraceWriter(Path(trace)), bands or Bands(), chosen, episodes, rewards)


class Audit(TrainerCallback):
    """What is attached. ``steps`` and ``rollouts`` may be read while training goes on."""

    def __init__(
        self,
        trainer: GRPOTrainer,
        writer: TraceWriter,
        bands: Bands,
        oracle_at: OracleAt,
        episodes: Callable[[Any], Episode] | None,
        rewards: Callable[[Episode], dict[str, float | None]] | None,
    ) -> None:
        self.steps: list[Step] = []
        self.rollouts: dict[int, Row] = {}
        self.tokens = {"sampled": 0, "external": 0, "cut": 0}
        self.consumed: dict[str, int] = {}
        """Rollouts by task, where environments tell."""
        self.episodes = self.observations = 0
        self._trainer = trainer
        self._writer = writer
        self._bands = bands
        self._oracle_at = oracle_at
        self._episode_of = episodes
        self._rewards_of = rewards
        self.objective = objective_of(trainer)
        self._sampling: Sampling | None = None
        self._turns: list[list[recorder.Drawn]] = []
        self._rewards: list[dict[str, float | None]] = []
        self._messages: list[Any] = []
        self._pending: list[Row] = []
        self._uses: dict[int, int] = {}
        self._generations = 0
        self._sampled_by: dict[int, tuple[str, list[float | None]]] = {}
        self._in_loss = False
        self._passes: list[tuple[TrainedRow, Pass]] = []
        self._step: dict[str, Any] = {}
        self._policy_before = ""
        writer.write(
            Header(
                writer=f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}",
                objective=self.objective,
                end_ids=sorted(trainer.eos_token_ids),
            )
        )
        hooks = {
            "_generate_single_turn": self.on_generate_single_turn,
            "_generate": self.on_generate,
            "_calculate_rewards": self.on_calculate_rewards,
            "_generate_and_score_completions": self.on_generate_and_score_completions,
            "_get_per_token_logps_and_entropies": self.on_logprobs,
            "_compute_loss": self.on_compute_loss,
            "training_step": self.on_training_step,
        }
        self._trl: dict[str, Any] = {name: getattr(trainer, name) for name in hooks}
        for name, hook in hooks.items():
            setattr(trainer, name, hook)
        trainer.add_callback(self)

    def policy_digest(self) -> str:
        """Return the sha256 over the trainable tensors as they are now."""
        return tensors_digest(rows.trainable_tensors(self._model))

    @property
    def _model(self) -> Any:
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    # ---- generation -------------------------------------------------------------------------------------

    def on_generate_single_turn(self, prompt_ids: list[list[int]], *arguments: Any, **named: Any) -> Any:
        """Record one call of generate."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model_wrapped)
        with recorder.recording(model) as sampler:
            completion_ids, logprobs = self._trl["_generate_single_turn"](prompt_ids, *arguments, **named)
        if sampler.sampling is None:
            raise AuditError("recorded", "generate was not reached: only transformers' generate is audited")
        require_agreeing(sampler.sampling, self._trainer.temperature)
        self._sampling = sampler.sampling
        self._turns.append(
            [
                recorder.Drawn(list(context), list(sampled), sampler.logprobs(row, sampled))
                for row, (context, sampled) in enumerate(zip(prompt_ids, completion_ids, strict=True))
            ]
        )
        return completion_ids, logprobs

    def on_generate(self, prompts: list[Any]) -> Any:
        """Begin a generation batch, and take what the trainer makes of it."""
        self._turns = []
        made = self._trl["_generate"](prompts)
        self._prompt_ids, self._completion_ids, self._tool_mask, self._messages = made[:4]
        return made

    def on_calculate_rewards(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Take the rewards by column."""
        values = self._trl["_calculate_rewards"](*arguments, **named)
        names = self._trainer.reward_func_names
        self._rewards = [
            {name: None if value != value else value for name, value in zip(names, row, strict=True)}
            for row in values.tolist()
        ]
        return values

    def on_generate_and_score_completions(self, inputs: list[Any]) -> dict[str, Any]:
        """Rebuild every row of a generation batch from what was sampled, and hold its advantage to its rewards."""
        if not self._model.training:
            return self._trl["_generate_and_score_completions"](inputs)
        self._check_all_used()
        output = self._trl["_generate_and_score_completions"](inputs)
        first = len(self._sampled_by)
        policy = self.policy_digest()
        made = self._rows(output, inputs, first)
        calls, drawn = self._calls(made, first, policy)
        episodes = self._environment_episodes(made)
        self._writer.write(*calls, *episodes, *made)
        for row in made:
            self._sampled_by[row.rollout] = (policy, drawn[row.rollout])
            self.rollouts[row.rollout] = row
            self.tokens["sampled"] += sum(row.mask)
            self.tokens["external"] += sum(s.end - s.start for s in row.spans if s.source == "external")
            self.tokens["cut"] += row.cut
        self._pending, self._uses = made, {row.rollout: 0 for row in made}
        self._generations += 1
        return output

    def _rows(self, output: dict[str, Any], inputs: list[Any], first: int) -> list[Row]:
        size = self.objective.group_size
        if len(inputs) % size:
            raise AuditError("group", f"{len(inputs)} rollouts are no whole groups of {size}")
        weighted = objective.weighted(self._rewards, self.objective.reward_weights)
        expected = objective.advantages(weighted, self.objective)
        made = []
        for index, completion in enumerate(self._completion_ids):
            member = index - index % size
            if self._prompt_ids[index] != self._prompt_ids[member] or inputs[index] != inputs[member]:
                raise AuditError("group", "members of a group have different prompts", rollout=first + index)
            if not finite([value for value in self._rewards[index].values() if value is not None]):
                raise AuditError("finite", f"the rewards are {self._rewards[index]}", rollout=first + index)
            advantage = output["advantages"][index].item()
            if abs(advantage - expected[index]) > ADVANTAGE_ROUNDING * max(1.0, abs(expected[index])):
                detail = f"the advantage is {advantage:.6g}, its group's rewards give {expected[index]:.6g}"
                raise AuditError("advantage", detail, rollout=first + index)
            mask = self._tool_mask[index] if self._tool_mask is not None else [1] * len(completion)
            if len(mask) != len(completion):
                raise AuditError(
                    "lengths", f"{len(mask)} mask entries for {len(completion)} ids", rollout=first + index
                )
            spans, cut = rows.rebuild(
                self._prompt_ids[index], completion, self._turns, self.objective.max_completion_tokens, first + index
            )
            rows.require_mask(mask, spans, first + index)
            truncated = not completion or completion[-1] not in self._ends
            if self.objective.mask_truncated and truncated:
                mask = [0] * len(completion)
            made.append(
                Row(
                    generation=self._generations,
                    rollout=first + index,
                    group=(first + index) // size,
                    prompt=list(self._prompt_ids[index]),
                    completion=list(completion),
                    mask=list(mask),
                    spans=spans,
                    cut=cut,
                    rewards=self._rewards[index],
                    advantage=advantage,
                    old_logprobs=_unpadded(output.get("old_per_token_logps"), index, len(completion)),
                    reference_logprobs=_unpadded(output.get("ref_per_token_logps"), index, len(completion)),
                )
            )
        return made

    @property
    def _ends(self) -> set[int]:
        return ends_of(self._trainer)

    def _calls(self, made: Sequence[Row], first: int, policy: str) -> tuple[list[Call], dict[int, list[float | None]]]:
        """Return the records of all calls, and by rollout the sampler's log-probability of every completion id."""
        assert self._sampling is not None
        calls, by_rollout = [], {}
        for row in made:
            by_rollout[row.rollout] = [None] * len(row.completion)
            draws = list(rows.draws_of(row, self._turns))
            said = self._messages[row.rollout - first]
            if not isinstance(said, str):  # A plain text prompt is answered in plain text: there are no messages.
                rows.require_messages(row, [self._parsed(drawn, row) for drawn, _ in draws], said)
            for turn, (drawn, start) in enumerate(draws):
                if len(drawn.logprobs) != len(drawn.sampled) or not finite(drawn.logprobs):
                    detail = f"{len(drawn.logprobs)} log-probabilities of {len(drawn.sampled)} ids, all finite: "
                    raise AuditError("finite", detail + str(finite(drawn.logprobs)), rollout=row.rollout, turn=turn)
                kept = min(len(drawn.sampled), len(row.completion) - start)
                by_rollout[row.rollout][start : start + kept] = drawn.logprobs[:kept]
                calls.append(
                    Call(
                        generation=row.generation,
                        rollout=row.rollout,
                        group=row.group,
                        turn=turn,
                        policy=policy,
                        sampling=self._sampling,
                        context=drawn.context,
                        sampled=drawn.sampled,
                        logprobs=drawn.logprobs,
                        stop="end" if drawn.sampled and drawn.sampled[-1] in self._trainer.eos_token_ids else "length",
                    )
                )
        unmatched = sum(not drawn.used for turn in self._turns for drawn in turn)
        if unmatched:
            raise AuditError("recorded", f"{unmatched} sampled rows are in no trained rollout")
        return calls, by_rollout

    def _parsed(self, drawn: recorder.Drawn, row: Row) -> Any:
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
        for row, environment, messages in zip(made, self._trainer.environments, self._messages, strict=True):
            episode = self._episode_of(environment).model_copy(update={"rollout": row.rollout})
            rows.require_episode(episode, messages)
            if self._rewards_of is not None and row.rewards != self._rewards_of(episode):
                detail = f"paid {row.rewards}, its episode is worth {self._rewards_of(episode)}"
                raise AuditError("reward", detail, rollout=row.rollout)
            told.append(episode)
            self.consumed[episode.task_id] = self.consumed.get(episode.task_id, 0) + 1
            self.episodes += 1
            self.observations += len(episode.calls)
        return told

    def _check_all_used(self) -> None:
        """Raise if a row of the last generation batch was left out of training, or trained too often."""
        for rollout, uses in self._uses.items():
            if uses != self.objective.num_iterations:
                raise AuditError(
                    "rows", f"trained {uses} times, {self.objective.num_iterations} are due", rollout=rollout
                )

    # ---- the loss ---------------------------------------------------------------------------------------

    def on_logprobs(self, *arguments: Any, **named: Any) -> Any:
        """Take the log-probabilities of the loss's own forward pass."""
        made = self._trl["_get_per_token_logps_and_entropies"](*arguments, **named)
        if self._in_loss:
            self._loss_logprobs = made[0].detach().float().cpu()
        return made

    def on_compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """Hold every row of a forward pass to what was sampled, before its loss, and its log-probabilities after."""
        if not self._model.training:
            return self._trl["_compute_loss"](model, inputs)
        matched = [self._match(inputs, index) for index in range(inputs["completion_ids"].size(0))]
        self._in_loss = True
        try:
            loss = self._trl["_compute_loss"](model, inputs)
        finally:
            self._in_loss = False
        policy = self.policy_digest()
        tokens = sum(sum(row.mask) for row in matched)
        for index, row in enumerate(matched):
            logprobs = self._loss_logprobs[index, : len(row.completion)].tolist()
            generation = sum(sum(other.mask) for other in self._pending)
            trained = TrainedRow(row, len(matched), tokens, generation)
            made = Pass(
                step=self._trainer.state.global_step + 1,
                rollout=row.rollout,
                policy=policy,
                logprobs=logprobs,
                normaliser=1.0 / objective.row_weight(trained, self.objective),
            )
            if not finite([p for p, trains in zip(logprobs, row.mask, strict=True) if trains]):
                raise AuditError("finite", "a log-probability of the loss is not finite", rollout=row.rollout)
            self._require_agreement(row, made)
            self._passes.append((trained, made))
        return loss

    def _match(self, inputs: dict[str, Any], index: int) -> Row:
        """Return the recorded row that a row of the loss is; raises AuditError if it is none."""
        prompt = _masked(inputs["prompt_ids"][index], inputs["prompt_mask"][index])
        width = inputs["completion_ids"][index].tolist()
        advantage = inputs["advantages"][index].item()
        same = [row for row in self._pending if row.prompt == prompt and row.completion == width[: len(row.completion)]]
        # Of rows that begin alike the longest; equal siblings are told apart by their advantage.
        same = [row for row in same if len(row.completion) == max(len(other.completion) for other in same)]
        if not same:
            raise AuditError("rows", f"row {index} of the loss was not sampled in this generation batch")
        fitting = [row for row in same if abs(row.advantage - advantage) <= 1e-6 * max(1.0, abs(advantage))]
        if not fitting:
            detail = f"it is trained with the advantage {advantage:.6g}, its own is {same[0].advantage:.6g}"
            raise AuditError("advantage", detail, rollout=same[0].rollout)
        row = min(fitting, key=lambda each: self._uses[each.rollout])
        self._uses[row.rollout] += 1
        mask = inputs["completion_mask"][index]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"][index]
        rows.require_equal_masks(mask.tolist(), row.mask, row.rollout)
        return row

    def _require_agreement(self, row: Row, made: Pass) -> None:
        """Hold the loss's log-probabilities to the sampler's, while the weights are those that sampled."""
        sampler_policy, sampled = self._sampled_by[row.rollout]
        first_use = (
            self._uses[row.rollout] == 1 and self.objective.steps_per_generation <= self.objective.gradient_accumulation
        )
        if first_use and sampler_policy != made.policy:
            raise AuditError("policy", "sampled by other weights than are trained", rollout=row.rollout)
        if sampler_policy != made.policy:
            return
        gaps = [
            (abs(own - drawn), offset)
            for offset, (own, drawn, trains) in enumerate(zip(made.logprobs, sampled, row.mask, strict=True))
            if trains and drawn is not None
        ]
        if gaps:
            gap, offset = max(gaps)
            self._step["gap"] = max(gap, self._step.get("gap", 0.0))
            if gap > self._bands.logprob_gap:
                detail = f"log-probabilities of sampler and loss differ by {gap:.3g} nats at equal weights"
                raise AuditError("log-probability gap", detail, rollout=row.rollout, offset=offset)
        kl = [
            (torch.tensor(drawn - own).exp() - 1 - (drawn - own)).item()
            for own, drawn, trains in zip(made.logprobs, sampled, row.mask, strict=True)
            if trains and drawn is not None
        ]
        self._step.setdefault("kl", []).extend(kl)
        if row.reference_logprobs is not None:
            behind = [r - p for r, p, m in zip(row.reference_logprobs, made.logprobs, row.mask, strict=True) if m]
            values = [(torch.tensor(value).exp() - value - 1).item() for value in behind]
            self._step.setdefault("reference_kl", []).extend(values)
            if made.step == 1 and any(behind):
                detail = f"the KL of reference and policy is {max(values):.3g} before the first step, not exactly 0"
                raise AuditError("reference", detail, rollout=row.rollout)

    # ---- the gradient and the step ----------------------------------------------------------------------

    def on_training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        """Hold the gradient to the oracle's once all passes of an optimizer step are done, before clipping."""
        if not self._policy_before:
            self._policy_before = self.policy_digest()
        loss = self._trl["training_step"](*arguments, **named)
        if self._trainer.accelerator.sync_gradients:
            self._take_gradient()
        return loss

    def _take_gradient(self) -> None:
        step = self._trainer.state.global_step + 1
        gradients = {
            name: (torch.zeros_like(parameter) if parameter.grad is None else parameter.grad).detach().cpu().double()
            for name, parameter in self._model.named_parameters()
            if parameter.requires_grad
        }
        names = rows.saved_names(self._model)
        self._step["gradients"] = {names[name]: bool(value.any()) for name, value in gradients.items()}
        self._step["norm"] = sum((value**2).sum().item() for value in gradients.values()) ** 0.5
        trained = [each for each, _ in self._passes]
        self._writer.write(*(made for _, made in self._passes))
        if not self._oracle_at(step):
            return
        context = self._trainer.compute_loss_context_manager
        again = objective.gradient(self._model, trained, self.objective, self._trainer.temperature, context)
        oracle = self._step["oracle"] = objective.compare(gradients, again)
        self._require_gradient(oracle, trained)

    def _require_gradient(self, oracle: Oracle, trained: Sequence[TrainedRow]) -> None:
        if oracle.cosine is None or oracle.norm_ratio is None:
            agrees = oracle.trainer_norm == oracle.oracle_norm
        else:
            near = abs(1 - oracle.norm_ratio) <= self._bands.norm_ratio
            agrees = near and abs(1 - oracle.cosine) <= self._bands.cosine
        if agrees:
            return
        context = self._trainer.compute_loss_context_manager
        allowed = objective.noise(
            self._model, trained, self.objective, self._trainer.temperature, context, self._bands.logprob_noise
        )
        if objective.distance(oracle) > allowed:
            detail = f"cosine {oracle.cosine}, norm {oracle.trainer_norm:.3g} to the {oracle.oracle_norm:.3g} computed"
            raise AuditError("gradient", f"{detail} again from what was recorded (rounding explains {allowed:.1g})")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Take the learning rate that the step is made with."""
        self._step["learning_rate"] = named["optimizer"].param_groups[0]["lr"]

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Write the step's record."""
        trained = [each.row for each, _ in self._passes]
        gap, kl, reference = (self._step.get(name) for name in ("gap", "kl", "reference_kl"))
        weighted = objective.weighted([row.rewards for row in trained], self.objective.reward_weights)
        given = [value for value in weighted if value is not None]
        groups: dict[int, set[float | None]] = {}
        for row, value in zip(trained, weighted, strict=True):
            groups.setdefault(row.group, set()).add(value)
        varied = sum(len(values) > 1 for values in groups.values())
        all_cut = all(not any(row.mask) for row in trained)
        policy = self.policy_digest()
        record = Step(
            step=state.global_step,
            rollouts=[row.rollout for row in trained],
            strict=sum((row.rewards.get("strict") or 0.0) > 0 for row in trained) / len(trained),
            reward=sum(given) / len(given) if given else None,
            varied_groups=varied,
            groups=len(groups),
            nothing_to_learn="all truncated" if all_cut else "" if varied else "equal rewards",
            gradient_norm=self._step["norm"],
            gradients=self._step["gradients"],
            learning_rate=self._step.get("learning_rate", 0.0),
            policy_before=self._policy_before,
            policy_after=policy,
            logprob_gap_max=gap,
            logprob_gap_kl=sum(kl) / len(kl) if kl else None,
            reference_kl=sum(reference) / len(reference) if reference else None,
            oracle=self._step.get("oracle"),
        )
        self._writer.write(record)
        self.steps.append(record)
        self._policy_before, self._passes, self._step = policy, [], {}

    def on_train_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        """Look at the last generation batch too, and close the trace."""
        self._check_all_used()
        self._writer.close()

    def close(self) -> None:
        """Close the trace of a run that was stopped. Idempotent."""
        self._writer.close()


def _unpadded(values: torch.Tensor | None, index: int, length: int) -> list[float] | None:
    return None if values is None else values[index, :length].float().cpu().tolist()


def _masked(ids: torch.Tensor, mask: torch.Tensor) -> list[int]:
    return ids[mask.bool()].tolist()
