"""``gymqual verify``: everything that run directories claim, recomputed offline."""

import subprocess
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gymqual.harness.plugin import attestation
from gymqual.harness.process.own import own_command, own_environment
from gymqual.harness.records import manifest, training_run
from gymqual.harness.records.claims import Claims
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.extras import lacking
from gymqual.harness.records.manifest import PAGE


def verify(
    *directories: Annotated[Path, Parameter(name="DIR", help="A run of the suite, or a training run.", required=True)],
) -> int:
    """Recompute everything that a run directory claims, offline: one line a claim."""
    broken = False
    for directory in directories:
        claims = verified(directory)
        if len(directories) > 1:
            print(f"{directory}:")
        print("\n".join(claims.lines), flush=True)
        broken = broken or bool(claims.broken)
    return 1 if broken else 0


def verified(directory: Path) -> Claims:
    """Return the claims of one run directory; raises HarnessError for one that cannot be read."""
    if training_run.is_run(directory):
        claims = replayed(directory)
        if (directory / PAGE).exists():
            _verify_page(directory, claims)
        return claims
    claims = manifest.verify(directory)
    attestation.verify(directory, claims)
    _verify_page(directory, claims)
    return claims


def _verify_page(directory: Path, claims: Claims) -> None:
    if reason := lacking("page"):
        claims.leave(PAGE, reason)
        return
    # Imported here: it draws, for which the bare installation has no library.
    from gymqual.harness.report import pages

    pages.verify(directory, claims)


def replayed(folder: Path) -> Claims:
    """Return the claims of a training run, by the replay in a process of its own, since the harness loads no torch.

    Raises HarnessError if it cannot run.
    """
    if reason := lacking("train"):
        raise HarnessError(f"{folder} is a training run; to verify it {reason}")
    done = subprocess.run(
        own_command("replay", str(folder.resolve())), env=own_environment(), capture_output=True, text=True
    )
    claims = Claims()
    claims.lines = done.stdout.splitlines()
    claims.broken = sum(line.startswith("BROKEN") for line in claims.lines)
    # An interpreter that died ends with 1 as well, but has told nothing.
    if done.returncode not in (0, 1) or not claims.lines:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1].removeprefix("gymqual replay: ")
        raise HarnessError(f"{folder}: its replay ended with {done.returncode}: {reason}")
    claims.broken = max(claims.broken, done.returncode)
    return claims
