"""Upstream's stock SDK client as a process of its own, in the OpenEnv stack."""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymqual.gyms.base import ToolCall
from gymqual.harness.process.server import child_environment
from gymqual.harness.stacks.environments import Stack
from gymqual.qualification.support.openenv.wire import outcome

PLAYER = Path(__file__).with_name("sdk_player.py")


class SdkClient:
    """One stock client with its own session."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Let it ``reset``, ``step``, ask for the ``state`` or ``close``; return what it gave or raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "with": fields}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline() or '{"raised": "the player ended"}')


@contextmanager
def sdk_client(stack: Stack, url: str, home: Path) -> Iterator[SdkClient]:
    """A stock client of the server at ``url``; its own time-outs bound every answer."""
    with subprocess.Popen(
        [stack.python, "-P", str(PLAYER), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=home,
        env=child_environment({"HF_HUB_OFFLINE": "1"}, home),
    ) as process:
        try:
            yield SdkClient(process)
        finally:
            process.kill()


def played_by_sdk(
    ask: Callable[..., Any], task: str, calls: tuple[ToolCall, ...], answer: str | None, secret: str
) -> list[Any]:
    """Play an episode by the stock client; return what it told of every step, and of the state before and after."""
    reset = ask("reset", task_id=task)
    before = outcome(ask("state")["state"])
    steps = [{"tool": call.tool, "arguments": call.arguments} for call in calls]
    ending = {"verification": {"secret": secret, "answer": answer}}
    told = [reset, *(ask("step", **step) for step in (*steps, ending))]
    shown = [(t["observation"]["text"], t["observation"]["is_error"], t["reward"], t["done"]) for t in told]
    return [*shown, before, outcome(ask("state")["state"])]
