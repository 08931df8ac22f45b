"""The console script, ``gymqual`` or ``python -m gymqual``: every command by name, with what does its work.

Nothing that does the work is imported before its command is called.
"""

import sys
from collections.abc import Sequence

from gymqual.harness.cli import app, report
from gymqual.harness.cli.app import Command

KEPT = "interrupted; what was finished is kept, the same command resumes from there"
HOLDS = {0: "every claim holds", 1: "a claim is broken, and named"}
GOALS = {0: "every goal is met", 1: "a goal is missed, and named"}

GROUPS: dict[str, tuple[Command, ...]] = {
    "Set up": (
        Command(
            "setup",
            "gymqual.harness.cli.setup:setup",
            "Build the locked environment of a gym, unless it is there.",
            "openenv",
            {0: "the environment is there"},
            "interrupted; run it again, nothing half-made is used",
        ),
        Command(
            "serve",
            "gymqual.harness.cli.serve:serve",
            "Start a gym's service by hand; Ctrl-C ends it.",
            "nemo --port 18765",
            {0: "ended by Ctrl-C, SIGTERM or SIGHUP"},
        ),
    ),
    "Verify and show": (
        Command(
            "verify",
            "gymqual.harness.cli.verify:verify",
            "Recompute everything that run directories claim, offline.",
            "reports/RUN_ID",
            HOLDS,
        ),
        Command(
            "report",
            "gymqual.harness.cli.report:report",
            "Make the page of a directory again, from the evidence in it.",
            "reports/RUN_ID",
            {0: "written or printed"},
        ),
        Command(
            "compare",
            "gymqual.harness.cli.report:compare",
            "Show how two run directories differ.",
            "reports/RUN_A reports/RUN_B --html compared.html",
            {0: "the same outcomes, whatever else differs", 1: "outcomes differ", 2: "they cannot be compared"},
        ),
        Command(
            "checks",
            "gymqual.qualification.support.catalogue:command",
            "Print the table of documented checks, or renew what is made of the code.",
            "--write",
            {0: "printed, or written"},
        ),
    ),
    "Train": (
        Command(
            "prepare",
            "gymqual.trainer.experiment.prepare:prepare",
            "Freeze a training run or a matched experiment: tasks, and digests of all that it depends on.",
            "RUN_DIR --gym openenv --checkpoint-every 4",
            {0: "frozen"},
            "interrupted; nothing was frozen",
        ),
        Command(
            "train",
            "gymqual.trainer.grpo.train:command",
            "Train by a frozen configuration, audited to the token.",
            "RUN_DIR/training.json",
            {0: "completed", 1: "stopped by the gym or the audit; the manifest says why"},
            "interrupted before training began; nothing was written",
        ),
        Command(
            "replay",
            "gymqual.trainer.replay.audit:command",
            "Derive every claim of a training run again from its raw evidence.",
            "RUN_DIR",
            {0: "no claim is broken", 1: "one is, and is named"},
        ),
        Command(
            "experiment",
            "gymqual.trainer.experiment.schedule:command",
            "Carry out a frozen experiment, to its report.",
            "DIR --status",
            {
                0: "the report is written, or holds",
                1: "a stage failed for what it found, or the report does not hold",
            },
            KEPT,
        ),
        Command(
            "learn",
            "gymqual.trainer.learning.learn:command",
            "Show whether a policy learns through each gym.",
            "--out reports/learned --gyms nemo",
            {0: "success rose significantly through every gym", 1: "it did not, or a training was stopped"},
            "interrupted; finished stages are kept, the same command resumes from there",
        ),
        Command(
            "profile",
            "gymqual.trainer.profiling.step_profile:command",
            "Measure where the time of a training step goes.",
            "--out DIR --gym openenv",
            {0: "written"},
        ),
    ),
    "Policies": (
        Command(
            "sft",
            "gymqual.trainer.policy.sft:command",
            "Build a policy by supervised fine-tuning on teacher transcripts.",
            "--out DIR --policy mini4",
            {0: "built"},
        ),
        Command(
            "evaluate",
            "gymqual.trainer.evaluation.evaluate:command",
            "Measure a policy's strict success through a gym.",
            "--policy mini --split dev --episodes 256 --gym nemo",
            {0: "evaluated", 2: "it could not be done, or the gym failed; one sentence says why"},
        ),
        Command(
            "retention",
            "gymqual.trainer.evaluation.retention:command",
            "Measure what a policy still knows of other problems.",
            "--policy mini --probe",
            {0: "measured"},
        ),
        Command(
            "serve-policy",
            "gymqual.trainer.serving.serve:command",
            "Serve a policy to other frameworks, on loopback.",
            "--policy mini --port 8000",
            {0: "ended by Ctrl-C or SIGTERM"},
        ),
    ),
    "Measure": (
        Command("bench nemo", "gymqual.harness.cli.bench:nemo", "The NeMo service and its client.", "", GOALS),
        Command("bench openenv", "gymqual.harness.cli.bench:openenv", "The OpenEnv service and its bridge.", "", GOALS),
        Command("bench verifiers", "gymqual.harness.cli.bench:verifiers", "A scripted Verifiers rollout.", "", GOALS),
        Command(
            "bench throughput",
            "gymqual.harness.cli.bench:throughput",
            "Episodes a second at 1, 16 and 256 sessions.",
            "--out reports/throughput",
            GOALS,
        ),
        Command(
            "bench policy",
            "gymqual.trainer.profiling.policy_speed:command",
            "Build, sampling and evaluation of the embedded policy.",
            "",
            GOALS,
        ),
        Command(
            "bench training",
            "gymqual.trainer.profiling.training_speed:command",
            "Audited training over plain TRL, exact and cached.",
            "",
            GOALS,
        ),
        Command(
            "bench silent-bugs",
            "gymqual.qualification.studies.silent_bugs.study:command",
            "Every planted trainer bug and clean trainings: what finds them.",
            "--out DIR --quick",
            GOALS,
            KEPT,
        ),
        Command(
            "bench mutation",
            "gymqual.qualification.studies.mutation.study:command",
            "Small changes of what judges: whether the checks notice.",
            "--subject manifest --mutants 10",
            {0: "every survivor is explained", 1: "one is not, or what is explained did not survive"},
            "interrupted; --again resumes with what --out has",
        ),
    ),
}
"""Commands in the order in which help shows them."""

COMMANDS = tuple(command for commands in GROUPS.values() for command in commands)
HELP = "Qualify RL agent gyms, their bridges and trainers: prove them before the GPU weeks are spent."

report.MAKERS["silent-bugs.json"] = "gymqual.qualification.studies.silent_bugs.page:write"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, by default the process's own; returns its exit code."""
    script = app.build("gymqual", HELP, GROUPS, {"bench": "Measure, as ratios where there is a reference."})
    return app.run(script, COMMANDS, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
