"""Chat transcripts of scripted episodes, and their token ids with the assistant's spans marked.

The teacher plays a task set's own oracle. A faulty teacher makes one wrong decision, the first operator of
the calculation, and then reports faithfully what the tool shows: a mistake a policy can unlearn.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from gymqual.gyms.base import TaskSet, ToolCall

Message = dict[str, Any]


def teacher_messages(tasks: TaskSet, task_id: str, faulty: bool = False) -> list[Message]:
    """Return the whole conversation of the scripted oracle, or of its faulty variant."""
    script = tasks.scripts(task_id)["oracle"]
    calls = tuple(
        replace(call, arguments=call.arguments.replace("*", "+", 1)) if faulty else call for call in script.calls
    )
    shown = tasks.replay(task_id, calls, script.answer).observations
    messages: list[Message] = [*tasks.prompt(task_id)]
    for call, observation in zip(calls, shown, strict=True):
        messages.append(call_message(call))
        messages.append({"role": "tool", "name": call.tool, "content": observation.text})
    messages.append({"role": "assistant", "content": shown[-1].text if faulty else script.answer})
    return messages


def call_message(call: ToolCall) -> Message:
    """Return the assistant message that makes one tool call."""
    function = {"name": call.tool, "arguments": json.loads(call.arguments)}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


@dataclass(frozen=True)
class Tokens:
    """One transcript as ids; ``mask`` is 1 on what the assistant wrote, its end-of-turn token included."""

    ids: list[int]
    mask: list[int]


def render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> str:
    """Return a conversation as the chat template writes it."""
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, **options)
    assert isinstance(text, str)
    return text


def render_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> list[int]:
    """Return a conversation's ids as the chat template gives them."""
    ids: Any = tokenizer.apply_chat_template(list(messages), tokenize=True, return_dict=False, **options)
    return ids


def token_id(value: Any) -> int:
    """Return a special token's id; raises ValueError if the tokenizer has none or several."""
    if not isinstance(value, int):
        raise ValueError(f"one token id is needed, not {value!r}")
    return value


def encode(tokenizer: PreTrainedTokenizerBase, conversations: Sequence[list[Message]]) -> list[Tokens]:
    """Render and tokenise conversations by the tokenizer's chat template, which must mark the assistant's spans."""
    encoded: Any = tokenizer.apply_chat_template(
        list(conversations), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return [Tokens(ids, mask) for ids, mask in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True)]


def encode_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], tools: Sequence[Message] = ()
) -> Tokens:
    """Tokenise one conversation with any prefix-preserving template, marked or not.

    An assistant's span is what its message adds to the prompt that it would be sampled from, so that the ids
    trained are ids that can be sampled. Raises ValueError if a span's ids depend on what follows it.
    """
    whole = render_ids(tokenizer, messages, tools=list(tools) or None)
    mask = [0] * len(whole)
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = render_ids(tokenizer, messages[:index], tools=list(tools) or None, add_generation_prompt=True)
        turn = render_ids(tokenizer, messages[: index + 1], tools=list(tools) or None)
        # What follows the end of turn is framing, which the next prompt brings.
        end = len(turn) - turn[::-1].index(token_id(tokenizer.eos_token_id))
        if turn[: len(prompt)] != prompt or whole[:end] != turn[:end]:
            raise ValueError(f"the chat template renders message {index} otherwise in another context")
        mask[len(prompt) : end] = [1] * (end - len(prompt))
    return Tokens(whole, mask)


def tool_schemas(tasks: TaskSet) -> list[Message]:
    """Return a task set's tools as chat templates take them."""
    return [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in tasks.tools]


def call_of(tool_call: Message) -> ToolCall:
    """Return a parsed tool call in the contract's terms: arguments as JSON text."""
    function = tool_call.get("function", tool_call)
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    return ToolCall(str(function["name"]), text)
