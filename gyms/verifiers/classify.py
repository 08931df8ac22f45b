"""Tell model, budget and infrastructure failures of a Verifiers run apart.

    python -m gymqual.gyms.verifiers.classify RUN_DIR [--json]

Upstream ends with 0 whatever failed, and a failed trace adds up to a reward of 0. This reads a run's
``traces.jsonl`` and alone decides which rollouts have a reward; ``gymqual.gyms.verifiers.rules`` states by what. Needs
nothing but the standard library.

Exit code: 0 model and budget outcomes only, 1 infrastructure failures among them, 2 no whole run.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gymqual.gyms.base import Kind
from gymqual.gyms.verifiers.rules import Finding, Source, classify

TRACES = "traces.jsonl"
CONFIG = "configs/resolved/eval.json"
FORMAT = "gymqual.verifiers.rollouts/1"


class NoRun(ValueError):
    """A folder that holds no whole run: one sentence for its owner."""


def read_run(folder: Path) -> list[dict[str, Any]]:
    """Return one row per rollout, in the order of ``traces.jsonl``; raises NoRun."""
    try:
        lines = (folder / TRACES).read_bytes().splitlines()
    except OSError as error:
        raise NoRun(f"{folder / TRACES} cannot be read ({error.strerror}); name a folder that vf-eval wrote") from None
    rows = [row for number, line in enumerate(lines, 1) for row in _rows(folder, number, line)]
    expected = _expected(folder)
    if len(rows) < (expected or 1):
        raise NoRun(f"{folder} holds {len(rows)} of {expected or 'its'} rollouts; resume the run with vf-eval --resume")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gymqual.gyms.verifiers.classify", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="a run folder of vf-eval")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    options = parser.parse_args(arguments)
    try:
        rows = read_run(options.run)
    except NoRun as error:
        print(f"classify: {error}", file=sys.stderr)
        return 2
    counts = Counter(row["source"] for row in rows)
    print(json.dumps({"format": FORMAT, "counts": counts, "rollouts": rows}) if options.json else _table(rows, counts))
    return 1 if counts[Source.INFRASTRUCTURE] else 0


def _rows(folder: Path, number: int, line: bytes) -> Iterator[dict[str, Any]]:
    try:
        episode = json.loads(line)
        traces = episode["traces"]
        task = episode["task"].get("key", "")
        if not isinstance(traces, list):
            raise TypeError("traces is no list")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NoRun(f"{folder / TRACES}, line {number}, is no whole episode ({error!r}); run it again") from None
    for trace in traces:
        yield _row(task, trace, classify(trace))
    if not traces or (not episode.get("ok") and all(trace.get("ok") for trace in traces)):
        errors = episode.get("errors") or [{"type": "nothing", "message": "no rollout and no error"}]
        kind = Kind.TIMEOUT if episode.get("is_timeout") else Kind.SERVICE_ERROR
        detail = f"{errors[-1]['type']}: {errors[-1]['message']}"
        yield _row(task, {}, Finding(Source.INFRASTRUCTURE, str(kind), None, "environment", detail))


def _row(task: str, trace: Mapping[str, Any], finding: Finding) -> dict[str, Any]:
    scripted = bool(trace.get("info", {}).get("scripted"))
    return {"task": task, "trace": trace.get("id", ""), "scripted": scripted, **asdict(finding)}


def _expected(folder: Path) -> int | None:
    """Return how many rollouts a vf-eval run was to have, where its configuration says so."""
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        taskset = config["env"]["taskset"]
        counts = [taskset.get("tasks"), config["select"].get("limit")]
        known = [count for count in counts if count is not None]
        return min(known) * config["num_rollouts"] if known and not taskset.get("rollouts") else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _table(rows: list[dict[str, Any]], counts: Mapping[str, int]) -> str:
    lines = []
    for row in rows:
        reward = "none" if row["reward"] is None else f"{row['reward']:.1f}"
        scripted = "scripted " if row["scripted"] else ""
        why = f"{row['where']}: {row['detail']}" if row["where"] else row["detail"]
        lines.append(
            f"{row['task']:<18} {scripted}{row['source']:<15} {row['kind']:<20} reward {reward}  {why}".rstrip()
        )
    return "\n".join([*lines, ", ".join(f"{count} {source}" for source, count in sorted(counts.items()))])


if __name__ == "__main__":
    sys.exit(main())
