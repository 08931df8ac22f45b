"""Run directories to make pages of: a real training and real checks, and copies with other texts in them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymqual.harness.plugin import attestation
from gymqual.harness.records import manifest
from gymqual.harness.records.files import readable_json
from gymqual.harness.records.legend import LEGEND
from gymqual.harness.records.run_records import CheckRecord
from gymqual.harness.records.trace import TRACE
from gymqual.harness.report import pages

TRAINING = "training/small"
PWNED = "pwned"
"""Name of what a text that runs as a script would set."""
HOSTILE = (
    f"</script><script>window.{PWNED}=1</script>",
    f"<img src=x onerror=window.{PWNED}=1>",
    f"\"><svg onload='window.{PWNED}=1'>",
    f"'-window.{PWNED}-'${{window.{PWNED}=1}}{{{{7*7}}}}{{% raw %}}",
    "<!--<script>",
    "]]>&amp;&lt;\\u003c",
    "\u202eevil\u0000\x1b[31m\u2028half \ud800",
    "<style>*{display:none}</style><base href=//evil><meta http-equiv=refresh content=0>",
)
"""Texts that a model, an environment or a server may write."""

Change = Callable[[dict[str, Any]], object]


def seal(folder: Path) -> Path:
    """Write manifest, attestation and page anew over the files of a run; return the page."""
    written = manifest.read(folder)
    manifest.write(written.model_copy(update={"files": manifest.list_files(folder)}), folder)
    attestation.write(folder)
    return pages.write(folder)


def with_training(run: Path, training: Path, folder: Path) -> Path:
    """Copy a run of the suite with a training run in it; return the folder."""
    shutil.copytree(run, folder)
    shutil.copytree(training, folder / TRAINING)
    seal(folder)
    return folder


def change_records(trace: Path, change: Change) -> None:
    """Change every record of a trace."""
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    for record in records:
        change(record)
    trace.write_text("".join(json.dumps(record) + "\n" for record in records))


def change_checks(folder: Path, change: Callable[[dict[str, Any], int], object]) -> None:
    """Change every check's record in a run's manifest; the verdict is decided anew."""
    written = manifest.read(folder)
    checks = [record.model_dump(mode="json") for record in written.checks]
    for number, record in enumerate(checks):
        change(record, number)
    made = tuple(CheckRecord.model_validate(record) for record in checks)
    verdict = manifest.decide(written.registered, made, written.run.exit_status, written.run.mode)
    manifest.write(written.model_copy(update={"checks": made, "verdict": verdict}), folder)


def make_hostile(folder: Path) -> None:
    """Put hostile texts wherever a page shows what others wrote: calls, observations, ids, messages, values."""

    def of_trace(record: dict[str, Any]) -> None:
        if record["kind"] == "episode":
            text = HOSTILE[record["rollout"] % len(HOSTILE)].encode("utf-8", "replace").decode()
            record["answer"] = record["outcome"] = text
            for call in record["calls"]:
                call["text"] = call["arguments"] = call["tool"] = text

    def of_check(record: dict[str, Any], number: int) -> None:
        text = HOSTILE[number % len(HOSTILE)].encode("utf-8", "replace").decode()
        record |= {"outcome": "failed", "message": text, "measured": {text: [text], "all": list(map(ascii, HOSTILE))}}

    change_records(folder / TRAINING / TRACE, of_trace)
    legend = json.loads((folder / TRAINING / LEGEND).read_bytes())
    legend["tokens"] = {token: HOSTILE[int(token) % 6] for token in legend["tokens"]}
    legend["families"] = {task: HOSTILE[number % 6] for number, task in enumerate(legend["families"])}
    (folder / TRAINING / LEGEND).write_bytes(readable_json(legend))
    training = json.loads((folder / TRAINING / manifest.MANIFEST).read_bytes())
    training["deviations"] = list(HOSTILE[:6])
    training["policy"]["name"] = training["gym"]["upstream"] = HOSTILE[2]
    (folder / TRAINING / manifest.MANIFEST).write_bytes(readable_json(training))
    odd = folder / "evidence" / "a #b?c%d<i>'\".log"
    odd.write_text("log")
    change_checks(folder, of_check)
    seal(folder)


def make_long(training: Path, steps: int) -> None:
    """Make a training's trace one of many steps: its own steps again and again, numbered on."""
    header, *records = [json.loads(line) for line in (training / TRACE).read_text().splitlines()]
    last = max(record["step"] for record in records if record["kind"] == "step")
    rollouts = 1 + max(record["rollout"] for record in records if "rollout" in record)
    lines = [header]
    for round_ in range(steps // last):
        for record in records:
            made = dict(record)
            for name, shift in (("step", last), ("rollout", rollouts), ("group", rollouts)):
                if isinstance(made.get(name), int):
                    made[name] += round_ * shift
            if record["kind"] == "step":
                made["rollouts"] = [number + round_ * rollouts for number in record["rollouts"]]
            lines.append(made)
    (training / TRACE).write_text("".join(json.dumps(line) + "\n" for line in lines))
