"""What is played through upstream's commands: arguments, scripted episodes, and plans of rollouts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gymqual.gyms.base import Script
from gymqual.harness.records.files import ROOT

FIXTURE = ("--env.agent.harness.id", "fixture_harness")
DOCUMENTED = (
    "--env.agent.harness.id null --env.agent.runtime.type subprocess --env.agent.max-turns 6 "
    "--env.agent.max-output-tokens 768 --env.agent.timeout.rollout 120 --model scripted "
    "--client.base-url {url} --client.api-key-var LOCAL_MODEL_API_KEY -n 4"
)
"""The README's command for a real model, without the name of the environment."""
MINI = ROOT / "trainer" / "policy" / "embedded" / "mini"


class Played(NamedTuple):
    """A scripted episode and how it is played."""

    script: Script
    truncated: bool = False
    at_once: bool = False
    """All calls stand in one message."""

    def as_data(self) -> dict[str, Any]:
        """Return it as a row of the taskset holds it."""
        calls = [[call.tool, call.arguments] for call in self.script.calls]
        flags = {"truncated": self.truncated, "at_once": self.at_once}
        return {"calls": calls, "answer": self.script.answer, **flags}


def plan(stages: Sequence[Sequence[dict[str, Any]]], url: str) -> dict[str, Any]:
    """Return a plan of rollouts against a model server, one stage after the other."""
    harness = {"id": "fixture_harness", "mode": "endpoint"}
    limits = {"max_turns": 12, "timeout": {"setup": 4.0, "rollout": 16.0, "scoring": 2.0}}
    return {
        "env": {"agent": {"harness": harness, "runtime": {"type": "subprocess"}, **limits}},
        "client": {"base_url": url, "api_key_var": "LOCAL_MODEL_API_KEY", "timeout": {"read": 2.0}},
        "stages": stages,
    }


def token_plan(stages: Sequence[Sequence[dict[str, Any]]], url: str) -> dict[str, Any]:
    """Return a plan of rollouts that are sampled token in, token out, by the embedded policy."""
    made = plan(stages, url)
    # No renderer of upstream's is mini's: its own template is, with Qwen3's tool calls.
    renderer = {"name": "default", "tool_parser": "qwen3"}
    train = {"type": "train", "renderer": renderer, "renderer_model_name": str(MINI), "timeout": {"read": 30.0}}
    made["env"]["agent"]["timeout"] = {"rollout": 120.0}
    sampling = {"max_tokens": 64, "temperature": 1.0, "seed": 7}
    return {**made, "client": {**made["client"], **train}, "model": "mini", "sampling": sampling}
