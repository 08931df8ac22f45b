"""Whose failure a rollout was: the model's, its budget's, or the infrastructure's.

The rule in one sentence: what a policy can bring about by what it writes, however long, is scored; everything
else has no reward. What decides is on the trace, in this order:

- The tool server failed, runs another core, or showed something else than the transcript holds: infrastructure.
- *Time-out of set-up, finalisation or scoring*: infrastructure. None of them runs anything of the policy.
- *Time-out of the rollout*: the policy's length, scored 0, unless something stood still. Standing still is
  infrastructure: a last model request that failed; nothing from the tool server for ``client.timeout.read`` seconds
  while it owed an answer; no request in flight for as long; not one message of the model, and none being written.
  A silent model server shows before that: the environment holds ``client.timeout.read`` to a quarter of
  ``timeout.rollout``, so that silence leaves a failed request on the trace, and a request that has been in flight for
  longer without one is being written. A policy must not escape its zero by writing or calling until the clock runs out.
- *Context overflow* (400 or 413 in a server's words for it): the policy's length, scored 0, once it has written a
  message in this rollout; before that, the prompt alone does not fit: infrastructure.
- *A refused or unsendable message*: upstream's loop dies of some tool calls, and servers answer 400, 413 or 422 to a
  conversation that holds a malformed one. Such a failure right after a malformed message of the policy is the
  policy's, scored 0. Any other status, and any failure after a well-formed message, is infrastructure.
- Limits (``max_turns`` and the token limits) and a final message cut by its length: budget, scored 0.
- With upstream's train client: a sampled message without one log-probability per token, or with one above zero:
  infrastructure. It would enter a trainer as an all-zero mask or as a wrong ratio.
- No answered model request at all, a missing or foreign reward, any other error: infrastructure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gymqual.gyms.base import Kind
from gymqual.gyms.verifiers.evidence import (
    Trace,
    Transcript,
    disagreement,
    episode_of,
    read_transcript,
    unserved,
    verdict_of,
)

LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens", "compaction_failed")
"""Stop conditions by which upstream ends a rollout that is over a budget."""
ROUNDING = 1e-4
"""What a log-probability of one may be above zero: it is the difference of two numbers near 50 in single precision."""
REWARD = "strict"
"""Name of the only reward."""

_REFUSALS = (400, 413, 422)
_OVERFLOWS = (
    "context_length_exceeded",
    "exceeds the context window",
    "reduce the length of the messages",
    "maximum context length",
    "prompt is too long",
    "request_too_large",
    "request entity too large",
    "exceeds the maximum number of tokens",
    "maximum prompt length is",
)
"""Servers' words for an overflow, as upstream's chat program knows them."""
_STATUS = {408: Kind.TIMEOUT, 429: Kind.CAPACITY, 500: Kind.SERVICE_ERROR, 503: Kind.UNREACHABLE, 504: Kind.TIMEOUT}
_PLACES = {
    "ProviderError": "model server",
    "InterceptionError": "interception",
    "TunnelError": "interception",
    "ToolsetError": "tool server",
    "HarnessError": "harness",
    "SandboxError": "runtime",
    "TaskError": "environment",
    "EnvError": "environment",
}


class Source(StrEnum):
    """Whose failure, or success, a rollout is."""

    MODEL = "model"
    BUDGET = "budget"
    INFRASTRUCTURE = "infrastructure"


@dataclass(frozen=True)
class Finding:
    """What one rollout is worth, and why."""

    source: Source
    kind: str
    """Infrastructure: a ``gymqual.gyms.base.Kind``. Else the core's outcome, or what cut the rollout off."""
    reward: float | None
    """None: there is no reward, which is not 0."""
    where: str = ""
    """Infrastructure: the part that failed."""
    detail: str = ""


def fault_of(trace: Trace) -> Finding | None:
    """Return the infrastructure failure of a rollout that upstream does not count as failed, or None.

    Needs no reward: the environment asks before it scores. ``info.tools`` holds what the tool server did.
    """
    transcript = read_transcript(trace)
    info = trace["info"]
    tools = info["tools"]
    if tools["faults"]:
        return _fault(Kind.SERVICE_ERROR, "tool server", "; ".join(tools["faults"]))
    if tools["core"] and tools["core"] != info["identity"]["core"]:
        return _fault(Kind.IDENTITY_CHANGED, "tool server", "it executes another task core than the environment")
    stop = trace.get("stop_condition", "")
    if stop in ("setup_timeout", "finalize_timeout", "scoring_timeout"):
        return _fault(Kind.TIMEOUT, "environment", stop)
    if stop == "agent_timeout":
        stood_still = _time_out(trace, transcript, tools)
        if stood_still:
            return stood_still
    else:
        error = _last_call_error(trace)
        if error and not _is_overflow(error):
            return _provider_fault(error)
        if transcript.turns == 0:
            return _fault(Kind.PROTOCOL, "model server" if error else "harness", "no model request was answered")
    lacking = lacking_tokens(trace)
    if lacking:
        return _fault(Kind.PROTOCOL, "model server", lacking)
    differs = disagreement(trace["task"]["data"]["task_id"], transcript, tools["served"])
    return _fault(Kind.REPLAY_DISAGREEMENT, "tool server", differs) if differs else None


