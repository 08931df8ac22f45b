"""What is mutated, and by which checks that should be noticed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Subject:
    """A part of the product that judges others, so that a fault of its own would go unnoticed."""

    name: str
    modules: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    """Arguments of pytest for the checks that should notice, one call after the other: the quick ones first."""
    mutants: int
    """Size of the sample."""
    preloaded: tuple[str, ...] = ()
    """Packages that take longer to load than the checks take; none of ours."""


TRAINER = ("numpy", "torch", "transformers", "datasets", "peft", "trl.trainer.grpo_trainer")
REPLAY = "qualification/meta/training/test_replay_audit.py"

SUBJECTS = (
    Subject(
        "manifest",
        ("harness/records/claims.py", "harness/records/manifest.py", "harness/records/run_records.py"),
        (
            ("qualification/meta/test_manifest.py",),
            (
                "qualification/meta/test_suite.py",
                "qualification/meta/test_bad_input.py",
                "-k",
                "schema or directory_without",
            ),
        ),
        30,
    ),
    Subject(
        "verifier",
        ("gyms/german/verifier.py", "trainer/replay/reference_verifier.py"),
        # Not the digest that freezes the core, nor the planted mutations: they notice any other text, whatever it does.
        (
            ("qualification/meta/test_second_verifier.py", "-k", "every_table or every_short"),
            ("qualification/german/test_episode.py",),
            ("qualification/meta/test_second_verifier.py", "-k", "random_episodes or computes"),
        ),
        30,
    ),
    Subject(
        "replay audit",
        (
            "trainer/replay/audit.py",
            "trainer/replay/claims.py",
            "trainer/replay/episodes.py",
            "trainer/replay/evidence.py",
            "trainer/replay/objective.py",
            "trainer/replay/rounding.py",
            "trainer/replay/steps.py",
            "trainer/replay/tokens.py",
            "trainer/replay/weights.py",
        ),
        (
            (REPLAY, "-k", "alteration or only_the_policy or not_as_recorded or another_form or cannot_be_done_again"),
            (REPLAY, "-k", "healthy_run or gym_ended or bf16 or checkpoint or done_again or command_tells or at_hand"),
        ),
        24,
        TRAINER,
    ),
    Subject(
        "audit",
        (
            "trainer/audit/attach.py",
            "trainer/audit/independence.py",
            "trainer/audit/rollout_audit.py",
            "trainer/audit/generation_recorder.py",
            "trainer/audit/logprob_rules.py",
            "trainer/audit/loss_audit.py",
            "trainer/audit/grpo_oracle.py",
            "trainer/audit/optimizer_oracle.py",
            "trainer/audit/data_order.py",
            "trainer/audit/sampling_recorder.py",
            "trainer/audit/training_rows.py",
        ),
        (
            (
                "qualification/meta/training/test_audit_rules.py",
                "qualification/meta/training/test_audit_loss.py",
                "qualification/meta/training/test_audit_order.py",
            ),
            ("qualification/meta/training/test_attach.py", "-k", "elsewhere and (messages or tools)"),
            ("qualification/training/test_audit.py",),
        ),
        20,
        TRAINER,
    ),
)
