"""``gymqual serve``: a gym's service, started by hand."""

import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console

from gymqual.gyms.launch import DEFAULT_CAPACITY, SECRET_VARIABLE
from gymqual.gyms.nemo.launch import DEFAULT_SESSION_TTL_S
from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import require_free
from gymqual.harness.records.errors import HarnessError, ServerFailed
from gymqual.harness.records.files import write_atomically
from gymqual.harness.stacks.environments import find_stack, secret_file
from gymqual.harness.stacks.services import GymService, start_nemo, start_openenv
from gymqual.harness.stacks.specs import STACKS
from gymqual.harness.stacks.staging import stage

SERVED: dict[str, Callable[..., GymService]] = {"nemo": start_nemo, "openenv": start_openenv}
"""How each gym that has a service is started."""


def serve(
    gym: Annotated[str, Parameter(help=f"One that has a service: {', '.join(SERVED)}.")],
    /,
    *,
    port: Annotated[int, Parameter(help="Port on 127.0.0.1 to listen on.")],
    capacity: Annotated[int, Parameter(help="Open sessions at most.")] = DEFAULT_CAPACITY,
    session_ttl: Annotated[
        float, Parameter(help="Of nemo alone: seconds without a call after which a session is abandoned.")
    ] = DEFAULT_SESSION_TTL_S,
) -> None:
    """Start a gym's service by hand; Ctrl-C ends it."""
    if gym not in SERVED:
        known = "has no service of its own: its commands start what they need; see the README on it"
        said = known if gym in STACKS else "is no gym of ours"
        raise HarnessError(f"{gym} {said}; name one of {', '.join(SERVED)}")
    if capacity < 1:
        raise HarnessError(f"--capacity {capacity} must be at least 1")
    if not 0 < session_ttl < float("inf"):
        raise HarnessError(f"--session-ttl {session_ttl} must be more than 0 seconds, and finite")
    require_free(port)
    stack = find_stack(gym)
    # Both end it like Ctrl-C, so that the server is stopped and the folder removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    console = Console(highlight=False, soft_wrap=True)
    settings: dict[str, Any] = {"capacity": capacity}
    if gym == "nemo":
        settings["session_ttl_s"] = session_ttl
    kept_secret = secret_file(port)
    owner = Owner()
    try:
        with tempfile.TemporaryDirectory(prefix="gymqual-serve-") as folder:
            served = SERVED[gym](
                stack,
                stage(Path(folder) / "subject"),
                owner,
                Path(folder) / "server",
                secret=os.environ.get(SECRET_VARIABLE),
                ports=[port],
                **settings,
            )
            write_atomically(kept_secret, served.secret.encode(), mode=0o600)
            identity = served.identity
            console.print(f"{gym}: serving {served.server.url}, pid {served.server.pid}")
            console.print(f"{identity.upstream} on {identity.python}, core {identity.core[:16]}; Ctrl-C ends it")
            console.print(f"bridge secret in {kept_secret}")
            while served.server.alive:
                time.sleep(0.2)
            raise ServerFailed(
                f"the server ended with {served.server.exit_code}; its log ends:\n{served.server.log_tail()}"
            )
    except KeyboardInterrupt:
        console.print(f"{gym}: stopped")
    finally:
        owner.close()
        kept_secret.unlink(missing_ok=True)
