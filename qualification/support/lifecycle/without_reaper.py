"""A pytest plugin that takes the reaper away, to show what the checks would see without it."""

import secrets

from gymqual.harness.process.owner import Owner


def _start_nothing(self: Owner) -> None:
    self.nonce = secrets.token_hex(16)


Owner.__init__ = _start_nothing
Owner.close = lambda self: None
