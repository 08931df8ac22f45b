"""The audit on trainers that nobody here made: the published scripts of TRL, with the lines that a user adds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.harness.plugin.registry import explain
from gymqual.qualification.support.training.published.lessons import teach
from gymqual.qualification.support.training.published.runs import ADDED, SCRIPTS, Ran, run, with_added
from gymqual.trainer.runs.errors import AuditError

pytestmark = [pytest.mark.self_test, pytest.mark.filterwarnings("ignore")]
examples = pytest.mark.parametrize("name", SCRIPTS)

Pair = tuple[Ran, Ran]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a policy that calls the examples' tools."""
    return teach(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def both(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Pair]:
    """A script's run as it is, and its run with the added lines. Each is made once."""
    made: dict[str, Pair] = {}

    def get(name: str) -> Pair:
        if name not in made:
            folder = tmp_path_factory.mktemp("run")
            with pytest.MonkeyPatch.context() as patch:
                plain = run(SCRIPTS[name], policy, folder / "plain", patch, audited=False)
                made[name] = plain, run(SCRIPTS[name], policy, folder / "audited", patch, audited=True)
        return made[name]

    return get


@examples
def test_a_published_trainer_is_let_through(name: str, both: Callable[[str], Pair]) -> None:
    """A published script MUST run to its end, each step's gradient equal to the oracle's, and not all of them zero."""
    oracles = [step["oracle"] for step in both(name)[1].of("step")]
    apart = [
        abs(1 - oracle["cosine"]) if oracle["cosine"] is not None else oracle["trainer_norm"] - oracle["oracle_norm"]
        for oracle in oracles
    ]
    learnt = sum(oracle["trainer_norm"] > 0 for oracle in oracles)
    agreeing = sum(each <= 1e-4 for each in apart)
    assert (len(apart), agreeing, learnt >= 2) == (3, 3, True), explain(
        subject=f"gradient and oracle of {name} by step",
        expected="3 steps, cosine 1 within 1e-4, at least 2 gradients that are not zero",
        got=oracles,
        cause="the oracle takes for granted how this project builds its trainers",
    )


@examples
def test_the_added_lines_change_no_sampled_id(
    name: str, both: Callable[[str], Pair], record_property: Callable[[str, Any], None]
) -> None:
    """With and without the added lines the same ids MUST be sampled. What they cost is printed, not judged."""
    plain, audited = both(name)
    ratio = audited.seconds / plain.seconds
    record_property("overhead", round(ratio, 3))
    print(f"{name}: {plain.seconds:.2f} s without, {audited.seconds:.2f} s with the oracle at each step, {ratio:.2f}")
    differing = [n for n, (a, b) in enumerate(zip(plain.sampled, audited.sampled, strict=True)) if a != b]
    assert (len(plain.sampled), differing) == (24, []), explain(
        subject=f"completions of {name}, and which of them differ",
        expected=(24, []),
        got=(len(plain.sampled), differing),
        cause="the audit draws random numbers, or changes what the trainer does",
    )


@examples
def test_conversations_of_several_turns_are_followed(name: str, both: Callable[[str], Pair]) -> None:
    """Where a script has tools, rows MUST hold several sampled turns, and what tools showed MUST not be trained."""
    ran, least = both(name)[1], SCRIPTS[name].turns
    rows = ran.of("row")
    turns = max(sum(span["source"] == "sampled" for span in row["spans"]) for row in rows)
    external = sum(span["end"] - span["start"] for row in rows for span in row["spans"] if span["source"] == "external")
    untrained = sum(mask.count(0) for mask in ran.masks)
    followed = turns >= least and (external > 0) == (least > 1)
    assert (followed, external) == (True, untrained), explain(
        subject=f"most turns of {name}, ids that tools showed, ids that are not trained",
        expected=f"at least {least} turns, the two counts equal, and not zero with several turns",
        got=(turns, external, untrained),
        cause="no tool was called, so that nothing of several turns was audited",
    )


@examples
def test_at_most_three_lines_are_added(name: str) -> None:
    """What is added to a script MUST be at most three lines, and every line of its own MUST stay as it is."""
    source = SCRIPTS[name].path.read_text().splitlines()
    audited = with_added("\n".join(source) + "\n").splitlines()
    added = [line.strip() for line in audited if line.strip() in ADDED]
    kept = [line for line in audited if line.strip() not in ADDED]
    assert (kept, added, len(added) <= 3) == (source, list(ADDED), True), explain(
        subject=f"lines added to {name}",
        expected="at most 3, everything else as published",
        got=added,
        cause="attaching the audit asks for more than it says",
    )


def test_a_published_trainer_with_a_planted_bug_is_stopped(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same script MUST be stopped, before its first step, by a TRL that trains what tools showed."""
    generate = GRPOTrainer._generate

    def unmasked(self: Any, prompts: list[Any]) -> Any:
        made: list[Any] = list(generate(self, prompts))
        made[2] = [[1] * len(mask) for mask in made[2]]
        return tuple(made)

    monkeypatch.setattr(GRPOTrainer, "_generate", unmasked)
    with pytest.raises(AuditError) as stopped:
        run(SCRIPTS["documented_tools"], policy, tmp_path / "planted", monkeypatch, audited=True)
    trained = (tmp_path / "planted" / "trace.jsonl").read_text().count('"kind":"step"')
    assert (stopped.value.rule, trained) == ("mask", 0), explain(
        subject="rule that stopped the run, and optimizer steps taken before",
        expected=("mask", 0),
        got=(stopped.value.rule, trained),
        cause="the audit holds a published trainer's mask to nothing",
    )
