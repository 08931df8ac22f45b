"""The record of the run: what is gathered from all workers, written as the manifest and shown at either end."""

from collections.abc import Iterator
from typing import Any

import pytest

from gymqual import __version__
from gymqual.harness.plugin.items import selected_gyms
from gymqual.harness.plugin.run import Ledger, Run
from gymqual.harness.records import manifest
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.extras import lacking
from gymqual.harness.report.summary import check_lines, verdict_line
from gymqual.harness.stacks.environments import find_stack


class Recorder:
    """Lives in the one process that writes the manifest."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        self._run = run
        self._ledger = ledger
        self._manifest: manifest.RunManifest | None = None
        self._page = ""

    def pytest_report_header(self, config: pytest.Config) -> list[str]:
        """Name the run's folder and every selected gym's interpreter."""
        lines = [f"gymqual: {__version__}, run {self._run.folder}"]
        for gym in selected_gyms(config):
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
        from gymqual.harness.plugin.scheduler import GymScheduling

        return GymScheduling(config, log)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take in what a parallel worker used; one that was killed leaves nothing."""
        used = getattr(node, "workeroutput", {}).get("gymqual_used")
        if used:
            self._ledger.add_used(used)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in a check's record, from whichever process ran it."""
        record = getattr(report, "gymqual_record", None)
        if record is not None:
            self._ledger.records.append(record)

    # Innermost, so that JUnit is on disk before its digest is taken and the summary can say what was written.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Iterator[None]:
        """Write the manifest, last of all, and then what is made of it."""
        result = yield
        self._ledger.add_used(self._run.used())
        self._manifest = self._ledger.write(self._run.folder, int(session.exitstatus))
        self._page = self._draw()
        return result

    def _draw(self) -> str:
        """Make the page of the run, and return where it is; what fails here takes nothing from the run's verdict."""
        if reason := lacking("page"):
            return f"not made: it {reason}"
        # Imported here: only a run that ends needs what draws.
        from gymqual.harness.report import pages

        try:
            return str(pages.write(self._run.folder))
        except Exception as error:
            reason = (str(error).splitlines() or [""])[0]
            return f"not made ({type(error).__name__}: {reason}); gymqual report {self._run.folder} tries again"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the documented checks, the deviations, the verdict, and where manifest and page are."""
        written = self._manifest
        if written is None:
            return
        terminalreporter.section("documented checks")
        for line in check_lines(written):
            terminalreporter.line(line)
        for deviation in written.deviations:
            terminalreporter.line(f"deviation: {deviation}")
        colour = {"green": written.verdict.qualified, "red": bool(written.registered and written.verdict.reasons)}
        terminalreporter.line(verdict_line(written), **colour)
        terminalreporter.line(f"manifest: {self._run.folder / manifest.MANIFEST}")
        terminalreporter.line(f"page: {self._page}")
