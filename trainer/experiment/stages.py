"""The stages of a matched experiment: each leaves one file, and is not run again once that is there."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import BaseModel
from rich.console import Console

from gymqual.gyms.base import read_identity
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.legend import LEGEND
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE
from gymqual.harness.stacks.device import exclusively
from gymqual.trainer.evaluation import retention
from gymqual.trainer.evaluation.evaluate import Evaluation, measure
from gymqual.trainer.experiment import report, resume
from gymqual.trainer.experiment.files import (
    BASELINE,
    LOOKS,
    NOTES,
    REPLAY,
    RESUME,
    RUN,
    dev_file,
    retention_file,
    selected,
)
from gymqual.trainer.experiment.files import TEST as TEST_FILE
from gymqual.trainer.experiment.frozen import path_of
from gymqual.trainer.experiment.plan import Assessment, Plan, RetentionData
from gymqual.trainer.experiment.records import Look, Looks, Notes, Replay
from gymqual.trainer.experiment.result import SUMMARY
from gymqual.trainer.grpo.run_directory import PROBE, TIMINGS
from gymqual.trainer.grpo.train import train
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.policy.loading import Policy, load_policy, policy_folder
from gymqual.trainer.replay import audit
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, read_config
from gymqual.trainer.runs.errors import Stopped
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, INITIAL_ADAPTER
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS

OF_A_RUN = {
    CONFIG,
    TRACE,
    LEGEND,
    MANIFEST,
    ADAPTER,
    INITIAL_ADAPTER,
    PROBE,
    TIMINGS,
    checkpoints.FOLDER,
    "README.md",
    "trl",
}
"""What a training leaves."""
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
        with self._console.status("") as status:
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
            self._begin_anew(arm, folder)
        run = train(config, folder, None, self._console, resume=step > 0)
        if run.outcome == run_manifest.INTERRUPTED:
            raise KeyboardInterrupt
        if run.outcome != COMPLETED:
            raise Stopped(f"{arm}: {run.outcome}; its evidence is in {folder}")
        if read_identity(run.gym.model_dump()).digest != self.plan.gyms[arm]:
            raise Stopped(f"{arm}: trained through another gym than was frozen; its evidence is in {folder}")

    def _replay(self, arm: str, path: Path) -> None:
        with self._console.status(f"{arm}: the replay audit"):
            claims = audit.audit(path.parent / RUN, policy_folder(self.plan.training.policy))
        if claims.broken:
            broken = next(line for line in claims.lines if line.startswith("BROKEN"))
            raise Stopped(f"{arm}: the replay audit of {path.parent / RUN}: {broken}")
        _write(path, Replay(manifest=sha256_file(path.parent / RUN / MANIFEST), lines=tuple(claims.lines)))

    def _evaluate(self, path: Path, name: str, what: Assessment, adapter: Path | None) -> None:
        policy, label = self._policy(adapter)
        if what.split == "test":
            self._look(path.parent.name, label)
        with self._console.status("") as status, exclusively(self.plan.device, self._console.print):
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
        with self._console.status("") as status, exclusively(self.plan.device, self._console.print):
            result = retention.measure(
                policy,
                path_of(data, self._data),
                lambda text: status.update(f"{name}: {text}"),
                problems=data.problems,
                adapter=label,
            )
        _write(path, result)

    def _report(self, path: Path) -> None:
        report.write(self.plan, self.folder)

    def _policy(self, adapter: Path | None) -> tuple[Policy, str | None]:
        policy = load_policy(self.plan.training.policy, adapter)
        if torch.cuda.is_available():
            policy.model.to("cuda")  # type: ignore[arg-type]
        return policy, sha256_file(adapter / TENSORS) if adapter else None

    def _adapter(self, arm: str, step: int) -> Path:
        run = self.folder / arm / RUN
        kept = checkpoints.folder_of(run, step)
        if kept.is_dir():
            return kept
        if step != self.plan.training.steps:
            raise HarnessError(f"{kept} is missing, which is a candidate; restore it, or remove {run} to train again")
        return run / ADAPTER

    def _selected(self, arm: str) -> Path:
        found = {step: read_result(self.folder / dev_file(arm, step), Evaluation) for step in self.plan.candidates()}
        return self._adapter(arm, selected({step: sum(made.temperature_1.strict) for step, made in found.items()}))

    # ---- what is on record ------------------------------------------------------------------------------

    def _note(self, text: str) -> None:
        path = self.folder / NOTES
        known = read_result(path, Notes).items if path.is_file() else ()
        if text not in known:
            _write(path, Notes(items=(*known, text)))

    def _look(self, owner: str, adapter: str | None) -> None:
        """Put a look at the test split on record, before it; raises Stopped for one at another candidate."""
        path = self.folder / LOOKS
        known = read_result(path, Looks).items if path.is_file() else ()
        others = {look.adapter for look in known if look.owner == owner} - {adapter}
        if others:
            before, now = str(others.pop())[:16], str(adapter)[:16]
            raise Stopped(
                f"{owner}: the test split was looked at with adapter {before}, and {now} is selected now; "
                "to look again would be to choose on it: prepare a new experiment"
            )
        _write(path, Looks(items=(*known, Look(owner=owner, adapter=adapter))))

    def _begin_anew(self, arm: str, folder: Path) -> None:
        """Clear what a training left that had no checkpoint yet; what an audit or a gym stopped is put aside."""
        present = [path.name for path in folder.iterdir()] if folder.exists() else []
        # One that begins with a point is of a write that was killed.
        strange = sorted(name for name in present if name not in OF_A_RUN and not name.startswith("."))
        if strange:
            raise HarnessError(f"{folder} holds {strange[0]}, which is of no training; move it away")
        if not (folder / MANIFEST).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            return
        ended, number = run_manifest.read(folder).outcome, 1
        while (aside := folder.with_name(f"{folder.name}-stopped-{number}")).exists():
            number += 1
        folder.rename(aside)
        self._note(f"{arm}: training began anew, {aside.name} is kept ({ended})")


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
