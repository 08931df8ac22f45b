"""The schedule of a matched experiment: what it selects, what stops it, and what it puts on record."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import readable_json
from gymqual.harness.records.manifest import MANIFEST
from gymqual.qualification.support.training.small_experiment import (
    QUIET,
    Freeze,
    qualified,
    refusal,
    scheduled,
    two_steps,
)
from gymqual.qualification.support.training.small_run import played_here
from gymqual.trainer.audit.attach import Audit
from gymqual.trainer.experiment import report, resume
from gymqual.trainer.experiment.card import CARD
from gymqual.trainer.experiment.curves import draw
from gymqual.trainer.experiment.files import BASELINE, LOOKS, RUN, TEST, dev_file, selected
from gymqual.trainer.experiment.records import Looks
from gymqual.trainer.experiment.result import SUMMARY
from gymqual.trainer.grpo import train
from gymqual.trainer.grpo.trainer import GymTrainer
from gymqual.trainer.learning.result import Success
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.errors import AuditError
from gymqual.trainer.runs.statistics import wilson

pytestmark = [pytest.mark.self_test, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ARMS = ("nemo", "openenv")


# ---- what is selected, and the class of a resume ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("solved", "due"), [({8: 5, 16: 9, 24: 9}, 16), ({8: 9, 16: 9}, 8), ({1: 0}, 1)], ids=["best", "equal", "single"]
)
def test_the_earliest_of_the_best_on_dev_is_selected(solved: dict[int, int], due: int) -> None:
    """Selected MUST be the candidate with most strict successes on dev, of equal ones the earliest."""
    assert selected(solved) == due


def test_a_resume_is_classed_by_what_differs(tmp_path: Path) -> None:
    """The same bytes MUST be exact, other weights alone the same ids, and another id or reward a divergence."""
    config = two_steps()
    with played_here():
        for name in ("whole", "part"):
            train.train(config, tmp_path / name, None, QUIET)
    whole, part, steps = tmp_path / "whole", tmp_path / "part", config.steps
    kinds = [resume.classify(whole, part, steps)[0]]
    optimizer = checkpoints.folder_of(part, steps) / "optimizer.pt"
    optimizer.write_bytes(optimizer.read_bytes() + b"x")
    kinds.append(resume.classify(whole, part, steps)[0])
    trace = part / "trace.jsonl"
    trace.write_text(re.sub(r'("kind":"call".*?"sampled":\[)(\d+)', r"\g<1>499", trace.read_text(), count=1))
    kinds.append(resume.classify(whole, part, steps)[0])
    assert kinds == ["exact", "same ids", "diverges"], explain(
        subject="class of a resume: untouched, another optimizer state, another sampled id",
        expected=["exact", "same ids", "diverges"],
        got=kinds,
        cause="something is left out of the comparison",
    )


# ---- stages ----------------------------------------------------------------------------------------------------


def test_a_finished_experiment_is_not_run_again(plan: Freeze, tmp_path: Path) -> None:
    """A second schedule MUST take every stage as it is, and its report MUST hold."""
    folder = plan(tmp_path / "e")
    scheduled(folder)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}
    scheduled(folder)
    again = {path: path.stat().st_mtime_ns for path in folder.rglob("*.json")}
    assert (again == before, report.differences(folder / report.FOLDER)) == (True, []), explain(
        subject="(no result was written again, what does not hold in the report)",
        expected=(True, []),
        got=([path.name for path in before if again.get(path) != before[path]], report.differences(folder / "report")),
        cause="a stage does not know that it is done",
    )


class _ForeignDraw(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        torch.rand(1)


def test_arms_that_part_are_told_where(plan: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report MUST name the first id in which two arms differ; the control of parity."""
    init = GymTrainer.__init__

    def drawing(self: GymTrainer, config: Any, *arguments: Any, **named: Any) -> None:
        init(self, config, *arguments, **named)
        if config.gym == "openenv":
            self.add_callback(_ForeignDraw())

    monkeypatch.setattr(GymTrainer, "__init__", drawing)
    folder = plan(tmp_path / "e", arms=ARMS)
    parity = scheduled(folder).parity
    told = (folder / report.FOLDER / CARD).read_text()
    seen = (parity is not None and parity.first_difference is not None, "differs at sampled id" in told)
    assert seen == (True, True), explain(
        subject="(a first difference, told in words) of arms of which one drew a random number more",
        expected=(True, True),
        got=(parity, seen[1]),
        cause="the arms are compared by their ends alone",
    )


def test_a_resume_that_is_not_exact_blocks_training(
    plan: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weaker class of resume MUST end the experiment before training, unless a flag allows it, which is recorded."""
    folder = plan(tmp_path / "e")
    monkeypatch.setattr(resume, "qualify", qualified("same ids"))
    said, trained = refusal(folder), (folder / "nemo" / RUN).exists()
    notes = scheduled(folder, accepts_inexact=True).notes
    seen = ("--accept-inexact-resume" in said, trained, "nemo: resume of class 'same ids' accepted by" in str(notes))
    assert seen == (True, False, True), explain(
        subject="(refused by naming the flag, trained nevertheless, on record once allowed)",
        expected=(True, False, True),
        got=(said, trained, notes),
        cause="the class of a resume is written down and not acted on",
    )


def test_a_training_that_the_audit_stops_is_not_passed_over(
    plan: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that was stopped MUST stop the experiment, at the next schedule too, and leave its evidence."""
    folder = plan(tmp_path / "e")

    take = Audit._take_gradient

    def stops(self: Audit) -> None:
        take(self)
        if self._trainer.state.global_step == 1:
            raise AuditError("gradient", "planted")

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "_take_gradient", stops)
        said = [refusal(folder), refusal(folder)]
    kept = (folder / "nemo" / RUN / MANIFEST).is_file()
    notes = scheduled(folder).notes
    named = ["nemo: stopped: gradient: planted" in text for text in said]
    seen = (named, kept, "went on from step 1 (stopped: gradient: planted)" in str(notes))
    assert seen == ([True, True], True, True), explain(
        subject="(named twice, its manifest is there, on record once it could go on)",
        expected=([True, True], True, True),
        got=(said, kept, notes),
        cause="a stopped training is cleared away, or taken for a finished one",
    )


