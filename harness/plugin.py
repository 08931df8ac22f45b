"""The pytest plugin: options, selection, outcomes, the run's manifest and its closing table.

It is passive in a project that names no reports folder (``--reports`` or the ini option
``gymqual_reports``), since pytest loads it wherever the product is installed.
"""

from gyms import loaded

# Before any other module of ours: what this process executes of the gyms, client and replay included, goes on
# record as the bytes that were compiled, not as what the files hold at the end of the run.
loaded.install()

import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from harness import __version__, manifest
from harness.checks import REGISTRY, Check
from harness.errors import HarnessError, NotTestable
from harness.evidence import Evidence
from harness.run import Ledger, Run, new_run_folder, now
from harness.stacks import STACKS, find_stack

MARKERS = {
    "gym(name)": "the check examines this gym; --gym selects by it",
    "cpu_smoke": "documented check without training",
    "cpu_qualification": "real training on the embedded policy",
    "gpu_qualification": "the same bodies on one visible BF16 CUDA GPU",
    "self_test": "the suite examined with broken subjects",
    "upstream": "driven by the frameworks' own tools",
    "optional": "documented, optional",
    "needs_data(variable)": "needs the data that an environment variable names; left out without it, unless named",
    "slow": "over 20 seconds and not one of the documented, counted checks",
}

_RUN = pytest.StashKey[Run]()
_EVIDENCE = pytest.StashKey[Evidence]()
_RECORD = pytest.StashKey[dict[str, Any]]()


@dataclass(frozen=True)
class Planted:
    """A defect planted into the subject of one check, in a run with ``--broken``."""

    defect: str
    must_flag: bool
    """True for the check's own defect; False for its neighbour's, which must not disturb it."""

    @property
    def label(self) -> str:
        """Part of the test's id."""
        return f"{'flags' if self.must_flag else 'unharmed by'} {self.defect}"


# ---- options ---------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gymqual", "qualification of RL agent gyms")
    group.addoption(
        "--gym", action="append", default=[], metavar="NAME", help=f"only checks of this gym: {_gym_names()} (repeat)"
    )
    group.addoption(
        "--policy",
        default="mini",
        metavar="NAME",
        help="policy of the checks that train: mini, mini4, smollm2 or a directory (%(default)s)",
    )
    group.addoption(
        "--inference-url",
        metavar="URL",
        help="OpenAI-compatible server of the check with a real model, e.g. http://127.0.0.1:8000/v1 "
        "(default: the embedded policy, served)",
    )
    group.addoption("--reports", metavar="DIR", help="folder that run directories are made in")
    group.addoption(
        "--broken",
        action="store_true",
        help="run every check against its own defects, which it must flag, and against its neighbour's",
    )
    parser.addini("gymqual_reports", "default of --reports, relative to the root folder; empty: passive", default="")


# First, since pytest's own JUnit writer looks at its option when it is configured.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    for gym in config.option.gym:
        if gym != "all" and gym not in STACKS:
            raise pytest.UsageError(f"--gym: unknown gym {gym!r}; choose from {_gym_names()}")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        if "gymqual_folder" in worker:
            config.stash[_RUN] = Run(Path(worker["gymqual_folder"]), worker["workerid"])
        return
    reports = config.option.reports or (config.inipath and config.getini("gymqual_reports"))
    if not reports or config.option.collectonly or config.option.help or config.option.version:
        return
    if config.option.markers or config.option.showfixtures:
        return
    if not config.option.reports:
        reports = config.rootpath / str(reports)
    try:
        folder = new_run_folder(Path(reports))
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[_RUN] = Run(folder)
    mode = "broken" if config.option.broken else "qualification"
    ledger = Ledger(mode, now(), tuple(map(str, config.invocation_params.args)))
    config.pluginmanager.register(Recorder(config.stash[_RUN], ledger), "gymqual-recorder")
    if not config.option.xmlpath:
        config.option.xmlpath = str(folder / manifest.JUNIT)
    # As Ctrl-C does, so that servers are stopped and the manifest says how the run ended.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _gym_names() -> str:
    return ", ".join([*STACKS, "all"])


def _selected_gyms(config: pytest.Config) -> list[str]:
    chosen = config.option.gym
    return list(STACKS) if not chosen or "all" in chosen else [gym for gym in STACKS if gym in chosen]


# ---- selection -------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    check = _check_of(metafunc.function)
    if not metafunc.config.option.broken or check is None:
        return
    neighbours = sorted((other for other in REGISTRY.values() if _module(other) == _module(check)), key=lambda c: c.id)
    following = neighbours[(neighbours.index(check) + 1) % len(neighbours)]
    planted = [Planted(defect, must_flag=True) for defect in check.defects]
    planted += [Planted(defect, must_flag=False) for defect in following.defects if defect not in check.defects]
    metafunc.parametrize("defect", planted, ids=[each.label for each in planted], indirect=True)


