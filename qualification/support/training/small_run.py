"""A small training run without a gym's service, by the real trainer and judged in process, and its plain data."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from rich.console import Console

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity, InfrastructureError, Kind, Scope, TaskSet
from gymqual.gyms.local import LocalGym, LocalSession
from gymqual.harness.records.files import readable_json, sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE
from gymqual.trainer.grpo import train
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, training_config
from gymqual.trainer.runs.distributed import Ranks

ALONE = Ranks()


def identity_here(name: str) -> GymIdentity:
    """Return what a gym in this process says it is."""
    return GymIdentity(name, "in process", "", (), "", "", loaded.core_on_disk())


def _identified(gym: type[LocalGym], name: str, tasks: TaskSet, ends_after: int | None) -> LocalGym:
    """Return a gym in this process under a gym's name; after ``ends_after`` sessions it is not reached any more."""

    class Identified(gym):
        left = ends_after

        def open(self, task_id: str) -> LocalSession:
            if self.left == 0:
                raise InfrastructureError(Kind.UNREACHABLE, Scope.SERVICE, "the gym has ended")
            self.left = self.left and self.left - 1
            return super().open(task_id)

        def identity(self) -> GymIdentity:
            return identity_here(name)

    return Identified(tasks)


@contextmanager
def played_here(gym: type[LocalGym] = LocalGym, ends_after: int | None = None, **others: Any) -> Iterator[None]:
    """Let training runs play their tasks in this process; ``others`` are further names of ``grpo.train``."""

    @contextmanager
    def opened(
        name: str, url: str | None, tasks: TaskSet, deadline_s: float, ranks: Ranks = ALONE
    ) -> Iterator[LocalGym]:
        yield _identified(gym, name, tasks, ends_after)

    names = {"opened_gym": opened, "find_stack": lambda gym: SimpleNamespace(deviation=None), **others}
    with patch.multiple(train, **names):
        yield


def train_small(folder: Path, ends_after: int | None = None, **changed: Any) -> Path:
    """Train mini4 for two steps of two groups of four, one field of the configuration or another changed."""
    made = training_config("mini4", load_policy("mini4").identity.weights, "nemo", 43, steps=2)
    config = TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), "groups_per_step": 2, **changed})
    train_locally(config, folder, ends_after)
    return folder


def train_locally(
    config: TrainingConfig, folder: Path, ends_after: int | None = None, **options: Any
) -> run_manifest.TrainingRun:
    """Train as the command does, on tasks that are played in this process; ``options`` are those of ``train``."""

    with played_here(ends_after=ends_after):
        return train.train(config, folder, None, Console(quiet=True), **options)


@dataclass
class Dump:
    """A run directory as plain data, to be altered and written again with honest digests."""

    folder: Path
    manifest: dict[str, Any]
    records: list[dict[str, Any]]
    training: dict[str, Any]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]

    def first(self, kind: str, **fields: Any) -> dict[str, Any]:
        return next(r for r in self.of(kind) if all(r[name] == value for name, value in fields.items()))

    def write(self) -> None:
        """Write everything; the manifest's digests of the files are those of the altered files."""
        lines = (json.dumps(record, separators=(",", ":")) for record in self.records)
        (self.folder / TRACE).write_text("".join(f"{line}\n" for line in lines))
        (self.folder / CONFIG).write_bytes(readable_json(self.training))
        self.manifest["files"] = {name: sha256_file(self.folder / name) for name in self.manifest["files"]}
        (self.folder / MANIFEST).write_bytes(readable_json(self.manifest))


def dump(folder: Path) -> Dump:
    records = [json.loads(line) for line in (folder / TRACE).read_text().splitlines()]
    return Dump(
        folder, json.loads((folder / MANIFEST).read_bytes()), records, json.loads((folder / CONFIG).read_bytes())
    )
