"""The tie between servers and the life of the process that starts them.

Each pytest process (and each command that starts servers) owns one ``Owner`` with one reaper process.
"""

import os
import secrets
import subprocess
import sys
from contextlib import suppress

from gymqual.harness.process import reaper


class Owner:
    """What ties servers to the life of this process: a nonce and the reaper that outlives us."""

    def __init__(self) -> None:
        self.nonce = secrets.token_hex(16)
        environment = {name: value for name, value in os.environ.items() if name != reaper.RUN_VARIABLE}
        # The write end of this pipe closes when this process ends, in whatever way.
        self._reaper = subprocess.Popen(
            [sys.executable, "-P", reaper.__file__, self.nonce, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environment,
        )

    def close(self) -> None:
        """Let the reaper kill what is left and wait for it. Idempotent."""
        assert self._reaper.stdin is not None
        if self._reaper.stdin.closed:
            return
        # A byte, since a process that we forked and that is still alive keeps end of file away.
        with suppress(BrokenPipeError), self._reaper.stdin as pipe:
            pipe.write(b"\n")
        if self._reaper.wait(timeout=30) != 0:
            # It was killed, or could not finish: nobody else is left to do it.
            reaper.kill_marked(reaper.RUN_VARIABLE, self.nonce, quiet_scans=reaper.QUIET_SCANS)