def lacking_tokens(trace: Trace) -> str:
    """Return what a trainer could not learn from in a rollout of upstream's train client, or an empty text.

    Upstream refuses log-probabilities that are missing, too few or not finite, but takes positive ones.
    """
    if trace["agent"]["config"]["client"]["type"] != "train" or trace["info"].get("scripted"):
        return ""
    for node in trace["nodes"]:
        if node["sampled"]:
            sampled = sum(node["mask"])
            if not sampled or len(node["logprobs"]) != sampled:
                return f"{len(node['logprobs'])} log-probabilities of {sampled} sampled tokens"
            if not all(-math.inf < logprob <= ROUNDING for logprob in node["logprobs"]):
                return f"a log-probability of {max(node['logprobs'])} is no probability's logarithm"
    return ""


def budget_of(trace: Trace) -> str:
    """Return the budget that cut a rollout off, or an empty text. Ask ``fault_of`` first."""
    stop = trace.get("stop_condition", "")
    if stop in LIMITS or stop == "agent_timeout":
        return stop
    error = _last_call_error(trace)
    if error and _is_overflow(error):
        return "context_overflow"
    answered = [call for call in trace.get("calls", []) if "error" not in call]
    return "length" if answered and answered[-1].get("finish_reason") == "length" else ""


def classify(trace: Trace) -> Finding:
    """Return what a finished rollout is worth. Total: a trace that is none is infrastructure."""
    try:
        return _classify(trace)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return _fault(Kind.PROTOCOL, "environment", f"not a whole trace of this environment ({error!r})")


def _classify(trace: Trace) -> Finding:
    if not trace["ok"]:
        return _failed(trace, trace["errors"][-1])
    fault = fault_of(trace)
    if fault:
        return fault
    episode = episode_of(trace["task"]["data"]["task_id"], read_transcript(trace), bool(budget_of(trace)))
    verdict = verdict_of(episode)
    rewards = trace["rewards"]
    if rewards.get(REWARD) is None:
        return _fault(Kind.SERVICE_ERROR, "environment", "it was not scored")
    kept = trace["info"]["episode"]
    if {"answer": None, **kept} != episode or rewards != {REWARD: {"score": verdict.reward, "weight": 1.0}}:
        detail = f"it was scored {rewards} as {kept}, the transcript is {episode} and worth {verdict.reward}"
        return _fault(Kind.REPLAY_DISAGREEMENT, "environment", detail)
    if verdict.truncated:
        return Finding(Source.BUDGET, budget_of(trace), verdict.reward)
    return Finding(Source.MODEL, verdict.outcome, verdict.reward)


def _failed(trace: Trace, error: Mapping[str, Any]) -> Finding:
    """Classify a rollout that upstream counts as failed."""
    transcript = read_transcript(trace)
    status = error.get("status_code")
    provider = error["type"] == "ProviderError"
    if transcript.turns and provider and _is_overflow(error):
        return Finding(Source.BUDGET, "context_overflow", 0.0, detail=_short(error["message"]))
    died_of_it = status in _REFUSALS if provider else error["type"] == "HarnessError"
    if transcript.turns and not transcript.writable and died_of_it:
        return Finding(Source.MODEL, "malformed_message", 0.0, detail=_short(error["message"]))
    if "tools" in trace.get("info", {}):
        fault = fault_of(trace)
        if fault:
            return fault
    if provider:
        return _provider_fault(error)
    call_error = _last_call_error(trace)
    if error["type"] == "HarnessError" and call_error:
        return _provider_fault(call_error)
    if error["type"] == "HarnessError" and transcript.last_turn and "Connect" in error["message"]:
        return _fault(Kind.UNREACHABLE, "tool server", error["message"])
    return _fault(Kind.SERVICE_ERROR, _PLACES.get(error["type"], "environment"), error["message"])


def _time_out(trace: Trace, transcript: Transcript, tools: Mapping[str, Any]) -> Finding | None:
    """Return what stood still when the clock ran out, or None: the policy was at work."""
    calls = trace.get("calls", [])
    if calls and "error" in calls[-1]:
        return _provider_fault(calls[-1]["error"])
    patience_s = trace["agent"]["config"]["client"]["timeout"]["read"]
    span = trace["timing"]["agent"]
    quiet_s = span["end"] - max(span["start"], tools["served_at"], *(call["time"]["end"] for call in calls))
    if unserved(transcript, tools["served"]):
        return _fault(Kind.TIMEOUT, "tool server", f"no answer for {quiet_s:.1f} s") if quiet_s > patience_s else None
    if trace["info"].get("requests", 0) > len(calls):
        written_s = span["end"] - trace["info"]["requested_at"]
        if transcript.turns == 0 and written_s <= patience_s:
            return _fault(Kind.TIMEOUT, "harness", f"the first request was made {written_s:.1f} s before the end")
        return None
    if transcript.turns == 0 or quiet_s > patience_s:
        return _fault(Kind.TIMEOUT, "harness", f"no model request for {quiet_s:.1f} s")
    return None


def _last_call_error(trace: Trace) -> Mapping[str, Any] | None:
    calls = trace.get("calls", [])
    return calls[-1].get("error") if calls else None


def _is_overflow(error: Mapping[str, Any]) -> bool:
    text = error["message"].casefold()
    return error.get("status_code") in (400, 413) and any(words in text for words in _OVERFLOWS)


def _provider_fault(error: Mapping[str, Any]) -> Finding:
    kind = _STATUS.get(error.get("status_code", 0), Kind.PROTOCOL)
    # Upstream's client itself refuses what it cannot read or render.
    where = "model server" if error["type"] == "ProviderError" else "model client"
    return _fault(kind, where, f"{error.get('status_code', error['type'])} {error['message']}")


def _fault(kind: Kind, where: str, detail: str) -> Finding:
    return Finding(Source.INFRASTRUCTURE, str(kind), None, where, _short(detail))


def _short(text: str) -> str:
    return text.strip()[-300:]
