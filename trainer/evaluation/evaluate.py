"""Evaluate a policy: strict success at temperature 1 with its interval, greedy beside it, never alone.

    gymqual evaluate --policy mini --split dev --episodes 256 --gym local
    gymqual evaluate --policy mini --adapter RUN/adapter --split dev --episodes 256 --gym nemo

The same tasks and seeds serve every policy, so that ``--against RESULT`` compares in pairs. A failure of the
gym ends the evaluation; it is never counted as a miss. The test split is for one final assessment: it asks
for ``--consume-test``, and the result says that it was consumed.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import Parameter
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console
from rich.table import Table

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.cli.checks import require_at_least_one
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, write_atomically
from gymqual.trainer.evaluation.rollout import EvaluationGym, Rollout, Sampling, play
from gymqual.trainer.policy.loading import POLICY_HELP, Policy, load_policy
from gymqual.trainer.runs.open_gym import opened_gym
from gymqual.trainer.runs.statistics import paired, wilson

BATCH = 64
"""Episodes played together."""
SEED = 0
"""Seed of the evaluated task list; training draws from another split."""


class Outcomes(BaseModel):
    """What one way of sampling came to."""

    model_config = ConfigDict(extra="forbid")

    episodes: int
    solved: int
    success: float
    interval: tuple[float, float]
    """95 % Wilson interval of strict success."""
    outcomes: dict[str, int]
    milestones: dict[str, float]
    """Share of episodes, by milestone; errors a mean count."""
    calls: dict[str, float]
    """Mean calls an episode, by tool."""
    sampled_tokens: float
    """Mean sampled tokens an episode."""
    by_formula: dict[str, tuple[int, int]]
    """(solved, episodes) by question family."""
    strict: list[bool]
    """Strict success of each task, in the order of the task list."""


class Evaluation(BaseModel):
    """The result of one evaluation, as written with ``--out``."""

    model_config = ConfigDict(extra="forbid")

    format: Literal["gymqual.evaluation/1"] = "gymqual.evaluation/1"
    policy: dict[str, Any]
    notes: list[str]
    adapter: str | None
    gym: str
    gym_identity: dict[str, Any] | None
    core: str
    split: str
    test_split_consumed: bool
    tasks: str
    """Pattern of the task ids: pool/split/seed/0..n-1."""
    sampling_seed: int
    temperature_1: Outcomes
    greedy: Outcomes
    cpu_s: float


def evaluate(policy: Policy, gym: EvaluationGym, task_ids: Sequence[str], sampling: Sampling, say: Any) -> Outcomes:
    """Play every task once; raises InfrastructureError."""
    tasks = GermanOrders()
    rollouts: list[Rollout] = []
    for start in range(0, len(task_ids), BATCH):
        batch = task_ids[start : start + BATCH]
        drawn = Sampling(sampling.temperature, sampling.greedy, sampling.seed + start)
        rollouts += play(policy.model, policy.tokenizer, tasks, gym, batch, drawn)
        say(f"{'greedy' if sampling.greedy else 'temperature 1'}: {len(rollouts)} of {len(task_ids)} episodes")
    return summarise(tasks, rollouts)


def summarise(tasks: GermanOrders, rollouts: Sequence[Rollout]) -> Outcomes:
    """Count what the episodes came to."""
    verdicts = [rollout.verdict for rollout in rollouts if rollout.verdict is not None]
    strict = [verdict.strict for verdict in verdicts]
    count = len(verdicts)
    families = [tasks.family(rollout.task_id) for rollout in rollouts]
    called = Counter(call.tool for rollout in rollouts for call in rollout.calls)
    return Outcomes(
        episodes=count,
        solved=sum(strict),
        success=sum(strict) / count,
        interval=wilson(sum(strict), count),
        outcomes=dict(Counter(verdict.outcome for verdict in verdicts).most_common()),
        milestones={part: sum(v.parts[part] for v in verdicts) / count for part in verdicts[0].parts},
        calls={tool: number / count for tool, number in sorted(called.items())},
        sampled_tokens=sum(rollout.sampled for rollout in rollouts) / count,
        by_formula={
            family: (sum(s for s, f in zip(strict, families, strict=True) if f == family), families.count(family))
            for family in sorted(set(families))
        },
        strict=strict,
    )


@contextmanager
def _opened(name: str, url: str | None) -> Iterator[tuple[EvaluationGym, GymIdentity | None]]:
    tasks = GermanOrders()
    if name == "local":
        yield LocalGym(tasks), None
    else:
        with opened_gym(name, url, tasks) as gym:
            yield gym, gym.identity()


def command(
    *,
    policy: Annotated[str, Parameter(help=POLICY_HELP)] = "mini",
    adapter: Annotated[Path | None, Parameter(help="LoRA adapter on top of the policy.")] = None,
    split: Annotated[Literal["dev", "sft", "test", "train"], Parameter(help="Of tasks.")] = "dev",
    consume_test: Annotated[bool, Parameter(help="Allow --split test; recorded in the result.")] = False,
    episodes: Annotated[int, Parameter(help="One task each.")] = 256,
    gym: Annotated[Literal["local", "nemo", "openenv"], Parameter(help="local plays in this process.")] = "local",
    gym_url: Annotated[
        str | None, Parameter(help="A service that is already served; else one is started and ended here.")
    ] = None,
    seed: Annotated[int, Parameter(help="Of sampling.")] = 0,
    threads: Annotated[int, Parameter(help="Threads of torch.")] = 1,
    out: Annotated[Path | None, Parameter(help="File that gets the result as JSON, too.")] = None,
    against: Annotated[Path | None, Parameter(help="An earlier result to compare with, in pairs.")] = None,
) -> None:
    """Measure a policy's strict success through a gym, at temperature 1 and greedy, with intervals."""
    if split == "test" and not consume_test:
        raise HarnessError("--split test is for the one final assessment; say --consume-test if this is it")
    require_at_least_one("--episodes", episodes)
    require_at_least_one("--threads", threads)
    if gym_url and gym == "local":
        raise HarnessError("--gym-url names a service, --gym local has none; leave one of them out")
    torch.set_num_threads(threads)
    baseline = _read(against) if against else None
    loaded_policy = load_policy(policy, adapter)
    console = Console(highlight=False, soft_wrap=True)
    with console.status("") as status:
        result = measure(
            loaded_policy,
            gym,
            split,
            episodes,
            status.update,
            seed=seed,
            gym_url=gym_url,
            adapter=str(adapter) if adapter else None,
        )
    if out:
        write_atomically(out, readable_json(result.model_dump(mode="json")))
    _show(console, result)
    if baseline:
        _show_pairs(console, baseline, result)


