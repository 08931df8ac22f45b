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
REPLAY = "qualification/training/test_replay_audit.py"

SUBJECTS = (
    Subject(
        "manifest",
        ("harness/manifest.py",),
        (
            ("qualification/test_manifest.py",),
            ("qualification/test_suite.py", "qualification/test_bad_input.py", "-k", "schema or directory_without"),
        ),
        30,
    ),
    Subject(
        "verifier",
        ("gyms/german/verifier.py", "trainer/second_verifier.py"),
        # Not the digest that freezes the core, nor the planted mutations: they notice any other text, whatever it does.
        (
            ("qualification/test_second_verifier.py", "-k", "every_table or every_short"),
            ("qualification/german/test_episode.py",),
            ("qualification/test_second_verifier.py", "-k", "random_episodes or computes"),
        ),
        30,
    ),
    Subject(
        "replay audit",
        (
            "trainer/replay_audit.py",
            "trainer/replay/claims.py",
            "trainer/replay/episodes.py",
            "trainer/replay/evidence.py",
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
            "trainer/audit.py",
            "trainer/draws.py",
            "trainer/generation.py",
            "trainer/loss_audit.py",
            "trainer/objective.py",
            "trainer/optimizer_oracle.py",
            "trainer/pool.py",
            "trainer/recorder.py",
            "trainer/rows.py",
        ),
        (
            ("qualification/training/test_audit_rules.py",),
            ("qualification/training/test_attach.py", "-k", "elsewhere and (messages or tools)"),
            ("qualification/training/test_audit.py",),
        ),
        20,
        TRAINER,
    ),
)
