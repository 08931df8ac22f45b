"""Trace v1: what a trainer sampled, what it trained on, and what came of it, in one trainer-neutral record.

JSON lines, one object a line, in the order in which things happened. The first line is the ``Header``. Every
audit is a pure function of a trace, plus weights where it needs them, so that another trainer's dump is audited
by writing one converter. Timings stand in a file of their own: a trace of the same run is the same bytes.

Ids are token ids of the policy's tokenizer. Log-probabilities are natural logarithms at the temperature in use.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json

FORMAT = "gymqual.trace/1"
TRACE = "trace.jsonl"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Objective(_Record):
    """What the loss is made of: enough to compute it again from a trace and the weights."""

    loss_type: str
    scale_rewards: str
    beta: float
    epsilon_low: float
    epsilon_high: float
    delta: float | None
    importance_sampling_level: str
    kl_bias_correction: bool = False
    """The KL term is multiplied by the ratio of the current and the old policy (TRL's ``use_bias_correction_kl``)."""
    num_iterations: int
    steps_per_generation: int
    gradient_accumulation: int
    processes: int = 1
    """Processes that a step's rows are split over; their gradients are averaged."""
    group_size: int
    max_completion_tokens: int
    mask_truncated: bool
    reward_weights: dict[str, float]
    """Weight of each reward column; 0 for columns that are only reported."""


class Sampling(_Record):
    """How tokens were drawn."""

    temperature: float
    top_k: int
    """0: nothing is cut off."""
    top_p: float
    min_p: float
    repetition_penalty: float
    max_new_tokens: int


class Header(_Record):
    """The first line."""

    kind: Literal["header"] = "header"
    format: Literal["gymqual.trace/1"] = "gymqual.trace/1"
    writer: str
    """Library and version that trained, e.g. ``trl 1.16.0``."""
    objective: Objective
    end_ids: list[int]
    """Ids that end a turn."""


class Call(_Record):
    """One rollout's share of one call of generate."""

    kind: Literal["call"] = "call"
    generation: int
    """Number of the generation batch, from 0."""
    rollout: int
    """Number of the rollout in the run, from 0."""
    group: int
    """Number of its group in the run, from 0."""
    turn: int
    """Number of the sampled turn in the rollout, from 0."""
    policy: str
    """sha256 over the trainable tensors that sampled."""
    sampling: Sampling
    context: list[int]
    """All ids that the model saw."""
    sampled: list[int]
    """All ids that it drew, the end of turn included."""
    logprobs: list[float]
    """The sampler's own log-probability of each, of the distribution that was drawn from."""
    stop: Literal["end", "length"]


class Span(_Record):
    """A stretch of a completion, ``start`` to ``end`` exclusive."""

    source: Literal["sampled", "external"]
    """``external`` is what the model did not write: observations and the framing of the chat template."""
    start: int
    end: int


class ToolUse(_Record):
    """One tool call as the environment received it, and what it showed."""

    tool: str
    arguments: str
    text: str
    is_error: bool


class Episode(_Record):
    """What a rollout did in its environment."""

    kind: Literal["episode"] = "episode"
    rollout: int
    task_id: str
    calls: list[ToolUse]
    answer: str | None
    """Text of the final assistant message; null if there was none."""
    truncated: bool
    """A budget ended the episode."""
    reward: float | None
    """The gym's reward; null is no reward, which is not 0."""
    strict: bool
    parts: dict[str, float]
    outcome: str
    replay: Literal["local core", "re-executed", "recorded only"]
    """What the verdict was held against."""


class Row(_Record):
    """One rollout as it was trained on."""

    kind: Literal["row"] = "row"
    generation: int
    rollout: int
    group: int
    prompt: list[int]
    completion: list[int]
    mask: list[int]
    """1 where the loss is taken, 0 elsewhere; as long as the completion."""
    spans: list[Span]
    """Where each stretch of the completion came from, by the recorded calls."""
    cut: int
    """Sampled ids that a budget cut off and that are not trained; else 0."""
    rewards: dict[str, float | None]
    """By column; null is no reward."""
    advantage: float
    old_logprobs: list[float] | None
    """Of the policy that the ratio is taken against; null if that is the current one."""
    reference_logprobs: list[float] | None


class Pass(_Record):
    """One row's share of one forward pass of the loss."""

    kind: Literal["pass"] = "pass"
    step: int
    """Number of the optimizer step that it counts for, from 1."""
    rollout: int
    policy: str
    """sha256 over the trainable tensors of this pass."""
    logprobs: list[float]
    """Of every completion id, from the very forward pass that the loss uses."""
    normaliser: float
    """What the summed token losses of the pass are divided by."""
    magnified: float | None = None
    """Nats that rounding explains, at most, where sampler and loss lie farther apart than the band; null: nowhere."""


class Oracle(_Record):
    """The trainer's gradient against the one computed again, row by row, from recorded ids and rewards."""

    cosine: float | None
    """Null where both are zero."""
    norm_ratio: float | None
    trainer_norm: float
    oracle_norm: float


class Step(_Record):
    """One optimizer step."""

    kind: Literal["step"] = "step"
    step: int
    """From 1."""
    rollouts: list[int]
    strict: float
    """Share of strict success among its rollouts."""
    reward: float | None
    """Mean weighted reward."""
    varied_groups: int
    groups: int
    nothing_to_learn: Literal["", "equal rewards", "all truncated"]
    gradient_norm: float
    """Before clipping."""
    gradients: dict[str, bool]
    """Whether each trainable tensor had a nonzero gradient."""
    learning_rate: float
    policy_before: str
    policy_after: str
    logprob_gap_max: float | None
    """Largest difference of sampler and loss over trained ids; null where weights have moved in between."""
    logprob_gap_kl: float | None
    """Mean over trained ids of the estimated KL of sampler and loss."""
    reference_kl: float | None
    oracle: Oracle | None


Record = Annotated[Header | Call | Episode | Row | Pass | Step, Field(discriminator="kind")]
_ANY: TypeAdapter[Record] = TypeAdapter(Record)


class TraceWriter:
    """Appends records; what is written is on disk before the next step begins."""

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        """Begin a trace, which must not exist yet; or go on with one that does."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.goes_on = path, goes_on
        self._file = path.open("a" if goes_on else "x", encoding="utf-8")

    def write(self, *records: Header | Call | Episode | Row | Pass | Step) -> None:
        """Append records and flush."""
        for record in records:
            self._file.write(
                json.dumps(record.model_dump(mode="json"), ensure_ascii=True, separators=(",", ":")) + "\n"
            )
        self._file.flush()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def read_trace(path: Path) -> Iterator[Record]:
    """Yield the records of a trace; raises HarnessError naming the line that is none."""
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                record = _ANY.validate_json(line)
                if (number == 1) != isinstance(record, Header):
                    raise HarnessError(f"{path}: a trace begins with its header, and has one; see line {number}")
                yield record
    except ValidationError as error:
        raise HarnessError(f"{path}, line {number}: not a record of {FORMAT} ({error.errors()[0]['msg']})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"{path} cannot be read ({error}); name a run directory of the trainer") from None


def schema() -> bytes:
    """Return the JSON Schema of one line, as it stands in ``reports/schema/trace.schema.json``."""
    return readable_json({"title": FORMAT, **_ANY.json_schema()})


def finite(values: list[float]) -> bool:
    """Whether all values are numbers."""
    return all(math.isfinite(value) for value in values)
