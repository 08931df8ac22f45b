"""The pytest plugin: its options, its marks, the run of this process and the fixtures that checks show evidence with.

The rest is beside it: what runs (``selection``), what counts as passed (``outcomes``), who writes the manifest
(``recorder``).

It is passive in a project that names no reports folder (``--reports`` or the ini option
``gymqual_reports``), since pytest loads it wherever the product is installed.
"""

from gyms import loaded

# Before any other module of ours: what this process executes of the gyms, client and replay included, goes on
# record as the bytes that were compiled, not as what the files hold at the end of the run.
loaded.install()

import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from harness import manifest, outcomes, selection
from harness.errors import HarnessError, NotTestable
from harness.evidence import Evidence
from harness.items import EVIDENCE, RUN, check_in
from harness.recorder import Recorder
from harness.run import Ledger, Run, new_run_folder, now
from harness.stacks import STACKS

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


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and the default reports folder."""
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
    """Declare the marks, and open a run where a reports folder is named; raises UsageError for an unknown gym."""
    config.pluginmanager.register(selection, selection.__name__)
    config.pluginmanager.register(outcomes, outcomes.__name__)
    for name, meaning in MARKERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    for gym in config.option.gym:
        if gym != "all" and gym not in STACKS:
            raise pytest.UsageError(f"--gym: unknown gym {gym!r}; choose from {_gym_names()}")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        if "gymqual_folder" in worker:
            config.stash[RUN] = Run(Path(worker["gymqual_folder"]), worker["workerid"])
        return
    _require_own_settings(config)
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
    config.stash[RUN] = Run(folder)
    mode = "broken" if config.option.broken else "qualification"
    ledger = Ledger(mode, now(), tuple(map(str, config.invocation_params.args)))
    config.pluginmanager.register(Recorder(config.stash[RUN], ledger), "gymqual-recorder")
    if not config.option.xmlpath:
        config.option.xmlpath = str(folder / manifest.JUNIT)
    # As Ctrl-C does, so that servers are stopped and the manifest says how the run ended.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _require_own_settings(config: pytest.Config) -> None:
    """Raise UsageError where pytest took a folder of ours for a place of tests, and left its settings unread.

    It looks for them before it knows our options: of ``--reports DIR`` it sees a path, of ``--reports=DIR`` none.
    """
    here = config.invocation_params.dir
    if config.inipath is not None and here.is_relative_to(config.inipath.parent):
        return
    given = list(map(str, config.invocation_params.args))
    for option, folder in pairwise(given):
        if option in ("--reports", "--policy") and (here / folder).is_dir():
            raise pytest.UsageError(
                f"{option} {folder}: pytest takes the folder for a place of tests, and does not read the settings "
                f"of {here}; write {option}={folder}"
            )


def _gym_names() -> str:
    return ", ".join([*STACKS, "all"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End every server, and hand what a parallel worker used to the process that writes the manifest."""
    run = session.config.stash.get(RUN, None)
    if run is None:
        return
    run.close()
    # Set in a parallel worker alone.
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["gymqual_used"] = run.used()


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest) -> Run:
    """The run that goes on record; checks need a reports folder to leave their evidence in."""
    if RUN not in request.config.stash:
        raise NotTestable("checks leave evidence; name a folder for it with --reports DIR")
    return request.config.stash[RUN]


@pytest.fixture
def evidence(request: pytest.FixtureRequest, run: Run) -> Evidence:
    """The evidence of this check."""
    item: pytest.Item = request.node
    check = check_in(item)
    # The parameters in a test's id tell its cases apart.
    case = re.sub(r"[^\w.-]+", "-", item.name.partition("[")[2]).strip("-")
    name = f"{check.id}/{case}" if check and case else check.id if check else re.sub(r"[^\w.-]+", "-", item.name)
    return item.stash.setdefault(EVIDENCE, Evidence(run.folder, name))
