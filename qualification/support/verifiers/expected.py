"""What the Verifiers checks read off a trace, and what they expect."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shutil import copytree
from typing import Any

from gymqual.gyms.base import GymIdentity, read_identity
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.verifiers.rules import classify
from gymqual.harness.stacks.verifiers_rollouts import Run as Rollouts
from gymqual.qualification.support.verifiers.lab import classified
from gymqual.qualification.support.verifiers.token_tap import Exchange

Trace = Mapping[str, Any]

READ_S = 30.0
"""A quarter of the documented rollout time-out."""
REQUEST_FIELDS = {"messages", "model", "stream", "stream_options", "tools", "headers"}
"""What upstream's null harness sends; ``headers`` is where the scripted server keeps what came with it."""

PAID = ["oracle", "a turn of several calls"]
"""Scripted episodes that take the whole right path."""

SCRIPTED_TURNS = {
    "calls": 0,
    "harness": "fixture_harness",
    "ok": True,
    "reward": 1.0,
    "roles": ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"],
    "scripted": True,
    "stages": ["boot", "setup", "agent", "finalize", "scoring"],
    "stop": "agent_completed",
    "tokens": 0,
    "tools": ["lookup", "calculator"],
    "trainable": False,
    "usage": 0,
}
"""One scripted success, as ``Seen.scripted`` reads it."""


class Seen:
    """What is read off a trace."""

    @staticmethod
    def identity(trace: Trace) -> GymIdentity:
        """The identity on record."""
        return read_identity(trace["info"]["identity"])

    @staticmethod
    def messages(trace: Trace) -> list[dict[str, Any]]:
        """Every message, in order."""
        return [node["message"] for node in trace["nodes"]]

    @staticmethod
    def observations(trace: Trace) -> list[str]:
        """What the tools showed."""
        return [message["content"] for message in Seen.messages(trace) if message["role"] == "tool"]

    @staticmethod
    def turns(trace: Trace) -> int:
        """Messages of the model."""
        return sum(node["sampled"] for node in trace["nodes"])

    @staticmethod
    def tasks(run: Rollouts) -> dict[str, str]:
        """Content hash of every task by its key."""
        return {key: trace["task"]["hash"] for key, trace in run.traces.items()}

    @staticmethod
    def offered(orders: GermanOrders) -> list[dict[str, Any]]:
        """The task set's tools as a chat request carries them."""
        return [
            {"type": "function", "function": {key: tool[key] for key in ("name", "description", "parameters")}}
            for tool in orders.tools
        ]

    @staticmethod
    def most_at_once(traces: Iterable[Trace]) -> int:
        """How many rollouts were being played at one moment, at most."""
        spans = [trace["timing"]["agent"] for trace in traces]
        return max(sum(other["start"] <= span["start"] < other["end"] for other in spans) for span in spans)

    @staticmethod
    def scripted(trace: Trace) -> dict[str, Any]:
        """What tells a scripted rollout from a model's, and a whole lifecycle from a part of it."""
        nodes = trace["nodes"]
        return {
            "calls": len(trace["calls"]),
            "harness": trace["agent"]["config"]["harness"]["id"],
            "ok": trace["ok"],
            "reward": of_trace(trace)[1],
            "roles": [message["role"] for message in Seen.messages(trace)],
            "scripted": trace["info"].get("scripted"),
            "stages": [stage for stage in SCRIPTED_TURNS["stages"] if trace["timing"][stage]["end"] > 0],
            "stop": trace["stop_condition"],
            "tokens": sum(
                len(node[part]) for node in nodes for part in ("token_ids", "mask", "logprobs", "is_content")
            ),
            "tools": [tool["name"] for tool in trace["tools"]],
            "trainable": trace["agent"]["trainable"],
            "usage": trace["num_input_tokens"] + trace["num_output_tokens"],
        }


def of_trace(trace: Trace) -> tuple[bool, float | None, str, str]:
    """Return (upstream's ok, reward, source, kind) of a trace."""
    finding = classify(trace)
    return trace["ok"], finding.reward, str(finding.source), finding.kind


def tampered(healthy: Path, failing: Path) -> dict[str, int]:
    """Return the classifier's exit code on a healthy run, on one with time-outs, and on runs that are not whole."""
    folders = {"healthy": healthy, "time-outs": failing, "no run": healthy.parent}
    for name in ("torn line", "half a run"):
        folders[name] = copytree(healthy, healthy.with_name(f"{healthy.name} {name}"), dirs_exist_ok=True)
    torn, half = folders["torn line"] / "traces.jsonl", folders["half a run"] / "traces.jsonl"
    torn.write_bytes(torn.read_bytes()[:-1000])
    half.write_bytes(b"".join(half.read_bytes().splitlines(keepends=True)[:4]))
    return {name: classified(folder)[0] for name, folder in folders.items()}


def _infra(kind: str, where: str) -> tuple[object, ...]:
    return ("infrastructure", kind, where, None, None)