# First, so that pytest's own -m sees the mark that is set here.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gyms = _selected_gyms(config)
    kept, dropped = [], []
    for item in items:
        gym = _gym_of(item)
        unwanted_gym = bool(config.option.gym) and gym not in gyms
        unasked_gpu = item.get_closest_marker("gpu_qualification") is not None and not _names_gpu(config, item)
        unasked_data = _lacks_data(config, item)
        unbroken = config.option.broken and _planted(item) is None
        (dropped if unwanted_gym or unasked_gpu or unasked_data or unbroken else kept).append(item)
    for item in kept:
        if config.option.broken:
            item.add_marker("self_test")
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    run = session.config.stash.get(_RUN, None)
    for item in session.items if run else ():
        gym, check = _gym_of(item), _check_of(getattr(item, "function", None))
        if run and gym and check:
            run.register(gym, {check.id, *_documented(gym, _module(check).rpartition(".")[0])})


@cache
def _documented(gym: str, package: str) -> frozenset[str]:
    """Return the ids of a gym's documented checks: of all test modules beside a selected one, selected or not.

    Those of a module with the mark ``optional`` count where they were selected.
    """
    if not package:
        return frozenset()
    for module in iter_modules(sys.modules[package].__path__):
        if module.name.startswith("test_"):
            import_module(f"{package}.{module.name}")
    return frozenset(
        check.id
        for check in REGISTRY.values()
        if _module(check).startswith(f"{package}.") and _demands(_module(check), gym)
    )


def _demands(module: str, gym: str) -> bool:
    marks = getattr(sys.modules[module], "pytestmark", [])
    named = {(mark.name, *mark.args) for mark in (marks if isinstance(marks, list) else [marks])}
    return ("gym", gym) in named and ("optional",) not in named


def pytest_sessionfinish(session: pytest.Session) -> None:
    run = session.config.stash.get(_RUN, None)
    if run is None:
        return
    run.close()
    # Set in a parallel worker; the process that writes the manifest reads it there.
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["gymqual_used"] = run.used()


def _names_gpu(config: pytest.Config, item: pytest.Item) -> bool:
    return "gpu_qualification" in config.option.markexpr or _is_named(config, item)


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    _, _, name = item.nodeid.partition("::")
    for argument in config.args:
        file, colons, start = argument.partition("::")
        # Written as a user may: from another folder, or as an absolute path.
        if colons and (config.invocation_params.dir / file).resolve() == item.path and name.startswith(start):
            return True
    return False


def _lacks_data(config: pytest.Config, item: pytest.Item) -> bool:
    """Return whether a check's data is missing and nobody asked for it; if asked, it fails as not testable."""
    marker = item.get_closest_marker("needs_data")
    if marker is None or os.environ.get(marker.args[0]):
        return False
    # GYMQUAL_MGSM is asked for by -k mgsm.
    word = marker.args[0].removeprefix("GYMQUAL_").lower()
    asked = "needs_data" in config.option.markexpr or word in config.option.keyword.lower()
    return not asked and not _is_named(config, item)


def _check_of(function: Any) -> Check | None:
    return getattr(function, "gymqual_check", None)


def _module(check: Check) -> str:
    return check.test.partition(":")[0]


def _gym_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("gym")
    return marker.args[0] if marker else None


def _planted(item: pytest.Item) -> Planted | None:
    callspec = getattr(item, "callspec", None)
    planted = callspec.params.get("defect") if callspec else None
    return planted if isinstance(planted, Planted) else None


# ---- fixtures --------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """The run that goes on record; checks need a reports folder to leave their evidence in."""
    if _RUN not in request.config.stash:
        raise NotTestable("checks leave evidence; name a folder for it with --reports DIR")
    return request.config.stash[_RUN]


@pytest.fixture
def evidence(request: pytest.FixtureRequest, run: Run) -> Evidence:
    """The evidence of this check."""
    item: pytest.Item = request.node
    check = _check_of(getattr(item, "function", None))
    # The parameters in a test's id tell its cases apart.
    case = re.sub(r"[^\w.-]+", "-", item.name.partition("[")[2]).strip("-")
    name = f"{check.id}/{case}" if check and case else check.id if check else re.sub(r"[^\w.-]+", "-", item.name)
    return item.stash.setdefault(_EVIDENCE, Evidence(run.folder, name))


# ---- outcomes --------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: pytest.TestReport = yield  # type: ignore[assignment]
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, HarnessError):
        # Its text is the whole story; a traceback through the harness would bury it.
        report.longrepr = str(error)
    planted = _planted(item)
    if planted and call.when == "call":
        _judge_planted(item, call, report, planted)
    check = _check_of(getattr(item, "function", None))
    if check is not None:
        record = item.stash.setdefault(_RECORD, _new_record(item, check, planted))
        record["duration_s"] = round(record["duration_s"] + report.duration, 3)
        if report.failed and record["outcome"] == "passed":
            record["outcome"] = "not_testable" if isinstance(error, NotTestable) else "failed"
            record["message"] = _short(report)
        if call.when == "teardown":
            shown = item.stash.get(_EVIDENCE, None)
            if shown is not None:
                record |= {"measured": shown.measured, "files": shown.files}
            # A plain attribute of a report travels from a parallel worker as it is.
            report.gymqual_record = record  # type: ignore[attr-defined]
    return report  # type: ignore[return-value]


