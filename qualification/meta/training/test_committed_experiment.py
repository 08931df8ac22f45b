"""The committed experiment: what its files say, the frozen baseline, and every alteration named."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT, sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.qualification.support.training.alterations import Alteration, Change, another_outcome, in_json
from gymqual.trainer.evaluation.evaluate import Evaluation
from gymqual.trainer.experiment import report
from gymqual.trainer.experiment.card import CARD
from gymqual.trainer.experiment.files import BASELINE, PARITY, RESUME, dev_file
from gymqual.trainer.experiment.frozen import read_plan
from gymqual.trainer.experiment.result import SUMMARY, Summary
from gymqual.trainer.learning.reading import read_result
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.statistics import wilson

pytestmark = pytest.mark.self_test

SAMPLE = ROOT / "reports" / "sample" / "experiment"
FIGURES = ROOT / "trainer" / "policy" / "embedded" / "figures"
ARMS = ("nemo", "openenv")


def committed() -> Summary:
    return read_result(SAMPLE / SUMMARY, Summary)


def test_the_committed_experiment_holds() -> None:
    """Every digest, selection, interval, p value and curve of the committed report MUST follow from its files."""
    wrong = report.differences(SAMPLE)
    assert wrong == [], explain(
        subject=f"what does not hold in {SAMPLE.relative_to(ROOT)}",
        expected=[],
        got=wrong,
        cause="a file was edited, or is another experiment's; run gymqual experiment again",
    )


def test_the_committed_experiment_is_the_full_one() -> None:
    """It MUST be 256 steps through both gyms, resumed exactly, with 250 problems of MGSM in either language."""
    summary, plan = committed(), read_plan(SAMPLE)
    seen = (
        plan.training.steps,
        tuple(plan.arms),
        {arm.resume for arm in summary.arms.values()},
        [(data.name, data.problems) for data in plan.retention],
        [arm.significant_rise for arm in summary.arms.values()],
        [arm.replay_others for arm in summary.arms.values()],
        "not steady" in (SAMPLE / CARD).read_text(),
    )
    due = (256, ARMS, {"exact"}, [("mgsm_de.tsv", 250), ("mgsm_en.tsv", 250)], [True, True], [(), ()], False)
    assert seen == due, explain(
        subject="(steps, arms, resume, retention, significant rises, claims not derived again, told as not steady)",
        expected=due,
        got=seen,
        cause="a smaller experiment was committed, or one that failed",
    )


def test_the_readme_states_the_committed_figures() -> None:
    """The README's status table MUST state baseline and arms of the committed experiment, and the ids compared."""
    summary, readme = committed(), (ROOT / "README.md").read_text()
    due = [f"{summary.baseline_test.share:.3f}", *(f"{arm.test.share:.3f}" for arm in summary.arms.values())]
    due.append(f"{summary.parity.tokens:,} ids" if summary.parity else "")
    row = next((line for line in readme.splitlines() if "matched experiment" in line and line.startswith("|")), "")
    missing = [figure for figure in due if figure not in row]
    assert (bool(row), missing) == (True, []), explain(
        subject="figures that the README's row of the matched experiment does not state",
        expected=[],
        got=missing or "no such row",
        cause="the experiment was run again and the README kept the old figures",
    )


BASELINES: dict[str, Path] = {
    "before there was a gym": FIGURES / "mini.json",
    "of learning through NeMo": ROOT / "reports/sample/learning/nemo/baseline.json",
    "of learning through OpenEnv": ROOT / "reports/sample/learning/openenv/baseline.json",
}


@pytest.mark.parametrize("other", BASELINES)
def test_adding_a_gym_never_changed_the_baseline(other: str) -> None:
    """The baseline MUST be the frozen policy, with the outcome of each dev task that it had before and elsewhere."""
    before = Evaluation.model_validate_json(BASELINES[other].read_bytes())
    now = read_result(SAMPLE / dev_file(BASELINE), Evaluation)
    differing = [key for key in ("core", "tasks", "sampling_seed") if getattr(now, key) != getattr(before, key)]
    digests = ("weights", "tokenizer", "chat_template")
    differing += [name for name in digests if now.policy[name] != before.policy[name]]
    pairs = zip(now.temperature_1.strict, before.temperature_1.strict, strict=True)
    flipped = [number for number, (here, there) in enumerate(pairs) if here != there]
    assert (differing, flipped, now.gym) == ([], [], "local"), explain(
        subject=f"what differs from the baseline {other}; dev tasks with another outcome; the gym of it",
        expected=([], [], "local"),
        got=(differing, flipped, now.gym),
        cause="the checkpoint, the core or the evaluation was changed beside a frozen baseline",
    )


def test_the_frozen_baseline_is_the_policy_on_disk() -> None:
    """The committed baseline MUST be of the very weights, tokenizer and template that stand in the repository."""
    on_disk = load_policy("mini").identity.to_json()
    assert committed().policy.model_dump() == on_disk, explain(
        subject="identity of the baseline of the committed experiment",
        expected=on_disk,
        got=committed().policy.model_dump(),
        cause="the policy was built again; its figures and every experiment are then to be made anew",
    )


