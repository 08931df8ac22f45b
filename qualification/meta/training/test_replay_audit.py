"""The replay audit: every claim of a healthy run holds, and a single alteration breaks the claim that owns it."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.trace import TRACE
from gymqual.qualification.broken import training_manifests, training_traces
from gymqual.qualification.broken.training_manifests import a_token_total
from gymqual.qualification.broken.training_policies import POLICY_OWNERS
from gymqual.qualification.broken.training_traces import Alteration, a_reward
from gymqual.qualification.support.training.small_run import Dump, dump, train_small
from gymqual.trainer.replay import audit, weights
from gymqual.trainer.runs import checkpoints
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG
from gymqual.trainer.runs.manifest import ADAPTER, INITIAL_ADAPTER
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS
from gymqual.trainer.runs.tensors import compare_tensors, tensors_digest

pytestmark = pytest.mark.self_test

OWNERS = training_traces.OWNERS | training_manifests.OWNERS
"""By alteration the claim that owns it."""


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An honest run. Its temperature lets a group vary at each step, and some calls fail."""
    return train_small(tmp_path_factory.mktemp("run") / "healthy")


@pytest.fixture
def run(healthy: Path, tmp_path: Path) -> Dump:
    """A copy to alter."""
    return dump(shutil.copytree(healthy, tmp_path / "run"))


def broken_claims(folder: Path) -> set[str]:
    """Names of the claims that do not hold, by a difference that was found."""
    broken = [line for line in audit.audit(folder).lines if line.startswith("BROKEN")]
    return {line.removeprefix("BROKEN").strip().split(": ")[0] for line in broken if "cannot be derived" not in line}


def told(owner: str, broken: set[str]) -> str:
    return explain(
        subject="claims that are broken after one alteration",
        expected=f"{owner!r} among them",
        got=sorted(broken) or "none",
        cause="the audit takes this on trust, or derives it from what was altered",
    )


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "as prepared": {},
    "cut by the budget": {"max_completion_tokens": 75, "temperature": 1.3},
    "nothing but cut": {"max_completion_tokens": 24},
    "KL term, batch scale, shaping": {
        "beta": 0.04, "scale_rewards": "batch", "loss_type": "grpo",
        "shaping": {"strict": 0.5, "lookup": 0.1, "calculation": 0.3, "answer": 0.07},
    },
    "KL term alone, and rounding alone": {
        "beta": 0.04, "steps": 8, "temperature": 0.5, "groups_per_step": 1, "group_size": 2,
    },
    "odd group, hot": {"group_size": 3, "scale_rewards": "none", "loss_type": "bnpo", "temperature": 2.0},
    "two passes, two steps a batch": {"gradient_accumulation": 2, "num_iterations": 2, "steps": 4},
    "a shuffled pool, gone through twice": {
        "tasks": tuple(f"v1/train/43/{index}" for index in range(5)), "repeat_pool": True, "shuffle": True, "steps": 4,
        "steps_per_generation": 2,
    },
    "cut rollouts left out": {"max_completion_tokens": 67, "mask_truncated": True},
    "one round of tools": {"max_tool_rounds": 1, "loss_type": "dr_grpo"},
}  # fmt: skip


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_every_claim_of_a_healthy_run_holds(configuration: str, tmp_path: Path) -> None:
    folder = train_small(tmp_path / "run", **CONFIGURATIONS[configuration])

    lines = audit.audit(folder).lines

    names = [*audit.DERIVED, *audit.WITH_POLICY]
    assert [line.split(": ")[0] for line in lines] == [f"held    {name}" for name in names], "\n".join(lines)


def test_of_a_bf16_run_the_first_step_is_done_again(tmp_path: Path) -> None:
    folder = train_small(tmp_path / "run", precision="bf16")

    claims = audit.audit(folder)

    assert claims.broken == 0, "\n".join(claims.lines)
    assert claims.lines[-1].startswith("untried training again: bf16")


def test_every_claim_of_a_run_that_the_gym_ended_holds(tmp_path: Path) -> None:
    folder = train_small(tmp_path / "run", ends_after=12)

    lines = audit.audit(folder).lines

    names = [*audit.DERIVED, *(name for name in audit.WITH_POLICY if name != "adapter")]
    assert json.loads((folder / MANIFEST).read_bytes())["outcome"].startswith("stopped: unreachable")
    assert [line.split(": ")[0] for line in lines] == [f"held    {name}" for name in names], "\n".join(lines)


@pytest.mark.parametrize("alter", OWNERS, ids=lambda alter: alter.__name__)
def test_an_alteration_is_named_by_its_claim(alter: Alteration, run: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
    # The run directory alone has to tell.
    monkeypatch.setattr(weights, "find_policy", lambda evidence, named: None)
    alter(run)
    run.write()

    broken = broken_claims(run.folder)

    assert OWNERS[alter] in broken, told(OWNERS[alter], broken)


@pytest.mark.parametrize("alter", POLICY_OWNERS, ids=lambda alter: alter.__name__)
def test_what_only_the_policy_can_tell_is_named_by_its_claim(alter: Alteration, run: Dump) -> None:
    alter(run)
    run.write()

    broken = broken_claims(run.folder)

    assert POLICY_OWNERS[alter] in broken, told(POLICY_OWNERS[alter], broken)


# --- Files and the command ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "content"),
    [(CONFIG, None), (f"{ADAPTER}/{TENSORS}", None), ("note.txt", b"not recorded"), ("README.md", b"changed")],
)
def test_a_file_that_is_not_as_recorded_is_named(path: str, content: bytes | None, run: Dump) -> None:
    file = run.folder / path
    file.write_bytes(file.read_bytes() + b"\n" if content is None else content)

    lines = audit.audit(run.folder).lines

    assert any(line.startswith(f"BROKEN  files: {path}") for line in lines)


