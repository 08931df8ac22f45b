"""Files that are either there and whole, or not there."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import gymqual

ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds ``gyms``, ``harness`` and ``qualification``: the checkout, or the installed package."""
IMPORT_ROOT = Path(gymqual.__file__).absolute().parents[1]
"""The folder that makes this very ``gymqual`` importable where it is on ``PYTHONPATH``."""


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file so that no reader, not even after a crash, sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; what a run leaves is for others to read.
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def readable_json(value: Any) -> bytes:
    """Return JSON for people: indented, keys sorted, one form for one value."""
    return (json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
