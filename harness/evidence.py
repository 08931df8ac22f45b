"""What a check measured, and the files that show it. Hashes are taken when a file is written."""

import hashlib
from pathlib import Path
from typing import Any

from harness.files import readable_json, write_atomically


class Evidence:
    """The evidence of one check: ``measure`` values, ``attach`` files."""

    def __init__(self, run_folder: Path, name: str) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / "evidence" / name
        self.measured: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        """sha256 by path relative to the run folder."""

    def measure(self, **values: Any) -> None:
        """Record JSON values under their names; a later value of a name replaces the earlier one."""
        self.measured.update(values)

    def attach(self, name: str, content: Any) -> Path:
        """Write ``content`` (bytes, text, or JSON data) as a file of this check and return its path."""
        path = self._folder / name
        if isinstance(content, str):
            content = content.encode()
        data = content if isinstance(content, bytes) else readable_json(content)
        write_atomically(path, data)
        self.files[path.relative_to(self._run_folder).as_posix()] = hashlib.sha256(data).hexdigest()
        return path
