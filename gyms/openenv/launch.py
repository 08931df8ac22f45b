"""How the OpenEnv server and the bridge are started. Read by whoever starts them; imports nothing of upstream."""

import sys
from dataclasses import dataclass

from gymqual.gyms.identity import Upstream
from gymqual.gyms.launch import DEFAULT_CAPACITY, NONCE_VARIABLE, SECRET_VARIABLE

UPSTREAM = Upstream("openenv", "openenv", "huggingface/OpenEnv v0.9.0, equality unverified")

SERVER_MODULE = "gymqual.gyms.openenv.app"
BRIDGE_MODULE = "gymqual.gyms.openenv.bridge"
MAX_MESSAGE_BYTES = 16 * 2**20
"""Of a WebSocket frame and of a frame between trainer and bridge."""
DEFAULT_PING_INTERVAL_S = 5.0
DEFAULT_PING_TIMEOUT_S = 20.0
"""A bridge answers pings however busy its trainer is; on a machine under load it may take a while."""


@dataclass(frozen=True)
class OpenEnvSettings:
    """What the starter decides about one server."""

    port: int
    nonce: str
    """Names the run; answered by the identity route, so that a stale server is told from ours."""
    secret: str
    """Guards the bridge routes and the action that ends an episode; known to the client alone."""
    capacity: int = DEFAULT_CAPACITY
    """Open WebSocket sessions at most."""
    ping_interval_s: float = DEFAULT_PING_INTERVAL_S
    """Seconds between pings to a client."""
    ping_timeout_s: float = DEFAULT_PING_TIMEOUT_S
    """Seconds a client may take to answer one; then its session is freed."""

    def arguments(self) -> tuple[str, ...]:
        """Return the server's command-line arguments."""
        options = {
            "port": self.port,
            "capacity": self.capacity,
            "ping-interval": self.ping_interval_s,
            "ping-timeout": self.ping_timeout_s,
        }
        return tuple(f"--{name}={value}" for name, value in options.items())

    def environment(self) -> dict[str, str]:
        """Return the variables the server process needs besides its Python path."""
        return process_environment(self.nonce, self.secret)


def process_environment(nonce: str, secret: str) -> dict[str, str]:
    """Return the variables of a server or bridge process."""
    return {NONCE_VARIABLE: nonce, SECRET_VARIABLE: secret, "HF_HUB_OFFLINE": "1"}


def forbid_gradio() -> None:
    """Let no later import find gradio: upstream's package imports its web interface wherever it is there.

    It costs every process, the bridge included, 8 CPU seconds and 90 MB, and is never used.
    """
    sys.modules.setdefault("gradio", None)  # type: ignore[arg-type]
