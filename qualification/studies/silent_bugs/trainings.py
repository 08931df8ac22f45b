"""The trainings behind the table. Each is one function of plain values, to be run in a process of its own."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from rich.console import Console
from transformers import PrinterCallback, set_seed
from transformers.utils import logging

from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.records.trace import TRACE, Step, read_trace
from gymqual.qualification.broken.faults import STEPS
from gymqual.qualification.broken.trainers import CATALOGUE, Fault
from gymqual.qualification.studies.silent_bugs.result import HEALTHY, Clean, Curve, Naive, Study
from gymqual.qualification.support.training.small_run import played_here
from gymqual.trainer.audit.attach import Audit
from gymqual.trainer.evaluation.evaluate import evaluate
from gymqual.trainer.evaluation.rollout import Sampling
from gymqual.trainer.grpo import train
from gymqual.trainer.grpo.trainer import GymTrainer, attach_audit
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.replay import audit as replay_audit
from gymqual.trainer.runs.config import TrainingConfig, training_config
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, INITIAL_ADAPTER
from gymqual.trainer.runs.tensors import tensors_digest

POLICY = "mini4"
CURVE = {"steps": 40, "groups_per_step": 4}
EPISODES = 256


def quiet() -> None:
    """Prepare a process: one torch thread, no warnings of libraries."""
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    warnings.filterwarnings("ignore")


def begin_worker() -> None:
    """Prepare a process that others wait for, and let it end when they are gone, however they ended."""
    owner = parent_process()
    assert owner is not None
    Thread(target=lambda: (owner.join(), os._exit(1)), daemon=True).start()
    quiet()


def _config(gym: str, steps: int, pool: int, seed: int, **settings: Any) -> TrainingConfig:
    made = training_config(POLICY, load_policy(POLICY).identity.weights, gym, seed, steps, pool)
    return TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), **settings})


# ---- a bug and all evidence of it ---------------------------------------------------------------------------


def study(name: str, precision: str) -> Study:
    """Train a few steps with a bug, and let every audit and the replay say what they find."""
    fault = CATALOGUE[name]
    config = _config("nemo", STEPS, 16, 43, precision=precision, oracle_steps="every", **fault.settings)
    with tempfile.TemporaryDirectory(prefix="gymqual-bug-") as made:
        folder = Path(made) / "run"
        ended, claims, naive = COMPLETED, [], None
        with _unstopped(fault) as seen:
            try:
                run = train.train(config, folder, None, Console(quiet=True))
            except Exception as error:  # Some bugs end in a crash, which is no silent one.
                ended = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}" if str(error) else repr(error)
            else:
                claims = _broken_claims(folder)
                steps = [record for record in read_trace(folder / TRACE) if record.kind == "step"]
                naive = Naive(
                    tensors_changed=run.tensors is not None and run.tensors.changed == run.tensors.trainable,
                    gradients=all(_is_usual(step) for step in steps),
                    base_unchanged=seen["base"] == _base(seen["audit"], seen["names"]),
                )
        audit: Audit = seen["audit"]
    found: dict[str, int] = {}
    words: dict[str, str] = {}
    for error in audit.findings:
        found.setdefault(error.rule, error.step)
        words.setdefault(error.rule, str(error)[:300])
    return Study(fault=name, precision=precision, found=found, words=words, claims=claims, naive=naive, ended=ended)


def _is_usual(step: Step) -> bool:
    norm = step.gradient_norm
    return norm == norm and norm < float("inf") and (norm > 0 or not step.varied_groups)


@contextmanager
def _unstopped(fault: Fault) -> Iterator[dict[str, Any]]:
    """Let a training run use the faulty trainer, play its tasks in this process, and not be stopped."""
    seen: dict[str, Any] = {}

    def attached(trainer: GymTrainer, *arguments: Any, **named: Any) -> Audit:
        audit = seen["audit"] = attach_audit(trainer, *arguments, **named, stops=False)
        seen["names"] = [n for n, p in audit.model.named_parameters() if not p.requires_grad]
        seen["base"] = _base(audit, seen["names"])
        return audit

    with played_here(fault.gym, GymTrainer=fault.trainer, attach_audit=attached):
        yield seen


def _base(audit: Audit, names: list[str]) -> str:
    parameters = dict(audit.model.named_parameters())
    return tensors_digest({name: parameters[name].detach() for name in names})


def _broken_claims(folder: Path) -> list[str]:
    lines = replay_audit.audit(folder).lines
    return sorted({line.removeprefix("BROKEN").strip().split(": ")[0] for line in lines if line.startswith("BROKEN")})


# ---- no bug -------------------------------------------------------------------------------------------------


def clean(name: str, gym: str, settings: dict[str, Any]) -> Clean:
    """Train a few steps without a bug through a gym's real service, and audit and replay it."""
    config = _config(gym, STEPS, 16, 43, oracle_steps="every", **settings)
    with tempfile.TemporaryDirectory(prefix="gymqual-clean-") as made:
        folder = Path(made) / "run"
        run = train.train(config, folder, None, Console(quiet=True))
        claims = _broken_claims(folder)
        steps = [record for record in read_trace(folder / TRACE) if record.kind == "step"]
    oracles = [step.oracle for step in steps if step.oracle and step.varied_groups]
    ratios = [each.norm_ratio for each in oracles if each.norm_ratio is not None]
    cosines = [each.cosine for each in oracles if each.cosine is not None]
    return Clean(
        name=name,
        gym=gym,
        settings=settings,
        outcome=run.outcome,
        claims=claims,
        cosine=max((abs(1 - each) for each in cosines), default=None),
        norm_ratio=max((abs(1 - each) for each in ratios), default=None),
        logprob_gap=max((step.logprob_gap_max or 0.0 for step in steps), default=0.0),
        reference_kl=steps[0].reference_kl if steps else None,
    )


