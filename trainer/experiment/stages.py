"""The stages of a matched experiment: each leaves one file, and is not run again once that is there."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import BaseModel
from rich.console import Console

from harness.device import exclusively
from harness.errors import HarnessError
from harness.files import readable_json, sha256_file, write_atomically
from harness.manifest import MANIFEST
from trainer import checkpoints, replay_audit, retention, run_manifest
from trainer.config import CONFIG, TrainingConfig, read_config
from trainer.evaluate import Evaluation, measure
from trainer.experiment import report, resume
from trainer.experiment.files import (
    BASELINE,
    RESUME,
    RUN,
    dev_file,
    retention_file,
    selected,
)
from trainer.experiment.files import TEST as TEST_FILE
from trainer.experiment.frozen import path_of
from trainer.experiment.plan import Assessment, Plan, RetentionData
from trainer.experiment.result import SUMMARY
from trainer.gym_training import train
from trainer.learning_result import REPLAY, Stopped, read_result
from trainer.policy import Policy, load_policy, policy_folder
from trainer.run_manifest import ADAPTER, COMPLETED
from trainer.tensors import ADAPTER as TENSORS

NOTES = "notes.json"
"""What was not planned: what a flag allowed, and trainings that went on after they were stopped."""
INEXACT = "--accept-inexact-resume"


@dataclass(frozen=True)
class Stage:
    """One thing to be done."""

    name: str
    kind: str
    """Stages of a kind take as long as they are large."""
    size: int
    file: Path
    """What it leaves."""
    run: Callable[[], None]
    gym: str = ""
    """The gym that it needs, if it needs one."""

    @property
    def done(self) -> bool:
        """Whether it need not be run any more."""
        if self.kind == "training":
            return self.file.is_file() and run_manifest.read(self.file.parent).outcome == COMPLETED
        return self.file.is_file()


class Experiment:
    """A plan, and the folder that it is carried out in."""

    def __init__(self, plan: Plan, folder: Path, console: Console, data: Path | None, accepts_inexact: bool) -> None:
        self.plan = plan
        self.folder = folder
        self._console = console
        self._data = data
        self._accepts_inexact = accepts_inexact

    def stages(self) -> Iterator[Stage]:
        """Yield all stages in their order."""
        plan, of = self.plan, self._stage
        for arm in plan.arms:
            yield of(f"{arm}: resume qualification", "resume", Path(arm) / RESUME, partial(self._resume, arm), gym=arm)
        for arm in plan.arms:
            yield of(f"{arm}: training", "training", Path(arm) / RUN / MANIFEST, partial(self._train, arm), gym=arm)
        for arm in plan.arms:
            yield of(f"{arm}: replay audit", "replay", Path(arm) / REPLAY, partial(self._replay, arm))
        yield self._evaluation("baseline: dev", dev_file(BASELINE), plan.dev, lambda: None)
        for arm in plan.arms:
            for step in plan.candidates():
                adapter = partial(self._adapter, arm, step)
                yield self._evaluation(f"{arm}: dev, step {step}", dev_file(arm, step), plan.dev, adapter)
        yield self._evaluation("baseline: test", Path(BASELINE) / TEST_FILE, plan.test, lambda: None)
        for arm in plan.arms:
            yield self._evaluation(f"{arm}: test", Path(arm) / TEST_FILE, plan.test, partial(self._selected, arm))
        for data in plan.retention:
            yield self._retention("baseline", data, lambda: None)
            for arm in plan.arms:
                yield self._retention(arm, data, partial(self._selected, arm))
        yield of("report", "report", Path(report.FOLDER) / SUMMARY, self._report)

    def left(self) -> list[Stage]:
        """Return the stages that are to be run: those that are not done, and with any of them the report."""
        stages = list(self.stages())
        missing = [stage for stage in stages if not stage.done]
        # A report is of all results, and the last stage.
        return [*missing, stages[-1]] if missing and missing[-1] is not stages[-1] else missing

    def _stage(
        self, name: str, kind: str, file: Path, run: Callable[[Path], None], *, gym: str = "", size: int = 1
    ) -> Stage:
        path = self.folder / file
        return Stage(name, kind, size, path, partial(run, path), gym)

    def _evaluation(self, name: str, file: Path, what: Assessment, adapter: Callable[[], Path | None]) -> Stage:
        return self._stage(
            name, "evaluation", file, lambda path: self._evaluate(path, name, what, adapter()), size=what.episodes
        )

    def _retention(self, owner: str, data: RetentionData, adapter: Callable[[], Path | None]) -> Stage:
        name = f"{owner}: retention, {data.name}"
        return self._stage(
            name,
            "retention",
            retention_file(owner, data),
            lambda path: self._retain(path, name, data, adapter()),
            size=data.problems,
        )

    # ---- what each does ---------------------------------------------------------------------------------

    def _resume(self, arm: str, path: Path) -> None:
        with self._console.status("") as status, exclusively(self.plan.device, self._console.print):
            made = resume.qualify(
                self.plan.resume_config(arm),
                path.parent / "resume",
                lambda text: status.update(f"{arm}: resume qualification, {text}"),
            )
        if made.broken:
            raise Stopped(f"{arm}: resume qualification: {made.broken[0]}; its evidence is in {path.parent / 'resume'}")
        if made.kind != "exact":
            said = f"{arm}: a continued training is not the uninterrupted one but {made.kind!r}: {made.differences[0]}"
            if not self._accepts_inexact:
                raise Stopped(f"{said}; to go on nevertheless, and have it on record, say {INEXACT}")
            self._note(f"{arm}: resume of class {made.kind!r} accepted by {INEXACT}")
        _write(path, made)

    def _train(self, arm: str, path: Path) -> None:
        folder, config = path.parent, self.plan.config(arm)
        step = _reached(folder, config)
        if step:
            ended = run_manifest.read(folder).outcome if (folder / MANIFEST).is_file() else "killed"
            self._note(f"{arm}: training went on from step {step} ({ended})")
        else:
            _clear(folder)
        with exclusively(self.plan.device, self._console.print):
            run = train(config, folder, None, self._console, resume=step > 0)
        if run.outcome == run_manifest.INTERRUPTED:
            raise KeyboardInterrupt
        if run.outcome != COMPLETED:
            raise Stopped(f"{arm}: {run.outcome}; its evidence is in {folder}")

    def _replay(self, arm: str, path: Path) -> None:
        with self._console.status(f"{arm}: the replay audit"):
            claims = replay_audit.audit(path.parent / RUN, policy_folder(self.plan.training.policy))
        if claims.broken:
            broken = next(line for line in claims.lines if line.startswith("BROKEN"))
            raise Stopped(f"{arm}: the replay audit of {path.parent / RUN}: {broken}")
        write_atomically(path, "".join(f"{line}\n" for line in claims.lines).encode())

    def _evaluate(self, path: Path, name: str, what: Assessment, adapter: Path | None) -> None:
        policy, label = self._policy(adapter)
        with self._console.status("") as status:
            result = measure(
                policy,
                "local",
                what.split,
                what.episodes,
                lambda text: status.update(f"{name}: {text}"),
                seed=what.seed,
                adapter=label,
            )
        _write(path, result)

    def _retain(self, path: Path, name: str, data: RetentionData, adapter: Path | None) -> None:
        policy, label = self._policy(adapter)
        with self._console.status("") as status:
            result = retention.measure(
                policy,
                path_of(data, self._data),
                lambda text: status.update(f"{name}: {text}"),
                problems=data.problems,
                adapter=label,
            )
        _write(path, result)

    def _report(self, path: Path) -> None:
        report.write(self.plan, self.folder, self._notes())

    def _policy(self, adapter: Path | None) -> tuple[Policy, str | None]:
        policy = load_policy(self.plan.training.policy, adapter)
        if torch.cuda.is_available():
            policy.model.to("cuda")  # type: ignore[arg-type]
        return policy, sha256_file(adapter / TENSORS) if adapter else None

    def _adapter(self, arm: str, step: int) -> Path:
        run = self.folder / arm / RUN
        kept = checkpoints.folder_of(run, step)
        return kept if kept.is_dir() else run / ADAPTER

    def _selected(self, arm: str) -> Path:
        found = {step: read_result(self.folder / dev_file(arm, step), Evaluation) for step in self.plan.candidates()}
        return self._adapter(arm, selected({step: sum(made.temperature_1.strict) for step, made in found.items()}))

    def _notes(self) -> list[str]:
        path = self.folder / NOTES
        return json.loads(path.read_bytes()) if path.is_file() else []

    def _note(self, text: str) -> None:
        known = self._notes()
        if text not in known:
            write_atomically(self.folder / NOTES, readable_json([*known, text]))


def _write(path: Path, result: BaseModel) -> None:
    write_atomically(path, readable_json(result.model_dump(mode="json")))


def _reached(folder: Path, config: TrainingConfig) -> int:
    """Return the step that an interrupted training can go on from; 0 if there is none."""
    if not (folder / CONFIG).is_file():
        return 0
    if read_config(folder / CONFIG) != config:
        raise HarnessError(f"{folder / CONFIG} is not the experiment's: it was changed; restore it, or prepare anew")
    if not any((folder / checkpoints.FOLDER).glob("step-*")):
        return 0
    return checkpoints.newest(folder, config.steps)[1].step


def _clear(folder: Path) -> None:
    """Remove what a training left that had no checkpoint yet, and nothing else."""
    if not folder.exists():
        return
    strange = [path.name for path in folder.iterdir()]
    if strange and not (folder / CONFIG).is_file():
        raise HarnessError(f"{folder} holds {sorted(strange)[0]} and is no training run; name another folder")
    shutil.rmtree(folder)