def test_a_manifest_in_another_form_is_named(run: Dump) -> None:
    (run.folder / MANIFEST).write_text(json.dumps(run.manifest))

    broken = broken_claims(run.folder)

    assert "manifest" in broken, told("manifest", broken)


def test_the_command_tells_held_broken_and_unreadable(
    run: Dump, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = main(["replay", str(run.folder)])
    a_reward(run)
    run.write()
    broken = main(["replay", str(run.folder)])
    printed = capsys.readouterr().out
    (run.folder / TRACE).write_text("{}\n")
    unreadable = [main(["replay", str(run.folder)]), main(["replay", str(tmp_path)])]
    wrong_policy = main(["replay", str(run.folder), "--policy", str(tmp_path)])

    assert (held, broken, unreadable, wrong_policy) == (0, 1, [2, 2], 2)
    assert "BROKEN  rewards: rollout 0: shaped reward" in printed
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_a_policy_that_is_not_at_hand_is_told_and_can_be_named(run: Dump) -> None:
    for config in (run.training, run.manifest["config"]):
        config["policy"] = "elsewhere/policy"
    run.write()

    without = audit.audit(run.folder)
    named = audit.audit(run.folder, weights.EMBEDDED / "mini4")

    untried = [line.split(":")[0] for line in without.lines if line.startswith("untried")]
    assert untried == [f"untried {name}" for name in audit.WITH_POLICY]
    assert (without.broken, named.broken) == (0, 0)


def test_nothing_is_held_of_a_training_that_cannot_be_done_again(run: Dump) -> None:
    (run.folder / INITIAL_ADAPTER / "adapter_config.json").write_text("{}")

    lines = audit.audit(run.folder).lines

    told = {line.removeprefix("BROKEN").strip().split(": ")[0] for line in lines if not line.startswith("held")}
    assert told == {"files", "forward passes", "gradients again", "training again"}


def test_training_is_done_again_from_one_checkpoint_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checkpoint roundings would add up: then only so many steps are done again, and the rest is said."""
    monkeypatch.setattr(weights, "MOST_STEPS", 1)
    kept, without = (train_small(tmp_path / str(every), checkpoint_every=every, steps=3) for every in (1, 0))

    untried = [line for line in audit.audit(without).lines if line.startswith("untried")]

    assert not [line for line in audit.audit(kept).lines if not line.startswith("held")]
    assert untried == ["untried training again: roundings add up over more than 1 steps without a checkpoint"]


def test_what_was_done_again_is_judged_where_the_rest_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that is done again in part, a log-probability of that part MUST still be held to it."""
    made = dump(train_small(tmp_path / "run", steps=3))
    made.first("pass", step=2)["logprobs"][1] -= 0.5
    made.write()
    monkeypatch.setattr(weights, "MOST_STEPS", 2)

    broken = broken_claims(made.folder)

    assert "forward passes" in broken, told("forward passes", broken)


def test_a_checkpoint_of_another_training_is_named(tmp_path: Path) -> None:
    made = dump(train_small(tmp_path / "run", checkpoint_every=1))
    path = checkpoints.folder_of(made.folder, 1) / TENSORS
    save_file({name: value + 1e-3 for name, value in load_file(path).items()}, path)
    made.write()

    broken = [line for line in audit.audit(made.folder).lines if line.startswith("BROKEN  training again")]

    assert broken == ["BROKEN  training again: step-00001: its adapter is not the one that the step ended with"]


def test_harness_verify_hands_a_training_run_to_the_replay_audit(run: Dump, capsys: pytest.CaptureFixture[str]) -> None:
    held = main(["verify", str(run.folder)])
    a_token_total(run)
    run.write()
    broken = main(["verify", str(run.folder)])
    (run.folder / TRACE).unlink()
    unreadable = main(["verify", str(run.folder)])

    printed = capsys.readouterr()
    assert (held, broken, unreadable) == (0, 1, 2)
    assert "held    training again" in printed.out
    assert "BROKEN  token totals: sampled is" in printed.out
    assert TRACE in printed.err


def test_the_committed_schema_is_the_manifests() -> None:
    committed = (ROOT / "reports/schema/training-run.schema.json").read_bytes()

    assert committed == run_manifest.schema()


def test_an_update_that_rounds_away_is_no_change() -> None:
    before = {"a": torch.ones(4), "b": torch.zeros(2)}
    after = {"a": torch.ones(4) + torch.tensor([1e-9, 0.0, 0.0, 0.5]), "b": torch.tensor([0.0, 1.0])}

    change = compare_tensors(before, after)

    assert change.changed == ("a", "b")
    assert change.elements_changed == 2 / 6
    assert math.isclose(change.update_ratio["a"] or 0.0, 0.25)
    assert change.update_ratio["b"] is None


def test_a_digest_depends_on_names_and_bits() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    same = tensors_digest({"b": tensor.t().contiguous().t(), "a": tensor.bfloat16()})

    assert same == tensors_digest({"a": tensor, "b": tensor})
    assert same != tensors_digest({"a": tensor, "c": tensor})
    assert same != tensors_digest({"a": tensor, "b": torch.nextafter(tensor, tensor + 1)})
