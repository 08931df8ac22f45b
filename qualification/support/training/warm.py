"""Trainer commands in processes of their own, forked from one that has loaded torch and TRL once.

They are as separate as any: own memory, own signals, own exit. What they save is five CPU seconds of imports each.
"""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from subprocess import CompletedProcess, TimeoutExpired
from typing import Self

from gymqual.harness.records.files import ROOT

LIMIT_S = 240.0
Entry = Callable[..., int]
"""Takes a command's arguments and returns its exit code; a function of a module, or a partial of one."""

_server = get_context("forkserver")
_server.set_forkserver_preload(
    [
        "gymqual.trainer.grpo.train",
        "gymqual.trainer.replay.audit",
        "torch.distributed.launcher.api",
    ]
)


class WarmCommand:
    """``gymqual ARGUMENTS``, started; killed on leaving the context if it still runs."""

    def __init__(
        self, *arguments: str | Path, processes: int = 0, entry: Entry | None = None, **environment: str
    ) -> None:
        """With ``processes`` it runs in so many as ``torchrun`` starts them; ``entry`` stands for the command."""
        self._folder = tempfile.TemporaryDirectory(prefix="gymqual-warm-")
        self._outputs = [Path(self._folder.name) / name for name in ("stdout", "stderr")]
        words = [str(word) for word in arguments]
        self._process = _server.Process(
            target=_run, args=(words, self._outputs, environment, processes, entry or command_itself)
        )
        self._process.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid or 0

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, timeout: float = LIMIT_S) -> int:
        """Wait for its end and return its exit code; raises TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise TimeoutExpired("gymqual", timeout, *self.printed())
        return code

    def printed(self) -> tuple[str, str]:
        """Return what it has printed so far: standard output and standard error."""
        first, second = (path.read_text(encoding="utf-8") if path.exists() else "" for path in self._outputs)
        return first, second


def run_warm(
    *arguments: str | Path, processes: int = 0, entry: Entry | None = None, **environment: str
) -> CompletedProcess[str]:
    """Run a command to its end; raises TimeoutExpired."""
    with WarmCommand(*arguments, processes=processes, entry=entry, **environment) as command:
        code = command.wait()
        return CompletedProcess(["gymqual", *map(str, arguments)], code, *command.printed())


def _run(
    arguments: Sequence[str], outputs: Sequence[Path], environment: Mapping[str, str], processes: int, entry: Entry
) -> None:
    os.setsid()
    os.chdir(ROOT)
    # What was forked is loaded for good: collections need not walk it.
    gc.freeze()
    os.environ.update({"OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **environment})
    for number, path in enumerate(outputs, 1):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    try:
        code = _elastic(arguments, processes, entry) if processes else entry(*arguments)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit handlers that the forking process registered are not this one's.
    os._exit(code)


def command_itself(*arguments: str) -> int:
    """Run the console script in this process; returns its exit code."""
    import torch

    from gymqual.__main__ import main

    torch.set_num_threads(1)
    return main(list(arguments))


def _elastic(arguments: Sequence[str], processes: int, entry: Entry) -> int:
    """Run several processes under torchrun's own agent, on one node and a free port, as ``--standalone`` does."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        start_method="fork",
    )
    try:
        elastic_launch(config, entrypoint=_rank)(list(arguments), entry)
    except ChildFailedError:
        return 1
    return 0


def _rank(arguments: Sequence[str], entry: Entry) -> None:
    code = entry(*arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        sys.exit(code)
