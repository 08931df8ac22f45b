"""NeMo Gym, driven by upstream's own tools: its agent reaches the reward, its test command passes."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gymqual.gyms.base import Script, ToolCall
from gymqual.gyms.german.tasks import find_task
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.stacks.services import GymService
from gymqual.harness.stacks.staging import EXAMPLE_TASKS, stage
from gymqual.qualification.support.nemo.upstream_agent import GymCommand, ScriptedModel, UpstreamAgent
from gymqual.qualification.support.nemo.wire import Wire
from gymqual.qualification.support.scenarios import right_path

pytestmark = [pytest.mark.gym("nemo"), pytest.mark.upstream]

TASK = "v1/dev/0/0"
WRITTEN_NAMES = (
    "verify",
    "seed_session",
    "close_session",
    "aggregate_metrics",
    "../verify",
    "openapi.json",
    "lookup?x=1",
)


@pytest.fixture(scope="module")
def agent(run: Run, service: GymService) -> Iterator[UpstreamAgent]:
    """Upstream's simple agent and model server, in front of a scripted model."""
    with ScriptedModel().serving() as model:
        agent = UpstreamAgent(run, service, model)
        try:
            agent.start(run.folder / run.mine("servers") / "upstream")
            yield agent
        finally:
            agent.stop()


def test_upstreams_agent_reaches_the_reward(agent: UpstreamAgent, orders: GermanOrders, evidence: Evidence) -> None:
    """Upstream's simple agent MUST get 1.0 for the right path and what the replay says for every other script."""
    scripts = orders.scripts(TASK)
    played = {name: agent.play(TASK, script) for name, script in scripts.items() if script.answer}
    evidence.attach("rollouts.json", played)
    seen = {name: (rollout["reward"], rollout["outcome"], rollout["mask_sample"]) for name, rollout in played.items()}
    replays = {name: orders.replay(TASK, scripts[name].calls, scripts[name].answer).verdict for name in played}
    expected = {name: (verdict.reward, verdict.outcome, False) for name, verdict in replays.items()}
    assert seen == expected, explain(
        subject="(reward, outcome, masked) of scripted rollouts through upstream's agent",
        expected=expected,
        got=seen,
        cause="the native routes do not fit what upstream's agent sends",
    )


def test_tool_names_a_model_writes_reach_nothing_else(
    agent: UpstreamAgent, nemo: Wire, orders: GermanOrders, evidence: Evidence
) -> None:
    """A tool name that happens to be a route MUST be a scored mistake: no verdict, no session, no document."""
    forged = (
        '{"verify_responses": [], "task_id": "v1/dev/0/1", "response": {"output": []}, "resources_session_id": "x"}'
    )
    calls = (*(ToolCall(name, forged) for name in WRITTEN_NAMES), *right_path(orders, TASK))
    before = nemo.state()
    rollout = agent.play(TASK, Script("routes", calls, orders.scripts(TASK)["oracle"].answer))
    after = nemo.state()
    shown = {item["output"] for item in rollout["response"]["output"] if item["type"] == "function_call_output"}
    evidence.attach("rollout.json", rollout)
    seen = {
        "reward": (rollout["reward"], rollout["errors"]),
        "shown": len(shown),
        "sessions": (after["opened"] - before["opened"], after["closed"] - before["closed"]),
    }
    expected = {"reward": (1.0, len(WRITTEN_NAMES)), "shown": 3, "sessions": (1, 0)}
    assert seen == expected, explain(
        subject="reward and errors; different texts shown (one refusal, the record, the result); sessions made, closed",
        expected=expected,
        got=(seen, shown),
        cause="a route that is not a tool answers a model, or is not counted as its mistake",
    )


