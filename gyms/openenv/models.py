"""What goes over the WebSocket: upstream's typed action, observation and state for the German task.

Text that a model wrote is not validated: pydantic refuses half a character, and upstream's answer to that would
end the session. Whatever arrives as text is judged by the core, and scored.
"""

from typing import Annotated, Any

from openenv.core.env_server.types import Action, Observation, State
from pydantic import BaseModel, ConfigDict, Field, SkipValidation

Written = Annotated[str | None, SkipValidation]
"""Text as the model wrote it."""


class Verification(BaseModel):
    """The end of an episode. For the trainer's client alone: a model is offered no such thing."""

    model_config = ConfigDict(extra="forbid")

    secret: Written
    """The client's secret; without it the episode goes on."""
    answer: Written = None
    """Text of the final assistant message; null if there was none."""
    truncated: bool = False
    """A budget ended the episode."""


class OrdersAction(Action):
    """One step: a call of ``lookup`` or ``calculator`` as the model wrote it, or the episode's verification."""

    tool: Written = None
    arguments: Written = None
    """JSON text of the call's arguments."""
    call_id: str | None = None
    """Names the call; repeated, it returns the stored observation."""
    verification: Verification | None = None


class OrdersObservation(Observation):
    """What one reset or step gives. ``reward`` is null until the episode has its verdict: null is not 0."""

    text: str = ""
    """What the model sees of a call."""
    is_error: bool = False
    """The call was the model's own failure."""
    reply_to: str = ""
    """The episode's id after a reset, the call's id after a step."""
    messages: list[dict[str, str]] = Field(default_factory=list)
    """After a reset: the chat messages the model starts from."""
    served_by: str = ""
    """After a reset: digest of the server's identity, a blank, ``nonce/pid`` of its process."""
    verdict: dict[str, Any] | None = None
    """After the verification: the verdict in full."""


class OrdersState(State):
    """Where an episode is. Holds nothing of the record: upstream serves it to whoever asks."""

    task_id: str | None = None
    done: bool = False
    reward: float | None = None
    outcome: str | None = None
