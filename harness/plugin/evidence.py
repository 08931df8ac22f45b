"""What a check measured, and the files that show it. Hashes are taken when a file is written."""

import hashlib
import json
from pathlib import Path
from typing import Any

import rfc8785

from gymqual.harness.records.files import readable_json, write_atomically


class Evidence:
    """The evidence of one check: ``measure`` values, ``attach`` files."""

    def __init__(self, run_folder: Path, name: str) -> None:
        self._run_folder = run_folder
        self._folder = run_folder / "evidence" / name
        self.measured: dict[str, Any] = {}
        self.files: dict[str, str] = {}
        """sha256 by path relative to the run folder."""

    def measure(self, **values: Any) -> None:
        """Record JSON values under their names; a later value of a name replaces the earlier one.

        Raises ValueError for what RFC 8785 cannot write: no JSON data, NaN, integers beyond 2**53, half a character.
        """
        data = json.loads(json.dumps(values))
        try:
            rfc8785.dumps(data)
        except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
            raise ValueError(f"a manifest cannot hold the measured values {sorted(values)}: {error}") from None
        self.measured.update(data)

    def attach(self, name: str, content: Any) -> Path:
        """Write ``content`` (bytes, text, or JSON data) as a file of this check and return its path."""
        path = self._folder / name
        if isinstance(content, str):
            content = content.encode()
        data = content if isinstance(content, bytes) else readable_json(content)
        write_atomically(path, data)
        self.files[path.relative_to(self._run_folder).as_posix()] = hashlib.sha256(data).hexdigest()
        return path
