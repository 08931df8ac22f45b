"""A training run's raw evidence, read once and put in order."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE, Call, Episode, Header, Pass, Row, Step, read_trace
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, read_config
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, INITIAL_ADAPTER, TrainingRun
from gymqual.trainer.runs.tensors import load_adapter


@dataclass
class Evidence:
    """What a run directory holds. Records are keyed by rollout, passes by optimizer step."""

    folder: Path
    run: TrainingRun
    """The manifest: what is claimed. Everything else here is what the claims must follow from."""
    config: TrainingConfig
    header: Header
    calls: dict[int, list[Call]] = field(default_factory=dict)
    episodes: dict[int, Episode] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)
    passes: dict[int, list[Pass]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """Records that stand twice or too late."""

    @property
    def completed(self) -> bool:
        """Whether the run ended by itself; of a stopped one the last generation may be untrained."""
        return self.run.outcome == COMPLETED

    @cached_property
    def initial_adapter(self) -> dict[str, torch.Tensor]:
        """Tensors before training; raises HarnessError."""
        return load_adapter(self.folder / INITIAL_ADAPTER)

    @cached_property
    def adapter(self) -> dict[str, torch.Tensor]:
        """Tensors after training; raises HarnessError."""
        return load_adapter(self.folder / ADAPTER)

    def groups(self) -> dict[int, list[Row]]:
        """Return the rows of every group, in order of group and rollout."""
        found: dict[int, list[Row]] = {}
        for row in sorted(self.rows.values(), key=lambda row: (row.group, row.rollout)):
            found.setdefault(row.group, []).append(row)
        return found

    def rows_of(self, step: Step) -> list[Row]:
        """Return the rows that a step says it trained, as far as they are there."""
        return [self.rows[rollout] for rollout in step.rollouts if rollout in self.rows]


def read_evidence(folder: Path) -> Evidence:
    """Read a run directory; raises HarnessError naming the file that is missing or none of ours."""
    run = run_manifest.read(folder)
    config = read_config(folder / CONFIG)
    records = read_trace(folder / TRACE)
    header = next(records, None)
    if not isinstance(header, Header):
        raise HarnessError(f"{folder / TRACE} is empty; the run did not begin, run it again")
    evidence = Evidence(folder, run, config, header)
    for record in records:
        match record:
            case Call():
                evidence.calls.setdefault(record.rollout, []).append(record)
            case Episode():
                _put(evidence, evidence.episodes, record, "episode")
            case Row():
                _put(evidence, evidence.rows, record, "row")
            case Pass():
                if record.step != len(evidence.steps) + 1:
                    evidence.repeated.append(f"a pass of step {record.step} stands after step {len(evidence.steps)}")
                evidence.passes.setdefault(record.step, []).append(record)
            case Step():
                evidence.steps.append(record)
    return evidence


def _put(evidence: Evidence, records: dict[int, Episode] | dict[int, Row], record: Episode | Row, kind: str) -> None:
    if record.rollout in records:
        evidence.repeated.append(f"rollout {record.rollout} has two {kind}s")
    records[record.rollout] = record  # type: ignore[assignment]


def form_faults(evidence: Evidence) -> Iterator[str]:
    """The manifest has the one form of its content."""
    if run_manifest.to_bytes(evidence.run) != (evidence.folder / MANIFEST).read_bytes():
        yield "bytes changed"


def file_faults(evidence: Evidence) -> Iterator[str]:
    """Every file of the run directory is listed and has the sha256 that is recorded."""
    recorded, present = evidence.run.files, run_manifest.list_files(evidence.folder)
    for path in sorted(evidence.folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield f"{path.relative_to(evidence.folder)}: neither a file nor a folder"
    for name in sorted(recorded.keys() | present.keys()):
        if name not in present:
            yield f"{name}: missing"
        elif name not in recorded:
            yield f"{name}: not recorded"
        elif recorded[name] != present[name]:
            yield f"{name}: changed (sha256 {present[name][:16]}, recorded {recorded[name][:16]})"


def record_faults(evidence: Evidence) -> Iterator[str]:
    """Every record stands once and in its place."""
    yield from evidence.repeated
    numbers = [step.step for step in evidence.steps]
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"steps are numbered {numbers}"
    # A run that was stopped between the two has an episode without a row, but never the reverse.
    episodes, rows = evidence.episodes.keys(), evidence.rows.keys()
    odd = episodes ^ rows if evidence.completed else rows - episodes
    for rollout in sorted(odd):
        yield f"rollout {rollout} has {'no row' if rollout in evidence.episodes else 'no episode'}"
    for step in sorted(evidence.passes.keys() - set(numbers)):
        if evidence.completed or step != len(numbers) + 1:
            yield f"passes of step {step}, which is not recorded"


def config_faults(evidence: Evidence) -> Iterator[str]:
    """The manifest, the trace's header and every call follow from training.json."""
    config, header = evidence.config, evidence.header
    if evidence.run.config != config:
        differing = [name for name, value in config if getattr(evidence.run.config, name) != value]
        yield f"the manifest's {', '.join(differing)} is not that of {CONFIG}"
    stated = {
        "loss_type": config.loss_type,
        "scale_rewards": config.scale_rewards,
        "beta": config.beta,
        "group_size": config.group_size,
        "max_completion_tokens": config.max_completion_tokens,
        "importance_sampling_level": "token",
        "mask_truncated": config.mask_truncated,
        "gradient_accumulation": config.gradient_accumulation,
        "processes": evidence.run.processes,
        "num_iterations": config.num_iterations,
        "steps_per_generation": config.steps_per_generation or config.gradient_accumulation,
        "reward_weights": {"shaped": 1.0, "strict": 0.0},
    }
    for name, value in stated.items():
        if getattr(header.objective, name) != value:
            yield f"the objective's {name} is {getattr(header.objective, name)}, {CONFIG} says {value}"
    sampling = {
        "temperature": config.temperature,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": config.max_completion_tokens,
    }
    for call in (call for calls in evidence.calls.values() for call in calls):
        for name, value in sampling.items():
            if getattr(call.sampling, name) != value:
                where = f"rollout {call.rollout}, turn {call.turn}"
                yield f"{where}: sampled with {name} {getattr(call.sampling, name)}, {CONFIG} says {value}"