def test_a_training_stopped_before_its_first_checkpoint_is_kept_aside(
    plan: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was stopped and cannot go on MUST be kept and put on record before the training begins anew."""
    folder = plan(tmp_path / "e", steps=16)

    def stops(self: Audit) -> None:
        raise AuditError("gradient", "planted")

    with monkeypatch.context() as patch:
        patch.setattr(Audit, "_take_gradient", stops)
        said = refusal(folder)
    notes = scheduled(folder).notes
    kept = (folder / "nemo" / "run-stopped-1" / MANIFEST).is_file()
    told = "nemo: training began anew, run-stopped-1 is kept (stopped: gradient: planted)" in notes
    assert ("gradient: planted" in said, kept, told) == (True, True, True), explain(
        subject="(named, its evidence is kept, on record)",
        expected=(True, True, True),
        got=(said, kept, notes),
        cause="a training that was stopped is cleared away by the next schedule",
    )


def test_a_second_look_at_the_test_split_is_on_record(plan: Freeze, tmp_path: Path) -> None:
    """A look at the test split that is repeated MUST be told in the report, and one at another candidate refused."""
    folder = plan(tmp_path / "e")
    scheduled(folder)
    (folder / "nemo" / TEST).unlink()
    again = scheduled(folder).looks
    told = "nemo: 2 times" in (folder / report.FOLDER / CARD).read_text()
    looks = Looks.model_validate_json((folder / LOOKS).read_bytes())
    other = Looks(items=tuple(look.model_copy(update={"adapter": "0" * 64}) for look in looks.items))
    (folder / LOOKS).write_bytes(readable_json(other.model_dump(mode="json")))
    (folder / "nemo" / TEST).unlink()
    said = refusal(folder)
    seen = (again, told, "to look again would be to choose on it" in said)
    assert seen == ({"baseline": 1, "nemo": 2}, True, True), explain(
        subject="(looks by owner, told in the card, another candidate is refused)",
        expected=({"baseline": 1, "nemo": 2}, True, True),
        got=(*seen[:2], said),
        cause="one look is a file that can be removed",
    )


def test_a_candidate_that_is_missing_is_not_replaced(plan: Freeze, tmp_path: Path) -> None:
    """A checkpoint that is a candidate and gone MUST be named, and no other adapter assessed in its place."""
    folder = plan(tmp_path / "e")
    scheduled(folder)
    shutil.rmtree(checkpoints.folder_of(folder / "nemo" / RUN, 1))
    (folder / dev_file("nemo", 1)).unlink()
    said = refusal(folder)
    assert "step-00001 is missing, which is a candidate" in said, said


def test_a_finished_report_that_was_changed_is_not_shown(plan: Freeze, tmp_path: Path) -> None:
    """A schedule with nothing left to do MUST hold the report to its files before it shows it."""
    folder = plan(tmp_path / "e")
    scheduled(folder)
    summary = folder / report.FOLDER / SUMMARY
    content = json.loads(summary.read_bytes())
    content["arms"]["nemo"]["p_value"] = 1e-9
    summary.write_bytes(readable_json(content))
    said = refusal(folder)
    assert "another arms is found; remove the report, and it is made anew" in said, said


def test_curves_are_drawn_of_all_and_of_nothing(plan: Freeze, tmp_path: Path) -> None:
    """A report MUST be made where a candidate solved every dev task, and where one solved none."""
    folder = plan(tmp_path / "e")
    summary = scheduled(folder)
    drawn = []
    for solved, episodes in ((256, 256), (0, 3)):
        success = Success(solved=solved, episodes=episodes, share=solved / episodes, interval=wilson(solved, episodes))
        arm = summary.arms["nemo"]
        told = tuple(each.model_copy(update={"dev": success}) for each in arm.candidates)
        drawn.append(draw(summary.model_copy(update={"arms": {"nemo": arm.model_copy(update={"candidates": told})}})))
    assert [b"</svg>" in each for each in drawn] == [True, True]


def test_status_shows_what_is_done_and_left(plan: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--status`` MUST list every stage as done or left, estimate what it can, and run nothing."""
    folder = plan(tmp_path / "e")
    scheduled(folder)
    (folder / BASELINE / TEST).unlink()
    code = main(["experiment", str(folder), "--status"])
    said = capsys.readouterr().out
    seen = (
        code,
        said.count(" done "),
        said.count(" left "),
        "2 left, about" in said,
        (folder / BASELINE / TEST).exists(),
    )
    assert seen == (0, 9, 2, True, False), explain(
        subject="(exit code, stages done, stages left, an estimate, run by asking)",
        expected=(0, 9, 2, True, False),
        got=(*seen, said),
        cause="the state is kept apart from the results",
    )
