"""The schedule of a matched experiment: what it selects, what stops it, and what it refuses."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from transformers import TrainerCallback

from harness import device
from harness.checks import explain
from harness.errors import HarnessError
from harness.files import ROOT, readable_json, sha256_file
from harness.manifest import MANIFEST
from qualification.training.small_experiment import QUIET, Freeze, qualified, refusal, scheduled, two_steps
from qualification.training.small_run import played_here
from trainer import checkpoints, gym_training, prepare, retention, schedule
from trainer.audit import Audit
from trainer.config import CONFIG
from trainer.errors import AuditError
from trainer.experiment import frozen, report, resume
from trainer.experiment.card import CARD
from trainer.experiment.files import BASELINE, RUN, TEST, selected
from trainer.experiment.frozen import PLAN, PROTOCOL, make_plan, read_plan, write_plan
from trainer.grpo import GymTrainer

pytestmark = [pytest.mark.self_test, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ARMS = ("nemo", "openenv")


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Freeze:
    """Freezes a plan of two steps, whose gyms and resume qualification are not asked for; returns its folder."""
    monkeypatch.setattr(frozen, "gym_digest", lambda arm: "0" * 64)
    monkeypatch.setattr(resume, "qualify", qualified("exact"))
    monkeypatch.delenv("GYMQUAL_MGSM", raising=False)

    def freeze(folder: Path, **changed: Any) -> Path:
        sizes = {"dev_episodes": 4, "test_episodes": 4, "problems": 2, "steps": 2, "arms": ("nemo",), **changed}
        write_plan(make_plan("mini4", seed=43, **sizes), folder)
        return folder

    return freeze


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
            gym_training.train(config, tmp_path / name, None, QUIET)
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


# ---- bad input --------------------------------------------------------------------------------------------------


def _in_plan(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def alter(folder: Path) -> None:
        content = json.loads((folder / PLAN).read_bytes())
        change(content)
        (folder / PLAN).write_bytes(readable_json(content))

    return alter


def _consistently(folder: Path) -> None:
    """Another plan with its own protocol, after the first stage was run by the old one."""
    (folder / schedule.BEGUN).write_bytes(readable_json({"plan": "0" * 64}))


def _another_run(folder: Path) -> None:
    config = {**json.loads(readable_json(two_steps().model_dump(mode="json"))), "learning_rate": 1e-3}
    (folder / "nemo" / RUN).mkdir(parents=True)
    (folder / "nemo" / RUN / CONFIG).write_bytes(readable_json(config))


def _a_strangers_folder(folder: Path) -> None:
    (folder / "nemo" / RUN).mkdir(parents=True)
    (folder / "nemo" / RUN / "thesis.txt").write_text("mine")


def _a_missing_shard(folder: Path) -> None:
    """A training that was killed, with a file of its newest checkpoint gone."""
    config = read_plan(folder).config("nemo")
    with played_here():
        gym_training.train(config, folder / "nemo" / RUN, None, QUIET, stop_after=1)
    (checkpoints.folder_of(folder / "nemo" / RUN, 1) / "optimizer.pt").unlink()


CHANGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no plan": (lambda folder: (folder / PLAN).unlink(), "make one with python -m trainer.prepare --experiment"),
    "half a plan": (lambda folder: (folder / PLAN).write_text("{"), "is no plan"),
    "another learning rate": (_in_plan(lambda p: p["training"].update(learning_rate=1e-3)), "is not what"),
    "another rule in the protocol": (
        lambda folder: (folder / PROTOCOL).write_text((folder / PROTOCOL).read_text().replace("earliest", "latest")),
        "is not what experiment.json says",
    ),
    "another plan than was begun": (_consistently, "its plan was changed since it was begun"),
    "another training in its place": (_another_run, "is not the experiment's"),
    "somebody's files in its place": (_a_strangers_folder, "holds thesis.txt and is no training run"),
    "a missing shard": (_a_missing_shard, "optimizer.pt is not what was saved"),
}


@pytest.mark.parametrize("case", CHANGED)
def test_a_changed_experiment_is_refused(case: str, plan: Freeze, tmp_path: Path) -> None:
    """What was frozen and is another one MUST be refused by name, with everything left as it was."""
    change, due = CHANGED[case]
    folder = plan(tmp_path / "e")
    change(folder)
    said = refusal(folder)
    assert (due in said, "changed:" in said) == (True, False), explain(
        subject=f"a schedule of an experiment with {case}",
        expected=(due, "nothing changed"),
        got=said,
        cause="a frozen input is read again without being held to its digest",
    )


@pytest.mark.parametrize(
    ("name", "value", "due"),
    [
        ("gym_digest", lambda arm: "1" * 64, "gym nemo was 0000"),
        ("device", lambda: "an abacus", "device was cpu"),
        ("versions", lambda: {"torch": "0.1"}, "torch was"),
    ],
    ids=["gym", "device", "libraries"],
)
def test_changed_surroundings_are_refused(
    name: str, value: Any, due: str, plan: Freeze, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another gym, device or library than was frozen MUST be refused by name."""
    folder = plan(tmp_path / "e")
    monkeypatch.setattr(frozen, name, value)
    said = refusal(folder)
    assert "the experiment is frozen, and " in said, said
    assert due in said, said


