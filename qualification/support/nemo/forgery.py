"""What a stranger could send: cookies forged the way upstream's defaults allow."""

import hashlib
import hmac
import json
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterable

NATIVE_ROUTES = frozenset(
    ("/seed_session", "/close_session", "/verify", "/aggregate_metrics", "/reverify_mode", "/lookup", "/calculator")
)
"""Paths that upstream's contract and this task's tools make public."""


UPSTREAMS_SECRET = "GermanOrdersServer___german_orders"
"""What upstream derives from the server's class and name: cookie name, cookie secret and MCP key in one."""

GUESSES = (UPSTREAMS_SECRET, "german_orders", "german_orders_session", "GermanOrdersServer", "secret")
"""Secrets that a stranger would try."""


def forged_cookies(session_id: str, names: Iterable[str], secret: str) -> dict[str, str]:
    """Return cookies that name a session, signed with a guessed secret.

    Rebuilt from itsdangerous' documented TimestampSigner, which signs Starlette's sessions.
    """
    key = hashlib.sha1(b"itsdangerous.Signer" + b"signer" + secret.encode()).digest()
    payload = b64encode(json.dumps({"session_id": session_id}).encode())
    stamp = int(time.time())
    stamped = payload + b"." + _base64(stamp.to_bytes((stamp.bit_length() + 7) // 8, "big"))
    signed = stamped + b"." + _base64(hmac.new(key, stamped, hashlib.sha1).digest())
    return {name: signed.decode() for name in {UPSTREAMS_SECRET, *names}}


def tampered(cookie: str) -> str:
    """Return a signed cookie with the first character of its signature changed."""
    payload, _, signature = cookie.rpartition(".")
    # Not the last one: some of its bits are padding.
    return f"{payload}.{'A' if signature[0] != 'A' else 'B'}{signature[1:]}"


def _base64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
