"""Trainings in several processes, as ``torchrun`` starts them."""

import os
import subprocess
import sys
from pathlib import Path

from gymqual.harness.records.files import ROOT

LIMIT_S = 240.0
PROCESSES = 2


def torchrun_itself(*arguments: str | Path, processes: int = PROCESSES) -> subprocess.CompletedProcess[str]:
    """Run ``torchrun ARGUMENTS`` in several processes on a free port; raises TimeoutExpired."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
    return subprocess.run(
        [sys.executable, *launcher, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