def _judge_planted(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport, planted: Planted) -> None:
    if not planted.must_flag:
        if report.failed:
            report.longrepr = f"disturbed by its neighbour's defect {planted.defect!r}:\n{report.longreprtext}"
        return
    if call.excinfo is None:
        report.outcome = "failed"
        report.longrepr = f"the check cannot fail: it passed a subject with the defect {planted.defect!r}"
        return
    last = call.excinfo.traceback[-1]
    own = call.excinfo.errisinstance(AssertionError) and Path(str(last.path)) == item.path
    if own:
        report.outcome = "passed"
        report.longrepr = None
        report.sections.append(("flagged", str(call.excinfo.value)))
    else:
        report.longrepr = f"failed under {planted.defect!r}, but not at its own assertion:\n{report.longreprtext}"


def _new_record(item: pytest.Item, check: Check, planted: Planted | None) -> dict[str, Any]:
    return {
        "id": check.id,
        "must": check.must,
        "gym": _gym_of(item),
        "test": item.nodeid,
        "outcome": "passed",
        "duration_s": 0.0,
        "defect": planted.label if planted else None,
    }


def _short(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = (crash.message if crash else report.longreprtext)[:2000]
    # A message may quote anything; half a character is no JSON.
    return text.encode("utf-8", "backslashreplace").decode()


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    if report.when == "setup" and report.failed and report.longreprtext.startswith("Not testable: "):
        return "error", "N", "NOT TESTABLE"
    return None


# ---- the record of the run -------------------------------------------------------------------------


class Recorder:
    """Lives in the one process that writes the manifest."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger
        self._manifest: manifest.RunManifest | None = None

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        lines = [f"gymqual: {__version__}, run {self._run.folder}"]
        for gym in _selected_gyms(config):
            try:
                stack = find_stack(gym)
                deviation = f"; deviation: {stack.deviation}" if stack.deviation else ""
                lines.append(f"{gym}: CPython {stack.version}{deviation}")
            except HarnessError as error:
                lines.append(f"{gym}: {error}")
        return lines

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a parallel worker where the run is."""
        node.workerinput["gymqual_folder"] = str(self._run.folder)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        """Keep each gym on one worker under ``--dist loadgroup``."""
        if config.getvalue("dist") != "loadgroup":
            return None
        # Imported here: pytest itself need not load xdist.
        from harness.parallel import GymScheduling

        return GymScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take in what a parallel worker used; one that was killed leaves nothing."""
        used = getattr(node, "workeroutput", {}).get("gymqual_used")
        if used:
            self._ledger.add_used(used)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        record = getattr(report, "gymqual_record", None)
        if record is not None:
            self._ledger.records.append(record)

    # Innermost, so that JUnit is on disk before its digest is taken and the summary can say what was written.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        result = yield
        self._ledger.add_used(self._run.used())
        self._manifest = self._ledger.write(self._run.folder, int(session.exitstatus))
        return result

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        written = self._manifest
        if written is None:
            return
        terminalreporter.section("documented checks")
        gyms = {check: {record.gym for record in written.checks if record.id == check} for check in _ids(written)}
        width = max((len(_case(record, gyms)) for record in written.checks), default=0)
        for record in written.checks:
            defect = f"  {record.defect}" if record.defect else ""
            case = _case(record, gyms).ljust(width)
            terminalreporter.line(f"{case} {_WORDS[record.outcome]:<13}{record.duration_s:>8.2f} s{defect}")
        for deviation in written.deviations:
            terminalreporter.line(f"deviation: {deviation}")
        colour = {"green": written.verdict.qualified, "red": bool(written.registered and written.verdict.reasons)}
        terminalreporter.line(_verdict_line(written), **colour)
        terminalreporter.line(f"manifest: {self._run.folder / manifest.MANIFEST}")


def _ids(written: manifest.RunManifest) -> set[str]:
    return {record.id for record in written.checks}


def _case(record: manifest.CheckRecord, gyms: dict[str, set[str | None]]) -> str:
    """Return a check's id, with its gym where the same check examines several."""
    return f"{record.id} {record.gym}" if len(gyms[record.id]) > 1 else record.id


_WORDS = {"passed": "passed", "failed": "FAILED", "not_testable": "NOT TESTABLE"}


def _verdict_line(written: manifest.RunManifest) -> str:
    verdict = written.verdict
    if written.run.mode == "broken":
        flagged = sum(1 for record in written.checks if record.outcome == "passed" and record.defect)
        return f"SELF-TEST: {flagged} of {len(written.checks)} cases as they must be" + "".join(
            f"; {reason}" for reason in verdict.reasons
        )
    if not written.registered:
        return "no gym was examined, so nothing is qualified"
    ran = len({(record.id, record.gym) for record in written.checks if record.gym})
    gyms = ", ".join(sorted(written.registered))
    if verdict.qualified:
        return f"QUALIFIED: {gyms}, {ran} checks passed"
    return f"NOT QUALIFIED: {'; '.join(verdict.reasons)}"
