"""Learning, shown: GRPO through each gym raises strict success on held-out records, by a paired comparison.

    python -m trainer.learning --out reports/sample/learning

For each gym the policy is evaluated on the dev split at temperature 1, trained on the train split by the audited
training of ``trainer.gym_training``, and evaluated again on the same tasks with the same seeds, all through the gym's
own service. What is written to ``--out`` holds digests and outcomes from which ``differences`` recomputes every figure
of ``summary.json``; the raw evidence stays in ``--work``. A stage that finished there is not run again.

Exit code 0: success rose significantly through every gym; 1: it did not, or a training was stopped; 2: bad input.
"""

import argparse
import itertools
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.table import Table

from gyms import loaded
from gyms.base import InfrastructureError
from harness import __version__
from harness.errors import HarnessError
from harness.files import ROOT, readable_json, sha256_file, write_atomically
from harness.manifest import MANIFEST, GymRecord, Sha256
from trainer import replay_audit, run_manifest
from trainer.config import CONFIG, Lora, Shaping, TrainingConfig
from trainer.errors import AuditError
from trainer.evaluate import SEED as TASK_SEED
from trainer.evaluate import Evaluation, Outcomes, measure
from trainer.gym_training import train
from trainer.opening import GYMS
from trainer.policy import POLICY_HELP, Policy, load_policy, policy_folder
from trainer.prepare import training_config
from trainer.run_manifest import ADAPTER, COMPLETED, TRACE, PolicyRecord
from trainer.statistics import paired, wilson
from trainer.tensors import ADAPTER as TENSORS
from trainer.trace import Call, read_trace

SUMMARY = "summary.json"
CARD = "README.md"
BASELINE = "baseline.json"
AFTER = "after.json"
REPLAY = "replay_audit.txt"
FILES = (MANIFEST, BASELINE, AFTER, REPLAY)
"""What is kept of an arm: the training run's manifest, the two evaluations, and what the replay audit says."""
RUN = "run"
"""Folder of an arm's training run, in ``--work``."""
WORK = ROOT / "reports" / "learning"
SPLIT = "dev"
EPISODES = 256
SAMPLING_SEED = 0
"""Of both evaluations. With another one the comparison would not be paired."""
GROUPS_PER_STEP = 4
SIGNIFICANT = 0.05
BLOCK = 8
"""Steps whose training success is averaged in the table."""
INTERRUPTED = "stopped: interrupted"
HELD = "held"
LIBRARIES = ("torch", "trl", "transformers", "peft", "accelerate", "tokenizers")

