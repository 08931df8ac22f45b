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


def upstream_cookies(session_id: str, names: Iterable[str]) -> dict[str, str]:
    """Return cookies that name a session, signed with the secret upstream derives from the server's name.

    Rebuilt from itsdangerous' documented TimestampSigner, upstream's signer.
    """
    secret = "GermanOrdersServer___german_orders"
    key = hashlib.sha1(b"itsdangerous.Signer" + b"signer" + secret.encode()).digest()
    payload = b64encode(json.dumps({"session_id": session_id}).encode())
    stamp = int(time.time())
    stamped = payload + b"." + _base64(stamp.to_bytes((stamp.bit_length() + 7) // 8, "big"))
    signed = stamped + b"." + _base64(hmac.new(key, stamped, hashlib.sha1).digest())
    return {name: signed.decode() for name in {secret, *names}}


def tampered(cookie: str) -> str:
    """Return a signed cookie with its last character changed."""
    return cookie[:-1] + ("A" if cookie[-1] != "A" else "B")


def _base64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
