"""What a rollout of the Verifiers environment costs, against the smallest taskset that upstream's scaffold makes."""

import resource
from statistics import median

from gymqual.gyms.verifiers.launch import ENVIRONMENT, FIXTURE, TRIVIAL
from gymqual.harness.bench.measured import owned
from gymqual.harness.records.errors import ServerFailed
from gymqual.harness.records.figures import Figure, Say, paired_figure
from gymqual.harness.stacks.environments import find_stack
from gymqual.harness.stacks.staging import stage
from gymqual.harness.stacks.verifiers_rollouts import Verifiers

ROUNDS = 3
"""A block is two processes and their tool servers, about 20 s."""
FEW, MANY = 8, 72
"""Rollouts of the two runs of a block: their difference is free of what a start costs."""


def bench_verifiers(say: Say) -> list[Figure]:
    """Measure scripted rollouts on the shared tool server; raises HarnessError."""
    stack = find_stack("verifiers")
    with owned() as (folder, owner):
        verifiers = Verifiers(stack, stage(folder / "subject"), owner, folder / "rollouts")
        costs: list[float] = []

        def subject() -> float:
            costs.append(_cpu_per_rollout(verifiers, ENVIRONMENT))
            return costs[-1]

        say(f"{ROUNDS} interleaved pairs of {MANY - FEW} rollouts, and upstream's smallest taskset")
        ratio = paired_figure(
            "CPU per rollout over upstream's smallest taskset",
            subject,
            lambda: _cpu_per_rollout(verifiers, TRIVIAL),
            # Upstream's keeps no state; ours is fetched and stored with every call.
            2.0,
            ROUNDS,
        )
        return [Figure("CPU per rollout, fixture on the shared server", median(costs), 0.3, "CPU-s"), ratio]


def _cpu_per_rollout(verifiers: Verifiers, environment: str) -> float:
    """Return CPU seconds per rollout of all processes, tool server included, without their starts."""
    used = []
    for rollouts in (FEW, MANY):
        before = _children_cpu_s()
        run = f"{environment}-{rollouts}"
        options = ("--env.agent.harness.id", FIXTURE, "--env.agent.runtime.type", "subprocess", "--clean")
        played = verifiers.evaluate(run, *options, "-n", str(rollouts), "-c", "16", environment=environment)
        used.append(_children_cpu_s() - before)
        rewards = [trace["rewards"] for trace in played.traces.values()]
        if len(rewards) != rollouts or any(sum(each["score"] for each in reward.values()) != 1.0 for reward in rewards):
            raise ServerFailed(f"{environment}: not all of {rollouts} rollouts were played; see {played.ended.log}")
    return (used[1] - used[0]) / (MANY - FEW)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
