"""Training runs that the qualification checks look at: each is made once, through a real gym, into the run's folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from rich.console import Console

from gymqual.gyms.launch import SECRET_HEADER, SECRET_VARIABLE
from gymqual.harness.plugin.run import Run
from gymqual.harness.process import reaper
from gymqual.harness.records.trace import TRACE, Record, read_trace
from gymqual.harness.stacks.services import GymService, start_nemo, start_openenv
from gymqual.trainer.grpo.train import train
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.accelerator import find_accelerator
from gymqual.trainer.runs.config import TrainingConfig, training_config
from gymqual.trainer.runs.manifest import TrainingRun

STEPS = 8
GROUP = 4
SEED = 43


@dataclass(frozen=True)
class Trained:
    """A finished training run and what surrounds it."""

    gym: str
    folder: Path
    manifest: TrainingRun
    records: tuple[Record, ...]
    open_sessions: int
    """Sessions that the gym's service still holds after the run."""
    processes: tuple[str, ...]
    """Processes that the run started and left alive."""

    def of(self, kind: str) -> list[Any]:
        """Return the trace's records of one kind."""
        return [record for record in self.records if record.kind == kind]


def require_device(device: str) -> None:
    """Raise NotTestable unless the device is there."""
    if device == "cuda":
        find_accelerator()


def qualification_config(gym: str, policy: str, **changed: Any) -> TrainingConfig:
    """Return the configuration of a qualification: eight steps, one group of four a step, seed 43, sixteen tasks."""
    made = training_config(policy, load_policy(policy).identity.weights, gym, SEED, STEPS)
    return TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), **changed})


@contextmanager
def served(gym: str, run: Run, name: str) -> Iterator[GymService]:
    """A service of the gym, owned by this process."""
    folder = run.folder / run.mine("servers") / f"{name}-{gym}"
    start = {"nemo": start_nemo, "openenv": start_openenv}[gym]
    service = start(run.stack(gym), run.subject, run.owner, folder)
    run.note_gym(service.identity)
    try:
        yield service
    finally:
        service.server.stop()


def trained_through(
    gym: str, device: str, policy: str, run: Run, name: str, environment: pytest.MonkeyPatch
) -> Trained:
    """Train through a gym that is served here; ``name`` names the folder of the run."""
    require_device(device)
    config = qualification_config(gym, policy, precision="bf16" if device == "cuda" else "fp32")
    folder = run.folder / "training" / name
    before = _children()
    with served(gym, run, name) as service:
        environment.setenv(SECRET_VARIABLE, service.secret)
        manifest = train(config, folder, service.server.url, Console(quiet=True))
        state = httpx.post(
            f"{service.server.url}/bridge/state", json={}, headers={SECRET_HEADER: service.secret}, trust_env=False
        )
    left = tuple(name for pid, name in _children().items() if pid not in before)
    trace = tuple(read_trace(folder / TRACE))
    return Trained(gym, folder, manifest, trace, state.json()["open"], left)


def _children() -> dict[int, str]:
    """Return this process's descendants that are servers or bridges, by pid."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        try:
            if reaper.SERVER_VARIABLE in child.environ():
                found[child.pid] = " ".join(child.cmdline()[-3:])
        except psutil.Error:
            continue
    return found
