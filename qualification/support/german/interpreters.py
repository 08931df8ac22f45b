"""The task core in other interpreters."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from gymqual import gyms

ROOT = Path(gyms.__file__).resolve().parents[1]


def task_digests() -> dict[str, str]:
    """Digest of the first 50 tasks of each split in every pool, with all that is shown of them.

    Its source runs in other interpreters too, hence the imports in the body.
    """
    import hashlib

    from gymqual.gyms.german.tasks import POOLS, SPLIT_SHARES, find_task
    from gymqual.gyms.german.tools import Call, as_json, observe

    digests = {}
    for split in SPLIT_SHARES:
        lines = []
        for task in (find_task(f"{pool}/{split}/43/{index}") for pool in sorted(POOLS) for index in range(50)):
            look = observe(task, Call("lookup", as_json({"record_id": task.record_id})))
            result = observe(task, Call("calculator", as_json({"expression": task.formula.write(task.quantities)})))
            lines.append(repr((task.task_id, task.record_id, task.prompt, task.answer, tuple(look), tuple(result))))
        digests[split] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return digests


def run_python(python: str, program: str, hash_seed: str) -> str | None:
    """What a fresh interpreter prints, None if it does not run the program."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": hash_seed,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else None


def interpreters() -> list[str]:
    """This interpreter and every other CPython 3.11 to 3.14 at hand."""
    # pyenv's own folders stand first: its stubs on PATH start only the versions that are switched on.
    path = os.pathsep.join([*map(str, Path.home().glob(".pyenv/versions/*/bin")), os.environ.get("PATH", "")])
    found = [shutil.which(f"python3.{minor}", path=path) for minor in range(11, 15)]
    name = "import sys; print(sys.implementation.name)"
    return [sys.executable, *(python for python in found if python and run_python(python, name, "0") == "cpython\n")]
