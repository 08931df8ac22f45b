"""What a matched experiment refuses: bad input, changed inputs, other people's files, a second schedule."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT, readable_json, sha256_file
from gymqual.harness.stacks import device
from gymqual.qualification.support.training.small_experiment import QUIET, Freeze, refusal, two_steps
from gymqual.qualification.support.training.small_run import played_here
from gymqual.trainer.evaluation import retention
from gymqual.trainer.experiment import frozen, report, schedule
from gymqual.trainer.experiment.files import RUN
from gymqual.trainer.experiment.frozen import PLAN, PROTOCOL, read_plan
from gymqual.trainer.grpo import train
from gymqual.trainer.policy.loading import policy_folder
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs.config import CONFIG

pytestmark = [pytest.mark.self_test, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ARMS = ("nemo", "openenv")


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
        train.train(config, folder / "nemo" / RUN, None, QUIET, stop_after=1)
    (checkpoints.folder_of(folder / "nemo" / RUN, 1) / "optimizer.pt").unlink()


def _strangers_in_the_report(folder: Path) -> None:
    (folder / report.FOLDER).mkdir()
    (folder / report.FOLDER / "thesis.txt").write_text("mine")


CHANGED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no plan": (lambda folder: (folder / PLAN).unlink(), "make one with gymqual prepare --experiment"),
    "half a plan": (lambda folder: (folder / PLAN).write_text("{"), "experiment.json is not what this command wrote"),
    "another learning rate": (_in_plan(lambda p: p["training"].update(learning_rate=1e-3)), "is not what"),
    "another rule in the protocol": (
        lambda folder: (folder / PROTOCOL).write_text((folder / PROTOCOL).read_text().replace("earliest", "latest")),
        "is not what experiment.json says",
    ),
    "another plan than was begun": (_consistently, "its plan was changed since it was begun"),
    "another training in its place": (_another_run, "is not the experiment's"),
    "somebody's files in its place": (_a_strangers_folder, "holds thesis.txt, which is of no training"),
    "somebody's files in the report's place": (_strangers_in_the_report, "holds thesis.txt, which is of no report"),
    "a protocol that is no text": (lambda folder: (folder / PROTOCOL).write_bytes(b"\xff"), "is not what"),
    "half a record": (lambda folder: (folder / schedule.BEGUN).write_text("{"), "is not what this command wrote"),
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
        ("gym_digest", lambda arm: "1" * 64, "gym nemo was "),
        ("device_name", lambda: "an abacus", "device was cpu"),
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
        "from gymqual.harness.stacks.device import exclusively\nimport time\n"
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
    code = main(["prepare", *arguments])
    said, written = capsys.readouterr().err, sorted(path.name for path in tmp_path.rglob("*"))
    seen = (code, due in said, len(said.splitlines()), written)
    assert seen == (2, True, 1, []), explain(
        subject=f"prepare {' '.join(arguments)}: exit code, named, lines said, files written",
        expected=(2, due, 1, []),
        got=(code, said, written),
        cause="the plan is made of what was not looked at",
    )


@pytest.mark.parametrize("name", ["thesis.txt", PROTOCOL])
def test_an_experiment_is_frozen_in_an_empty_folder(
    name: str, plan: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that holds something of somebody MUST be refused by ``prepare``, and nothing be written."""
    (tmp_path / name).write_text("mine")
    code = main(["prepare", "--experiment", str(tmp_path), "--policy", "mini4"])
    seen = (code, "name an empty folder" in capsys.readouterr().err, [path.name for path in tmp_path.iterdir()])
    assert seen == (2, True, [name])


def test_another_configuration_of_the_same_weights_is_refused(plan: Freeze, tmp_path: Path) -> None:
    """A policy whose weights are the frozen ones, and whose configuration is not, MUST be refused by name."""
    policy = Path(shutil.copytree(policy_folder("mini4"), tmp_path / "policy"))
    folder = plan(tmp_path / "e", named=str(policy))
    content = json.loads((policy / "config.json").read_bytes())
    (policy / "config.json").write_text(json.dumps({**content, "rms_norm_eps": 0.1}))
    said = refusal(folder)
    assert "the experiment is frozen, and policy config was " in said, said


def test_a_frozen_experiment_is_not_frozen_again(
    plan: Freeze, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that holds an experiment MUST be refused, and its plan stay the same bytes."""
    folder = plan(tmp_path / "e")
    before = sha256_file(folder / PLAN)
    code = main(["prepare", "--experiment", str(folder), "--policy", "mini4"])
    assert (
        code,
        "exists; a frozen experiment is not frozen again" in capsys.readouterr().err,
        sha256_file(folder / PLAN),
    ) == (
        2,
        True,
        before,
    )
