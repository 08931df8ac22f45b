"""The machinery of the console script: commands are imported when they are called, and all end alike.

What commands there are is the top floor's to say, see ``gymqual/__main__.py``: nothing here knows who does the work.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from cyclopts import App, CycloptsError, Group, Parameter, UnknownCommandError

from gymqual import __version__
from gymqual.gyms.base import InfrastructureError
from gymqual.harness.records.errors import HarnessError, NotTestable
from gymqual.harness.records.extras import lacking_for

UNDOABLE = "it could not be done; one sentence says why"


@dataclass(frozen=True)
class Command:
    """One command of the console script."""

    name: str
    """Its words, e.g. ``bench openenv``."""
    runs: str
    """``module:function``, imported when it is called; the function returns an exit code, or nothing for 0."""
    help: str
    example: str
    """Arguments of a call that its parser takes."""
    codes: Mapping[int, str] = field(default_factory=dict)
    """What exit codes mean beside 2, which is said of every command."""
    interrupted: str = "interrupted; nothing was written"
    """What is said after Ctrl-C."""

    @property
    def ending(self) -> str:
        """How its help ends: with an example to copy, and what its exit codes mean."""
        meanings = {2: UNDOABLE, 130: "interrupted", **self.codes}
        lines = "\n".join(f"  {code:<5}{meaning}" for code, meaning in sorted(meanings.items()))
        return f"Example:\n  gymqual {self.name} {self.example}\n\nExit codes:\n{lines}"


def build(name: str, help: str, groups: Mapping[str, Sequence[Command]], families: Mapping[str, str]) -> App:
    """Return the console script; ``families`` has a line for every first word that several commands share."""
    settings = {
        "result_action": "return_value",
        "exit_on_error": False,
        "print_error": False,
        "suppress_keyboard_interrupt": False,
        "default_parameter": Parameter(negative=(), consume_multiple=True),
        "help_format": "plaintext",
    }
    app = App(name=name, help=help, version=__version__, **settings)
    app.register_install_completion_command()
    parents: dict[str, App] = {}
    for number, (title, commands) in enumerate(groups.items()):
        group = Group(title, sort_key=number)
        for command in commands:
            first, _, rest = command.name.partition(" ")
            into = app
            if rest:
                if first not in parents:
                    parents[first] = App(name=first, help=families[first], group=group, **settings)
                    app.command(parents[first])
                into = parents[first]
            into.command(
                command.runs,
                name=rest or first,
                group=None if rest else group,
                help=command.help,
                help_epilogue=command.ending,
                **settings,
            )
    return app


def run(app: App, commands: Sequence[Command], arguments: Sequence[str]) -> int:
    """Run a command line; returns its exit code, and says in one line of standard error what ended it otherwise.

    That is 2 for whatever a user can put right, 130 for Ctrl-C, and what an exception names as its ``exit_code``.
    """
    called = _called(commands, arguments)
    label = f"{app.name[0]} {called.name}" if called else app.name[0]
    if called is None and (open_names := _names_after(commands, arguments)):
        # The library would show the help and end with 0: an empty variable in a script would pass unnoticed.
        said = " ".join([label, *arguments])
        print(f"{said}: name one of {', '.join(open_names)}. See {said} --help.", file=sys.stderr)
        return 2
    try:
        return app(list(arguments)) or 0
    except UnknownCommandError:
        # The library's own words would import every command, torch included, to tell which there are.
        reason, code = f"{_unknown(commands, arguments)} See {label} --help.", 2
    except CycloptsError as error:
        reason, code = f"{' '.join(str(error).split())} See {label} --help.", 2
    except (HarnessError, InfrastructureError, OSError) as error:
        reason, code = str(error), 2
    except ImportError as error:
        # A command is imported when it is called, or asked for its help: the bare installation may lack its packages.
        lacks = lacking_for(error)
        if lacks is None:
            raise
        reason, code = str(NotTestable(f"this {lacks}")), 2
    except KeyboardInterrupt:
        reason, code = called.interrupted if called else "interrupted", 130
    except Exception as error:
        named: int | None = getattr(error, "exit_code", None)
        if named is None:
            raise
        reason, code = str(error), named
    print(f"{label}: {reason}", file=sys.stderr)
    return code


def _names_after(commands: Sequence[Command], arguments: Sequence[str]) -> list[str]:
    """Return what may follow words that only begin the name of a command; nothing where they are something else."""
    place = len(arguments)
    names = [command.name.split() for command in commands]
    return list(dict.fromkeys(words[place] for words in names if words[:place] == list(arguments) and words[place:]))


def _unknown(commands: Sequence[Command], arguments: Sequence[str]) -> str:
    """Return what is said of the first word that is no command."""
    known, before = [command.name.split() for command in commands], ""
    for place, word in enumerate(arguments):
        here = list(dict.fromkeys(words[place] for words in known if len(words) > place))
        if word not in here:
            close = get_close_matches(word, here, 1)
            meant = f'Did you mean "{before}{close[0]}"?' if close else f"Choose from: {', '.join(here)}."
            return f'Unknown command "{before}{word}". {meant}'
        known, before = [words for words in known if words[place] == word], f"{before}{word} "
    raise ValueError(f"{' '.join(arguments)} names a command")


def _called(commands: Sequence[Command], arguments: Sequence[str]) -> Command | None:
    matching = [each for each in commands if list(arguments)[: len(each.name.split())] == each.name.split()]
    return max(matching, key=lambda command: len(command.name), default=None)
