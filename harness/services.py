"""Starting a gym's real service from its stack and a staged subject."""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gyms.base import GymIdentity, read_identity
from gyms.nemo.launch import SECRET_HEADER, NemoSettings
from harness.errors import ServerFailed
from harness.process import Launch, Owner, Server, start_server
from harness.stacks import Stack
from harness.stage import Subject


@dataclass(frozen=True)
class NemoService:
    """A running NeMo resources server and the key to its bridge routes."""

    server: Server
    secret: str
    identity: GymIdentity
    process: dict[str, Any]
    """What the server says of its process: nonce, pid, base classes."""

    @property
    def bridge_headers(self) -> dict[str, str]:
        """Headers that open the bridge routes."""
        return {SECRET_HEADER: self.secret}


def start_nemo(
    stack: Stack,
    subject: Subject,
    owner: Owner,
    folder: Path,
    *,
    entry: Path | None = None,
    secret: str | None = None,
    ports: Iterable[int] | None = None,
    **settings: Any,
) -> NemoService:
    """Start a NeMo resources server; ``settings`` are fields of NemoSettings. Raises ServerFailed."""
    secret = secret or secrets.token_hex(32)
    server = _start(stack, subject, owner, folder, entry or subject.nemo_entry, secret, ports, settings)
    answer = _ask_identity(server, secret)
    return NemoService(server, secret, read_identity(answer["identity"]), answer["process"])


def start_trivial_nemo(stack: Stack, subject: Subject, owner: Owner, folder: Path) -> Server:
    """Start upstream's base class with one trivial tool, the reference of benchmarks. Raises ServerFailed."""
    entry = subject.nemo_entry.parent / "tests" / "trivial_app.py"
    return _start(stack, subject, owner, folder, entry, "", None, {})


def _start(
    stack: Stack,
    subject: Subject,
    owner: Owner,
    folder: Path,
    entry: Path,
    secret: str,
    ports: Iterable[int] | None,
    settings: dict[str, Any],
) -> Server:
    def launch(port: int) -> Launch:
        chosen = NemoSettings(port=port, nonce=owner.nonce, secret=secret, **settings)
        environment = {**chosen.environment(), "PYTHONPATH": str(subject.python_path)}
        return Launch((stack.python, "-P", str(entry)), environment)

    def identify(server: Server) -> tuple[str, int]:
        process = _ask_identity(server, secret)["process"]
        return process["nonce"], process["pid"]

    return start_server("nemo", launch, identify, owner=owner, folder=folder, ports=ports)


def _ask_identity(server: Server, secret: str) -> dict[str, Any]:
    try:
        with httpx.Client(trust_env=False, timeout=30.0) as client:
            answer = client.post(f"{server.url}/bridge/identity", headers={SECRET_HEADER: secret})
            return answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServerFailed(
            f"{server.name} listens but does not identify itself ({error!r}); its log ends:\n{server.log_tail()}"
        ) from error
