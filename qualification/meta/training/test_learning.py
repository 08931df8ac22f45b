"""Learning: the committed result is what its files say, and training raises held-out success through every gym."""

import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console

from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import ROOT, sha256_file
from gymqual.harness.records.manifest import MANIFEST
from gymqual.qualification.support.training.alterations import Alteration, Change, another_outcome, in_json
from gymqual.trainer.learning import learn as learning
from gymqual.trainer.learning.check import differences
from gymqual.trainer.learning.learn import learn
from gymqual.trainer.learning.result import AFTER, BASELINE, CARD, RUN, SUMMARY, Arm, Summary
from gymqual.trainer.runs.config import CONFIG

SAMPLE = ROOT / "reports" / "sample" / "learning"
GYMS = ("nemo", "openenv")
QUIET = Console(quiet=True)


# ---- the committed result ---------------------------------------------------------------------------------


@pytest.mark.self_test
def test_the_committed_result_holds() -> None:
    """Every digest, interval and p value of the committed result MUST follow from the files beside it."""
    wrong = differences(SAMPLE)
    assert wrong == [], explain(
        subject=f"what does not hold in {SAMPLE.relative_to(ROOT)}",
        expected=[],
        got=wrong,
        cause="a file was edited or another protocol's; run gymqual learn again",
    )


@pytest.mark.self_test
def test_the_committed_result_is_a_significant_rise() -> None:
    """Through NeMo and through OpenEnv the committed success MUST have risen with p < 0.05, over 256 pairs."""
    summary = Summary.model_validate_json((SAMPLE / SUMMARY).read_bytes())
    seen = {
        gym: (arm.after.share > arm.baseline.share, arm.p_value < 0.05, arm.baseline.episodes)
        for gym, arm in summary.arms.items()
    }
    assert seen == dict.fromkeys(GYMS, (True, True, 256)), explain(
        subject="(risen, significant, pairs) by gym",
        expected=dict.fromkeys(GYMS, (True, True, 256)),
        got=seen,
        cause="the result of a run without a significant rise was committed, or one through fewer gyms",
    )


def in_the_summary(change: Change) -> Alteration:
    return in_json(SUMMARY, change)


def in_a_file(name: str, change: Change) -> Alteration:
    """Alter a file of the NeMo arm, and write its digest anew."""

    def alter(folder: Path) -> None:
        in_json(f"nemo/{name}", change)(folder)
        digest = sha256_file(folder / "nemo" / name)
        in_the_summary(lambda summary: summary["arms"]["nemo"]["files"].update({name: digest}))(folder)

    return alter


def a_space_more(name: str) -> Alteration:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes() + b" ")


ALTERATIONS: dict[str, tuple[Alteration, str]] = {
    "a byte of an evaluation": (a_space_more("nemo/after.json"), "nemo/after.json: sha256"),
    "a byte of a manifest": (a_space_more("openenv/manifest.json"), "openenv/manifest.json: sha256"),
    "a byte of the card": (a_space_more(CARD), f"{CARD}: is not what"),
    "a file less": (lambda folder: (folder / "nemo" / BASELINE).unlink(), "nemo/baseline.json: is missing"),
    "a file more": (lambda folder: (folder / "notes.txt").write_text(""), "notes.txt: is not of this result"),
    "half a summary": (lambda folder: (folder / SUMMARY).write_text("{"), "is not what this command wrote"),
    "a claim of the replay audit": (in_the_summary(lambda s: s["arms"]["nemo"].update(replay_held=1)), "nemo: replay"),
    "another p value": (in_the_summary(lambda s: s["arms"]["nemo"].update(p_value=0.01)), "nemo: p_value"),
    "another interval": (
        in_the_summary(lambda s: s["arms"]["nemo"]["after"].update(interval=[0.86, 0.87])),
        "nemo: after",
    ),
    "another gym's answer": (in_the_summary(lambda s: s["arms"]["nemo"]["gym"].update(python="3.14")), "nemo: gym"),
    "more tokens compared": (in_the_summary(lambda s: s["agreement"].update(tokens=1)), "agreement: the manifests"),
    "other adapters": (in_the_summary(lambda s: s["agreement"].update(same_adapter=False)), "agreement: the manifests"),
    "an outcome, and its digest": (in_a_file(AFTER, another_outcome), "nemo: after: "),
    "an unpaired evaluation": (in_a_file(AFTER, lambda e: e.update(sampling_seed=1)), "after.json: another seed"),
    "the test split": (in_a_file(AFTER, lambda e: e.update(tasks="v1/test/0/0..255")), "after.json: another tasks"),
    "another adapter evaluated": (
        in_a_file(AFTER, lambda e: e.update(adapter="0" * 64)),
        "after.json: another adapter",
    ),
    "a baseline with an adapter": (
        in_a_file(BASELINE, lambda e: e.update(adapter="")),
        "baseline.json: another adapter",
    ),
    "another learning rate": (
        in_a_file(MANIFEST, lambda m: m["config"].update(learning_rate=1e-3)),
        "training: another learning_rate",
    ),
    "dev tasks trained on": (
        in_a_file(MANIFEST, lambda m: m["config"]["tasks"].__setitem__(0, "v1/dev/0/0")),
        "training: another tasks",
    ),
    "a training that stopped": (in_a_file(MANIFEST, lambda m: m.update(outcome="stopped: x")), "another outcome"),
    "a better curve": (in_a_file(MANIFEST, lambda m: m["steps"][0].update(strict=1.0)), "nemo: training_success"),
}


