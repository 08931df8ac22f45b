"""Starting ``gymqual serve-policy``, the server of a policy, from wherever a model must answer for real."""

from collections.abc import Iterable
from pathlib import Path

import httpx

from gymqual.harness.process.own import own_command
from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import Launch, Server, start_server
from gymqual.harness.records.errors import ServerFailed
from gymqual.harness.records.files import IMPORT_ROOT
from gymqual.harness.stacks.environments import cache_folder


def start_policy(
    policy: str, owner: Owner, folder: Path, *, name: str | None = None, ports: Iterable[int] | None = None
) -> Server:
    """Start ``gymqual serve-policy`` for a policy (name or folder), called ``name`` if given. Raises ServerFailed."""
    # It runs in another folder, and under another home.
    policy = str(Path(policy).resolve()) if Path(policy).is_dir() else policy
    environment = {
        "GYMQUAL_NONCE": owner.nonce,
        "GYMQUAL_CACHE": str(cache_folder().parent),
        "PYTHONPATH": str(IMPORT_ROOT),
        "HF_HUB_OFFLINE": "1",
    }
    named = ("--name", name) if name else ()

    def launch(port: int) -> Launch:
        command = own_command("serve-policy", "--policy", policy, "--port", str(port), *named)
        return Launch(tuple(command), environment)

    def identify(server: Server) -> tuple[str, int]:
        try:
            with httpx.Client(trust_env=False, timeout=30.0) as client:
                process = client.get(f"{server.url}/v1/models").raise_for_status().json()["process"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise ServerFailed(
                f"{server.name} listens but does not identify itself ({error!r}); its log ends:\n{server.log_tail()}"
            ) from error
        return process["nonce"], process["pid"]

    return start_server("policy", launch, identify, owner=owner, folder=folder, ports=ports)