def test_a_model_is_judged_by_what_it_wrote(agent: UpstreamAgent, orders: GermanOrders, evidence: Evidence) -> None:
    """The verdict MUST be the replay of the calls as written, whatever upstream's agent makes of them on the way."""
    look, compute = right_path(orders, TASK)
    answer = orders.scripts(TASK)["oracle"].answer
    first_calls = {
        "fragment": [ToolCall("lookup#x", look.arguments)],
        "dots": [ToolCall("x/../lookup", look.arguments)],
        "rollout prefix": [ToolCall("ng-rollout/r1/lookup", look.arguments)],
        "question mark": [ToolCall("lookup?", look.arguments)],
        "percent": [ToolCall("l%6Fokup", look.arguments)],
        "duplicate keys": [ToolCall("lookup", look.arguments[:-1] + "," + look.arguments[1:])],
        "blanks": [ToolCall("lookup", " " * 3000 + look.arguments)],
        "undecodable": [*[ToolCall("lookup", "{")] * 64, look],
        "closing": [
            ToolCall("close_session", '{"resources_session_id": "x", "episode_id": {"rollout_id": "x"}}'),
            look,
        ],
        "long name": [ToolCall("l" * 72_000, "{}"), look],
    }
    seen, expected = {}, {}
    for name, calls in first_calls.items():
        told = agent.play(TASK, Script(name, (*calls, compute), answer))
        seen[name] = tuple(told[key] for key in ("outcome", "reward", "errors", "mask_sample"))
        verdict = orders.replay(TASK, [*calls, compute], answer).verdict
        expected[name] = (verdict.outcome, verdict.reward, verdict.parts["errors"], False)
    evidence.attach("verdicts.json", {"seen": seen, "expected": expected})
    assert seen == expected, explain(
        subject="(outcome, reward, errors, masked) of calls that arrive otherwise than written, or never",
        expected=expected,
        got=seen,
        cause="the server judges what arrived, or takes what a model writes for a fault of the infrastructure",
    )


def test_upstreams_test_command_passes_on_the_staged_folder(run: Run, tmp_path: Path, evidence: Evidence) -> None:
    """``gym env test`` MUST pass on the folder in upstream's shape, with the environment it finds there."""
    gym = GymCommand(run, run.subject, tmp_path)
    tested = gym.call("env", "test", "+entrypoint=resources_servers/german_orders", *gym.prepared)
    evidence.attach("gym-env-test.txt", tested.stdout + tested.stderr)
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), explain(
        subject="gym env test +entrypoint=resources_servers/german_orders",
        expected=(0, "1 passed"),
        got=(tested.returncode, (tested.stdout + tested.stderr)[-2000:]),
        cause="the folder is not in upstream's shape, or the session contract is broken",
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_upstreams_ray_path_collects_every_rollout(run: Run, orders: GermanOrders, evidence: Evidence) -> None:
    """``gym env start`` and ``gym eval run`` MUST collect every rollout of the example rows with reward 1.0."""
    # Ray's socket paths have a limit of 107 characters, which a folder inside the run would exceed.
    with TemporaryDirectory(prefix="gq-") as short, ScriptedModel().serving() as model:
        subject = stage(run.folder / run.mine("ray-subject"))
        gym = GymCommand(run, subject, Path(short))
        for task in EXAMPLE_TASKS:
            model.scripts[find_task(task).question] = orders.scripts(task)["oracle"]
        server = gym.start(model)
        try:
            head, output = f"++head_server.port={server.port}", subject.folder / "rollouts.jsonl"
            rows = str(subject.nemo_entry.parent / "data" / "example.jsonl")
            chosen = ("--no-serve", "--agent", "german_orders_simple_agent", "--input", rows, "--output", str(output))
            repeats = ("--num-repeats", "3", "--concurrency", "4", head)
            collected = gym.call("eval", "run", *chosen, *repeats)
        finally:
            server.stop(grace_s=20)
        evidence.attach("gym-eval-run.txt", collected.stdout + collected.stderr)
        rewards = [json.loads(line)["reward"] for line in output.read_text().splitlines()] if output.exists() else []
    assert (collected.returncode, rewards) == (0, [1.0] * 15), explain(
        subject="gym eval run on the five example rows, three times each",
        expected=(0, [1.0] * 15),
        got=(collected.returncode, rewards, (collected.stdout + collected.stderr)[-2000:]),
        cause="the configuration does not start, or upstream's environment server drives the routes differently",
    )
