"""A matched experiment by its commands: carried out to its end whatever interrupts it, and both arms alike.

The committed report is of 256 steps; what runs here is small.
"""

import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from gymqual.__main__ import main
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT
from gymqual.trainer.experiment import report
from gymqual.trainer.experiment.files import RUN
from gymqual.trainer.experiment.result import SUMMARY, Summary
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.runs import checkpoints

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

ARMS = ("nemo", "openenv")
PREPARE = [sys.executable, "-m", "gymqual", "prepare", "--seed", "43", "--arms", *ARMS, "--experiment"]
SMALL = ["--steps", "8", "--policy", "mini4", "--dev-episodes", "16", "--test-episodes", "32"]


@dataclass(frozen=True)
class CarriedOut:
    """An experiment whose schedule was killed in the middle of a training, and run again."""

    folder: Path
    killed: int
    code: int
    said: str

    @property
    def summary(self) -> Summary:
        return read_result(self.folder / report.FOLDER / SUMMARY, Summary)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> CarriedOut:
    """An experiment of 8 steps through both gyms' real services, killed amid the first training."""
    return carried_out(tmp_path_factory.mktemp("experiment") / "small", [*SMALL, "--retention-problems", "5"], 300)


def carried_out(folder: Path, options: list[str], limit_s: float) -> CarriedOut:
    subprocess.run([*PREPARE, str(folder), *options], cwd=ROOT, check=True, capture_output=True, timeout=120)
    command = [sys.executable, "-m", "gymqual", "experiment", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + limit_s
        while not any((folder / ARMS[0] / RUN / checkpoints.FOLDER).glob("step-*")):
            assert process.poll() is None, f"the schedule ended by itself with {process.returncode}"
            assert time.monotonic() < until, f"no checkpoint within {limit_s:.0f} s"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        killed = process.wait(60)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20 * limit_s)
    return CarriedOut(folder, killed, ended.returncode, ended.stdout + ended.stderr)


@pytest.mark.cpu_qualification
def test_a_killed_schedule_is_carried_to_its_report(small: CarriedOut, evidence: Evidence) -> None:
    """A schedule that was killed MUST be carried to its end by the next, its report derivable from its files."""
    assert small.code == 0, small.said[-2000:]
    summary = small.summary
    evidence.attach(SUMMARY, summary.model_dump(mode="json"))
    went_on = [note for note in summary.notes if note.startswith("nemo: training went on from step")]
    seen = (small.killed, len(went_on), report.differences(small.folder / report.FOLDER))
    assert seen == (-signal.SIGKILL, 1, []), explain(
        subject="(exit code of the killed schedule, notes of an interruption, what does not hold in the report)",
        expected=(-signal.SIGKILL, 1, []),
        got=(seen[0], summary.notes, seen[2]),
        cause="a stage is taken for finished, or its result is not of this experiment",
    )


@pytest.mark.cpu_qualification
def test_both_arms_sampled_the_same_ids(small: CarriedOut, evidence: Evidence) -> None:
    """Two gyms that serve one core to one seed MUST be trained to the same bytes, one of them interrupted or not."""
    parity = small.summary.parity
    assert parity is not None
    evidence.measure(tokens=parity.tokens, calls=parity.calls)
    seen = (parity.first_difference, parity.same_trace, parity.same_adapter, parity.tokens > 1000)
    assert seen == (None, True, True, True), explain(
        subject="(first difference, same trace, same adapter, more than 1,000 ids) of the arms",
        expected=(None, True, True, True),
        got=parity,
        cause="a gym shows or pays something else, or a continued training is not exact",
    )


@pytest.mark.cpu_qualification
def test_every_training_of_an_experiment_verifies(small: CarriedOut, capsys: pytest.CaptureFixture[str]) -> None:
    """``gymqual verify`` MUST hold on every run directory, and each resume MUST have been exact."""
    runs = [small.folder / arm / run for arm in ARMS for run in (RUN, "resume/whole", "resume/part")]
    code = main(["verify", *map(str, runs)])
    kinds = {arm: small.summary.arms[arm].resume for arm in ARMS}
    printed, said = capsys.readouterr()
    seen = (code, printed.count("held    training again"), kinds)
    assert seen == (0, len(runs), dict.fromkeys(ARMS, "exact")), explain(
        subject="(exit code, trainings done again, class of each resume)",
        expected=(0, len(runs), dict.fromkeys(ARMS, "exact")),
        got=(*seen, [line for line in printed.splitlines() if not line.startswith("held")], said),
        cause="a run directory holds something of another part of the experiment",
    )


@pytest.mark.slow
@pytest.mark.cpu_qualification
@pytest.mark.timeout(4 * 3600)
def test_the_full_experiment_raises_held_out_success(tmp_path: Path, evidence: Evidence) -> None:
    """256 steps of ``mini`` MUST raise test success through both gyms, by a report that holds."""
    made = carried_out(tmp_path / "full", [], 900)
    assert made.code == 0, made.said[-2000:]
    evidence.attach(SUMMARY, made.summary.model_dump(mode="json"))
    seen = ([arm.significant_rise for arm in made.summary.arms.values()], report.differences(made.folder / "report"))
    assert seen == ([True, True], []), explain(
        subject="(significant rise of each arm, what does not hold in the report)",
        expected=([True, True], []),
        got=seen,
        cause="learning is not stable so long, or not what is assessed",
    )
