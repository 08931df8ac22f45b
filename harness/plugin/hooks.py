"""What the pytest plugin does once a session is a run of checks: opens the run, and ends what it started.

The rest is beside it: what runs (``selection``), what counts as passed (``outcomes``), who writes the manifest
(``recorder``).
"""

import signal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gymqual.harness.plugin import outcomes, selection
from gymqual.harness.plugin.items import RUN
from gymqual.harness.plugin.recorder import Recorder
from gymqual.harness.plugin.run import Ledger, Run, new_run_folder, now
from gymqual.harness.records import manifest
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.stacks.specs import STACKS


# First, since pytest's own JUnit writer looks at its option when it is configured.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Open a run where a reports folder is named; raises UsageError for an unknown gym."""
    config.pluginmanager.register(selection, selection.__name__)
    config.pluginmanager.register(outcomes, outcomes.__name__)
    for gym in config.option.gymqual_gym:
        if gym != "all" and gym not in STACKS:
            raise pytest.UsageError(f"--gym: unknown gym {gym!r}; choose from {', '.join([*STACKS, 'all'])}")
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        if "gymqual_folder" in worker:
            config.stash[RUN] = Run(Path(worker["gymqual_folder"]), worker["workerid"])
        return
    _require_own_settings(config)
    reports = config.option.gymqual_reports or (config.inipath and config.getini("gymqual_reports"))
    if not reports or config.option.collectonly or config.option.help or config.option.version:
        return
    if config.option.markers or config.option.showfixtures:
        return
    if not config.option.gymqual_reports:
        reports = config.rootpath / str(reports)
    try:
        folder = new_run_folder(Path(reports))
    except HarnessError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[RUN] = Run(folder)
    mode = "broken" if config.option.gymqual_broken else "qualification"
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
        if option.removeprefix("--").removeprefix("gymqual-") in ("reports", "policy") and (here / folder).is_dir():
            raise pytest.UsageError(
                f"{option} {folder}: pytest takes the folder for a place of tests, and does not read the settings "
                f"of {here}; write {option}={folder}"
            )


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
