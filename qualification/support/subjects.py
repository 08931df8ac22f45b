"""What is known of a served subject from outside: digests of what is installed, and subjects that were edited."""

import csv
import time
from collections.abc import Callable
from pathlib import Path

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity
from gymqual.harness.plugin.run import Run
from gymqual.harness.stacks.environments import Stack
from gymqual.harness.stacks.services import GymService
from gymqual.harness.stacks.staging import Subject, stage


def installed_digest(stack: Stack, distribution: str) -> str:
    """Return the digest of a distribution's own file record, read from outside of the stack's interpreter."""
    (record,) = Path(stack.python).parent.parent.glob(f"lib/*/site-packages/{distribution.replace('-', '_')}-*/RECORD")
    rows = list(csv.reader(record.read_text(encoding="utf-8").splitlines()))
    shipped = [
        (name, digest.removeprefix("sha256="))
        for name, digest, _ in rows
        if digest and not name.startswith("..") and ".dist-info/" not in name and not name.endswith(".pyc")
    ]
    return loaded.combine(shipped)


def edited_subject(run: Run, file: str) -> Subject:
    """Stage another copy of the gyms with one source file changed by a comment."""
    subject = stage(run.folder / run.mine(f"edited-{time.monotonic_ns()}"))
    edit(subject, file)
    return subject


def edit(subject: Subject, file: str) -> None:
    """Change a staged source file, running or not."""
    with (subject.package / file).open("a") as source:
        source.write("# changed\n")


def edited_before_and_while_it_runs(
    run: Run, serve: Callable[[Subject], GymService], told: Callable[[GymService], GymIdentity]
) -> tuple[GymIdentity, GymIdentity]:
    """Serve an edited copy, edit it again; return what the server said of itself before and after."""
    edited = edited_subject(run, "gyms/german/tasks.py")
    service = serve(edited)
    edit(edited, "gyms/german/tools.py")
    return service.identity, told(service)
