"""Play rollouts that are given as data through upstream's own lifecycle, all in one process.

    python -m gymqual.gyms.verifiers.play PLAN.json OUT_DIR [--served]

A process that imports upstream costs about 4.5 CPU seconds, and its tool server as much again: many rollouts with
different models, scripts and faults share them here. Writes ``OUT_DIR/traces.jsonl`` as vf-eval does.
"""

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

from gymqual.gyms import loaded

loaded.install()

import verifiers.v1 as vf  # noqa: E402
from pydantic import BaseModel, Field, TypeAdapter, ValidationError  # noqa: E402
from verifiers.v1.clients import ClientConfig, ModelContext  # noqa: E402
from verifiers.v1.serve import EnvClient, EnvServer  # noqa: E402
from verifiers.v1.types import SamplingConfig  # noqa: E402
from verifiers.v1.utils.loaders import load_environment, load_taskset, resolve_env_config  # noqa: E402
from verifiers.v1.utils.logging import setup_logging  # noqa: E402
from verifiers.v1.utils.trace_store import TRACES_FILE, append_episode  # noqa: E402

from gymqual.gyms.verifiers.launch import ENVIRONMENT  # noqa: E402
from gymqual.gyms.verifiers.taskset import GermanOrdersTask, Row  # noqa: E402


class Rollout(Row, frozen=True):
    """One rollout of a plan."""

    client: dict[str, Any] = Field(default_factory=dict)
    """Fields of the plan's ``client`` block that differ for this rollout."""


class Plan(BaseModel, frozen=True, extra="forbid"):
    """What to play."""

    env: dict[str, Any] = Field(default_factory=dict)
    """Upstream's ``env`` block without the taskset, e.g. ``{"agent": {"harness": {"id": "fixture_harness"}}}``."""
    client: dict[str, Any] = Field(default_factory=dict)
    """Upstream's ``client`` block, e.g. ``{"base_url": "http://127.0.0.1:8000/v1", "timeout": {"read": 30}}``."""
    model: str = "scripted"
    sampling: dict[str, Any] = Field(default_factory=dict)
    stages: tuple[tuple[Rollout, ...], ...]
    """Rollouts of a stage are played together, stages one after another, all on one tool server."""


RunTask = Callable[[GermanOrdersTask, ModelContext], Awaitable[vf.Episode]]


@asynccontextmanager
async def in_process(config: vf.EnvConfig) -> AsyncIterator[RunTask]:
    """Play rollouts as vf-eval does."""
    env = load_environment(config)

    async def run(task: GermanOrdersTask, context: ModelContext) -> vf.Episode:
        (slot,) = env.slots(task)
        return await env.run_slot(slot, context)

    async with env.serving():
        yield run


@asynccontextmanager
async def served(config: vf.EnvConfig) -> AsyncIterator[RunTask]:
    """Play rollouts as a trainer does: by upstream's client of upstream's environment server, over a real socket."""
    server = EnvServer(config, address="tcp://127.0.0.1:0")
    serving = asyncio.create_task(server.run())
    client = EnvClient(server.address)

    async def run(task: GermanOrdersTask, context: ModelContext) -> vf.Episode:
        data = task.data.model_dump(mode="json")
        return await client.run(context.client, context.model, context.sampling, data)

    try:
        await client.wait_for_server_startup()
        yield run
    finally:
        await client.close()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving


async def play(plan: Plan, out: Path, through: Callable[[vf.EnvConfig], AbstractAsyncContextManager[RunTask]]) -> None:
    """Play a plan; every rollout is on disk as soon as it has ended."""
    config = resolve_env_config({**plan.env, "taskset": {"id": ENVIRONMENT}})
    rows = [row for stage in plan.stages for row in stage]
    tasks = [task.with_data(idx=idx) for idx, task in enumerate(load_taskset(config.taskset).tasks_of(rows))]
    rollouts = iter(zip(rows, tasks, strict=True))
    lock = asyncio.Lock()

    async def run(run_task: RunTask, row: Rollout, task: GermanOrdersTask) -> None:
        context = ModelContext(
            model=plan.model,
            client=TypeAdapter(ClientConfig).validate_python({"type": "eval", **plan.client, **row.client}),
            sampling=SamplingConfig.model_validate(plan.sampling),
        )
        await append_episode(out, await run_task(task, context), lock)

    async with through(config) as run_task:
        for stage in plan.stages:
            await asyncio.gather(*(run(run_task, *rollout) for rollout in islice(rollouts, len(stage))))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 played, 2 not a plan."""
    parser = argparse.ArgumentParser(prog="python -m gymqual.gyms.verifiers.play", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path, metavar="OUT_DIR", help="a folder without rollouts yet")
    parser.add_argument("--served", action="store_true", help="through upstream's environment server and its client")
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
    asyncio.run(play(plan, options.out, served if options.served else in_process))
    return 0


if __name__ == "__main__":
    loaded.record(Path(__file__))
    sys.exit(main())
