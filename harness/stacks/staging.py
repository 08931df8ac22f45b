"""A copy of the subject that the run keeps: servers see it and nothing else of this checkout.

An edit during a run cannot leak in, our packages cannot shadow upstream's modules, and digests in the
evidence are those of files that are still there to be looked at.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from shutil import copy2, copytree, ignore_patterns

import gymqual
from gymqual.gyms import loaded
from gymqual.gyms.nemo import rows
from gymqual.gyms.nemo.launch import ENTRYPOINT
from gymqual.gyms.verifiers.launch import TOP_LEVEL
from gymqual.harness.records.files import ROOT, write_atomically

_IGNORED = ignore_patterns("__pycache__", "*.pyc")
_NEMO_PARTS = ("app.py", "task_data.py", "requirements.txt", "README.md", "configs", "tests")
EXAMPLE_TASKS = tuple(f"v1/dev/0/{index}" for index in range(5))


@dataclass(frozen=True)
class Subject:
    """One staged copy."""

    folder: Path

    @property
    def python_path(self) -> Path:
        """The only entry of a server's PYTHONPATH."""
        return self.folder / "python"

    @property
    def package(self) -> Path:
        """Our package as a server imports it: the gyms, and nothing of what examines them."""
        return self.python_path / "gymqual"

    @property
    def nemo_entry(self) -> Path:
        """NeMo's entry script, in the folder shape that upstream's tools expect."""
        return self.folder / ENTRYPOINT

    @property
    def verifiers_modules(self) -> Path:
        """Modules that Verifiers imports by id: beside ``python_path`` on the path of its commands."""
        return self.folder / "verifiers"


def stage(folder: Path, gyms: Path = ROOT / "gyms") -> Subject:
    """Copy the gyms into ``folder``, which must not exist yet."""
    subject = Subject(folder)
    copytree(gyms, subject.package / "gyms", ignore=_IGNORED)
    copy2(gymqual.__file__, subject.package)
    project = subject.nemo_entry.parent
    project.mkdir(parents=True)
    for part in _NEMO_PARTS:
        source = gyms / "nemo" / part
        if source.is_dir():
            copytree(source, project / part, ignore=_IGNORED)
        else:
            copy2(source, project / part)
    subject.verifiers_modules.mkdir()
    for module in TOP_LEVEL:
        copy2(gyms / "verifiers" / module, subject.verifiers_modules / module)
    # Upstream runs pytest in there: it must not find the configuration of a checkout around the run.
    (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    # Written here and not committed: a row names the digest of the core it was made for.
    core = loaded.core_on_disk(subject.package / "gyms")
    lines = [json.dumps(rows.row(task, core), ensure_ascii=False) for task in EXAMPLE_TASKS]
    write_atomically(project / "data" / "example.jsonl", ("\n".join(lines) + "\n").encode())
    return subject
