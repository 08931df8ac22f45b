"""What the policy server reads: the fields it honours, and nothing it would have to ignore in silence.

A field that is null counts as absent. A field that would change what is sampled and is not honoured is refused
unless it holds its neutral value.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

NonNegative = Annotated[int, Field(ge=0)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return {name: value for name, value in data.items() if value is not None} if isinstance(data, dict) else data


class _Open(_Fields):
    model_config = ConfigDict(extra="allow")


# ---- chat ------------------------------------------------------------------------------------------


class TextPart(_Fields):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


class Function(_Fields):
    """A called function; its arguments are JSON text, or what the model wrote instead."""

    name: str
    arguments: str = "{}"


class Call(_Open):
    """A tool call that the assistant made earlier; what a client echoes beside these fields is not rendered."""

    id: str = ""
    type: Literal["function"] = "function"
    function: Function


class Message(_Open):
    """One message; what a client echoes beside these fields is not rendered."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextPart] = ""
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] = []
    tool_call_id: str | None = None

    def rendered(self) -> dict[str, Any]:
        """Return the message as chat templates take it: text in one piece, arguments as data."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        message: dict[str, Any] = {"role": self.role, "content": text}
        if self.name:
            message["name"] = self.name
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [
                {"type": "function", "function": {"name": call.function.name, "arguments": _data(call.function)}}
                for call in self.tool_calls
            ]
        return message


def _data(function: Function) -> Any:
    # What is no object stays the text it is: a model may have written it, and its next turn goes on from there.
    try:
        value = json.loads(function.arguments)
    except ValueError:
        return function.arguments
    return value if isinstance(value, dict) else function.arguments


class FunctionSchema(_Open):
    """What a tool is called and takes; all of it is handed to the template."""

    name: str


class Tool(_Fields):
    """An offered tool."""

    type: Literal["function"]
    function: FunctionSchema


class StreamOptions(_Fields):
    """What a stream carries beside its deltas."""

    include_usage: bool = False


class _Sampling(_Fields):
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: Seed | None = None
    n: Literal[1] = 1
    top_k: Annotated[int, Field(ge=-1, le=0)] = 0
    min_p: Zero = 0.0
    presence_penalty: Zero = 0.0
    frequency_penalty: Zero = 0.0
    repetition_penalty: One = 1.0


class ChatRequest(_Sampling):
    """``POST /v1/chat/completions``."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[Tool] = []
    tool_choice: Literal["auto", "none"] = "auto"
    parallel_tool_calls: Literal[True] = True
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    logprobs: bool = False
    top_logprobs: Literal[0] = 0
    user: str = ""

    @property
    def offered(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them; none where the client wants no call."""
        return [] if self.tool_choice == "none" else [tool.model_dump() for tool in self.tools]


# ---- token in, token out ---------------------------------------------------------------------------


class SamplingParams(_Sampling):
    """How ids are drawn."""

    stop_token_ids: list[NonNegative] = []
    """Beside the policy's own end of turn."""
    logprobs: Literal[0, 1] | None = None
    """Any number gives the log-probability of each sampled id, and of no other."""
    skip_special_tokens: bool = False
    """Of no effect: ids are returned, not text."""
    ignore_eos: Literal[False] = False
    routed_experts_prompt_start: NonNegative = 0
    """Of no effect: there are no experts."""


class GenerateRequest(_Fields):
    """``POST /inference/v1/generate``."""

    model: str | None = None
    token_ids: Annotated[list[NonNegative], Field(min_length=1)]
    sampling_params: SamplingParams = SamplingParams()
    request_id: str = ""
    cache_salt: str = ""
    """Of no effect: nothing is cached between requests."""
    priority: int = 0
    """Of no effect: first come, first served."""
