"""A harness without a process of its own: scripted rollouts, or upstream's chat loop against a model server.

Both run upstream's chat program, the very source that its null harness starts as a process for every rollout
(about 3.8 CPU seconds each), as a module of this process: tool calls are read, answered and refused as there.

- ``direct``: scripted messages take the place of the model. No request is made, so that upstream's limits and
  stops, which act on requests, do not apply. Nothing that only a model has is made up: no token ids, no
  log-probabilities, no usage. The trace is stamped ``scripted``.
- ``endpoint``: the loop asks the model server as the null harness would, limits and stops included.
"""

import argparse
import sys
import traceback
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import verifiers.v1 as vf
from openai.types.chat import ChatCompletion
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.harness import HarnessConfig
from verifiers.v1.dialects.chat import parse_message, parse_tools, response_from_wire
from verifiers.v1.graph import prepare_turn
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import ProgramResult, Runtime

from gymqual.gyms.german.tools import Call
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.verifiers.evidence import core_answer
from gymqual.gyms.verifiers.taskset import GermanOrdersData, Scripted

MODEL = "scripted"
"""Name that a scripted message carries as its model."""


class FixtureHarnessConfig(HarnessConfig):
    """How the fixture plays."""

    id: str = "fixture_harness"
    mode: Literal["direct", "endpoint"] = "direct"
    script: str = "oracle"
    """Script of the task set that ``direct`` plays where a task brings none."""


class FixtureHarness(vf.Harness[FixtureHarnessConfig]):
    """Scripted rollouts, or upstream's chat loop in this process."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_TOOL_INTERCEPTION = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: ModelContext,
        trace: vf.Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: GermanOrdersData,
        tool_interception_url: str = "",
    ) -> ProgramResult:
        """Play one rollout; what upstream's program would print to its standard error comes back in the result."""
        program = chat_program()
        system_prompt, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system_prompt}, {"role": "user", "content": prompt}]
        try:
            async with AsyncExitStack() as stack:
                servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
                tools, dispatch, connections = await program.connect_mcp({"mcpServers": servers}, stack)
                arguments = argparse.Namespace(bash=False, edit=False, search=False, api_key=secret)
                arguments.tool_interception_url = tool_interception_url
                if self.config.mode == "direct":
                    trace.info["scripted"] = True
                    model = gate = ScriptedModel(trace, tools, data.task_id, self._script(data))
                else:
                    asked = program.AsyncOpenAI(base_url=endpoint, api_key=secret, timeout=None)
                    model = program.Compactor(await stack.enter_async_context(asked), ctx.model, tools, False, None)
                    gate = await stack.enter_async_context(program.httpx.AsyncClient(timeout=None))
                await program.run_chat_loop(arguments, model, messages, dispatch, connections, gate)
        except SystemExit as end:
            return ProgramResult(exit_code=int(end.code or 0), stdout="", stderr="the model's stream ended early")
        except Exception:
            # The program would have ended with 1 and this on its standard error.
            return ProgramResult(exit_code=1, stdout="", stderr=traceback.format_exc())
        return ProgramResult(exit_code=0, stdout="", stderr="")

    def _script(self, data: GermanOrdersData) -> Scripted:
        if data.script is not None:
            return data.script
        scripts = GermanOrders().scripts(data.task_id)
        if self.config.script not in scripts:
            raise ValueError(f"harness.script {self.config.script!r} is none of {', '.join(scripts)}")
        script = scripts[self.config.script]
        return Scripted(calls=tuple((call.tool, call.arguments) for call in script.calls), answer=script.answer)


class ScriptedModel:
    """Stands where upstream's loop asks a model, a call a turn or all at once, and where it asks for leave to call."""

    def __init__(self, trace: vf.Trace, tools: list[dict[str, Any]], task_id: str, script: Scripted) -> None:
        self._trace = trace
        self._tools = tools
        self._task_id = task_id
        self._script = script
        self._turns = iter([list(script.calls)] if script.at_once and script.calls else [[c] for c in script.calls])
        self._written: list[Call] = []
        self._answers: list[str | None] = []
        """Of each call of the last message: the core's observation if the tool server is not to see the call."""

    async def complete(self, messages: list[dict[str, Any]]) -> tuple[ChatCompletion, list[dict[str, Any]]]:
        """Return the next scripted message, put on the trace as a model's would be."""
        calls = next(self._turns, None)
        completion = _completion(calls, self._script.answer)
        prompt = [parse_message(message) for message in messages]
        prepare_turn(self._trace, prompt, parse_tools(self._tools)).commit(response_from_wire(completion))
        if calls is None and self._script.truncated:
            self._trace.stop("max_output_tokens")
        self._answers = []
        for tool, arguments in calls or ():
            self._written.append(Call(tool, arguments))
            self._answers.append(core_answer(self._task_id, self._written))
        return completion, messages

    async def post(self, url: str, *, headers: dict[str, str], json: dict[str, Any]) -> Any:
        """Answer as upstream's gate does, where no request reaches it: with the environment's own decision."""
        call_id = json["tool_call_id"]
        answer = self._answers[int(call_id.removeprefix("call-"))]
        message = {"role": "tool", "tool_call_id": call_id, "name": json["name"], "content": answer}
        decision = {"action": "allow"} if answer is None else {"action": "deny", "message": message}
        return SimpleNamespace(raise_for_status=lambda: None, json=lambda: decision)

    def reached(self, completion: ChatCompletion, tokens: int = 0) -> bool:
        """A script never grows too long for its context."""
        return False


def _completion(calls: Sequence[tuple[str, str]] | None, answer: str | None) -> ChatCompletion:
    """Return a message with these calls, or without any the final one."""
    message: dict[str, Any] = {"role": "assistant", "content": answer if calls is None else None}
    if calls:
        message["tool_calls"] = [
            {"id": f"call-{number}", "type": "function", "function": {"name": tool, "arguments": arguments}}
            for number, (tool, arguments) in enumerate(calls)
        ]
    reason = "tool_calls" if calls else "stop"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return ChatCompletion.model_validate(
        {"id": MODEL, "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
    )


@cache
def chat_program() -> ModuleType:
    """Return upstream's chat program as a module; its entry point is inert unless it is ``__main__``."""
    module = ModuleType("verifiers_chat_program")
    sys.modules[module.__name__] = module
    exec(compile(CHAT_PROGRAM_SOURCE, module.__name__, "exec"), module.__dict__)
    return module
