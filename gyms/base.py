"""The contract between a gym, a task set and a trainer: the one file a third party reads.

To put your own environment in the place of ours, implement ``TaskSet`` (what the model may see, and an
independent replay) and ``Gym``/``Session`` (a client of your server). Harness, checks and trainer then
work unchanged. The contract is asynchronous; a synchronous face for TRL wraps it.

Two kinds of failure never mix:

- What the model did wrong (unknown record, bad arithmetic, malformed call) is an ``Observation`` with
  ``is_error=True``. The episode goes on and is scored. No output of a model may raise.
- What the infrastructure did wrong is an ``InfrastructureError``. It is never a reward, not even zero, and
  it sticks to the Gym: every later call raises it again until the owner calls ``reset_fault()``.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol


class Kind(StrEnum):
    """What went wrong in the infrastructure."""

    UNREACHABLE = "unreachable"
    """Nothing answers, or the connection was cut; the call may have been delivered."""
    TIMEOUT = "timeout"
    """No answer within the deadline; the call may have been delivered."""
    SESSION_LOST = "session_lost"
    """The server does not know the session: never opened, closed, expired, or the server restarted."""
    CAPACITY = "capacity"
    """The server refused to open another session. The only kind that does not stick."""
    IDENTITY_CHANGED = "identity_changed"
    """The server runs other code, data or versions than the ones that were agreed."""
    PROTOCOL = "protocol"
    """An answer that the contract does not allow, or a call that it does not allow."""
    REPLAY_DISAGREEMENT = "replay_disagreement"
    """The gym's observations or verdict differ from the independent replay of the same calls."""
    SERVICE_ERROR = "service_error"
    """The server failed while handling a well-formed call."""


class Scope(StrEnum):
    """How far an infrastructure failure reaches."""

    ROLLOUT = "rollout"
    SESSION = "session"
    SERVICE = "service"


class InfrastructureError(Exception):
    """The environment failed, not the model. Never converted into a reward or an observation."""

    def __init__(self, kind: Kind, scope: Scope, detail: str) -> None:
        super().__init__(f"{kind} ({scope}): {detail}")
        self.kind = kind
        self.scope = scope
        self.detail = detail


@dataclass(frozen=True)
class Observation:
    """What the model sees of one call: a pure function of (task, calls so far)."""

    text: str
    is_error: bool = False


@dataclass(frozen=True)
class Verdict:
    """What an episode is worth."""

    reward: float | None
    """The gym's reward; None means "no reward", which is not 0."""
    strict: bool
    """Strict success: the only thing reported as success."""
    parts: Mapping[str, float]
    """Named milestones, for diagnosis and training-only shaping."""
    outcome: str
    """Why: one word of the task set's vocabulary."""
    done: bool = True
    """The episode is over."""
    truncated: bool = False
    """A budget ended the episode."""


@dataclass(frozen=True)
class ToolCall:
    """One call as the model wrote it: the tool's name and the JSON text of its arguments."""

    tool: str
    arguments: str


@dataclass(frozen=True)
class Script:
    """A scripted episode: fixed calls and a final message. Never reported as model quality."""

    name: str
    calls: tuple[ToolCall, ...]
    answer: str | None


@dataclass(frozen=True)
class Replay:
    """An episode run again without the gym."""

    observations: tuple[Observation, ...]
    verdict: Verdict


@dataclass(frozen=True)
class GymIdentity:
    """What a server is, as digests of the bytes it really loaded."""

    gym: str
    """nemo, openenv, verifiers, or a third party's name."""
    upstream: str
    """Upstream distribution and version, e.g. ``nemo-gym 0.7.0``."""
    upstream_digest: str
    """sha256 over the rows of the installed distribution's own file record."""
    upstream_modified: tuple[str, ...]
    """Upstream files that the server loaded and whose bytes are not those of that record."""
    stands_for: str
    """Upstream revision the distribution stands for, and whether equality was verified."""
    python: str
    """Implementation and full version of the server's interpreter."""
    core: str
    """sha256 of the task core."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """sha256 of every source file of this product that the server executed, by file name."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @cached_property
    def digest(self) -> str:
        """sha256 over the whole identity: what a client agrees to and a server holds it to."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def read_identity(fields: Mapping[str, Any]) -> GymIdentity:
    """Rebuild an identity from its JSON form; raises TypeError or KeyError if it is none."""
    return GymIdentity(**{**fields, "upstream_modified": tuple(fields["upstream_modified"])})


def require_agreement(replay: Replay, observations: Sequence[Observation], verdict: Verdict) -> None:
    """Raise InfrastructureError unless the gym showed and judged exactly what the replay did.

    A reward is used only after this: a gym that disagrees with the replay of its own calls is broken.
    """
    if len(observations) != len(replay.observations):
        detail = f"{len(observations)} observations came back of {len(replay.observations)} calls"
        raise InfrastructureError(Kind.REPLAY_DISAGREEMENT, Scope.ROLLOUT, detail)
    for number, (served, expected) in enumerate(zip(observations, replay.observations, strict=True)):
        if served != expected:
            detail = f"call {number} showed {served.text[:80]!r}, the replay shows {expected.text[:80]!r}"
            raise InfrastructureError(Kind.REPLAY_DISAGREEMENT, Scope.ROLLOUT, detail)
    if verdict != replay.verdict:
        detail = f"the gym says {verdict}, the replay {replay.verdict}"
        raise InfrastructureError(Kind.REPLAY_DISAGREEMENT, Scope.ROLLOUT, detail)


class TaskSet(Protocol):
    """Everything that is specific to a task. Handed to the gym, read by checks and trainer."""

    @property
    def name(self) -> str:
        """Name of the task set."""
        ...

    @property
    def tools(self) -> Sequence[Mapping[str, Any]]:
        """Function schemas as the model sees them; nothing else is ever offered to it."""
        ...

    def prompt(self, task_id: str) -> list[dict[str, str]]:
        """Return the chat messages the model starts from."""
        ...

    def replay(self, task_id: str, calls: Sequence[ToolCall], answer: str | None, truncated: bool = False) -> Replay:
        """Run the episode without the gym: the independent judgement its verdict must equal."""
        ...

    def secrets(self, task_id: str) -> tuple[str, ...]:
        """Return texts that must reach the model only through a tool's observation."""
        ...

    def scripts(self, task_id: str) -> Mapping[str, Script]:
        """Return the scripted episodes ``oracle``, ``wrong``, ``noop``, ``malformed`` and ``spam``."""
        ...


class Session(Protocol):
    """One episode on a gym."""

    @property
    def id(self) -> str:
        """Opaque id of at least 128 random bits, never shown to a model."""
        ...

    async def call(self, tool: str, arguments: str) -> Observation:
        """Execute one model call; raises InfrastructureError."""
        ...

    async def verify(self, answer: str | None, truncated: bool = False) -> Verdict:
        """End the episode and judge it; repeated, it returns the same verdict. Raises InfrastructureError."""
        ...

    async def close(self) -> None:
        """Release the session. Idempotent."""
        ...


class Gym(Protocol):
    """A client of one environment service."""

    def identity(self) -> GymIdentity:
        """Return what the service is; raises InfrastructureError if it is not what it was."""
        ...

    async def open(self, task_id: str) -> Session:
        """Open a fresh episode; raises InfrastructureError, of which only ``capacity`` does not stick."""
        ...

    def reset_fault(self) -> None:
        """Let the owner, and nobody else, clear a sticky fault."""
        ...
