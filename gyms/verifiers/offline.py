"""Upstream's chat program without uv and without PyPI."""

import hashlib
import sys
from importlib.metadata import version
from pathlib import Path

from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes.subprocess import SubprocessRuntime

TRIED_WITH = "0.4.0"


def use_this_interpreter_for_the_chat_program() -> None:
    """Let the null harness run its program by this interpreter in the subprocess runtime.

    Upstream asks uv for an environment of unpinned packages, and PyPI with it, at every process start, even with
    a warm cache. They are all in this stack's lock, so that a rollout is the same tomorrow. The table of prepared
    interpreters is private to upstream: another version than the one this was tried with is left alone.
    """
    if version("verifiers") != TRIED_WITH:
        return
    script = Path(SubprocessRuntime.scripts_dir) / f"{hashlib.sha256(CHAT_PROGRAM_SOURCE.encode()).hexdigest()}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(CHAT_PROGRAM_SOURCE, encoding="utf-8")
    SubprocessRuntime._interpreters.setdefault(str(script), sys.executable)
