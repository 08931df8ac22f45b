"""NeMo Gym, driven by upstream's own tools: its agent reaches the reward, its test command passes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gyms.base import Script, ToolCall
from gyms.german_orders import GermanOrders
from harness.checks import explain
from harness.evidence import Evidence
from harness.process import child_environment
from harness.run import Run
from harness.services import NemoService
from qualification.nemo.upstream_agent import ScriptedModel, UpstreamAgent
from qualification.nemo.wire import Wire
from qualification.scenarios import right_path

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
def agent(run: Run, service: NemoService) -> Iterator[UpstreamAgent]:
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


def test_upstreams_test_command_passes_on_the_staged_folder(run: Run, tmp_path: Path, evidence: Evidence) -> None:
    """``gym env test`` MUST pass on the folder in upstream's shape, with the environment it finds there."""
    stack = Path(run.stack("nemo").python).parent.parent
    found = tmp_path / "resources_servers" / "german_orders"
    found.mkdir(parents=True)
    (found / ".venv").symlink_to(stack)
    command = [stack / "bin" / "gym", "env", "test", "+entrypoint=resources_servers/german_orders"]
    tested = subprocess.run(
        [*command, "++skip_venv_if_present=true", f"++uv_venv_dir={tmp_path}"],
        cwd=run.subject.folder,
        env=child_environment({"PYTHONPATH": str(run.subject.python_path), "WANDB_MODE": "disabled"}, home=tmp_path),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    evidence.attach("gym-env-test.txt", tested.stdout + tested.stderr)
    assert (tested.returncode, "1 passed" in tested.stdout) == (0, True), explain(
        subject="gym env test +entrypoint=resources_servers/german_orders",
        expected=(0, "1 passed"),
        got=(tested.returncode, (tested.stdout + tested.stderr)[-2000:]),
        cause="the folder is not in upstream's shape, or the session contract is broken",
    )
