"""What a training run makes of a gym that breaks at its third step: it ends, typed, with all that was finished."""

import json
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import TrainerCallback

from gymqual.__main__ import main
from gymqual.gyms.base import Replay
from gymqual.gyms.blocking import run_to_end
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.launch import SECRET_VARIABLE
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import check, explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.trace import TRACE, read_trace
from gymqual.harness.stacks.services import GymService, start_nemo, start_openenv
from gymqual.qualification.support.training.qualified import GROUP, qualification_config, served
from gymqual.trainer.grpo.environment import GymEnvironment
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, write_config

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.timeout(600)]

DONE = 2
"""Steps that are finished when the blow falls."""
Strike = Callable[[GymService, Run, pytest.MonkeyPatch, Any], object]


def _restart(service: GymService, run: Run, patch: pytest.MonkeyPatch, model: Any) -> None:
    service.server.kill()
    gym = service.identity.gym
    start = {"nemo": start_nemo, "openenv": start_openenv}[gym]
    folder = run.folder / run.mine("servers") / f"restarted-{gym}-{service.server.port}"
    start(run.stack(gym), run.subject, run.owner, folder, ports=[service.server.port], secret=service.secret)


def _disagree(service: GymService, run: Run, patch: pytest.MonkeyPatch, model: Any) -> None:
    original = GermanOrders.replay

    def replay(self: GermanOrders, *arguments: Any, **named: Any) -> Replay:
        told = original(self, *arguments, **named)
        return replace(told, verdict=replace(told.verdict, reward=0.5))

    patch.setattr(GermanOrders, "replay", replay)


def _kill_bridge(service: GymService, run: Run, patch: pytest.MonkeyPatch, model: Any) -> None:
    for child in psutil.Process().children():
        if "gymqual.gyms.openenv.bridge" in child.cmdline():
            child.kill()
            child.wait(10)


def _lose_a_member(service: GymService, run: Run, patch: pytest.MonkeyPatch, model: Any) -> None:
    """Let one rollout of the next group lose its session after it was opened."""
    opened = GymEnvironment.reset
    numbers = iter(range(1000))

    def reset(self: GymEnvironment, **row: Any) -> None:
        opened(self, **row)
        if next(numbers) == 1 and self._session is not None:
            session: Any = self._session._session
            # The server's part of it alone; client and trainer know nothing of it.
            run_to_end(session._gym.release(session))

    patch.setattr(GymEnvironment, "reset", reset)


FAULTS: dict[str, dict[str, tuple[Strike, str]]] = {
    "nemo": {
        "killed": (lambda s, r, p, m: s.server.kill(), "unreachable"),
        "paused": (lambda s, r, p, m: s.server.pause(), "timeout"),
        "restarted": (_restart, "session_lost"),
        "disagreeing verdict": (_disagree, "replay_disagreement"),
        "a lost member": (_lose_a_member, "session_lost"),
    },
    "openenv": {
        "killed": (lambda s, r, p, m: s.server.kill(), "unreachable"),
        "paused": (lambda s, r, p, m: s.server.pause(), "timeout"),
        "restarted": (_restart, "session_lost"),
        "disagreeing verdict": (_disagree, "replay_disagreement"),
        "bridge killed": (_kill_bridge, "unreachable"),
        "a lost member": (_lose_a_member, "session_lost"),
    },
}


LEAVE_THE_SERVER = ("paused", "disagreeing verdict", "bridge killed", "a lost member")
"""Faults after which the server goes on, so that the next training finds it as it was."""


class _After(TrainerCallback):
    def __init__(self, strike: Callable[[Any], object]) -> None:
        self._strike = strike

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step == DONE:
            self._strike(named["model"])


