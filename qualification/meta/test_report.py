"""Pages and summaries without a browser: made again to the same bytes, held to the evidence, refused with a reason."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records import manifest
from gymqual.harness.records.files import ROOT
from gymqual.harness.records.manifest import PAGE
from gymqual.harness.report import document
from gymqual.qualification.support import pages
from gymqual.qualification.support.commands import run_gymqual

pytestmark = pytest.mark.self_test

SAMPLE = ROOT / "reports" / "sample" / "experiment"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of a real run."""
    return shutil.copytree(finished_run, tmp_path / "run")


def _edit(path: Path, change: Callable[[bytes], bytes]) -> None:
    path.write_bytes(change(path.read_bytes()))


def test_a_page_made_again_is_the_same_bytes(run: Path) -> None:
    """``report`` MUST make the page from the evidence alone, wherever that was copied to, to the byte."""
    before = (run / PAGE).read_bytes()
    (run / PAGE).unlink()
    made = run_gymqual("report", run)
    seen = (made.returncode, made.stdout.strip(), (run / PAGE).read_bytes() == before)
    assert seen == (0, str(run / PAGE), True), explain(
        subject="exit code, line and bytes of a page that was made again",
        expected=(0, str(run / PAGE), True),
        got=(seen, made.stderr),
        cause="the page holds a date, a path, or an order that is not the evidence's",
    )


def test_a_page_of_a_training_within_a_run_takes_nothing_from_it(run: Path) -> None:
    """A page that somebody has made of a training within a run MUST NOT break the run's own claims."""
    training = run / "training" / "one"
    training.mkdir(parents=True)
    (training / manifest.MANIFEST).write_text("{}")
    before = manifest.list_files(run)
    (training / PAGE).write_text("a page")
    (run / "evidence" / PAGE).write_text("evidence of this name")
    added = {file.path for file in manifest.list_files(run)} - {file.path for file in before}
    assert added == {f"evidence/{PAGE}"}, explain(
        subject="files of a run that count after a training's page, and evidence of that name, were added",
        expected={f"evidence/{PAGE}"},
        got=added,
        cause="pages are told by their name alone, or not at all",
    )


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a word of the page": (
        lambda run: _edit(run / PAGE, lambda page: page.replace(b"Not qualified", b"Qualified")),
        "index.html: changed, or of other evidence",
    ),
    "no page": (lambda run: (run / PAGE).unlink(), "index.html: missing"),
    "another version's": (
        lambda run: _edit(run / PAGE, lambda page: page.replace(b"(page ", b"(page 0")),
        "index.html: drawn by",
    ),
    "a measured value": (
        lambda run: pages.change_checks(run, lambda record, n: record["measured"].update(figure=1)),
        "index.html: changed, or of other evidence",
    ),
    "a training that is none": (
        lambda run: _spoiled_training(run / "training"),
        "index.html: changed, or of other evidence",
    ),
    "a training's page": (
        lambda run: _forged_page_of_training(run / "training"),
        "training/index.html: cannot be drawn again",
    ),
}
"""What is done to a run, and what ``verify`` must say of its page."""


def _spoiled_training(folder: Path) -> None:
    folder.mkdir()
    (folder / "trace.jsonl").write_text("{}\n")
    (folder / manifest.MANIFEST).write_text('{"format": "gymqual.training-run/1"}')


def _forged_page_of_training(folder: Path) -> None:
    _spoiled_training(folder)
    (folder / PAGE).write_text("Training: completed")


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_changed_page_is_named(run: Path, tampering: str) -> None:
    """``verify`` MUST exit 1 and name a page that is missing or is not what the evidence gives."""
    tamper, named = TAMPERINGS[tampering]
    tamper(run)
    verified = run_gymqual("verify", run)
    assert (verified.returncode, named in verified.stdout) == (1, True), explain(
        subject=f"gymqual verify after: {tampering}",
        expected=(1, f"... {named}"),
        got=(verified.returncode, verified.stdout + verified.stderr),
        cause="the page is taken on trust",
    )


