"""How fast policies and training are, measured in a process of their own: nothing here loads torch."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from gymqual.harness.records.errors import HarnessError, NotTestable
from gymqual.harness.records.figures import Figure, Say
from gymqual.harness.records.files import ROOT


def bench_policy(say: Say) -> list[Figure]:
    """Measure building, sampling and evaluating the embedded policy; raises HarnessError."""
    return _figures("gymqual.trainer.profiling.policy_speed", say)


def bench_training(say: Say) -> list[Figure]:
    """Measure audited training, in this process and through the gyms; raises HarnessError."""
    return _figures("gymqual.trainer.profiling.training_speed", say)


def bench_silent_bugs(say: Say, out: Path, quick: bool) -> list[Figure]:
    """Run the fault catalogue and clean trainings and write the table to ``out``; raises HarnessError."""
    options = ["--out", str(out.resolve()), *(["--quick"] if quick else [])]
    return _figures("gymqual.qualification.studies.silent_bugs", say, options, shows_progress=True)


def _figures(module: str, say: Say, options: Sequence[str] = (), *, shows_progress: bool = False) -> list[Figure]:
    if find_spec("torch") is None or find_spec("trl") is None:
        raise NotTestable("this needs torch and trl; run: make setup-train")
    figures = []
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", module, *options]
        errors = None if shows_progress else log
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            for line in map(json.loads, process.stdout):
                if "say" in line:
                    say(line["say"])
                else:
                    figures.append(Figure(**line))
        if process.returncode:
            log.seek(0)
            tail = "\n".join(log.read().splitlines()[-12:]) or "see above"
            raise HarnessError(f"{module} ended with {process.returncode}:\n{tail}")
    return figures