LIMITS = (
    "One policy, one seed: that learning is possible, not how much to expect.",
    "The gyms serve one task core with one seed: their arms are one experiment through two services, not two.",
    "A synthetic development task and a policy whose errors were engineered to be corrected (see its card).",
    "The dev split, on which learning rates were chosen: new records, known wording. The test split was not touched.",
    "Sums of floats depend on processor and library builds: elsewhere other ids may be sampled, with other figures.",
    "Traces and adapters are not committed: their digests stand in each arm's manifest.",
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Protocol(_Model):
    """What was done, alike through every gym."""

    policy: str = "mini"
    seed: int = Field(default=43, ge=0)
    """Of training: sampling, adapter initialisation, and the pool of tasks."""
    steps: int = Field(default=40, ge=1)
    """Optimizer steps."""
    groups_per_step: int = GROUPS_PER_STEP
    group_size: int = 4
    learning_rate: float = 5e-4
    """Constant."""
    beta: float = 0.0
    loss_type: str = "dapo"
    training_temperature: float = 1.0
    lora: Lora = Lora()
    shaping: Shaping = Shaping()
    """The reward that was trained on; the default is strict success alone."""
    training_tasks: str = ""
    """Pattern of the task ids, all of the train split; each is trained on once, by one group."""
    evaluation_tasks: str = ""
    evaluation_seed: int = SAMPLING_SEED
    evaluation_temperature: float = 1.0
    precision: Literal["fp32", "bf16"] = "fp32"
    device: str = "cpu"
    threads: int = 1


class Success(_Model):
    """Strict success at temperature 1."""

    solved: int
    episodes: int
    share: float
    interval: tuple[float, float]
    """95 % Wilson interval."""


class Arm(_Model):
    """What came of training through one gym."""

    gym: GymRecord
    """What the gym said it is."""
    adapter: Sha256
    """sha256 of the trained adapter's tensors file."""
    trace: Sha256
    """sha256 of the training's raw evidence."""
    baseline: Success
    after: Success
    gained: int
    """Tasks that only the trained policy solved."""
    lost: int
    """Tasks that only the baseline solved."""
    difference: float
    p_value: float
    """Exact two-sided McNemar test over the pairs."""
    significant_rise: bool
    training_success: tuple[float, ...]
    """Share of strict success among each step's rollouts: no held-out score."""
    varied_groups: int
    groups: int
    replay_held: int
    """Claims of the training run that ``trainer.replay_audit`` derived again from the raw evidence."""
    replay_others: tuple[str, ...]
    """Its lines for all other claims."""
    files: dict[str, Sha256]
    """sha256 of the arm's files beside the summary."""


class Difference(_Model):
    """The first sampled turn in which two arms differ."""

    rollout: int
    turn: int
    position: int
    """Of the first other id among the turn's sampled ids; -1 if the turn, or what it saw, is another one already."""


class Agreement(_Model):
    """Whether two arms sampled the same ids: they have the same core, tasks and seed."""

    arms: tuple[str, str]
    calls: int
    """Sampled turns that were compared."""
    tokens: int
    """Sampled ids of them."""
    first_difference: Difference | None
    same_trace: bool
    """Whether the traces are the same bytes."""
    same_adapter: bool
    """Whether the trained adapters are the same bytes."""


class Summary(_Model):
    """Everything that is claimed of learning."""

    format: Literal["gymqual.learning/1"] = "gymqual.learning/1"
    protocol: Protocol
    versions: dict[str, str]
    platform: str
    policy: PolicyRecord
    core: Sha256
    arms: dict[str, Arm]
    agreement: Agreement | None
    """Null with one arm."""
    limits: tuple[str, ...] = LIMITS

    def rose(self) -> bool:
        """Whether success rose significantly through every gym."""
        return all(arm.significant_rise for arm in self.arms.values())


class Stopped(Exception):
    """A training that did not complete."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Step(_Read):
    strict: float
    groups: int


class _Tokens(_Read):
    sampled: int
    cut: int


class _Manifest(_Read):
    """What is read of a training run's manifest: one that an earlier product wrote must stay readable."""

    outcome: str
    config: dict[str, Any]
    policy: PolicyRecord
    gym: GymRecord
    core: Sha256
    tokens: _Tokens
    steps: tuple[_Step, ...]
    varied_groups: int
    files: dict[str, Sha256]

    @property
    def trace(self) -> Sha256 | None:
        return self.files.get(TRACE)

    @property
    def adapter(self) -> Sha256 | None:
        return self.files.get(f"{ADAPTER}/{TENSORS}")


def make_protocol(policy: Policy, seed: int, steps: int, episodes: int = EPISODES) -> Protocol:
    """Return the protocol for a policy; raises HarnessError for values that cannot be."""
    try:
        return Protocol(
            policy=policy.identity.name,
            seed=seed,
            steps=steps,
            training_tasks=f"v1/train/{seed}/0..{steps * GROUPS_PER_STEP - 1}",
            evaluation_tasks=f"v1/{SPLIT}/{TASK_SEED}/0..{episodes - 1}",
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise HarnessError(f"--{'.'.join(map(str, first['loc']))} {first['input']}: {first['msg']}") from None


def arm_config(protocol: Protocol, named: str, weights: str, gym: str) -> TrainingConfig:
    """Return the training of an arm; ``named`` is where its policy is loaded from."""
    made = training_config(named, weights, gym, protocol.seed, protocol.steps, protocol.steps * GROUPS_PER_STEP)
    return TrainingConfig.model_validate({**made.model_dump(), **_settings(protocol, gym)})


def _settings(protocol: Protocol, gym: str) -> dict[str, Any]:
    """Return the fields of an arm's training.json that the protocol states, as JSON data."""
    same = {"seed", "steps", "groups_per_step", "group_size", "learning_rate", "beta", "loss_type", "precision"}
    told = protocol.model_dump(mode="json", include=same | {"lora", "shaping"})
    return {**told, "gym": gym, "temperature": protocol.training_temperature, "tasks": _tasks(protocol.training_tasks)}


def _tasks(pattern: str) -> list[str]:
    """Return the task ids of a pattern that ends with ``0..last``."""
    start, _, last = pattern.rpartition("/0..")
    return [f"{start}/{index}" for index in range(int(last) + 1)]


# ---- the stages -------------------------------------------------------------------------------------------


def run_arm(protocol: Protocol, named: str, gym: str, work: Path, console: Console) -> None:
    """Run an arm's stages into ``work``, those that finished before excepted.

    Raises HarnessError, InfrastructureError, and Stopped for a training that did not complete.
    """
    weights = load_policy(named).identity.weights
    _evaluate(protocol, named, gym, work / BASELINE, None, console)
    _train(arm_config(protocol, named, weights, gym), work, console)
    _replay(named, gym, work, console)
    _evaluate(protocol, named, gym, work / AFTER, work / RUN / ADAPTER, console)


def _evaluate(protocol: Protocol, named: str, gym: str, path: Path, adapter: Path | None, console: Console) -> None:
    policy = load_policy(named, adapter)
    label = sha256_file(adapter / TENSORS) if adapter else None
    if path.is_file():
        result = _read(path, Evaluation)
        due = _due(protocol, policy.identity.weights, loaded.core_on_disk(), gym, label)
        _require_same(path, _evaluated(result), due)
    else:
        episodes = len(_tasks(protocol.evaluation_tasks))
        with console.status("") as status:
            result = measure(
                policy,
                gym,
                SPLIT,
                episodes,
                lambda text: status.update(f"{gym}, {path.stem}: {text}"),
                seed=protocol.evaluation_seed,
                adapter=label,
            )
        write_atomically(path, readable_json(result.model_dump(mode="json")))
    console.print(f"{gym}, {path.stem}: {_words(_success(result.temperature_1))}")


def _train(config: TrainingConfig, work: Path, console: Console) -> None:
    folder = work / RUN
    if _finished(folder):
        run = run_manifest.read(folder)
        _require_same(folder, run.config.model_dump(), config.model_dump())
    else:
        _clear(folder)
        for name in (REPLAY, AFTER):
            (work / name).unlink(missing_ok=True)
        run = train(config, folder, None, console)
    if run.outcome == INTERRUPTED:
        raise KeyboardInterrupt
    if run.outcome != COMPLETED:
        raise Stopped(f"{config.gym}: {run.outcome}; its evidence is in {folder}, name another --work to train again")
    console.print(f"{config.gym}, trained: {len(run.steps)} steps in {run.seconds:.0f} s")


def _finished(folder: Path) -> bool:
    return (folder / MANIFEST).exists() and run_manifest.read(folder).outcome != INTERRUPTED


def _clear(folder: Path) -> None:
    """Remove what an interrupted training left, and nothing else."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / CONFIG).exists():
            raise HarnessError(f"--work: {folder} is no training run; name another folder")
        shutil.rmtree(folder)


def _replay(named: str, gym: str, work: Path, console: Console) -> None:
    path = work / REPLAY
    if not path.is_file():
        with console.status(f"{gym}: the replay audit"):
            lines = replay_audit.audit(work / RUN, policy_folder(named)).lines
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    lines = path.read_text(encoding="utf-8").splitlines()
    console.print(f"{gym}, replay audit: {sum(line.startswith(HELD) for line in lines)} of {len(lines)} claims held")


def _require_same(where: Path, found: dict[str, Any], due: dict[str, Any]) -> None:
    differing = [name for name in due if found[name] != due[name]]
    if differing:
        raise HarnessError(f"--work: {where} was made with another {differing[0]}; name another folder")


def _evaluated(result: Evaluation) -> dict[str, Any]:
    """Return what must be alike for two evaluations to be a pair, and whose evaluation it is."""
    return {
        "policy": result.policy.get("weights"),
        "adapter": result.adapter,
        "gym": result.gym,
        "core": result.core,
        "tasks": result.tasks,
        "seed": result.sampling_seed,
        "number of episodes": len(result.temperature_1.strict),
    }


def _due(protocol: Protocol, weights: str, core: str, gym: str, adapter: str | None) -> dict[str, Any]:
    """Return what ``_evaluated`` must be."""
    tasks = protocol.evaluation_tasks
    return {
        "policy": weights,
        "adapter": adapter,
        "gym": gym,
        "core": core,
        "tasks": tasks,
        "seed": protocol.evaluation_seed,
        "number of episodes": len(_tasks(tasks)),
    }


# ---- the summary ------------------------------------------------------------------------------------------


def summarise_arm(folder: Path) -> Arm:
    """Return what an arm's files say; raises HarnessError for one that cannot be read."""
    run = _read(folder / MANIFEST, _Manifest)
    before, after = (_read(folder / name, Evaluation) for name in (BASELINE, AFTER))
    try:
        pairs = paired(before.temperature_1.strict, after.temperature_1.strict)
    except ValueError:
        raise HarnessError(f"{folder}: {BASELINE} and {AFTER} hold different numbers of episodes") from None
    try:
        lines = (folder / REPLAY).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"{folder / REPLAY} cannot be read ({error})") from None
    if run.adapter is None or run.trace is None:
        raise HarnessError(f"{folder / MANIFEST}: lists no adapter or no trace")
    return Arm(
        gym=run.gym,
        adapter=run.adapter,
        trace=run.trace,
        baseline=_success(before.temperature_1),
        after=_success(after.temperature_1),
        gained=pairs.gained,
        lost=pairs.lost,
        difference=pairs.difference,
        p_value=pairs.p_value,
        significant_rise=pairs.gained > pairs.lost and pairs.p_value < SIGNIFICANT,
        training_success=tuple(step.strict for step in run.steps),
        varied_groups=run.varied_groups,
        groups=sum(step.groups for step in run.steps),
        replay_held=sum(line.startswith(HELD) for line in lines),
        replay_others=tuple(line for line in lines if not line.startswith(HELD)),
        files={name: sha256_file(folder / name) for name in FILES},
    )


def _success(outcomes: Outcomes) -> Success:
    """Count the single outcomes anew: what an evaluation says of its total is derived from them as well."""
    solved, episodes = sum(outcomes.strict), len(outcomes.strict)
    return Success(solved=solved, episodes=episodes, share=solved / episodes, interval=wilson(solved, episodes))


def compare_runs(runs: dict[str, Path]) -> Agreement | None:
    """Compare what the training runs of two arms sampled, turn by turn; None with one arm."""
    if len(runs) < 2:
        return None
    first, second = list(runs)[:2]
    calls = tokens = 0
    difference = None
    for one, other in itertools.zip_longest(_calls(runs[first]), _calls(runs[second])):
        difference = _difference(one, other)
        if difference is not None:
            break
        calls, tokens = calls + 1, tokens + len(one.sampled)
    manifests = [_read(runs[gym] / MANIFEST, _Manifest) for gym in (first, second)]
    return Agreement(
        arms=(first, second),
        calls=calls,
        tokens=tokens,
        first_difference=difference,
        same_trace=len({run.trace for run in manifests}) == 1,
        same_adapter=len({run.adapter for run in manifests}) == 1,
    )


def _calls(folder: Path) -> Iterator[Call]:
    return (record for record in read_trace(folder / TRACE) if isinstance(record, Call))


def _difference(one: Call | None, other: Call | None) -> Difference | None:
    """Return how two turns differ, of which one may be missing; None if they are alike."""
    present = one or other
    assert present is not None, "one of two runs has a turn left"
    position = -1
    if one and other and (one.rollout, one.turn, one.context) == (other.rollout, other.turn, other.context):
        if one.sampled == other.sampled:
            return None
        pairs = itertools.zip_longest(one.sampled, other.sampled)
        position = next(index for index, (a, b) in enumerate(pairs) if a != b)
    return Difference(rollout=present.rollout, turn=present.turn, position=position)


def differences(folder: Path) -> list[str]:
    """Recompute everything that a committed result claims; return what does not hold, by name."""
    try:
        summary = _read(folder / SUMMARY, Summary)
    except HarnessError as error:
        return [str(error)]
    wrong = [f"{name}: is not of this result" for name in _strangers(folder, list(summary.arms))]
    for gym, told in summary.arms.items():
        altered = [f"{gym}/{name}: {text}" for name in FILES if (text := _altered(folder / gym / name, told))]
        wrong += altered or [f"{gym}: {each}" for each in _arm_differences(folder / gym, gym, summary)]
    if summary.agreement is not None and not wrong:
        wrong += _agreement_differences(folder, summary.agreement)
    card = folder / CARD
    if not card.is_file() or card.read_text(encoding="utf-8") != readme(summary):
        wrong.append(f"{CARD}: is not what the summary gives")
    return wrong


def _altered(path: Path, told: Arm) -> str:
    if not path.is_file():
        return "is missing"
    return "" if sha256_file(path) == told.files.get(path.name) else "sha256 is another one"


def _strangers(folder: Path, gyms: list[str]) -> list[str]:
    """Return the files of a result's folder that no result of these gyms has."""
    known = {SUMMARY, CARD, *(f"{gym}/{name}" for gym in gyms for name in FILES)}
    found = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [name for name in found if name not in known]


def _arm_differences(folder: Path, gym: str, summary: Summary) -> list[str]:
    told = summary.arms[gym].model_dump()
    try:
        found = summarise_arm(folder).model_dump()
        run = _read(folder / MANIFEST, _Manifest)
        evaluations = {name: _read(folder / name, Evaluation) for name in (BASELINE, AFTER)}
    except HarnessError as error:
        return [str(error)]
    wrong = [f"{name}: {told[name]} is told, {value} is found" for name, value in found.items() if told[name] != value]
    seen = {**run.config, "outcome": run.outcome, "core": {run.core, run.gym.core}, "policy": run.policy}
    due = {**_settings(summary.protocol, gym), "outcome": COMPLETED, "core": {summary.core}, "policy": summary.policy}
    wrong += [f"training: another {name}" for name, value in due.items() if seen.get(name) != value]
    for name, adapter in ((BASELINE, None), (AFTER, told["adapter"])):
        evaluated = _evaluated(evaluations[name])
        wanted = _due(summary.protocol, summary.policy.weights, summary.core, gym, adapter)
        wrong += [f"{name}: another {each}" for each, value in wanted.items() if evaluated[each] != value]
    return wrong


def _agreement_differences(folder: Path, told: Agreement) -> list[str]:
    runs = [_read(folder / gym / MANIFEST, _Manifest) for gym in told.arms]
    same = (len({run.trace for run in runs}) == 1, len({run.adapter for run in runs}) == 1)
    wrong = []
    if same != (told.same_trace, told.same_adapter):
        wrong.append("agreement: the manifests' digests say otherwise")
    # With a difference only what came before it was counted.
    if told.first_difference is None and any(run.tokens.sampled + run.tokens.cut != told.tokens for run in runs):
        wrong.append("agreement: the manifests count other tokens")
    return wrong


_Content = TypeVar("_Content", bound=BaseModel)


def _read(path: Path, kind: type[_Content]) -> _Content:
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise HarnessError(f"{path} cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise HarnessError(f"{path} is not what this command wrote ({where}: {first['msg']})") from None


# ---- for people -------------------------------------------------------------------------------------------


def readme(summary: Summary) -> str:
    """Return the tables."""
    protocol, versions = summary.protocol, summary.versions
    blocks = [range(start, min(start + BLOCK, protocol.steps)) for start in range(0, protocol.steps, BLOCK)]
    rows, curves, replays = [], [], []
    for gym, arm in summary.arms.items():
        change = f"{arm.difference:+.3f} ({arm.gained} gained, {arm.lost} lost)"
        rows.append(f"| {gym} | {_words(arm.baseline)} | {_words(arm.after)} | {change} | {arm.p_value:.1g} |")
        means = (sum(arm.training_success[step] for step in block) / len(block) for block in blocks)
        curves.append(f"| {gym} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
        replays.append(f"- {gym}: {arm.replay_held} of {arm.replay_held + len(arm.replay_others)}")
        replays += [f"  - `{line}`" for line in arm.replay_others]
    rollouts = protocol.groups_per_step * protocol.group_size
    lines = [
        "# Learning through the gyms",
        "",
        f"`{protocol.policy}` before and after {protocol.steps} audited GRPO steps of {rollouts} rollouts "
        f"({protocol.groups_per_step} groups of {protocol.group_size}),",
        f"seed {protocol.seed}, LoRA r {protocol.lora.rank} alpha {protocol.lora.alpha}, learning rate "
        f"{protocol.learning_rate:g} constant, beta {protocol.beta:g}, temperature "
        f"{protocol.training_temperature:g}, binary strict reward,",
        f"tasks `{protocol.training_tasks}`. Evaluated at temperature {protocol.evaluation_temperature:g} on "
        f"`{protocol.evaluation_tasks}`, before and after with the same",
        f"seed; evaluated and trained through the gym's own service. {summary.platform}, {protocol.device}, "
        f"{protocol.precision}, torch {versions['torch']}, TRL {versions['trl']}.",
        "",
        "Strict success, 95 % Wilson interval; p of the exact two-sided McNemar test over pairs:",
        "",
        "| gym | before | after | difference | p |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "Strict success of the training rollouts, mean over steps. It is no held-out score:",
        "",
        f"| steps | {' | '.join(f'{block[0] + 1} to {block[-1] + 1}' for block in blocks)} |",
        "|---" * (len(blocks) + 1) + "|",
        *curves,
        "",
        *([_agreement_words(summary.agreement), ""] if summary.agreement else []),
        "Of the claims of each training run, the replay audit derived again from the raw evidence:",
        "",
        *replays,
        "",
        "What these figures do not say:",
        "",
        *(f"- {limit}" for limit in summary.limits),
        "",
        f"Made by `python -m trainer.learning`. `{SUMMARY}` holds every figure above and the sha256 of the files",
        "beside it, from whose single outcomes the suite computes them again.",
    ]
    return "\n".join(lines) + "\n"


def _agreement_words(agreement: Agreement) -> str:
    arms, difference = " and ".join(agreement.arms), agreement.first_difference
    counted = f"{agreement.tokens} ids in {agreement.calls} turns"
    if difference is not None:
        where = "in what it saw" if difference.position < 0 else f"at sampled id {difference.position}"
        return (
            f"{arms} sampled the same {counted}; rollout {difference.rollout}, turn {difference.turn} differs {where}."
        )
    names = {"traces": agreement.same_trace, "adapters": agreement.same_adapter}
    bytes_ = " and ".join(f"their {name} are {'the same' if same else 'other'} bytes" for name, same in names.items())
    return f"{arms} sampled the same {counted}, none otherwise;\n{bytes_}."


def _words(success: Success) -> str:
    low, high = success.interval
    return f"{success.share:.3f} [{low:.3f}, {high:.3f}]"


# ---- the command ------------------------------------------------------------------------------------------


def learn(
    named: str,
    gyms: list[str],
    seed: int,
    steps: int,
    out: Path,
    work: Path,
    console: Console,
    episodes: int = EPISODES,
) -> Summary:
    """Run all arms and write the result; raises HarnessError, InfrastructureError and Stopped."""
    policy = load_policy(named)
    protocol = make_protocol(policy, seed, steps, episodes)
    if strangers := _strangers(out, gyms):
        raise HarnessError(f"--out: {out / strangers[0]} would not be of this result; name another folder")
    for gym in gyms:
        run_arm(protocol, named, gym, work / gym, console)
    for gym in gyms:
        for name in FILES:
            made = work / gym / RUN / name if name == MANIFEST else work / gym / name
            write_atomically(out / gym / name, made.read_bytes())
    summary = Summary(
        protocol=protocol,
        versions={name: version(name) for name in LIBRARIES}
        | {"gymqual": __version__, "python": platform.python_version()},
        platform=f"{platform.system()} {platform.machine()}",
        policy=PolicyRecord(**policy.identity.to_json()),
        core=loaded.core_on_disk(),
        arms={gym: summarise_arm(out / gym) for gym in gyms},
        agreement=compare_runs({gym: work / gym / RUN for gym in gyms}),
    )
    write_atomically(out / CARD, readme(summary).encode())
    write_atomically(out / SUMMARY, readable_json(summary.model_dump(mode="json")))
    return summary


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    options = _parser().parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        for name in ("out", "work"):
            path: Path = getattr(options, name)
            if path.exists() and not path.is_dir():
                raise HarnessError(f"--{name} {path} is no folder")
        if len(set(options.gyms)) != len(options.gyms):
            raise HarnessError(f"--gyms {' '.join(options.gyms)} names a gym twice")
        # Sums of floats depend on how they are split over threads.
        torch.set_num_threads(1)
        summary = learn(options.policy, options.gyms, options.seed, options.steps, options.out, options.work, console)
    except Stopped as stopped:
        print(f"learning: {stopped}", file=sys.stderr)
        return 1
    except (HarnessError, InfrastructureError, AuditError, OSError) as error:
        print(f"learning: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("learning: interrupted; finished stages are kept, the same command goes on from there", file=sys.stderr)
        return 130
    _show(console, summary)
    return 0 if summary.rose() else 1


def _show(console: Console, summary: Summary) -> None:
    table = Table("gym", "before", "after", "difference", "p", "rose significantly")
    for gym, arm in summary.arms.items():
        figures = (_words(arm.baseline), _words(arm.after), f"{arm.difference:+.3f}", f"{arm.p_value:.2g}")
        table.add_row(gym, *figures, "yes" if arm.significant_rise else "no")
    console.print(table)
    if summary.agreement is not None:
        console.print(_agreement_words(summary.agreement))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer.learning", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder that gets the result")
    parser.add_argument("--gyms", nargs="+", choices=GYMS, default=list(GYMS), help="(%(default)s)")
    parser.add_argument("--policy", default="mini", help=POLICY_HELP)
    parser.add_argument("--seed", type=int, default=43, help="of training (%(default)s)")
    parser.add_argument("--steps", type=int, default=40, help="of 16 rollouts (%(default)s)")
    parser.add_argument("--work", type=Path, default=WORK, metavar="DIR", help="raw evidence (reports/learning)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
