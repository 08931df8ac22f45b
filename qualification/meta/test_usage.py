"""What the commands say of themselves: --help alone is enough to use any of them."""

import argparse
import re
import subprocess
from importlib import import_module

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.files import ROOT

pytestmark = pytest.mark.self_test

COMMANDS = (
    "harness",
    "qualification",
    "gymqual.qualification.studies.mutation",
    "gymqual.qualification.studies.silent_bugs",
    *(f"trainer.{name}" for name in ("evaluate", "gym_training", "learning", "prepare", "replay_audit")),
    *(f"trainer.{name}" for name in ("retention", "schedule", "serve", "sft", "step_profile")),
)


def _asked(module: str, monkeypatch: pytest.MonkeyPatch) -> tuple[argparse.ArgumentParser, object]:
    """Ask a command for help; return the parser that gave it, and the exit code."""
    asked: list[argparse.ArgumentParser] = []
    monkeypatch.setattr(argparse.ArgumentParser, "print_help", lambda self, file=None: asked.append(self))
    package = not module.startswith("trainer.")
    main = import_module(f"{module}.__main__" if package else module).main
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    return asked[0], ended.value.code


def _with_subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [parser, *(each for group in groups for each in group.choices.values())]


def _unsaid(parser: argparse.ArgumentParser) -> list[str]:
    """Return what the help of one command lacks."""
    lacking = []
    for action in parser._actions:
        told = action.help or ""
        name = "/".join(action.option_strings) or str(action.metavar or action.dest)
        if not told:
            lacking.append(f"{name}: no help")
        takes_a_value = bool(action.option_strings) and action.nargs != 0
        if takes_a_value and not re.search(r"\(required\)|\(default: .+\)", told):
            lacking.append(f"{name}: neither a default nor (required)")
        if takes_a_value and action.required != ("(required)" in told):
            lacking.append(f"{name}: required or not, told otherwise")
    ending = parser.epilog or ""
    lacking += [
        f"no {word!r} at the end" for word in ("example:", "-m ", "exit codes:", "  0 ", "  2 ") if word not in ending
    ]
    return lacking


@pytest.mark.parametrize("module", COMMANDS)
def test_help_is_enough(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--help`` MUST exit 0 and MUST tell every option, its default or need, an example and the exit codes."""
    parser, code = _asked(module, monkeypatch)
    lacking = {each.prog: _unsaid(each) for each in _with_subcommands(parser) if _unsaid(each)}
    assert (code, lacking) == (0, {}), explain(
        subject=f"python -m {module} --help",
        expected="exit 0, nothing unsaid",
        got=(code, lacking),
        cause="an option was added without its text",
    )


def test_the_examples_are_of_this_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of a command MUST be a call of that command which its own parser takes."""
    wrong = []
    for module in COMMANDS:
        with monkeypatch.context() as patched:
            parser, _ = _asked(module, patched)
        for each in _with_subcommands(parser):
            line = re.search(r"-m (\S+)(.*)", each.epilog or "")
            if line is None or line[1] != module:
                wrong.append(f"{each.prog}: {line and line[0]}")
            elif "--help" not in line[2]:
                try:
                    parser.parse_args(line[2].split())
                except SystemExit:
                    wrong.append(f"{each.prog}: {line[0]}")
    assert wrong == [], explain(
        subject="examples at the end of --help",
        expected="each is taken by the parser that shows it",
        got=wrong,
        cause="an option was renamed and its example was not",
    )


def test_help_is_printed_by_a_process() -> None:
    """A command's help MUST come by ``python -m`` with exit code 0, and ``make help`` MUST name every goal of users."""
    told = run_gymqual("verify", "--help")
    made = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    goals = [
        goal
        for goal in ("qualify", "qualify-gpu", "test", "test-all", "setup", "lint")
        if f"make {goal}" in made.stdout
    ]
    seen = (told.returncode, "exit codes:" in told.stdout, made.returncode, len(goals))
    assert seen == (0, True, 0, 6), explain(
        subject="exit code and ending of gymqual verify --help; exit code of make help and goals that it names",
        expected=(0, True, 0, 6),
        got=(seen, goals, told.stderr, made.stderr),
        cause="the command cannot be imported, or the Makefile's head was changed",
    )