VERDICTS: dict[str, tuple[list[str], str]] = {
    "all passed": (["passed", "passed"], "Qualified"),
    "one failed": (["failed", "not_testable"], "Not qualified"),
    "one could not be tried": (["passed", "not_testable"], "Not testable"),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict_stands_first_and_says_why(run: Path, case: str) -> None:
    """Page and summary MUST begin with the verdict; what could not be tried MUST NOT be told as a failure."""
    outcomes, word = VERDICTS[case]
    written = manifest.read(run)
    records = tuple(
        record.model_copy(update={"outcome": outcome, "gym": "nemo", "message": "why it is so"})
        for record, outcome in zip(written.checks, outcomes, strict=True)
    )
    registered = {"nemo": tuple(record.id for record in records)}
    verdict = manifest.decide(registered, records, 0, "qualification")
    changed = {"checks": records, "registered": registered, "verdict": verdict}
    manifest.write(written.model_copy(update=changed), run)
    pages.seal(run)
    page = (run / PAGE).read_text()
    summary = run_gymqual("report", run, "--summary").stdout
    seen = (f'">{word}</h1>' in page, summary.splitlines()[0], "why it is so" in summary)
    assert seen == (True, f"## {word}: nemo", word != "Qualified"), explain(
        subject=f"the page's heading, the summary's first line, and whether it says why: {case}",
        expected=(True, f"## {word}: nemo", word != "Qualified"),
        got=(seen, summary),
        cause="the verdict's word does not follow from the records",
    )


def test_a_summary_takes_no_markup_from_a_message(run: Path) -> None:
    """A message MUST be text in the job's summary: no link, image, table cell or element."""
    hostile = "![x](http://evil.example) | <b>bold</b>\n# head"
    pages.change_checks(run, lambda record, n: record.update(outcome="failed", message=hostile))
    pages.seal(run)
    lines = run_gymqual("report", run, "--summary").stdout.splitlines()
    told = [line for line in lines if "evil" in line]
    due = r"- TASK-01 failed: \!\[x\](http\://evil\.example) \| \<b\>bold\</b\>"
    assert due in told, explain(
        subject="a hostile message in the summary", expected=due, got=told, cause="a message is written as Markdown"
    )


@pytest.mark.parametrize("arguments", [("report",), ("report", "--summary")])
def test_what_no_page_can_be_made_of_is_refused(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A directory without evidence MUST be refused in one line that names it and what would do, and stay empty."""
    made = run_gymqual(*arguments, tmp_path)
    seen = (made.returncode, made.stderr.count("\n"), str(tmp_path) in made.stderr, list(tmp_path.iterdir()))
    assert seen == (2, 1, True, []), explain(
        subject=f"harness {' '.join(arguments)} of an empty directory: exit code, lines, named, files",
        expected=(2, 1, True, []),
        got=(seen, made.stderr),
        cause="a traceback, or a page of nothing",
    )


def test_an_experiment_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    """A summary without its arms MUST be refused by name, and no page be left."""
    (tmp_path / "summary.json").write_text('{"format": "gymqual.experiment-result/1"}')
    made = run_gymqual("report", tmp_path)
    seen = (made.returncode, "is not whole ('arms')" in made.stderr, (tmp_path / PAGE).exists())
    assert seen == (2, True, False), explain(
        subject="gymqual report of an experiment without arms",
        expected=(2, True, False),
        got=(seen, made.stderr),
        cause="a missing field is a traceback",
    )


def test_the_committed_experiment_keeps_its_figures_on_the_page(tmp_path: Path) -> None:
    """The page of the committed experiment MUST show its held-out success and gain, as its card does."""
    folder = shutil.copytree(SAMPLE, tmp_path / "experiment")
    made = run_gymqual("report", folder)
    page = (folder / PAGE).read_text()
    missing = [
        text for text in ("0.541 [0.498, 0.584]", "0.895 [0.865, 0.918]", "+0.354", "188, 7") if text not in page
    ]
    assert (made.returncode, missing) == (0, []), explain(
        subject="figures of the committed experiment that its page lacks",
        expected=(0, []),
        got=(made.returncode, missing, made.stderr),
        cause="a column is of another field",
    )


def test_a_users_settings_for_plots_change_no_page(tmp_path: Path) -> None:
    """A page MUST be the same bytes whatever matplotlib is told elsewhere, or ``verify`` accuses a sound run."""
    folder = shutil.copytree(SAMPLE, tmp_path / "experiment")
    settings = tmp_path / "matplotlibrc"
    settings.write_text("axes.linewidth: 3\nfont.family: serif\nlines.dash_capstyle: round\n")
    run_gymqual("report", folder)
    before = (folder / PAGE).read_bytes()
    run_gymqual("report", folder, MATPLOTLIBRC=str(settings))
    assert (folder / PAGE).read_bytes() == before, "plots are drawn under the user's settings"


def test_two_runs_are_compared_as_a_page(run: Path, finished_run: Path, tmp_path: Path) -> None:
    """``compare --html`` MUST write what the text says, and a file that cannot be written MUST be refused by name."""
    pages.change_checks(run, lambda record, n: record.update(outcome="failed"))
    file = tmp_path / "compared.html"
    compared = run_gymqual("compare", finished_run, run, "--html", file)
    refused = run_gymqual("compare", finished_run, run, "--html", "/proc/none/compared.html")
    told = [line.split(": ")[0] for line in compared.stdout.splitlines() if " -> " in line]
    missing = [name for name in told if f'<th scope="row">{name}</th>' not in file.read_text()]
    seen = (compared.returncode, "Outcomes differ" in file.read_text(), bool(told), missing)
    seen += (refused.returncode, refused.stderr.count("\n"))
    assert seen == (1, True, True, [], 2, 1), explain(
        subject="exit code, heading, differences that the page lacks; exit code and lines where nothing can be written",
        expected=(1, True, True, [], 2, 1),
        got=(seen, refused.stderr),
        cause="the page says something else than the text",
    )


@pytest.mark.parametrize(
    ("given", "due"), [(0.1, "0.1"), (1e-7, "1e-07"), (1234567, "1,234,567"), (None, "-"), (True, "True")]
)
def test_a_number_is_shown_with_the_digits_that_count(given: object, due: str) -> None:
    """Numbers MUST be shown with at most four digits that count, integers whole."""
    assert document.figure(given) == due, f"{given!r} is shown as {document.figure(given)}"


def test_what_cannot_be_seen_is_written_out() -> None:
    """Control characters and direction marks MUST be written out; line ends, tabs and letters stay."""
    shown = document.visible("a\u202eb\x00\tä\n\ud800")
    assert shown == "a\\u{202e}b\\u{0}\tä\n\\u{d800}", f"got {shown!r}"
