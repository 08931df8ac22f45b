"""The audit on a GRPOTrainer that knows nothing of this project: its own prompts, tools and reward."""

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from gymqual.harness.plugin.registry import explain
from gymqual.trainer.audit.attach import Audit, attach
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.errors import AuditError

pytestmark = [pytest.mark.self_test, pytest.mark.filterwarnings("ignore")]


def lookup_price(article: str) -> str:
    """Look up a price.

    Args:
        article: The article's name.
    """
    return f"{len(article)} Euro"


def length(completions: list[Any], **_: object) -> list[float | None]:
    """A reward that varies within a group without any meaning."""
    return [float(len(str(completion)) % 7) for completion in completions]


def audited(
    folder: Path,
    *,
    text: bool = False,
    accumulation: int = 1,
    tools: list[Any] | None = None,
    checkpoint: Path | None = None,
    **others: Any,
) -> Audit:
    """Train three steps of four rollouts a group with the oracle at each step, or what is left after a checkpoint."""
    questions = [f"Wie viele {number}? " for number in range(12)]
    prompts: list[Any] = questions if text else [[{"role": "user", "content": each}] for each in questions]
    settings = GRPOConfig(
        output_dir=str(folder / "trl"), max_steps=3, per_device_train_batch_size=8, num_generations=4,
        max_completion_length=24, gradient_accumulation_steps=accumulation, learning_rate=1e-3, top_k=0, seed=43,
        bf16=False, gradient_checkpointing=False, use_cpu=True, report_to="none", save_strategy="steps", save_steps=1,
        disable_tqdm=True, **others,
    )  # fmt: skip
    policy = load_policy("mini4")
    dataset = Dataset.from_list([{"prompt": prompt, "of no use": n} for n, prompt in enumerate(prompts)])
    made = GRPOTrainer(policy.model, length, settings, dataset, processing_class=policy.tokenizer, tools=tools)
    made.remove_callback(PrinterCallback)
    audit = attach(made, folder / "trace.jsonl", oracle_at=lambda _: True)
    made.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return audit


@pytest.mark.parametrize(
    "settings",
    [{}, {"text": True}, {"tools": [lookup_price]}, {"accumulation": 2}, {"remove_unused_columns": True}],
    ids=["messages", "text", "tools", "accumulation", "columns"],
)
def test_the_audit_follows_a_trainer_made_elsewhere(settings: dict[str, Any], tmp_path: Path) -> None:
    """A plain GRPOTrainer MUST be let through, with every step's gradient equal to the oracle's."""
    steps = audited(tmp_path, **settings).steps
    cosines = [round(step.oracle.cosine or 0.0, 6) if step.oracle else None for step in steps]
    assert cosines == [1.0, 1.0, 1.0], explain(
        subject="cosine of gradient and oracle by step",
        expected=[1.0, 1.0, 1.0],
        got=cosines,
        cause="the audit takes for granted how this project builds its trainers",
    )


def test_a_training_that_goes_on_from_a_checkpoint_is_refused(tmp_path: Path) -> None:
    """Attached to a training whose beginning it does not know, the audit MUST refuse it before a step is taken."""
    audited(tmp_path / "first")
    said = "it was let through"
    try:
        audited(tmp_path / "second", checkpoint=tmp_path / "first" / "trl" / "checkpoint-1")
    except AuditError as error:
        said = str(error)
    assert said.startswith("configuration: not audited: training goes on at step 2"), explain(
        subject="attaching to a training that goes on at its second step",
        expected="configuration: not audited: training goes on at step 2, ...",
        got=said,
        cause="moments, order of rows and random states are taken to begin there",
    )


@pytest.mark.parametrize(("optimizer", "audited_too"), [("adamw_torch", True), ("adafactor", False)])
def test_an_optimizer_whose_updates_are_not_audited_is_told(optimizer: str, audited_too: bool, tmp_path: Path) -> None:
    """The audit MUST say whether it follows the optimizer's updates, and follow the gradients in any case."""
    audit = audited(tmp_path, optim=optimizer)
    seen = (audit.audits_updates, len(audit.steps), all(step.oracle for step in audit.steps))
    assert seen == (audited_too, 3, True), explain(
        subject=f"whether updates of {optimizer} are audited, steps, and whether each was held to the oracle",
        expected=(audited_too, 3, True),
        got=seen,
        cause="what is not audited is passed over in silence, or stops the run",
    )
