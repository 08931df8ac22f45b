"""Commands beside pytest: set up stacks, serve a gym by hand, verify a run, measure speed."""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gymqual import __version__
from gymqual.gyms.launch import DEFAULT_CAPACITY, SECRET_VARIABLE
from gymqual.gyms.nemo.launch import DEFAULT_SESSION_TTL_S
from gymqual.harness.bench.nemo import bench_nemo
from gymqual.harness.bench.openenv import bench_openenv
from gymqual.harness.bench.throughput import bench_throughput
from gymqual.harness.bench.trainer import bench_policy, bench_silent_bugs, bench_training
from gymqual.harness.bench.verifiers import bench_verifiers
from gymqual.harness.cli.usage import ending
from gymqual.harness.plugin import attestation
from gymqual.harness.process.server import Owner, require_free
from gymqual.harness.records import manifest, training_run
from gymqual.harness.records.errors import HarnessError, ServerFailed
from gymqual.harness.records.figures import Figure
from gymqual.harness.records.files import ROOT, write_atomically
from gymqual.harness.records.manifest import PAGE, Claims
from gymqual.harness.report import comparison, pages
from gymqual.harness.stacks import environments
from gymqual.harness.stacks.services import GymService, start_nemo, start_openenv
from gymqual.harness.stacks.staging import stage


@dataclass(frozen=True)
class Bench:
    """One subject of ``bench``."""

    measure: Callable[..., list[Figure]]
    """Called with ``say`` and, by name, the options that it takes."""
    takes: frozenset[str] = frozenset()
    """Of ``out`` and ``quick``."""
    shows_progress: bool = False
    """By itself."""


BENCHES = {
    "nemo": Bench(bench_nemo),
    "openenv": Bench(bench_openenv),
    "policy": Bench(bench_policy),
    "silent-bugs": Bench(bench_silent_bugs, frozenset({"out", "quick"}), shows_progress=True),
    "throughput": Bench(bench_throughput, frozenset({"out"})),
    "training": Bench(bench_training),
    "verifiers": Bench(bench_verifiers),
}

SERVED: dict[str, Callable[[argparse.Namespace], tuple[Callable[..., GymService], dict[str, Any]]]] = {
    "nemo": lambda o: (start_nemo, {"capacity": o.capacity, "session_ttl_s": o.session_ttl}),
    "openenv": lambda o: (start_openenv, {"capacity": o.capacity}),
}
"""How each gym that has a service is started from the options of ``serve``."""

_ENDINGS = {
    "setup": ending("gymqual setup openenv", {0: "the environment is there", 130: "interrupted"}),
    "serve": ending("gymqual serve nemo --port 18765", {0: "ended by Ctrl-C, SIGTERM or SIGHUP"}),
    "verify": ending(
        "gymqual verify reports/RUN_ID", {0: "every claim holds", 1: "a claim is broken, and named", 130: "interrupted"}
    ),
    "report": ending("gymqual report reports/RUN_ID", {0: "written or printed", 130: "interrupted"}),
    "compare": ending(
        "gymqual compare reports/RUN_A reports/RUN_B --html compared.html",
        {
            0: "the same outcomes, whatever else differs",
            1: "outcomes differ",
            2: "they cannot be compared; one sentence says why",
            130: "interrupted",
        },
    ),
    "bench": ending(
        "gymqual bench openenv", {0: "every goal is met", 1: "a goal is missed, and named", 130: "interrupted"}
    ),
}

