"""What the console script says of itself: --help alone is enough to use any command."""

import inspect
import subprocess
import sys
from importlib import import_module
from typing import Annotated, get_args, get_origin

import pytest
from cyclopts import Parameter

from gymqual.__main__ import COMMANDS, GROUPS, HELP, main
from gymqual.harness.cli import app
from gymqual.harness.cli.app import Command
from gymqual.harness.plugin.registry import explain
from gymqual.harness.process.own import own_environment
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.commands import run_gymqual

pytestmark = pytest.mark.self_test

HEAVY = ("torch", "transformers", "trl", "pytest", "matplotlib", "jinja2", "hypothesis")


def _unsaid(function: object) -> list[str]:
    """Return the options of a command that its help would not explain."""
    lacking = []
    for name, parameter in inspect.signature(function).parameters.items():  # type: ignore[arg-type]
        told = get_args(parameter.annotation)[1:] if get_origin(parameter.annotation) is Annotated else ()
        if not any(isinstance(each, Parameter) and each.help for each in told):
            lacking.append(name)
    return lacking


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_is_enough(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` MUST exit 0 and MUST tell every option, an example and the exit codes."""
    module, _, name = command.runs.partition(":")
    code = main([*command.name.split(), "--help"])
    printed = capsys.readouterr().out
    unsaid = _unsaid(getattr(import_module(module), name))
    ending = [line.strip() for line in command.ending.splitlines() if line.strip()]
    missing = [line for line in ending if line not in printed]
    assert (code, unsaid, missing) == (0, [], []), explain(
        subject=f"gymqual {command.name} --help: exit code, options without help, lines of its ending that are missing",
        expected=(0, [], []),
        got=(code, unsaid, missing),
        cause="an option was added without its text",
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_example_is_a_call_of_its_command(command: Command) -> None:
    """The example of a command MUST be a call that its own parser takes."""
    script = app.build("gymqual", HELP, GROUPS, {"bench": "Measure."})
    function, bound, _ = script.parse_args(
        [*command.name.split(), *command.example.split()], exit_on_error=False, print_error=False
    )
    module, _, name = command.runs.partition(":")
    taken = (function.__module__, function.__name__)
    assert taken == (module, name), explain(
        subject=f"what gymqual {command.name} {command.example} calls",
        expected=(module, name),
        got=(*taken, bound),
        cause="an option was renamed and its example was not",
    )


def test_help_lists_every_command_by_group_and_loads_nothing_heavy() -> None:
    """``gymqual --help`` MUST show every group and command; neither it nor a typo MUST import what a command needs."""
    question = f"""
import sys
from gymqual.__main__ import main
code = main(["--help"]), main(["verfiy"])
print(code, sorted(name for name in {HEAVY!r} if name in sys.modules))
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", question],
        env=own_environment(COLUMNS="200"),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    shown, _, last = ran.stdout.rstrip().rpartition("\n")
    words = [*GROUPS, *(command.name.partition(" ")[0] for command in COMMANDS)]
    missing = [word for word in words if word not in shown]
    assert (last, missing) == ("(0, 2) []", []), explain(
        subject="exit codes and heavy modules of gymqual --help, then verfiy, in a fresh process; what help lacks",
        expected=("(0, 2) []", []),
        got=(last, missing),
        cause="a module of the console script imports what does a command's work",
    )


WITHOUT_TORCH = (
    *("setup", "serve", "verify", "report", "compare", "checks"),
    *("bench nemo", "bench openenv", "bench verifiers", "bench throughput", "bench mutation"),
)


def test_a_command_that_lacks_an_extra_names_its_install_line() -> None:
    """Without torch what needs none MUST tell its help, all else MUST name the fix in one line, with exit code 2."""
    question = """
import io, sys
from contextlib import redirect_stderr, redirect_stdout
sys.modules["torch"] = None  # type: ignore[assignment]
from gymqual.__main__ import COMMANDS, main
for command in COMMANDS:
    said = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(said):
        code = main([*command.name.split(), "--help"])
    # A library may have told its own of the missing torch before; what ended the command stands last.
    print(command.name, code, (said.getvalue().splitlines() or ["-"])[-1], sep="; ")
"""
    ran = subprocess.run(
        [sys.executable, "-P", "-c", question],
        env=own_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    due = [
        f"{name}; 0; -"
        if name in WITHOUT_TORCH
        else f"{name}; 2; gymqual {name}: Not testable: this needs torch; run: make setup-train"
        for name in (command.name for command in COMMANDS)
    ]
    assert (ran.returncode, ran.stdout.splitlines()) == (0, due), explain(
        subject="every command's --help in a process that finds no torch: name, exit code, standard error",
        expected=(0, due),
        got=(ran.returncode, ran.stdout, ran.stderr[-1500:]),
        cause="a traceback reaches whoever has the bare installation, or a command of the harness came to need torch",
    )


BAD_CALLS = {
    "an unknown command": (["verfiy", "DIR"], 'Did you mean "verify"?'),
    "no command": ([], "name one of setup, serve"),
    "no subject": (["bench"], "gymqual bench: name one of nemo, openenv"),
    "nothing like a command": (["x"], "Choose from: setup, serve"),
    "an unknown subject": (["bench", "nem"], 'Did you mean "bench nemo"?'),
    "an option of no command": (["--bogus"], "--bogus"),
    "an unknown option": (["train", "CONFIG", "--polisy", "mini"], "--polisy"),
    "a missing argument": (["train"], "CONFIG"),
    "a missing option": (["sft"], "--out"),
    "a word for a number": (["evaluate", "--episodes", "many"], "--episodes"),
    "an unknown choice": (["train", "CONFIG", "--gym", "nemmo"], "nemmo"),
    "too many arguments": (["compare", "A", "B", "C"], "C"),
    "nothing to verify": (["verify"], "DIR"),
}


@pytest.mark.parametrize("name", BAD_CALLS)
def test_a_call_that_cannot_be_read_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a command line gets wrong MUST be named in one line of standard error, with exit code 2."""
    arguments, named = BAD_CALLS[name]
    code = main(arguments)
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    seen = (code, len(lines), any(named in line for line in lines), printed.out)
    assert seen == (2, 1, True, ""), explain(
        subject=f"gymqual {' '.join(arguments)}: exit code, lines, {named} named, standard output",
        expected=(2, 1, True, ""),
        got=(*seen[:3], printed),
        cause="the library's own box or a traceback reaches the user",
    )


def test_help_is_printed_by_a_process() -> None:
    """A command's help MUST come by a process with exit code 0, and ``make help`` MUST name every goal of users."""
    told = run_gymqual("verify", "--help")
    made = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    goals = [
        goal
        for goal in ("qualify", "qualify-gpu", "test", "quick", "test-all", "setup", "lint")
        if f"make {goal}" in made.stdout
    ]
    seen = (told.returncode, "Exit codes:" in told.stdout, made.returncode, len(goals))
    assert seen == (0, True, 0, 7), explain(
        subject="exit code and ending of gymqual verify --help; exit code of make help and goals that it names",
        expected=(0, True, 0, 7),
        got=(seen, goals, told.stderr, made.stderr),
        cause="the command cannot be imported, or the Makefile's head was changed",
    )
