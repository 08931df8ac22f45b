"""Scripted episodes that every gym must carry alike, and what crossed each gym's wire while it did."""

import asyncio
import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gymqual.gyms.base import Observation, Script, ToolCall, Verdict
from gymqual.gyms.client import ClientGym
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.nemo.client import NemoGym
from gymqual.gyms.openenv.client import OpenEnvGym
from gymqual.gyms.verifiers.evidence import read_transcript
from gymqual.gyms.verifiers.rules import classify
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.fault_proxy import FaultProxy
from gymqual.harness.stacks.services import start_bridge, start_nemo, start_openenv
from gymqual.harness.stacks.verifiers_rollouts import Verifiers
from gymqual.qualification.support.german.tables import HOSTILE, TABLE
from gymqual.qualification.support.scenarios import HOSTILE_CALLS, right_answer, right_path

TASK = "v1/dev/0/0"


class Episode(NamedTuple):
    """One scripted episode."""

    name: str
    task_id: str
    script: Script
    truncated: bool = False
    at_once: bool = False
    """All calls are made together, as the calls of one turn may be."""


class Told(NamedTuple):
    """What an episode came to."""

    observations: tuple[Observation, ...]
    verdict: Verdict


def scripted_episodes(orders: GermanOrders) -> list[Episode]:
    """Right, wrong and near misses on tasks of three pools; duplicates, turns of several calls, and budgets."""
    right, answer = right_path(orders, TASK), right_answer(orders, TASK)
    scripts = [
        Episode(name, task, script)
        for task in (TASK, "v1/train/43/1", "extended/dev/0/0")
        for name, script in orders.scripts(task).items()
    ]
    return [
        *scripts,
        Episode("truncated", TASK, Script("truncated", right, answer), truncated=True),
        Episode("every call twice", TASK, Script("twice", tuple(call for call in right for _ in range(2)), answer)),
        Episode("a turn of several calls", TASK, Script("turn", (*right, *right[::-1], *right), answer), at_once=True),
        Episode("calculated before looked up", TASK, Script("before", right[::-1], answer)),
    ]


def malformed_episodes(orders: GermanOrders) -> list[Episode]:
    """The malformed and hostile calls, each in an episode that goes on to its right answer."""
    right, answer = right_path(orders, TASK), right_answer(orders, TASK)
    surrogates = (ToolCall("calculator", '{"expression": "\ud800"}'), ToolCall("\ud800", "{}"))
    return [
        Episode(f"malformed {number}", TASK, Script("malformed", (call, *right), answer))
        for number, call in enumerate((*HOSTILE_CALLS, *surrogates))
    ]


def number_episodes(orders: GermanOrders) -> list[Episode]:
    """Every number form and hostile expression through the calculator, and every form as the answer."""
    expressions = [*TABLE, *HOSTILE]
    calls = [ToolCall("calculator", json.dumps({"expression": text})) for text in expressions]
    # No more in an episode than are executed.
    rows = [tuple(calls[start : start + 60]) for start in range(0, len(calls), 60)]
    answers = [*TABLE, f" {right_answer(orders, TASK)} ", f"Antwort: {right_answer(orders, TASK)}", "\ud800"]
    right = right_path(orders, TASK)
    return [
        *(Episode(f"expressions {number}", TASK, Script("numbers", row, "1")) for number, row in enumerate(rows)),
        *(Episode(f"answer {text[:20]!r}", TASK, Script("answer", right, text)) for text in answers),
    ]


@dataclass
class Carrier:
    """A gym's client behind a wire that is recorded."""

    gym_name: str
    proxy: FaultProxy
    port: int
    """Of the server, or of the bridge in front of it."""
    secret: str

    def client(self, orders: GermanOrders) -> ClientGym:
        """Return a client on the event loop."""
        if self.gym_name == "nemo":
            return NemoGym(self.proxy.url, self.secret, orders)
        return OpenEnvGym(self.port, self.secret, orders)

    def play(self, orders: GermanOrders, episodes: list[Episode]) -> tuple[list[Told], list[tuple[bytes, bool]]]:
        """Play episodes one after the other; return what the client told, and the observations on the wire."""
        self.proxy.answered.clear()
        told = asyncio.run(self._play(orders, episodes))
        return told, [seen for stream in self.proxy.answered for seen in observations_in(stream)]

    async def _play(self, orders: GermanOrders, episodes: list[Episode]) -> list[Told]:
        async with self.client(orders) as gym:
            return [await _play_one(gym, episode) for episode in episodes]


async def _play_one(gym: ClientGym, episode: Episode) -> Told:
    session = await gym.open(episode.task_id)
    try:
        calls = [session.call(call.tool, call.arguments) for call in episode.script.calls]
        shown = await asyncio.gather(*calls) if episode.at_once else [await call for call in calls]
        return Told(tuple(shown), await session.verify(episode.script.answer, episode.truncated))
    finally:
        await session.close()