def _scored(kind: str, reward: float = 0.0, source: str = "model", inside: float | None = 0.0) -> tuple[object, ...]:
    return (source, kind, "", reward, reward if inside == 0.0 else inside)


FAULTS: dict[str, tuple[object, ...]] = {
    **{f"{when} http 400": _infra("protocol", "model server") for when in ("first", "later")},
    **{f"{when} http 429": _infra("capacity", "model server") for when in ("first", "later")},
    **{f"{when} http 500": _infra("service_error", "model server") for when in ("first", "later")},
    **{f"{when} cut stream": _infra("protocol", "model server") for when in ("first", "later")},
    **{f"{when} broken json": _infra("protocol", "model server") for when in ("first", "later")},
    **{f"{when} no choice": _infra("service_error", "interception") for when in ("first", "later")},
    **{f"{when} hang": _infra("timeout", "model server") for when in ("first", "later")},
    "first overflow": _infra("protocol", "model server"),
    "refused": _infra("unreachable", "model server"),
    "tool_raises": _infra("service_error", "tool server"),
    "tool_hangs": _infra("timeout", "tool server"),
    "tool_server_exits": _infra("timeout", "tool server"),
    "setup_hangs": _infra("timeout", "environment"),
    "scoring_hangs": _infra("timeout", "environment"),
    "later overflow": _scored("context_overflow", source="budget"),
    "solved": _scored("solved", 1.0),
    "solved after malformed calls": _scored("solved", 1.0),
    "says nothing": _scored("no_answer"),
    "wrong number": _scored("wrong_answer"),
    "cut by its length": _scored("length", source="budget"),
    # Upstream keeps no reward of a rollout that it counts as failed: the classifier alone gives it its zero.
    "refused after a malformed call": _scored("malformed_message", inside=None),
    # Upstream's loop asks its gate in JSON, and ends when that cannot be written or read.
    "writes what JSON cannot hold": _scored("malformed_message", inside=None),
    "nested too deeply": _scored("malformed_message", inside=None),
    "overflows its context": _scored("context_overflow", source="budget"),
    "never stops writing": _scored("agent_timeout", source="budget"),
    "never stops calling": _scored("max_turns", source="budget"),
}
"""By case: source, kind, where, reward, and the reward that upstream keeps on the trace."""


def account(branches: Sequence[Mapping[str, Any]], trace_id: str, exchanges: Sequence[Exchange]) -> dict[str, int]:
    """Return how often a rollout's branch differs from what crossed the wire; all zero if it is exact.

    ``unasked``: prompts that are not the ids before the sampled span; ``unsampled``: sampled spans of other ids;
    ``unlikely``: other log-probabilities; ``unmasked``: masked ids that nobody sampled, or the other way round;
    ``loss``: 1 if the negative log-likelihood over the mask is not the sum over what was sampled.
    """
    (branch,) = branches
    ids, mask, logprobs = branch["ids"], branch["mask"], branch["logprobs"]
    differing: dict[str, int] = dict.fromkeys(("unasked", "unsampled", "unlikely", "unmasked", "loss"), 0)
    sampled_at: set[int] = set()
    total = 0.0
    for exchange in exchanges:
        if exchange.session != trace_id:
            continue
        asked = exchange.asked["token_ids"]
        choice = exchange.answered["choices"][0]
        span = range(len(asked), len(asked) + len(choice["token_ids"]))
        served = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        differing["unasked"] += ids[: len(asked)] != asked
        differing["unsampled"] += ids[span.start : span.stop] != choice["token_ids"]
        differing["unlikely"] += not all(
            abs(mine - theirs) <= WRITTEN for mine, theirs in zip(logprobs[span.start : span.stop], served, strict=True)
        )
        sampled_at |= set(span)
        total += sum(served)
    differing["unmasked"] = sum((position in sampled_at) != marked for position, marked in enumerate(mask))
    loss = sum(logprob for logprob, marked in zip(logprobs, mask, strict=True) if marked)
    differing["loss"] = int(abs(loss - total) > WRITTEN * len(ids))
    return differing


WRITTEN = 1e-4
"""Precision that upstream writes log-probabilities with."""

DOCUMENTED_ROLLOUTS = {
    "v1/dev/0/0": (True, 1.0, "model", "solved"),
    "v1/dev/0/1": (True, 0.0, "model", "wrong_answer"),
    "v1/dev/0/2": (True, 0.0, "budget", "max_turns"),
    "v1/dev/0/3": (True, 0.0, "budget", "max_output_tokens"),
}
"""What the documented command's four rollouts come to: (upstream's ok, reward, source, kind)."""
SHORT_ROLLOUTS = {
    "v1/dev/0/0": (0.0, "budget", "agent_timeout"),
    "v1/dev/0/1": (None, "infrastructure", "timeout"),
}
"""The same with sixteen seconds a rollout, of a model that never stops and of one that never answers."""
