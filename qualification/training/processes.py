"""Trainings in several processes, as ``torchrun`` starts them; run as a module it is one of these processes."""

import os
import subprocess
import sys
from pathlib import Path

from harness.files import ROOT

LIMIT_S = 240.0
PROCESSES = 2


def torchrun(*arguments: str | Path, processes: int = PROCESSES) -> subprocess.CompletedProcess[str]:
    """Run a module in several processes on a free port; raises TimeoutExpired."""
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}")
    return subprocess.run(
        [sys.executable, *launcher, "-m", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def main(defect: str, *arguments: str) -> int:
    """Train as the command does, on tasks that are played in this process, with a defect planted in it."""
    from qualification.broken.processes import DEFECTS
    from qualification.training.small_run import played_here
    from trainer import gym_training

    DEFECTS[defect][0](int(os.environ["RANK"]))
    with played_here():
        return gym_training.main(list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