def measure(
    policy: Policy,
    gym: str,
    split: str,
    episodes: int,
    say: Any,
    *,
    seed: int = 0,
    gym_url: str | None = None,
    adapter: str | None = None,
) -> Evaluation:
    """Evaluate through a gym, or ``local``; ``adapter`` is what the result calls the one that ``policy`` holds.

    Raises HarnessError and InfrastructureError.
    """
    task_ids = [f"v1/{split}/{SEED}/{index}" for index in range(episodes)]
    started = time.process_time()
    with _opened(gym, gym_url) as (opened, identity):
        drawn = evaluate(policy, opened, task_ids, Sampling(seed=seed), say)
        greedy = evaluate(policy, opened, task_ids, Sampling(greedy=True), say)
    return Evaluation(
        policy=policy.identity.to_json(),
        notes=list(policy.notes),
        adapter=adapter,
        gym=gym,
        gym_identity=identity.to_json() if identity else None,
        core=loaded.core_on_disk(),
        split=split,
        test_split_consumed=split == "test",
        tasks=f"v1/{split}/{SEED}/0..{episodes - 1}",
        sampling_seed=seed,
        temperature_1=drawn,
        greedy=greedy,
        cpu_s=round(time.process_time() - started, 2),
    )


def _read(path: Path) -> Evaluation:
    try:
        return Evaluation.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise HarnessError(f"--against {path}: not a result of this command ({str(error).splitlines()[0]})") from None


def _show(console: Console, result: Evaluation) -> None:
    console.print(f"{result.policy['name']} on {result.tasks} through {result.gym}; a development task, no benchmark")
    table = Table("", "temperature 1", "greedy")
    ways = (result.temperature_1, result.greedy)
    table.add_row("strict success", *(f"{w.success:.3f} [{w.interval[0]:.3f}, {w.interval[1]:.3f}]" for w in ways))
    for part in result.temperature_1.milestones:
        table.add_row(part, *(f"{w.milestones[part]:.3f}" for w in ways))
    for tool in sorted({tool for w in ways for tool in w.calls}):
        table.add_row(f"{tool} calls an episode", *(f"{w.calls.get(tool, 0.0):.2f}" for w in ways))
    for family in result.temperature_1.by_formula:
        table.add_row(f"solved: {family}", *("{} of {}".format(*w.by_formula[family]) for w in ways))
    for outcome in sorted({outcome for w in ways for outcome in w.outcomes}):
        table.add_row(f"outcome: {outcome}", *(str(w.outcomes.get(outcome, 0)) for w in ways))
    console.print(table)


def _show_pairs(console: Console, baseline: Evaluation, candidate: Evaluation) -> None:
    same: Mapping[str, tuple[Any, Any]] = {
        name: (getattr(baseline, name), getattr(candidate, name)) for name in ("core", "tasks", "sampling_seed")
    }
    differing = [f"{name} {before} and {after}" for name, (before, after) in same.items() if before != after]
    if differing:
        raise HarnessError(f"--against: not the same evaluation ({'; '.join(differing)}); evaluate both alike")
    result = paired(baseline.temperature_1.strict, candidate.temperature_1.strict)
    console.print(
        f"against {baseline.policy['name']}, temperature 1, {result.trials} pairs: {result.difference:+.3f} "
        f"({result.gained} gained, {result.lost} lost; exact McNemar p = {result.p_value:.2g})"
    )