@pytest.mark.self_test
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_altered_result_is_named(alteration: str, tmp_path: Path) -> None:
    """A single alteration of a copied result MUST be named, its digest written anew or not."""
    alter, named = ALTERATIONS[alteration]
    folder = Path(shutil.copytree(SAMPLE, tmp_path / "copy"))
    alter(folder)
    wrong = differences(folder)
    assert any(named in each for each in wrong), explain(
        subject=f"what does not hold after an alteration: {alteration}",
        expected=f"{named!r} in one of them",
        got=wrong or "nothing",
        cause="the figure is believed, or derived from what was altered",
    )


# ---- the stages -------------------------------------------------------------------------------------------

# One step of the small policy and eight episodes: enough for every stage to have run.
SMALL = {"named": "mini4", "gyms": ["nemo"], "seed": 43, "steps": 1, "console": QUIET, "episodes": 8}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small result in ``out`` and its stages in ``work``."""
    folder = tmp_path_factory.mktemp("learning")
    learn(out=folder / "out", work=folder / "work", **SMALL)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(finished, tmp_path / "copied"))


def forbidden(*arguments: object, **named: object) -> NoReturn:
    raise AssertionError("a stage that had finished was run again")


@pytest.mark.self_test
@pytest.mark.gym("nemo")
def test_a_finished_stage_is_not_run_again(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call MUST take every finished stage from the work folder and write the same result, to the byte."""
    monkeypatch.setattr(learning, "train", forbidden)
    monkeypatch.setattr(learning, "measure", forbidden)
    learn(out=copied / "again", work=copied / "work", **SMALL)
    results = [
        {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (copied / "out", copied / "again")
    ]
    assert (results[0] == results[1], differences(copied / "again")) == (True, []), explain(
        subject="(the same files, what does not hold) of a result made twice from one work folder",
        expected=(True, []),
        got=(sorted(results[0]), sorted(results[1]), differences(copied / "again")),
        cause="a stage does not write everything that the summary needs",
    )


@pytest.mark.self_test
@pytest.mark.gym("nemo")
def test_an_interrupted_training_is_made_anew(copied: Path) -> None:
    """A training without a manifest MUST be made anew, and its result MUST be the one without interruption."""
    before = Summary.model_validate_json((copied / "out" / SUMMARY).read_bytes()).arms["nemo"]
    (copied / "work" / "nemo" / RUN / MANIFEST).unlink()
    after = learn(out=copied / "out", work=copied / "work", **SMALL).arms["nemo"]

    def lasting(arm: Arm) -> dict[str, Any]:
        # The files hold how long it took.
        return arm.model_dump(exclude={"files"})

    assert lasting(after) == lasting(before), explain(
        subject="an arm whose training was interrupted, but for its files",
        expected=lasting(before),
        got=lasting(after),
        cause="something of the interrupted training was kept, or training does not repeat",
    )


@pytest.mark.self_test
@pytest.mark.gym("nemo")
@pytest.mark.parametrize(
    ("changed", "spoil", "named"),
    [
        ({"seed": 44}, None, "was made with another seed"),
        ({"episodes": 16}, None, "was made with another tasks"),
        ({"named": "mini"}, None, "was made with another policy"),
        ({}, "strangers", "is no training run"),
        ({}, "half a result", "is not what this command wrote"),
    ],
    ids=["seed", "episodes", "policy", "strangers", "half a result"],
)
def test_another_protocols_stages_are_refused(
    copied: Path, changed: dict[str, Any], spoil: str | None, named: str
) -> None:
    """Stages of another protocol, and files of somebody else, MUST be refused by name and left as they are."""
    run = copied / "work" / "nemo" / RUN
    if spoil == "strangers":
        (run / MANIFEST).unlink()
        (run / CONFIG).unlink()
    if spoil == "half a result":
        (run.parent / AFTER).write_text("{")
    before = sorted(copied.rglob("*"))
    with pytest.raises(HarnessError) as refused:
        learn(out=copied / "out", work=copied / "work", **{**SMALL, **changed})
    assert (named in str(refused.value), sorted(copied.rglob("*")) == before) == (True, True), explain(
        subject="(named, nothing written or removed)",
        expected=(named, True),
        got=str(refused.value),
        cause="a stage's file is taken for this protocol's because it is there",
    )


# ---- the experiment ---------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.cpu_qualification
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("gym", [pytest.param(gym, marks=pytest.mark.gym(gym)) for gym in GYMS])
def test_forty_steps_raise_held_out_success(gym: str, tmp_path: Path, evidence: Evidence) -> None:
    """40 steps of 16 rollouts of ``mini`` MUST raise dev success at temperature 1, p < 0.05 over 256 pairs."""
    summary = learn("mini", [gym], 43, 40, tmp_path / "out", tmp_path / "work", QUIET)
    arm = summary.arms[gym]
    evidence.attach(SUMMARY, summary.model_dump(mode="json"))
    evidence.measure(baseline=arm.baseline.share, after=arm.after.share, p=arm.p_value)
    seen = (arm.after.share > arm.baseline.share, arm.p_value < 0.05, differences(tmp_path / "out"))
    assert seen == (True, True, []), explain(
        subject=f"(risen, significant, what does not hold) after training through {gym}",
        expected=(True, True, []),
        got=(arm.baseline.share, arm.after.share, arm.p_value, seen[2]),
        cause="what is trained on is not what was sampled or earned, or the adapter is not what was trained",
    )
