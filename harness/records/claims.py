"""What was verified, claim by claim: of a run, of a training, of an attestation."""

from collections.abc import Iterable


class Claims:
    """Claims of a manifest, each held or broken, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.broken = 0

    def add(self, claim: str, faults: Iterable[str] = ()) -> None:
        """Record a claim; every fault names what does not hold."""
        found = list(faults)
        self.broken += len(found)
        self.lines.extend([f"BROKEN  {fault}" for fault in found] or [f"held    {claim}"])

    def leave(self, claim: str, reason: str) -> None:
        """Record a claim that is not judged here, with what that would need."""
        self.lines.append(f"not judged  {claim}: {reason}")