_console = Console(highlight=False, soft_wrap=True)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 a claim or goal does not hold, 2 it could not be done."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except HarnessError as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{options.name}: interrupted; run it again, nothing half-made is used", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gymqual",
        description=__doc__,
        epilog=ending(
            "harness COMMAND --help",
            {0: "done", 1: "a claim or a goal does not hold, or outcomes differ", 130: "interrupted"},
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"gymqual {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help="one of:")

    def command(name: str, run: Callable[[argparse.Namespace], int], help: str) -> argparse.ArgumentParser:
        added = commands.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=_ENDINGS[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        added.set_defaults(command=run, name=name)
        return added

    setup = command("setup", _setup, "build the locked environment of a gym, unless it is there")
    setup.add_argument(
        "gym", nargs="?", default="all", choices=[*environments.STACKS, "all"], help="which one (default: all)"
    )

    serve = command("serve", _serve, "start a gym's service by hand; Ctrl-C ends it")
    serve.add_argument("gym", choices=list(environments.STACKS), help=f"one that has a service: {', '.join(SERVED)}")
    serve.add_argument("--port", type=int, required=True, help="port on 127.0.0.1 to listen on (required)")
    serve.add_argument(
        "--capacity",
        type=int,
        default=DEFAULT_CAPACITY,
        metavar="N",
        help="open sessions at most (default: %(default)s)",
    )
    serve.add_argument(
        "--session-ttl",
        type=float,
        default=DEFAULT_SESSION_TTL_S,
        metavar="SECONDS",
        help="nemo only: a session without a call for so many seconds is abandoned (default: %(default)s)",
    )

    verify = command("verify", _verify, "recompute everything a run directory claims, offline")
    verify.add_argument(
        "directories", type=Path, nargs="+", metavar="DIR", help="a run of the suite, or a training run"
    )

    made = command("report", _report, "make the page of a directory again, from the evidence in it")
    made.add_argument(
        "directories", type=Path, nargs="+", metavar="DIR", help=f"{pages.KINDS}; {manifest.PAGE} is written into it"
    )
    made.add_argument(
        "--summary",
        action="store_true",
        help="print a run of the suite as Markdown instead, for a CI job's summary",
    )

    both = command("compare", _compare, "show how two run directories differ; exit 1 if outcomes do")
    both.add_argument("left", type=Path, metavar="A", help="a run of the suite, or a training run")
    both.add_argument("right", type=Path, metavar="B", help="another one of the same kind")
    both.add_argument(
        "--html", type=Path, metavar="FILE", help="write the comparison as a page, too (default: no page)"
    )

    measure = command(
        "bench", _bench, "measure speed, as ratios where there is a reference; exit 1 if a goal is missed"
    )
    measure.add_argument("subject", choices=list(BENCHES), help="what to measure")
    measure.add_argument(
        "--quick", action="store_true", help=f"without the trainings of forty steps; {_subjects_with('quick')}"
    )
    measure.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"folder that gets what is written (default: reports/SUBJECT); {_subjects_with('out')}",
    )
    return parser


def _setup(options: argparse.Namespace) -> int:
    for gym in environments.STACKS if options.gym == "all" else [options.gym]:
        with _console.status(f"{gym}: looking for its stack") as status:

            def say(text: str) -> None:
                status.update(text)
                if not _console.is_terminal:
                    _console.print(text)

            stack = environments.set_up(gym, say)
        deviation = f"; deviation: {stack.deviation}" if stack.deviation else ""
        _console.print(f"{gym}: ready, CPython {stack.version}, {Path(stack.python).parent.parent}{deviation}")
    return 0


def _serve(options: argparse.Namespace) -> int:
    if options.gym not in SERVED:
        raise HarnessError(
            f"{options.gym} has no service of its own: its commands start what they need; see the README on it, "
            f"or name one of {', '.join(SERVED)}"
        )
    if options.capacity < 1:
        raise HarnessError(f"--capacity {options.capacity} must be at least 1")
    if options.session_ttl <= 0:
        raise HarnessError(f"--session-ttl {options.session_ttl} must be more than 0 seconds")
    require_free(options.port)
    stack = environments.find_stack(options.gym)
    # Both end it like Ctrl-C, so that the server is stopped and the folder removed.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    secret_file = environments.secret_file(options.port)
    owner = Owner()
    try:
        with tempfile.TemporaryDirectory(prefix="gymqual-serve-") as folder:
            start, settings = SERVED[options.gym](options)
            served = start(
                stack,
                stage(Path(folder) / "subject"),
                owner,
                Path(folder) / "server",
                secret=os.environ.get(SECRET_VARIABLE),
                ports=[options.port],
                **settings,
            )
            write_atomically(secret_file, served.secret.encode(), mode=0o600)
            identity = served.identity
            _console.print(f"{options.gym}: serving {served.server.url}, pid {served.server.pid}")
            _console.print(f"{identity.upstream} on {identity.python}, core {identity.core[:16]}; Ctrl-C ends it")
            _console.print(f"bridge secret in {secret_file}")
            while served.server.alive:
                time.sleep(0.2)
            raise ServerFailed(
                f"the server ended with {served.server.exit_code}; its log ends:\n{served.server.log_tail()}"
            )
    except KeyboardInterrupt:
        _console.print(f"{options.gym}: stopped")
        return 0
    finally:
        owner.close()
        secret_file.unlink(missing_ok=True)


def _verify(options: argparse.Namespace) -> int:
    broken = False
    for directory in options.directories:
        if training_run.is_run(directory):
            lines, sound = training_run.verify(directory)
            claims = Claims()
            if (directory / PAGE).exists():
                pages.verify(directory, claims)
            lines, sound = [*lines, *claims.lines], sound and not claims.broken
        else:
            claims = manifest.verify(directory)
            attestation.verify(directory, claims)
            pages.verify(directory, claims)
            lines, sound = claims.lines, not claims.broken
        if len(options.directories) > 1:
            print(f"{directory}:")
        print("\n".join(lines))
        broken = broken or not sound
    return 1 if broken else 0


def _compare(options: argparse.Namespace) -> int:
    pair = comparison.read_pair(options.left, options.right)
    print("\n".join(pair.lines))
    if options.html:
        _write(options.html, comparison.page(pair))
    if pair.result.refusal:
        raise HarnessError(pair.result.refusal)
    return 0 if pair.result.same_outcomes else 1


def _write(path: Path, content: bytes) -> None:
    try:
        write_atomically(path, content)
    except OSError as error:
        raise HarnessError(f"{path} cannot be written ({error.strerror}); name another place") from None


def _report(options: argparse.Namespace) -> int:
    for directory in options.directories:
        if options.summary:
            print(pages.summary(directory), end="")
            continue
        try:
            print(pages.write(directory))
        except OSError as error:
            raise HarnessError(f"{directory}: nothing can be written there ({error.strerror})") from None
    return 0


def _require_folder(folder: Path) -> None:
    """Raise HarnessError unless files can be written to ``folder``, before anything is measured for it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        usable = os.access(folder, os.W_OK)
    except OSError:
        usable = False
    if not usable:
        raise HarnessError(f"--out {folder}: nothing can be written there; name a writable folder")


def _subjects_with(option: str) -> str:
    return "for " + ", ".join(name for name, bench in BENCHES.items() if option in bench.takes)


def _bench(options: argparse.Namespace) -> int:
    bench = BENCHES[options.subject]
    for option in ("out", "quick"):
        if getattr(options, option) and option not in bench.takes:
            raise HarnessError(f"--{option} is {_subjects_with(option)}; leave it out for {options.subject}")
    given = {"out": options.out or ROOT / "reports" / options.subject, "quick": options.quick}
    taken = {option: value for option, value in given.items() if option in bench.takes}
    if "out" in taken:
        _require_folder(taken["out"])
    if bench.shows_progress:
        figures = bench.measure(_console.print, **taken)
    else:
        with _console.status("") as status:

            def say(text: str) -> None:
                status.update(text)
                if not _console.is_terminal:
                    _console.print(text)

            figures = bench.measure(say, **taken)
    if "out" in taken:
        _console.print(f"written to {taken['out']}")
    for figure in figures:
        bounded = figure.bound != float("inf")
        goal = f"{figure.value:8.3f} {figure.unit}" + (f", goal <= {figure.bound:g}" if bounded else "")
        word = ("met" if figure.met else "MISSED") if bounded else ""
        _console.print(f"{word:<6}  {figure.name:<48} {goal:<32} {figure.note}".rstrip())
    return 0 if all(figure.met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
