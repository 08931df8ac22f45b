"""One pytest session's run: its folder, its servers' owner, what it used, and its manifest at the end."""

import os
import platform
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil

from gymqual import __version__
from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity
from gymqual.harness.plugin import attestation
from gymqual.harness.plugin.rfc008 import equal_to
from gymqual.harness.process.server import Owner
from gymqual.harness.records import manifest
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT
from gymqual.harness.stacks.environments import Stack, find_stack
from gymqual.harness.stacks.staging import Subject, stage


def new_run_folder(reports: Path) -> Path:
    """Create a fresh run folder; raises HarnessError when the reports folder cannot be written."""
    folder = reports.resolve() / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise HarnessError(f"--reports: cannot write {reports} ({error.strerror}); name a writable folder") from None
    return folder


@dataclass
class Run:
    """What fixtures need of the session. In a parallel run every worker has its own."""

    folder: Path
    worker: str = ""
    """Empty, or the name of the parallel worker."""
    stacks: dict[str, Stack] = field(default_factory=dict)
    gyms: list[GymIdentity] = field(default_factory=list)
    deviations: list[str] = field(default_factory=list)
    registered: dict[str, set[str]] = field(default_factory=dict)
    """Ids of the documented checks of every gym that checks were selected of."""

    @cached_property
    def owner(self) -> Owner:
        """The owner of every server of this process."""
        return Owner()

    @cached_property
    def subject(self) -> Subject:
        """The staged copy that servers see."""
        return stage(self.folder / self.mine("subject"))

    def mine(self, name: str) -> str:
        """Return a name in the run folder that no other worker uses."""
        return f"{name}-{self.worker}" if self.worker else name

    def stack(self, name: str) -> Stack:
        """Return a gym's stack and put it on record; raises NotTestable when it is not set up."""
        stack = find_stack(name)
        self.stacks[name] = stack
        if stack.deviation:
            self.deviate(f"{name}: {stack.deviation}")
        return stack

    def note_gym(self, identity: GymIdentity) -> None:
        """Put a served gym on record."""
        if identity not in self.gyms:
            self.gyms.append(identity)

    def deviate(self, text: str) -> None:
        """Put on record how this run departs from what is documented."""
        if text not in self.deviations:
            self.deviations.append(text)

    def register(self, gym: str, ids: Iterable[str]) -> None:
        """Put documented checks of a selected gym on record: each must have run in the end."""
        self.registered.setdefault(gym, set()).update(ids)

    def close(self) -> None:
        """End every server that is still alive."""
        if "owner" in self.__dict__:
            self.owner.close()

    def used(self) -> dict[str, Any]:
        """Return what this process used, as plain data for the process that writes the manifest."""
        return {
            "stacks": {name: asdict(stack) for name, stack in self.stacks.items()},
            "gyms": [identity.to_json() for identity in self.gyms],
            "deviations": self.deviations,
            "examiner": loaded.executed(),
            "registered": {gym: sorted(ids) for gym, ids in self.registered.items()},
        }


@dataclass
class Ledger:
    """What the process that writes the manifest gathers from all workers."""

    mode: str
    started: str
    arguments: tuple[str, ...]
    records: list[dict[str, Any]] = field(default_factory=list)
    registered: dict[str, set[str]] = field(default_factory=dict)
    stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    gyms: list[dict[str, Any]] = field(default_factory=list)
    deviations: list[str] = field(default_factory=list)
    examiner: dict[str, str] = field(default_factory=dict)

    def add_used(self, used: Mapping[str, Any]) -> None:
        """Take in what one process used."""
        self.stacks.update(used["stacks"])
        self.examiner.update(used["examiner"])
        self.gyms.extend(gym for gym in used["gyms"] if gym not in self.gyms)
        self.deviations.extend(text for text in used["deviations"] if text not in self.deviations)
        for gym, ids in used["registered"].items():
            self.registered.setdefault(gym, set()).update(ids)

    def write(self, folder: Path, exit_status: int) -> manifest.RunManifest:
        """Write the manifest of the run and what is made of it; return the manifest."""
        records = (manifest.CheckRecord(**record, rfc008=equal_to(record["id"])) for record in self.records)
        checks = tuple(sorted(records, key=lambda c: (c.id, c.test)))
        registered = {gym: tuple(sorted(ids)) for gym, ids in sorted(self.registered.items())}
        commit, dirty = _checkout()
        written = manifest.RunManifest(
            product=manifest.Product(name="gymqual", version=__version__, commit=commit, dirty=dirty),
            run=manifest.RunFacts(
                id=folder.name,
                mode="broken" if self.mode == "broken" else "qualification",
                started=self.started,
                finished=now(),
                arguments=self.arguments,
                exit_status=exit_status,
            ),
            machine=manifest.Machine(
                platform=platform.platform(),
                cpus=os.cpu_count() or 1,
                memory_bytes=psutil.virtual_memory().total,
                python=f"{platform.python_implementation()} {platform.python_version()}",
            ),
            core=loaded.core_digest(self.examiner),
            examiner=self.examiner,
            stacks=tuple(
                manifest.StackRecord(**{key: stack[key] for key in manifest.StackRecord.model_fields})
                for _, stack in sorted(self.stacks.items())
            ),
            gyms=tuple(manifest.GymRecord(**gym) for gym in self.gyms),
            registered=registered,
            checks=checks,
            verdict=manifest.decide(registered, checks, exit_status, self.mode),
            deviations=tuple(self.deviations),
            files=manifest.list_files(folder),
        )
        manifest.write(written, folder)
        attestation.write(folder)
        return written


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _checkout() -> tuple[str | None, bool | None]:
    def git(*arguments: str) -> str | None:
        try:
            answer = subprocess.run(
                ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=30, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return answer.stdout.strip()

    # Installed, it may lie in somebody else's repository, whose state is not the product's.
    if git("rev-parse", "--show-toplevel") != str(ROOT):
        return None, None
    commit = git("rev-parse", "HEAD")
    status = git("status", "--porcelain")
    return commit, None if commit is None else bool(status)
