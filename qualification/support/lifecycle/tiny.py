"""Starting the tiny server the way a gym's server is started."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import READY_LIMIT_S, Launch, Server, start_server

SCRIPT = Path(__file__).with_name("tiny_server.py")


def start_tiny(
    owner: Owner,
    folder: Path,
    behaviour: str = "polite",
    *,
    ports: Iterable[int] | None = None,
    limit_s: float = READY_LIMIT_S,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a tiny server; see ``tiny_server.serve`` for its behaviours."""

    def launch(port: int) -> Launch:
        return Launch((sys.executable, "-P", str(SCRIPT), str(port), behaviour), environment or {})

    def identify(server: Server) -> tuple[str, int]:
        answer = ask(server)
        return answer["nonce"], answer["pid"]

    return start_server("tiny", launch, identify, owner=owner, folder=folder, ports=ports, limit_s=limit_s)


def ask(server: Server) -> dict[str, Any]:
    """Return what a tiny server says of itself."""
    return httpx.get(server.url, trust_env=False, timeout=30.0).raise_for_status().json()
