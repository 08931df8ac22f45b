"""What came of a training as learning: recomputed from evaluations and manifests, and told to people.

``differences`` derives every figure of a committed result again; nothing here trains or evaluates.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.run_records import GymRecord, Sha256, StrictModel
from gymqual.trainer.evaluation.evaluate import Evaluation, Outcomes
from gymqual.trainer.learning.agreement import Agreement, compare_traces
from gymqual.trainer.learning.reading import TrainedRun, read_result
from gymqual.trainer.runs.config import Lora, Shaping
from gymqual.trainer.runs.manifest import PolicyRecord
from gymqual.trainer.runs.statistics import paired, wilson

SUMMARY = "summary.json"
CARD = "README.md"
BASELINE = "baseline.json"
AFTER = "after.json"
REPLAY = "replay_audit.txt"
FILES = (MANIFEST, BASELINE, AFTER, REPLAY)
"""What is kept of an arm: the training run's manifest, the two evaluations, and what the replay audit says."""
RUN = "run"
"""Folder of an arm's training run, in ``--work``."""
WORK = Path("reports") / "learning"
SPLIT = "dev"
EPISODES = 256
SAMPLING_SEED = 0
"""Of both evaluations. With another one the comparison would not be paired."""
GROUPS_PER_STEP = 4
BLOCK = 8
"""Steps whose training success is averaged in the table."""
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


class Protocol(StrictModel):
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


class Success(StrictModel):
    """Strict success at temperature 1."""

    solved: int
    episodes: int
    share: float
    interval: tuple[float, float]
    """95 % Wilson interval."""


class Arm(StrictModel):
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
    """Claims of the training run that ``gymqual.trainer.replay.audit`` derived again from the raw evidence."""
    replay_others: tuple[str, ...]
    """Its lines for all other claims."""
    files: dict[str, Sha256]
    """sha256 of the arm's files beside the summary."""


class Summary(StrictModel):
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


def settings_of(protocol: Protocol, gym: str) -> dict[str, Any]:
    """Return the fields of an arm's training.json that the protocol states, as JSON data."""
    same = {"seed", "steps", "groups_per_step", "group_size", "learning_rate", "beta", "loss_type", "precision"}
    told = protocol.model_dump(mode="json", include=same | {"lora", "shaping"})
    return {
        **told,
        "gym": gym,
        "temperature": protocol.training_temperature,
        "tasks": tasks_of(protocol.training_tasks),
    }


def tasks_of(pattern: str) -> list[str]:
    """Return the task ids of a pattern that ends with ``0..last``."""
    start, _, last = pattern.rpartition("/0..")
    return [f"{start}/{index}" for index in range(int(last) + 1)]


# ---- the summary ------------------------------------------------------------------------------------------


def summarise_arm(folder: Path) -> Arm:
    """Return what an arm's files say; raises HarnessError for one that cannot be read."""
    run = read_result(folder / MANIFEST, TrainedRun)
    before, after = (read_result(folder / name, Evaluation) for name in (BASELINE, AFTER))
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
        baseline=success_of(before.temperature_1),
        after=success_of(after.temperature_1),
        gained=pairs.gained,
        lost=pairs.lost,
        difference=pairs.difference,
        p_value=pairs.p_value,
        significant_rise=pairs.rose,
        training_success=tuple(step.strict for step in run.steps),
        varied_groups=run.varied_groups,
        groups=sum(step.groups for step in run.steps),
        replay_held=sum(line.startswith(HELD) for line in lines),
        replay_others=tuple(line for line in lines if not line.startswith(HELD)),
        files={name: sha256_file(folder / name) for name in FILES},
    )


def success_of(outcomes: Outcomes) -> Success:
    """Count the single outcomes anew: what an evaluation says of its total is derived from them as well."""
    solved, episodes = sum(outcomes.strict), len(outcomes.strict)
    return Success(solved=solved, episodes=episodes, share=solved / episodes, interval=wilson(solved, episodes))


def compare_runs(runs: dict[str, Path]) -> Agreement | None:
    """Compare what the training runs of two arms sampled, turn by turn; None with one arm."""
    if len(runs) < 2:
        return None
    first, second = list(runs)[:2]
    compared = compare_traces(runs[first], runs[second])
    manifests = [read_result(runs[gym] / MANIFEST, TrainedRun) for gym in (first, second)]
    return Agreement(
        arms=(first, second),
        calls=compared.calls,
        tokens=compared.tokens,
        first_difference=compared.first_difference,
        same_trace=len({run.trace for run in manifests}) == 1,
        same_adapter=len({run.adapter for run in manifests}) == 1,
    )


def evaluated_of(result: Evaluation) -> dict[str, Any]:
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


def due_of(protocol: Protocol, weights: str, core: str, gym: str, adapter: str | None) -> dict[str, Any]:
    """Return what ``_evaluated`` must be."""
    tasks = protocol.evaluation_tasks
    return {
        "policy": weights,
        "adapter": adapter,
        "gym": gym,
        "core": core,
        "tasks": tasks,
        "seed": protocol.evaluation_seed,
        "number of episodes": len(tasks_of(tasks)),
    }
