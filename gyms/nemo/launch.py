"""How a NeMo resources server is started without Ray and without a head server.

Upstream's own ``run_webserver`` is used as it is: the two variables here are the ones that upstream's
orchestrator would inject. Read by whoever starts the server; imports nothing of upstream.
"""

import json
from dataclasses import dataclass

from gymqual.gyms.launch import DEFAULT_CAPACITY, NONCE_VARIABLE, SECRET_VARIABLE

INSTANCE = "german_orders"
ENTRYPOINT = "resources_servers/german_orders/app.py"
"""Entry script, relative to the folder that the server's files were staged to."""
IDENTITY_HEADER = "x-gymqual-identity"
"""Header of every bridge answer: digest of the server's identity, a blank, ``nonce/pid`` of its process."""
DEFAULT_SESSION_TTL_S = 6 * 3600.0
"""Longer than any training step: only abandoned sessions get this old."""


@dataclass(frozen=True)
class NemoSettings:
    """What the starter decides about one server."""

    port: int
    nonce: str
    """Names the run; answered by the identity route, so that a stale server is told from ours."""
    secret: str
    """Guards the bridge routes; known to the client alone."""
    capacity: int = DEFAULT_CAPACITY
    """Open sessions at most."""
    session_ttl_s: float = DEFAULT_SESSION_TTL_S
    """Seconds without a call after which a session is abandoned."""

    def environment(self) -> dict[str, str]:
        """Return the variables the server process needs besides its Python path."""
        server = {
            "entrypoint": "app.py",
            "domain": "agent",
            "host": "127.0.0.1",
            "port": self.port,
            "capacity": self.capacity,
            "session_ttl_s": self.session_ttl_s,
        }
        config = {
            # Never contacted: upstream's config model demands the section.
            "head_server": {"host": "127.0.0.1", "port": 1},
            "dry_run": False,
            INSTANCE: {"resources_servers": {INSTANCE: server}},
        }
        return {
            "NEMO_GYM_CONFIG_PATH": INSTANCE,
            "NEMO_GYM_CONFIG_DICT": json.dumps(config),
            "NEMO_GYM_OTEL_ENABLED": "0",
            "WANDB_MODE": "disabled",
            "HF_HUB_OFFLINE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            NONCE_VARIABLE: self.nonce,
            SECRET_VARIABLE: self.secret,
        }
