"""Freezing a training run: what is prepared can be trained, is checked without training, and is not frozen again."""

from pathlib import Path

import pytest

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.qualification.support.training.small_run import played_here
from gymqual.trainer.runs.config import CONFIG, read_config

pytestmark = pytest.mark.self_test

PREPARE = ["--policy", "mini4", "--gym", "openenv", "--steps", "3", "--checkpoint-every", "2", "--generation", "cached"]


def test_a_prepared_run_is_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``prepare`` MUST freeze policy, gym, steps and options as given, and say where."""
    code = main(["prepare", str(tmp_path / "run"), *PREPARE])
    config = read_config(tmp_path / "run" / CONFIG)
    frozen = (config.policy, config.gym, config.steps, config.checkpoint_every, config.generation)
    said = capsys.readouterr().out.startswith(f"{tmp_path / 'run' / CONFIG}: mini4 through openenv, 3 steps")
    assert (code, frozen, bool(config.policy_weights), said) == (0, ("mini4", "openenv", 3, 2, "cached"), True, True), (
        explain(
            subject="exit code, what was frozen, whether the policy's digest was, and whether it was said",
            expected=(0, ("mini4", "openenv", 3, 2, "cached"), True, True),
            got=(code, frozen, bool(config.policy_weights), said),
            cause="an option is read and not frozen",
        )
    )


REFUSED = {
    "frozen already": ([], "is not frozen again, name another folder"),
    "no steps": (["--steps", "0"], "--steps: "),
    "an option of an experiment": (["--arms", "nemo"], "--arms belongs to an experiment"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_frozen_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be frozen MUST be refused in one sentence with exit code 2, and MUST leave no file."""
    options, named = REFUSED[name]
    folder = tmp_path / "run"
    if not options:
        main(["prepare", str(folder), "--policy", "mini4"])
    before = sorted(folder.rglob("*"))
    code = main(["prepare", str(folder), "--policy", "mini4", *options])
    said = capsys.readouterr().err
    got = (code, named in said, len(said.splitlines()), sorted(folder.rglob("*")) == before)
    assert got == (2, True, 1, True), explain(
        subject=f"prepare with {name}: exit code, whether it says {named!r}, lines, and whether files are as before",
        expected=(2, True, 1, True),
        got=(*got, said),
        cause="it is refused too late, or by a traceback",
    )


def test_a_dry_run_checks_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--dry-run`` MUST load the policy, ask the gym what it is, say what would be done, and write nothing."""
    main(["prepare", str(tmp_path), *PREPARE])
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    with played_here():
        code = main(["train", str(tmp_path / CONFIG), "--dry-run"])
    said = capsys.readouterr()
    lines = [line.split(" ")[0] for line in said.out.splitlines()]
    got = (code, lines, said.out.rstrip().endswith("nothing was run"), sorted(tmp_path.rglob("*")) == before)
    assert got == (0, ["policy", "note:", "gym", "3"], True, True), explain(
        subject="exit code, what its lines begin with, whether they end with it, and whether files are as before",
        expected=(0, ["policy", "note:", "gym", "3"], True, True),
        got=(got, said.out + said.err),
        cause="a dry run trains, or does not look at what a training needs",
    )
