"""What stops a training run."""


class AuditError(Exception):
    """The trainer does something else than it says. Names the rule and, where there is one, the place."""

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
