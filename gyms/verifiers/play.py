"""Play rollouts that are given as data through upstream's own lifecycle, all in one process.

    python -m gyms.verifiers.play PLAN.json OUT_DIR

A process that imports upstream costs about 4.5 CPU seconds, and its tool server as much again: many rollouts with
different models, scripts and faults share them here. Writes ``OUT_DIR/traces.jsonl`` as vf-eval does.
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from gyms import loaded

loaded.install()

from pydantic import BaseModel, TypeAdapter, ValidationError  # noqa: E402
from verifiers.v1.clients import ClientConfig, ModelContext  # noqa: E402
from verifiers.v1.types import SamplingConfig  # noqa: E402
from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: E402
from verifiers.v1.utils.logging import setup_logging  # noqa: E402
from verifiers.v1.utils.trace_store import TRACES_FILE, append_episode  # noqa: E402

from gyms.verifiers.launch import ENVIRONMENT  # noqa: E402
from gyms.verifiers.taskset import GermanOrdersTaskset, Row  # noqa: E402


class Rollout(Row, frozen=True):
    """One rollout of a plan."""

    base_url: str | None = None
    """Model server of this rollout, if it is another than the plan's."""


class Plan(BaseModel, frozen=True, extra="forbid"):
    """What to play."""

    env: dict[str, Any] = {}
    """Upstream's ``env`` block without the taskset, e.g. ``{"agent": {"harness": {"id": "fixture_harness"}}}``."""
    client: dict[str, Any] = {}
    """Upstream's ``client`` block."""
    model: str = "scripted"
    sampling: dict[str, Any] = {}
    stages: tuple[tuple[Rollout, ...], ...]
    """Rollouts of a stage are played together, stages one after another, all on one tool server."""


async def play(plan: Plan, out: Path) -> None:
    """Play a plan; every rollout is on disk as soon as it has ended."""
    env = load_environment(resolve_env_config({**plan.env, "taskset": {"id": ENVIRONMENT}}))
    assert isinstance(env.taskset, GermanOrdersTaskset)
    rows = [row for stage in plan.stages for row in stage]
    tasks = iter([task.with_data(idx=number) for number, task in enumerate(env.taskset.tasks_of(rows))])
    lock = asyncio.Lock()

    async def run(row: Rollout) -> None:
        client = {**plan.client, **({"base_url": row.base_url} if row.base_url else {})}
        context = ModelContext(
            model=plan.model,
            client=TypeAdapter(ClientConfig).validate_python({"type": "eval", **client}),
            sampling=SamplingConfig.model_validate(plan.sampling),
        )
        (slot,) = env.slots(next(tasks))
        await env.run_slot(slot, context, None, lambda episode: append_episode(out, episode, lock))

    async with env.serving():
        for stage in plan.stages:
            await asyncio.gather(*(run(row) for row in stage))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 played, 2 not a plan."""
    parser = argparse.ArgumentParser(prog="python -m gyms.verifiers.play", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="a folder without rollouts yet")
    options = parser.parse_args(arguments)
    try:
        plan = Plan.model_validate_json(options.plan.read_bytes())
    except (OSError, ValidationError) as error:
        print(f"play: {options.plan} is no plan: {error}", file=sys.stderr)
        return 2
    if (options.out / TRACES_FILE).exists():
        print(f"play: {options.out} holds rollouts already; name another folder", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    setup_logging("INFO")
    asyncio.run(play(plan, options.out))
    return 0


if __name__ == "__main__":
    loaded.record(Path(__file__))
    sys.exit(main())
