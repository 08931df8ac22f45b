"""How fast policies and training are, measured in a process of their own: nothing here loads torch."""

import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec

from harness.bench import Figure, Say
from harness.errors import HarnessError, NotTestable
from harness.files import ROOT


def bench_policy(say: Say) -> list[Figure]:
    """Measure building, sampling and evaluating the embedded policy; raises HarnessError."""
    return _figures("trainer.bench", say)


def bench_training(say: Say) -> list[Figure]:
    """Measure audited training, in this process and through the gyms; raises HarnessError."""
    return _figures("trainer.bench_training", say)


def _figures(module: str, say: Say) -> list[Figure]:
    if find_spec("torch") is None or find_spec("trl") is None:
        raise NotTestable("this needs torch and trl; run: make setup-train")
    figures = []
    with tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, "-m", module]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            for line in map(json.loads, process.stdout):
                if "say" in line:
                    say(line["say"])
                else:
                    figures.append(Figure(**line))
        if process.returncode:
            errors.seek(0)
            tail = "\n".join(errors.read().splitlines()[-12:])
            raise HarnessError(f"{module} ended with {process.returncode}:\n{tail}")
    return figures