def test_other_retention_problems_are_refused(plan: Freeze, tmp_path: Path) -> None:
    """Retention problems that are missing, or others than were frozen, MUST be refused by name."""
    data = tmp_path / "data"
    data.mkdir()
    for language in retention.LANGUAGES:
        (data / f"mgsm_{language}.tsv").write_text("Eins und eins?\t2\nZwei und eins?\t3\n")
    folder = plan(tmp_path / "e", data=data)
    missing = refusal(folder)
    (data / "mgsm_en.tsv").write_text("One and one?\t3\nTwo and one?\t3\n")
    other = refusal(folder, data=data)
    seen = ("name its folder with --retention or GYMQUAL_MGSM" in missing, "mgsm_en.tsv was" in other)
    assert seen == (True, True), explain(
        subject="(missing problems, other problems) are named",
        expected=(True, True),
        got=(missing, other),
        cause="a file of the right name is taken for the one that was frozen",
    )


def test_two_schedules_do_not_share_a_folder(plan: Freeze, tmp_path: Path) -> None:
    """A second schedule on a folder MUST be refused with the process that holds it, until that one is gone."""
    folder = plan(tmp_path / "e")
    (folder / schedule.HOLDER).write_text("4711")
    with FileLock(folder / schedule.LOCK):
        said = refusal(folder)
    assert "is being run by process 4711; wait for it, or end it" in said, said


def test_an_accelerator_is_waited_for_and_never_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that another process holds MUST be waited for by name, not taken; a killed one holds nothing."""
    monkeypatch.setenv("GYMQUAL_CACHE", str(tmp_path))
    holds = (
        "from harness.device import exclusively\nimport time\n"
        "with exclusively('GPU of a test', print):\n    print('held', flush=True)\n    time.sleep(60)"
    )
    said: list[str] = []
    monkeypatch.setattr(device, "_LOOK_S", 0.05)
    with subprocess.Popen([sys.executable, "-c", holds], cwd=ROOT, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(HarnessError) as refused, device.exclusively("GPU of a test", said.append, limit_s=0.3):
            raise AssertionError("two held it")
        holder.kill()
    with device.exclusively("GPU of a test", said.append, limit_s=10):
        taken = True
    named = f"GPU of a test is held by process {holder.pid}"
    seen = (named in said[0], named in str(refused.value), taken)
    assert seen == (True, True, True), explain(
        subject="(waited by name, refused by name, taken once its holder was killed)",
        expected=(True, True, True),
        got=(said, str(refused.value), taken),
        cause="the lock is a file that a killed holder leaves behind, or is not asked for",
    )


@pytest.mark.parametrize(
    ("arguments", "due"),
    [
        ([], "name one folder: RUN_DIR for a training run, or --experiment DIR"),
        (["RUN", "--experiment", "E"], "name one folder"),
        (["--experiment", "E", "--gym", "nemo"], "--gym belongs to a training run"),
        (["RUN", "--arms", "nemo"], "--arms belongs to an experiment"),
        (["RUN", "--retention-problems", "3"], "--retention-problems belongs to an experiment"),
        (["--experiment", "E", "--arms", "nemo", "nemo"], "arms: nemo nemo names a gym twice"),
        (["--experiment", "E", "--steps", "0"], "--steps 0 must be at least 2"),
        (["--experiment", "E", "--steps", "1"], "--steps 1 must be at least 2"),
        (["--experiment", "E", "--dev-episodes", "0"], "--dev-episodes 0 must be at least 1"),
        (["--experiment", "E", "--retention-problems", "41"], "--retention-problems 41: probe_de.tsv has 40"),
        (["--experiment", "E", "--retention", "nowhere"], "mgsm_de.tsv: cannot be read"),
        (["--experiment", "E", "--policy", "nobody"], "--policy nobody: neither one of"),
    ],
)
def test_bad_input_to_prepare_is_refused(
    arguments: list[str],
    due: str,
    plan: Freeze,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bad input MUST be refused with one sentence that names it, and nothing be written."""
    monkeypatch.chdir(tmp_path)
    code = prepare.main(arguments)
    said, written = capsys.readouterr().err, sorted(path.name for path in tmp_path.rglob("*"))
    seen = (code, due in said, len(said.splitlines()), written)
    assert seen == (2, True, 1, []), explain(
        subject=f"prepare {' '.join(arguments)}: exit code, named, lines said, files written",
        expected=(2, due, 1, []),
        got=(code, said, written),
        cause="the plan is made of what was not looked at",
    )


def test_a_frozen_experiment_is_not_frozen_again(
    plan: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that holds an experiment MUST be refused, and its plan stay the same bytes."""
    folder = plan(tmp_path / "e")
    before = sha256_file(folder / PLAN)
    code = prepare.main(["--experiment", str(folder), "--policy", "mini4"])
    assert (code, "exists; name another folder" in capsys.readouterr().err, sha256_file(folder / PLAN)) == (
        2,
        True,
        before,
    )


def test_status_shows_what_is_done_and_left(plan: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--status`` MUST list every stage as done or left, estimate what it can, and run nothing."""
    folder = plan(tmp_path / "e")
    scheduled(folder)
    (folder / BASELINE / TEST).unlink()
    code = schedule.main([str(folder), "--status"])
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
