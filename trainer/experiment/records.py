"""What the stages of an experiment put down beside their results: notes, looks, replays, and the arms' comparison."""

from gymqual.harness.records.run_records import Sha256, StrictModel
from gymqual.trainer.learning.agreement import Agreement


class Notes(StrictModel):
    """What was not planned."""

    items: tuple[str, ...] = ()


class Look(StrictModel):
    """One look at the test split."""

    owner: str
    adapter: Sha256 | None


class Looks(StrictModel):
    """Every look at the test split, put down before it."""

    items: tuple[Look, ...] = ()


class Replay(StrictModel):
    """What the replay audit of a training run said."""

    manifest: Sha256
    """Of the run that it was asked of."""
    lines: tuple[str, ...]


class Parity(StrictModel):
    """The comparison of the arms' traces."""

    parity: Agreement | None
