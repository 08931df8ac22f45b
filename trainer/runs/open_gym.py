"""Opening a gym for training and evaluation: its service, and for OpenEnv its bridge, are started and owned here."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args
from urllib.parse import urlsplit

from gymqual.gyms.base import TaskSet
from gymqual.gyms.blocking import BlockingGym
from gymqual.gyms.client import DEFAULT_DEADLINE_S
from gymqual.gyms.launch import SECRET_VARIABLE
from gymqual.gyms.nemo.client import NemoGym
from gymqual.gyms.openenv.client import OpenEnvGym
from gymqual.gyms.transport import require_url
from gymqual.harness.process.owner import Owner
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.stacks.environments import find_stack, secret_file
from gymqual.harness.stacks.services import start_bridge, start_nemo, start_openenv
from gymqual.harness.stacks.staging import stage
from gymqual.trainer.runs.distributed import ALONE, Ranks

GymName = Literal["nemo", "openenv"]
GYMS: tuple[GymName, ...] = get_args(GymName)
"""The gyms that a trainer can be run through."""


@contextmanager
def opened_gym(
    name: str, url: str | None, tasks: TaskSet, deadline_s: float = DEFAULT_DEADLINE_S, ranks: Ranks = ALONE
) -> Iterator[BlockingGym]:
    """Open a gym. With ``url`` its service is served elsewhere; without, it is started, and ended at the end.

    Several processes of a training share the service that the first of them starts.
    Raises HarnessError for a URL that is none or whose secret is unknown, InfrastructureError for a service that
    is not the gym's.
    """
    secret = ""
    if url is not None:
        try:
            url = require_url(url)
        except ValueError as error:
            raise HarnessError(f"--gym-url: {error}") from None
        secret = _secret_of(url)
    with TemporaryDirectory(prefix="gymqual-gym-") as made:
        folder, owner = Path(made), Owner()
        try:
            subject = stage(folder / "subject")
            if url is None:

                def start() -> tuple[str, str]:
                    begin = start_nemo if name == "nemo" else start_openenv
                    service = begin(find_stack(name), subject, owner, folder / "server")
                    return service.server.url, service.secret

                url, secret = ranks.once(start)
            if name == "nemo":
                client: NemoGym | OpenEnvGym = NemoGym(url, secret, tasks, deadline_s=deadline_s, blocking=True)
            else:
                bridge = start_bridge(find_stack(name), subject, owner, folder / "bridge", url=url, secret=secret)
                client = OpenEnvGym(bridge.port, secret, tasks, deadline_s=deadline_s, blocking=True)
            with BlockingGym(client) as gym:
                yield gym
        finally:
            owner.close()


def _secret_of(url: str) -> str:
    """Return the bridge secret of a served gym: from the environment, or left by ``gymqual serve``."""
    named = os.environ.get(SECRET_VARIABLE)
    if named:
        return named
    try:
        return secret_file(urlsplit(url).port or 0).read_text(encoding="ascii")
    except OSError:
        raise HarnessError(
            f"--gym-url {url}: its bridge secret is unknown; set {SECRET_VARIABLE}, or serve it by gymqual serve"
        ) from None
