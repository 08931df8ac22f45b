"""Starting a gym's real service from its stack and a staged subject."""

import secrets
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gymqual.gyms.base import GymIdentity, read_identity
from gymqual.gyms.blocking import run_to_end
from gymqual.gyms.launch import SECRET_HEADER
from gymqual.gyms.nemo.launch import NemoSettings
from gymqual.gyms.openenv.channel import PROTOCOL, BlockingChannel
from gymqual.gyms.openenv.launch import BRIDGE_MODULE, SERVER_MODULE, OpenEnvSettings, process_environment
from gymqual.gyms.transport import TransportFault
from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import Launch, Server, child_environment, start_server
from gymqual.harness.records.errors import HarnessError, ServerFailed
from gymqual.harness.stacks.environments import Stack
from gymqual.harness.stacks.staging import Subject

IDENTIFY_LIMIT_S = 30.0


@dataclass(frozen=True)
class GymService:
    """A running server of a gym and the key to its bridge routes."""

    server: Server
    secret: str
    identity: GymIdentity
    process: dict[str, Any]
    """What the server says of its process: nonce, pid, and more."""

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
) -> GymService:
    """Start a NeMo resources server; ``settings`` are fields of NemoSettings. Raises ServerFailed."""
    secret = secret or secrets.token_hex(32)
    return _identified(
        _start_nemo(stack, subject, owner, folder, entry or subject.nemo_entry, secret, ports, settings), secret
    )


def start_trivial_nemo(stack: Stack, subject: Subject, owner: Owner, folder: Path) -> Server:
    """Start upstream's base class with one trivial tool, the reference of benchmarks. Raises ServerFailed."""
    entry = subject.nemo_entry.parent / "tests" / "trivial_app.py"
    return _start_nemo(stack, subject, owner, folder, entry, "", None, {})


def _start_nemo(
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
        return _python(stack, subject, (str(entry),), chosen.environment())

    return start_server("nemo", launch, _asking(secret), owner=owner, folder=folder, ports=ports)


def start_openenv(
    stack: Stack,
    subject: Subject,
    owner: Owner,
    folder: Path,
    *,
    module: str = SERVER_MODULE,
    secret: str | None = None,
    ports: Iterable[int] | None = None,
    **settings: Any,
) -> GymService:
    """Start an OpenEnv server; ``settings`` are fields of OpenEnvSettings. Raises ServerFailed."""
    secret = secret or secrets.token_hex(32)

    def launch(port: int) -> Launch:
        chosen = OpenEnvSettings(port=port, nonce=owner.nonce, secret=secret, **settings)
        return _python(stack, subject, ("-m", module, *chosen.arguments()), chosen.environment())

    return _identified(
        start_server("openenv", launch, _asking(secret), owner=owner, folder=folder, ports=ports), secret
    )


def start_echo(stack: Stack, owner: Owner, folder: Path, *, sessions: int = 1) -> Server:
    """Start what ``openenv init`` writes, upstream's own environment that echoes, for so many sessions at once.

    Raises HarnessError.
    """
    folder.mkdir()
    script = Path(stack.python).with_name("openenv")
    environment = child_environment({"HF_HUB_OFFLINE": "1"}, folder)
    made = subprocess.run(
        [stack.python, "-P", script, "init", "echo_env"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if made.returncode:
        raise HarnessError(f"openenv init failed: {made.stdout[-300:]}{made.stderr[-300:]}")

    app = folder / "echo_env" / "server" / "app.py"
    written = app.read_text(encoding="utf-8")
    # As its own comment says.
    app.write_text(written.replace("max_concurrent_envs=1,", f"max_concurrent_envs={sessions},"), encoding="utf-8")

    def launch(port: int) -> Launch:
        uvicorn = ("-m", "uvicorn", "echo_env.server.app:app", f"--port={port}", "--log-level=warning")
        return Launch((stack.python, "-P", *uvicorn), {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"})

    def identify(server: Server) -> tuple[str, int]:
        answer = httpx.get(f"{server.url}/health", trust_env=False, timeout=30.0)
        if answer.status_code != httpx.codes.OK:
            raise ServerFailed(f"upstream's echo environment is not healthy: {answer.text[:200]}")
        # It names no process; the port was seen to be held by the one that was started.
        return owner.nonce, server.pid

    return start_server("echo", launch, identify, owner=owner, folder=folder)


def start_bridge(
    stack: Stack,
    subject: Subject,
    owner: Owner,
    folder: Path,
    *,
    url: str,
    secret: str,
    module: str = BRIDGE_MODULE,
    ports: Iterable[int] | None = None,
) -> Server:
    """Start the bridge to the OpenEnv server at ``url``, which need not be up yet. Raises ServerFailed."""
    environment = process_environment(owner.nonce, secret)

    def launch(port: int) -> Launch:
        return _python(stack, subject, ("-m", module, f"--port={port}", f"--url={url}"), environment)

    def identify(server: Server) -> tuple[str, int]:
        process = greet_bridge(server, secret)["process"]
        return process["nonce"], process["pid"]

    return start_server("openenv-bridge", launch, identify, owner=owner, folder=folder, ports=ports)


def greet_bridge(bridge: Server, secret: str) -> dict[str, Any]:
    """Return what a bridge says of itself; raises ServerFailed."""
    channel = BlockingChannel(bridge.port)
    try:
        hello = {"protocol": PROTOCOL, "nonce": "", "secret": secret}
        answer = run_to_end(channel.exchange(hello, IDENTIFY_LIMIT_S))
        return {"process": answer["process"], "loaded": answer["loaded"]}
    except (TransportFault, KeyError) as error:
        raise ServerFailed(
            f"{bridge.name} does not identify itself ({error}); its log ends:\n{bridge.log_tail()}"
        ) from None
    finally:
        channel.close()


def _python(stack: Stack, subject: Subject, arguments: tuple[str, ...], environment: dict[str, str]) -> Launch:
    return Launch((stack.python, "-P", *arguments), {**environment, "PYTHONPATH": str(subject.python_path)})


def _asking(secret: str) -> Callable[[Server], tuple[str, int]]:
    def identify(server: Server) -> tuple[str, int]:
        process = _ask_identity(server, secret)["process"]
        return process["nonce"], process["pid"]

    return identify


def _identified(server: Server, secret: str) -> GymService:
    answer = _ask_identity(server, secret)
    return GymService(server, secret, read_identity(answer["identity"]), answer["process"])


def _ask_identity(server: Server, secret: str) -> dict[str, Any]:
    try:
        with httpx.Client(trust_env=False, timeout=IDENTIFY_LIMIT_S) as client:
            answer = client.post(f"{server.url}/bridge/identity", headers={SECRET_HEADER: secret}, json={})
            return answer.raise_for_status().json()
    except (httpx.HTTPError, ValueError) as error:
        raise ServerFailed(
            f"{server.name} listens but does not identify itself ({error!r}); its log ends:\n{server.log_tail()}"
        ) from error