# ---- what a bug does to a policy ----------------------------------------------------------------------------


def curve(name: str, seed: int) -> Curve:
    """Train forty steps of sixteen rollouts, without an audit, and evaluate what was saved.

    ``healthy of X`` is the healthy trainer with what the bug X is set to.
    """
    fault = CATALOGUE[name.removeprefix(f"{HEALTHY} of ")]
    trainer = GymTrainer if name.startswith(HEALTHY) else fault.trainer
    settings = {**fault.settings, **CURVE}
    config = _config("nemo", **{"pool": CURVE["steps"] * CURVE["groups_per_step"], "seed": seed, **settings})
    tasks = GermanOrders()
    folder = Path(tempfile.mkdtemp(prefix="gymqual-curve-"))
    training: list[float] = []
    ended = COMPLETED
    try:
        set_seed(seed)
        made: Any = trainer(config, load_policy(POLICY), fault.gym(tasks), tasks, folder / "trl")  # type: ignore[arg-type]
        made.remove_callback(PrinterCallback)
        judge = made._calculate_rewards

        def judged(*arguments: Any, **named: Any) -> Any:
            values = judge(*arguments, **named)
            training.append(sum(verdict.strict for verdict in made.verdicts) / len(made.verdicts))
            return values

        made._calculate_rewards = judged
        made.model.save_pretrained(folder / INITIAL_ADAPTER)
        try:
            made.train()
        except Exception as error:
            ended = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}" if str(error) else repr(error)
        made.model.save_pretrained(folder / ADAPTER)
        success = _success(folder / ADAPTER) if ended == COMPLETED else 0.0
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Curve(fault=name, seed=seed, success=success, episodes=EPISODES, training=training, ended=ended)


def _success(adapter: Path | None) -> float:
    tasks = GermanOrders()
    dev = [f"v1/dev/0/{index}" for index in range(EPISODES)]
    policy = load_policy(POLICY, adapter)
    return evaluate(policy, LocalGym(tasks), dev, Sampling(seed=0), lambda text: None).success


def baseline() -> float:
    """Return the policy's strict success before any training."""
    return _success(None)
