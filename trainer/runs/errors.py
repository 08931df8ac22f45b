"""What stops a training run, or whoever makes several."""

from collections.abc import Iterator
from contextlib import contextmanager


class AuditError(Exception):
    """The trainer does something else than it says. Names the rule and, where there is one, the place."""

    exit_code = 2

    def __init__(
        self, rule: str, detail: str, *, rollout: int | None = None, turn: int | None = None, offset: int | None = None
    ) -> None:
        places = {"rollout": rollout, "turn": turn, "offset": offset}
        where = ", ".join(f"{name} {value}" for name, value in places.items() if value is not None)
        super().__init__(f"{rule}: {detail}" + (f" ({where})" if where else ""))
        self.rule = rule
        self.rollout = rollout
        self.turn = turn
        self.offset = offset
        self.step = 0
        """Optimizer step that it was found in, from 1; 0 outside of training."""


class Stopped(Exception):
    """A stage that did not come to its end: what it left says why, and nothing after it is begun."""

    exit_code = 1


class Findings(list[AuditError]):
    """What did not hold. A run ends with the first, unless it is studied for what else would be found."""

    def __init__(self, stops: bool) -> None:
        super().__init__()
        self.step = 0
        """The optimizer step at hand, from 1."""
        self._stops = stops

    @contextmanager
    def rule(self) -> Iterator[None]:
        """Keep what is raised inside, and let it stop the run if it is to be stopped."""
        try:
            yield
        except AuditError as error:
            error.step = self.step
            self.append(error)
            if self._stops:
                raise
