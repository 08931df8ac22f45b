"""What benchmarks of servers share: how much is called, what a server keeps of its sessions, and who owns it."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import Server
from gymqual.harness.records.figures import Figure

CALLS_PER_BLOCK = 300
CALLS_PER_SESSION = 50
WARM_UP_SESSIONS = 200
SESSIONS = 2000


def growth_figures(server: Server, sessions: Callable[[int], None]) -> list[Figure]:
    """Let a fresh server carry many sessions after a warm-up, and measure what it keeps of them."""
    sessions(WARM_UP_SESSIONS)
    rss, descriptors = server.rss_bytes(), server.descriptors()
    sessions(SESSIONS)
    grown_mb = (server.rss_bytes() - rss) / 2**20
    return [
        Figure(f"resident memory grown over {SESSIONS} sessions", grown_mb, 32.0, "MB"),
        Figure(
            f"descriptors grown over {SESSIONS} sessions", abs(server.descriptors() - descriptors), 0, "descriptors"
        ),
    ]


@contextmanager
def owned() -> Iterator[tuple[Path, Owner]]:
    """A folder and an owner of servers, both gone at the end."""
    owner = Owner()
    try:
        with tempfile.TemporaryDirectory(prefix="gymqual-bench-") as folder:
            yield Path(folder), owner
    finally:
        owner.close()
