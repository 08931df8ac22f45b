"""Alterations of a committed result, as a careful forger would make them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymqual.harness.records.files import readable_json

Change = Callable[[dict[str, Any]], object]
Alteration = Callable[[Path], object]


def in_json(name: str, change: Change) -> Alteration:
    """Return what changes a JSON file of a folder, in the form that it is written in."""

    def alter(folder: Path) -> None:
        content = json.loads((folder / name).read_bytes())
        change(content)
        (folder / name).write_bytes(readable_json(content))

    return alter


def another_outcome(content: dict[str, Any]) -> None:
    """One more episode of an evaluation is told as solved."""
    strict = content["temperature_1"]["strict"]
    strict[strict.index(False)] = True
