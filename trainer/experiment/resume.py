"""The resume qualification of an arm: a short training, and the same stopped and continued by another process."""

import shutil
import subprocess
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gymqual.harness.process import reaper
from gymqual.harness.process.own import own_command, own_environment
from gymqual.harness.process.owner import Owner
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.run_records import Sha256
from gymqual.harness.records.trace import TRACE, Call, Row, read_trace
from gymqual.trainer.policy.loading import policy_folder
from gymqual.trainer.replay import audit
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, write_config
from gymqual.trainer.runs.divergence import differences

WHOLE = "whole"
PART = "part"
PROCESS_LIMIT_S = 3600.0
"""Of one short training, start included."""

Class = Literal["exact", "same ids", "diverges"]
"""exact: the same bytes; same ids: what was sampled and paid is the same, weights or log-probabilities differ."""


class Resume(BaseModel):
    """What a resume qualification came to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["gymqual.resume/1"] = "gymqual.resume/1"
    steps: int
    stopped_after: int
    kind: Class
    differences: tuple[str, ...]
    """Where the two runs part; empty if exact."""
    broken: tuple[str, ...]
    """Claims of the continued run that its replay audit did not derive again."""
    manifests: tuple[Sha256, Sha256]
    """Of the uninterrupted run and the continued one."""


def qualify(config: TrainingConfig, folder: Path, say: Callable[[str], object]) -> Resume:
    """Train twice into ``folder``, once with an interruption; raises HarnessError for a training that broke."""
    whole, part, stop = folder / WHOLE, folder / PART, config.steps // 2
    own = {each.with_suffix(suffix).name for each in (whole, part) for suffix in ("", ".log")}
    strange = sorted(path.name for path in folder.iterdir() if path.name not in own) if folder.exists() else []
    if strange:
        raise HarnessError(f"{folder} holds {strange[0]}, which is of no resume qualification; move it away")
    shutil.rmtree(folder, ignore_errors=True)
    owner = Owner()
    try:
        for run in (whole, part):
            run.mkdir(parents=True)
            write_config(config, run / CONFIG)
        say(f"{config.steps} steps")
        _train(whole, owner, code=0)
        say(f"{stop} steps, stopped")
        _train(part, owner, "--stop-after", str(stop), code=1)
        if (ended := run_manifest.read(part).outcome) != f"stopped: as asked, after step {stop}":
            raise HarnessError(f"resume qualification: {part}: {ended}")
        say("continued by another process")
        _train(part, owner, "--resume", code=0)
    finally:
        owner.close()
    say("replay audit")
    policy = policy_folder(config.policy)
    lines = [line for run in (whole, part) for line in audit.audit(run, policy).lines]
    kind, found = classify(whole, part, config.steps)
    return Resume(
        steps=config.steps,
        stopped_after=stop,
        kind=kind,
        differences=found,
        broken=tuple(line for line in lines if line.startswith("BROKEN")),
        manifests=(sha256_file(whole / MANIFEST), sha256_file(part / MANIFEST)),
    )


def classify(whole: Path, part: Path, steps: int) -> tuple[Class, tuple[str, ...]]:
    """Return how exact a continued run of so many steps is, and where it parts from the uninterrupted one."""
    found = tuple(differences(whole, part, steps))
    return ("exact" if not found else "same ids" if _same_ids(whole, part) else "diverges"), found


def _same_ids(one: Path, other: Path) -> bool:
    """Whether two runs sampled and were paid the same."""

    def said(run: Path) -> list[object]:
        records = read_trace(run / TRACE)
        return [r.sampled if isinstance(r, Call) else r.rewards for r in records if isinstance(r, Call | Row)]

    return all(left == right for left, right in zip_longest(said(one), said(other)))


def _train(run: Path, owner: Owner, *options: str, code: int) -> None:
    """Train in a process that ends with this one, however it ends."""
    command = own_command("train", str(run / CONFIG), *options)
    log = run.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=own_environment(**{reaper.RUN_VARIABLE: owner.nonce}),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        ended = process.wait(PROCESS_LIMIT_S)
    except subprocess.TimeoutExpired:
        ended = None
    finally:
        process.kill()
        process.wait()
    if ended != code:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
        how = f"did not end within {PROCESS_LIMIT_S:.0f} s" if ended is None else f"ended with {ended}, not {code}"
        raise HarnessError(f"resume qualification: {' '.join(command[2:])} {how}; its log ends:\n{tail}")