@pytest.mark.parametrize("gym", [pytest.param(gym, marks=pytest.mark.gym(gym)) for gym in FAULTS])
@check("TRAIN-10", broken="a_lost_rollout_is_worth_zero")
def test_a_gym_that_breaks_ends_the_run_before_it_is_trained_on(
    gym: str, run: Run, evidence: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gym that breaks at step 3 MUST end the run typed; nothing of the broken group trained, what was done kept."""
    expected = {
        name: {
            "exit code": 1,
            "kind": kind,
            "steps": DONE,
            "rows": DONE * GROUP,
            "trained": DONE * GROUP,
            "whole": True,
        }
        for name, (_, kind) in FAULTS[gym].items()
    }
    seen: dict[str, object] = {}
    with served(gym, run, "struck") as shared:
        for name, (strike, _) in FAULTS[gym].items():
            service = nullcontext(shared) if name in LEAVE_THE_SERVER else served(gym, run, name.replace(" ", "-"))
            with service as struck:
                seen[name] = _struck(struck, name, run, monkeypatch, strike)
            # Once one is not as is due, the verdict is known.
            if seen[name] != expected[name]:
                break
    evidence.measure(seen=seen)
    assert seen == expected, explain(
        subject=f"training through {gym} whose service breaks after step {DONE}",
        expected=expected,
        got=seen,
        cause="a lost rollout is paid, or the group is trained without it",
    )


OWN_FAULTS: dict[str, tuple[Strike, str]] = {
    # As Ctrl-C does, also where a shell has told its background jobs to ignore it.
    "interrupted": (lambda s, r, p, m: signal.default_int_handler(signal.SIGINT, None), "interrupted"),
    "a frozen tensor touched": (lambda s, r, p, m: _touch_a_frozen_tensor(m), "frozen:"),
}


def _touch_a_frozen_tensor(model: Any) -> None:
    """Move one weight of the base model, as an optimizer that got hold of it would."""
    frozen = next(parameter for parameter in model.parameters() if not parameter.requires_grad)
    with torch.no_grad():
        frozen.view(-1)[0] += 1e-3


@pytest.mark.gym("nemo")
@pytest.mark.parametrize("fault", OWN_FAULTS)
def test_a_run_that_goes_wrong_by_itself_says_so(
    fault: str, run: Run, monkeypatch: pytest.MonkeyPatch, evidence: Evidence
) -> None:
    """Ctrl-C MUST leave a whole run directory; a frozen tensor that has changed MUST end the run as stopped."""
    with served("nemo", run, fault.replace(" ", "-")) as service:
        seen = _struck(service, fault, run, monkeypatch, OWN_FAULTS[fault][0])
    evidence.measure(seen=seen)
    assert (seen["exit code"], seen["kind"], seen["whole"]) == (1, OWN_FAULTS[fault][1], True), explain(
        subject=f"training that is {fault} after step {DONE}",
        expected=(1, OWN_FAULTS[fault][1], True),
        got=seen,
        cause="the end of a run is taken for its success, or its manifest is not written",
    )


def _struck(service: GymService, fault: str, run: Run, patch: pytest.MonkeyPatch, strike: Strike) -> dict[str, object]:
    """Train mini4 through a service that is struck after step 2; return what is left of the run."""
    gym = service.identity.gym
    folder = run.folder / "training" / run.mine(f"{fault.replace(' ', '-')}-{gym}-{time.monotonic_ns()}")
    folder.mkdir(parents=True)
    write_config(qualification_config(gym, "mini4", deadline_s=2.5), folder / CONFIG)
    with patch.context() as patched:
        original = GymTrainer.__init__

        def init(self: GymTrainer, *arguments: Any, **named: Any) -> None:
            original(self, *arguments, **named)
            self.add_callback(_After(lambda model: strike(service, run, patched, model)))

        patched.setattr(GymTrainer, "__init__", init)
        patched.setenv(SECRET_VARIABLE, service.secret)
        code = main(["train", str(folder / CONFIG), "--gym-url", service.server.url])
        if service.server.alive:
            service.server.resume()
    return {"exit code": code, **_left(folder)}


def _left(folder: Path) -> dict[str, object]:
    manifest = run_manifest.read(folder)
    records = list(read_trace(folder / TRACE))
    outcome = manifest.outcome.removeprefix("stopped: ")
    return {
        "kind": outcome.split(" ")[0],
        "steps": sum(record.kind == "step" for record in records),
        "rows": sum(record.kind == "row" for record in records),
        "trained": len({record.rollout for record in records if record.kind == "pass"}),
        "whole": manifest.files == run_manifest.list_files(folder) and bool(json.loads((folder / CONFIG).read_text())),
    }
