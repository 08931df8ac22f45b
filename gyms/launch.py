"""What whoever starts a server and the server agree on, whatever its gym."""

import secrets

NONCE_VARIABLE = "GYMQUAL_NONCE"
"""Names the run; answered by the identity route, so that a stale server is told from ours."""
SECRET_VARIABLE = "GYMQUAL_BRIDGE_SECRET"
"""Guards what a model must never reach; known to the client alone."""
SECRET_HEADER = "x-gymqual-bridge"
"""Header that carries the bridge secret; without it a bridge route does not exist."""
DEFAULT_CAPACITY = 256
"""Open sessions at most."""


def is_secret(offered: object, secret: str) -> bool:
    """Return whether what was offered is the secret, in a time that says nothing of it."""
    text = offered if isinstance(offered, str) else ""
    return secrets.compare_digest(text.encode("utf-8", "surrogatepass"), secret.encode())