@dataclass
class VerifiersCarrier:
    """Verifiers, which runs its rollouts itself: episodes go in as data, observations are read off its traces."""

    verifiers: Verifiers
    gym_name: str = "verifiers"

    def play(self, orders: GermanOrders, episodes: list[Episode]) -> tuple[list[Told], list[tuple[bytes, bool]]]:
        """Play episodes through upstream's lifecycle in one process; see ``Carrier.play``.

        MCP shows a text and no flag of ours: whether it is an error is taken from the replay, and only the text and
        what upstream pays are told.
        """
        rows = [as_row(episode) for episode in episodes]
        plan = {
            "env": {"agent": {"harness": {"id": "fixture_harness"}, "runtime": {"type": "subprocess"}}},
            "stages": [rows[start : start + TOGETHER] for start in range(0, len(rows), TOGETHER)],
        }
        saved = self.verifiers.play(f"parity-{time.monotonic_ns()}", plan).episodes
        traces = {episode["task"]["data"]["idx"]: episode["traces"][0] for episode in saved}
        told = [_told(traces[number], due) for number, due in enumerate(replayed(orders, episodes))]
        return told, [(seen.text.encode(), seen.is_error) for each in told for seen in each.observations]


def carries(gym_name: str, episode: Episode) -> bool:
    """Whether a gym's wire can carry an episode at all.

    Upstream's Verifiers reads its requests by a parser that takes no half a character, and its own loop ends over a
    thousand brackets; such a rollout is scored 0, by the classifier.
    """
    texts = [
        episode.script.answer or "",
        *(text for call in episode.script.calls for text in (call.tool, call.arguments)),
    ]
    whole = all(text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text) for text in texts)
    return gym_name != "verifiers" or (whole and all(text.count("[") < 1000 for text in texts))


TOGETHER = 16
"""Rollouts of Verifiers that are played at once."""


def as_row(episode: Episode) -> dict[str, Any]:
    """Return an episode as a row of the Verifiers taskset holds it."""
    script = {
        "calls": [[call.tool, call.arguments] for call in episode.script.calls],
        "answer": episode.script.answer,
        "truncated": episode.truncated,
        "at_once": episode.at_once,
    }
    return {"task_id": episode.task_id, "script": script}


def _told(trace: dict[str, Any], due: Told) -> Told:
    shown = [each.shown for each in read_transcript(trace).calls]
    flags = [seen.is_error for seen in due.observations] + [False] * len(shown)
    observations = tuple(Observation(text or "", flag) for text, flag in zip(shown, flags, strict=False))
    finding = classify(trace)
    outcome = due.verdict.outcome if str(finding.source) == "budget" and due.verdict.truncated else finding.kind
    return Told(observations, replace(due.verdict, reward=finding.reward, outcome=outcome))


@contextmanager
def carrier(gym_name: str, run: Run) -> Iterator[Carrier | VerifiersCarrier]:
    """Serve a gym behind a recording wire."""
    if gym_name == "verifiers":
        folder = run.folder / run.mine("rollouts") / "parity"
        yield VerifiersCarrier(Verifiers(run.stack(gym_name), run.subject, run.owner, folder))
        return
    folder = run.folder / run.mine("servers") / f"parity-{gym_name}"
    stack = run.stack(gym_name)
    start = start_nemo if gym_name == "nemo" else start_openenv
    service = start(stack, run.subject, run.owner, folder)
    servers = [service.server]
    try:
        with FaultProxy(service.server.port) as proxy:
            port = proxy.port
            if gym_name == "openenv":
                bridge = start_bridge(stack, run.subject, run.owner, folder, url=proxy.url, secret=service.secret)
                servers.append(bridge)
                port = bridge.port
            yield Carrier(gym_name, proxy, port, service.secret)
    finally:
        for server in servers:
            server.stop()


def replayed(orders: GermanOrders, episodes: list[Episode]) -> list[Told]:
    """Return what every episode must come to, by the core alone."""
    return [
        Told(*_fields(orders.replay(each.task_id, each.script.calls, each.script.answer, each.truncated)))
        for each in episodes
    ]


def _fields(replay: Any) -> tuple[tuple[Observation, ...], Verdict]:
    return replay.observations, replay.verdict


# ---- reading the wire ------------------------------------------------------------------------------


def observations_in(stream: bytes) -> list[tuple[bytes, bool]]:
    """Return (text in UTF-8, is_error) of every observation that a server sent on one connection."""
    return [
        (message["text"].encode(), message["is_error"])
        for message in map(_observation, _messages(stream))
        if message is not None
    ]


def _observation(message: Any) -> dict[str, Any] | None:
    """Return the observation of a call; None for anything else: a reset, a verdict, another answer."""
    if message.get("type") == "observation":
        message = message["data"]["observation"]
        if message["messages"] or message["verdict"]:
            return None
    return message if {"text", "is_error"} <= message.keys() else None


def _messages(stream: bytes) -> Iterator[Any]:
    """Yield the JSON bodies of HTTP answers, and the text frames after an upgrade to WebSocket."""
    while stream:
        head, _, stream = stream.partition(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 101"):
            yield from _text_frames(stream)
            return
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        size = int(length.group(1)) if length else 0
        yield json.loads(stream[:size])
        stream = stream[size:]


def _text_frames(stream: bytes) -> Iterator[Any]:
    """Yield what a server's unmasked, uncompressed text frames hold (RFC 6455, 5.2)."""
    while stream:
        opcode, length, start = stream[0] & 0x0F, stream[1], 2
        if length >= 126:
            width = 2 if length == 126 else 8
            length, start = int.from_bytes(stream[2 : 2 + width]), 2 + width
        if opcode == 1:
            yield json.loads(stream[start : start + length])
        stream = stream[start + length :]