def in_the_summary(change: Change) -> Alteration:
    return in_json(SUMMARY, change)


def in_a_file(name: str, change: Change) -> Alteration:
    """Alter a file, and write its digest anew."""

    def alter(folder: Path) -> None:
        in_json(name, change)(folder)
        in_the_summary(lambda summary: summary["files"].update({name: sha256_file(folder / name)}))(folder)

    return alter


def a_better_test(content: dict[str, Any]) -> None:
    another_outcome(content)
    told = content["temperature_1"]
    solved, episodes = sum(told["strict"]), len(told["strict"])
    told.update(solved=solved, success=solved / episodes, interval=wilson(solved, episodes))


ALTERATIONS: dict[str, tuple[Alteration, str]] = {
    "a byte of an evaluation": (
        lambda f: (f / "nemo/test.json").write_bytes((f / "nemo/test.json").read_bytes() + b" "),
        "nemo/test.json: sha256 is another one",
    ),
    "a file less": (lambda f: (f / "openenv" / RESUME).unlink(), "openenv/resume.json: is missing"),
    "a file more": (lambda f: (f / "notes.txt").write_text(""), "notes.txt: is not of this report"),
    "a byte of the card": (lambda f: (f / CARD).write_text((f / CARD).read_text() + " "), f"{CARD}: is not what"),
    "another curve": (lambda f: (f / "curves.svg").write_text("<svg/>"), "curves.svg: is not what"),
    "another p value": (in_the_summary(lambda s: s["arms"]["nemo"].update(p_value=0.5)), "another arms is found"),
    "another selection": (in_the_summary(lambda s: s["arms"]["nemo"].update(selected=32)), "another arms is found"),
    "a note less": (in_the_summary(lambda s: s.update(notes=[])), "another notes is found"),
    "an outcome, and its digest": (in_a_file("nemo/test.json", another_outcome), "its totals do not follow"),
    "an outcome, its totals, and its digest": (in_a_file("nemo/test.json", a_better_test), "another arms is found"),
    "the dev split as test": (
        in_a_file("nemo/test.json", lambda e: e.update(tasks="v1/dev/0/0..511")),
        "another tasks",
    ),
    "an unpaired test": (in_a_file("openenv/test.json", lambda e: e.update(sampling_seed=1)), "another sampling_seed"),
    "a candidate that was not selected": (
        in_a_file("nemo/test.json", lambda e: e.update(adapter="0" * 64)),
        "nemo/test.json: another adapter",
    ),
    "a baseline with an adapter": (
        in_a_file("baseline/test.json", lambda e: e.update(adapter="0" * 64)),
        "baseline/test.json: another adapter",
    ),
    "another training": (
        in_a_file(f"nemo/{MANIFEST}", lambda m: m["config"].update(learning_rate=1e-3)),
        "nemo/manifest.json: another outcome, configuration or policy",
    ),
    "a training that stopped": (
        in_a_file(f"openenv/{MANIFEST}", lambda m: m.update(outcome="stopped: x")),
        "openenv/manifest.json: another outcome",
    ),
    "a training through another gym": (
        in_a_file(f"nemo/{MANIFEST}", lambda m: m["gym"].update(upstream="nemo-gym 99")),
        "nemo/manifest.json: another gym",
    ),
    "a replay audit of another run": (
        in_a_file("nemo/replay_audit.json", lambda r: r.update(manifest="0" * 64)),
        "nemo/replay_audit.json: of another run",
    ),
    "a resume that differed": (
        in_a_file("nemo/resume.json", lambda r: r.update(differences=["trace.jsonl"])),
        "nemo/resume.json: its class does not follow",
    ),
    "a better total": (
        in_a_file("nemo/test.json", lambda e: e["temperature_1"].update(solved=512)),
        "nemo/test.json: its totals do not follow",
    ),
    "a better answer": (
        in_a_file("nemo/retention-mgsm_en.json", lambda r: r.update(exact=250)),
        "nemo/retention-mgsm_en.json: its totals do not follow",
    ),
    "a look at another adapter": (
        in_a_file("looks.json", lambda looks: looks["items"][1].update(adapter="0" * 64)),
        "looks.json: nemo was not looked at",
    ),
    "other problems": (
        in_a_file("nemo/retention-mgsm_de.json", lambda r: r.update(data_sha256="0" * 64)),
        "nemo/retention-mgsm_de.json: another data_sha256",
    ),
    "other adapters": (in_a_file(PARITY, lambda p: p["parity"].update(same_adapter=False)), "digests say otherwise"),
    "more ids compared": (
        in_a_file(PARITY, lambda p: p["parity"].update(tokens=1)),
        "the manifests count other tokens",
    ),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_altered_experiment_is_named(alteration: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An alteration that contradicts what stands beside it MUST be named, its digest written anew or not."""
    alter, named = ALTERATIONS[alteration]
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "copy"))
    alter(folder)
    code, printed = main(["experiment", str(folder), "--check"]), capsys.readouterr().out
    assert (code, named in printed) == (1, True), explain(
        subject=f"exit code and what does not hold after an alteration: {alteration}",
        expected=(1, named),
        got=(code, printed),
        cause="the figure is believed, or derived from what was altered",
    )
