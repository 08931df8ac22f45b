"""The page of a run in a real browser: it shows what the evidence holds, asks for nothing, and runs nothing else."""

import shutil
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records import manifest
from gymqual.harness.records.files import ROOT
from gymqual.harness.records.manifest import PAGE
from gymqual.harness.records.trace import TRACE
from gymqual.harness.report import comparison, document
from gymqual.qualification.support import browser, pages

pytestmark = [pytest.mark.self_test, pytest.mark.filterwarnings("ignore")]

KINDS = ("a run", "a training", "a comparison", "an experiment", "silent bugs", "throughput")


@pytest.fixture(scope="module")
def made(trained_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind."""
    folder = tmp_path_factory.mktemp("kinds")
    training = shutil.copytree(trained_run / pages.TRAINING, folder / "training")
    other = shutil.copytree(training, folder / "other")
    pages.change_records(other / TRACE, _sample_another)
    compared = folder / "compared.html"
    compared.write_bytes(comparison.page(comparison.read_pair(training, other)))
    samples = {name: folder / name for name in ("experiment", "silent-bugs", "throughput")}
    for name, path in samples.items():
        shutil.copytree(ROOT / "reports" / "sample" / name, path)
    folders = (training, *samples.values())
    assert main(["report", *map(str, folders)]) == 0
    written = [path / PAGE for path in folders]
    return dict(zip(KINDS, (trained_run / PAGE, written[0], compared, *written[1:]), strict=True))


def _sample_another(record: dict[str, object]) -> None:
    if record["kind"] == "call" and record["rollout"] == 5:
        record["sampled"] = [7, *record["sampled"][1:]]  # type: ignore[index]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_page_renders_without_a_complaint_or_a_request(
    kind: str, scheme: str, made: dict[str, Path], chromium: Browser
) -> None:
    """A page MUST render without a line on the console, ask for nothing, and break no rule of WCAG 2.1 A or AA."""
    with browser.opened(chromium, made[kind], color_scheme=scheme) as page:
        seen = (page.complaints, page.requests, browser.violations(page.page))
    assert seen == ([], [], []), explain(
        subject=f"the page of {kind}, {scheme}: console, requests, accessibility",
        expected="nothing of each",
        got=seen,
        cause="a script fails, a template refers to a file or a host, or a colour, name or role is missing",
    )


def test_a_page_that_breaks_these_rules_is_found_out(altered_run: Path, chromium: Browser) -> None:
    """A control without a name, a line on the console and a request MUST each be seen where they are planted."""
    page = altered_run / PAGE
    planted = b'<img src="other.png"><select></select></main>'
    page.write_bytes(page.read_bytes().replace(b"</main>", planted).replace(b"img-src data:", b"img-src file:"))
    with browser.opened(chromium, page) as shown:
        rules = {each.split(":")[0] for each in browser.violations(shown.page)}
        seen = (bool(shown.complaints), len(shown.requests), rules >= {"image-alt", "select-name"})
    assert seen == (True, 1, True), explain(
        subject="complaints, requests, and rules broken of a page with an image and a control that has no name",
        expected=(True, 1, True),
        got=(seen, rules),
        cause="the browser is not asked, or the rules are not run",
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_narrow_window_needs_no_sideways_scrolling(kind: str, made: dict[str, Path], chromium: Browser) -> None:
    """On 360 pixels only tables MUST scroll sideways, within themselves."""
    with browser.opened(chromium, made[kind], viewport={"width": 360, "height": 700}) as page:
        width = page.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, explain(
        subject=f"width of the page of {kind}", expected="360 at most", got=width, cause="something does not wrap"
    )


def test_hostile_texts_are_shown_and_do_nothing(altered_run: Path, chromium: Browser) -> None:
    """What a model or a server writes MUST be text on the page: no script of it runs, no element comes of it."""
    pages.make_hostile(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        for number in range(8):
            page.page.click(f"[aria-label='Show rollout {number}']")
            page.page.click("#viewer-filters [name=logprobs]")
        seen = (_injected(page), page.complaints, page.requests)
        shown = "onerror=window.pwned=1>" in page.page.locator("#viewer-rollout").inner_text()
    assert (seen, shown) == (([], [], []), True), explain(
        subject="elements that came of hostile texts, console, requests; and whether the texts can be read",
        expected=(([], [], []), True),
        got=(seen, shown),
        cause="a text is set as markup, or ends the block of data",
    )


def test_a_page_that_does_not_escape_is_found_out(
    altered_run: Path, chromium: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without escaping, the same texts MUST be seen to make elements, and the page's own policy MUST stop them."""
    made = document._environment()
    made.autoescape = False
    monkeypatch.setattr(document, "_environment", lambda: made)
    pages.make_hostile(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        injected, ran = _injected(page), page.page.evaluate(f"window.{pages.PWNED}")
    assert (bool(injected), ran) == (True, None), explain(
        subject="elements that came of hostile texts in a page that does not escape, and what ran of them",
        expected=(True, None),
        got=(injected, ran),
        cause="the test does not see injected elements, or the policy lets other scripts run",
    )


def _injected(page: browser.Opened) -> list[str]:
    """Return elements that no template makes."""
    return page.page.evaluate(
        "name => [...document.querySelectorAll('img, [onerror], [onload], base, main style, main script, main i')]"
        ".map(e => e.outerHTML.slice(0, 80)).concat(window[name] ? ['ran'] : [])",
        pages.PWNED,
    )


def test_two_trainings_that_part_are_shown_side_by_side(made: dict[str, Path], chromium: Browser) -> None:
    """Of two trainings that part, the page MUST name the place and show the ids of both, the differing one marked."""
    with browser.opened(chromium, made["a comparison"]) as page:
        told = page.page.locator(".agreement p").inner_text()
        marked = [text.strip() for text in page.texts(".aligned .differs small")]
    seen = ("call, rollout 5, turn 0: sampled from token 0" in told, len(marked), marked[1:])
    assert seen == (True, 2, ["7"]), explain(
        subject="whether the place is named, ids that are marked, and the other training's id there",
        expected=(True, 2, ["7"]),
        got=(seen, told, marked),
        cause="records are matched by line, or the row is cut elsewhere",
    )


def test_checks_are_filtered_and_links_find_them(altered_run: Path, chromium: Browser) -> None:
    """The filter MUST leave the failed checks alone, the verdict MUST lead to each, and their evidence MUST open."""
    pages.change_checks(
        altered_run, lambda record, n: record.update(outcome="failed", message="why") if n == 0 else None
    )
    pages.seal(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        page.page.select_option("#check-filters [name=outcome]", "failed")
        filtered = page.shown("#check-rows tr")
        page.page.select_option("#check-filters [name=outcome]", "passed")
        page.page.click(".reasons a")
        # Followed again, after its row was filtered away.
        page.page.select_option("#check-filters [name=outcome]", "passed")
        page.page.click(".reasons a")
        found = page.page.locator("#check-rows tr:target")
        seen = (filtered, page.texts("h1"), found.is_visible(), found.locator("details[open]").count())
    assert seen == (1, ["Not qualified"], True, 1), explain(
        subject="rows left, verdict, and whether its link shows the check and its evidence",
        expected=(1, ["Not qualified"], True, 1),
        got=seen,
        cause="rows are hidden by position, or a link to a hidden row leads nowhere",
    )


def test_each_gyms_checks_are_listed_by_its_name(altered_run: Path, chromium: Browser) -> None:
    """The filter of a gym MUST list its checks, those of several gyms under each, and each reason its own message."""
    written = manifest.read(altered_run)
    one, two = written.checks
    records = tuple(
        record.model_copy(update={"gym": gym, "outcome": "failed", "message": f"why {gym}"})
        for record, gym in ((one, "nemo"), (one, "verifiers"), (two, "openenv"))
    )
    registered = {"nemo": (one.id,), "openenv": (two.id,), "verifiers": (one.id,)}
    verdict = manifest.decide(registered, records, 1, "qualification")
    changed = {"checks": records, "registered": registered, "verdict": verdict}
    manifest.write(written.model_copy(update=changed), altered_run)
    pages.seal(altered_run)
    listed = {}
    with browser.opened(chromium, altered_run / PAGE) as page:
        told = page.texts(".reasons pre")
        for gym in registered:
            page.page.select_option("#check-filters [name=gym]", gym)
            shown = page.page.locator("#check-rows tr:not([hidden]) th")
            listed[gym] = tuple(shown.all_text_contents())
    assert (listed, told) == (registered, ["why nemo", "why verifiers", "why openenv"]), explain(
        subject="checks listed by gym, and the reasons' messages",
        expected=(registered, ["why nemo", "why verifiers", "why openenv"]),
        got=(listed, told),
        cause="cells are counted where some are left out, or records are found by id alone",
    )


def test_a_keyboard_is_enough(trained_run: Path, chromium: Browser) -> None:
    """Without a mouse: the first stop MUST skip to the content, and a rollout MUST open by Enter."""
    with browser.opened(chromium, trained_run / PAGE) as page:
        page.page.keyboard.press("Tab")
        first = page.page.evaluate("document.activeElement.textContent")
        page.page.focus("[aria-label='Show rollout 3']")
        page.page.keyboard.press("Enter")
        seen = (first, page.texts("#viewer-rollout h3")[0].startswith("Rollout 3,"))
    assert seen == ("Skip to the content", True), explain(
        subject="first stop of the Tab key, and the rollout shown by Enter",
        expected=("Skip to the content", True),
        got=seen,
        cause="what can be clicked is no button",
    )


def test_without_scripts_and_on_paper_everything_but_the_viewer_is_there(trained_run: Path, chromium: Browser) -> None:
    """Without JavaScript and in print, verdict, checks and trainings MUST be there, and no dead control."""
    with browser.opened(chromium, trained_run / PAGE, java_script_enabled=False) as page:
        unscripted = [_visible(page, each) for each in ("h1", "#check-rows tr", "form", "noscript")]
    with browser.opened(chromium, trained_run / PAGE) as page:
        page.page.emulate_media(media="print")
        printed = [_visible(page, each) for each in ("h1", "#check-rows tr", "nav", "form")]
        paper = page.page.pdf()
    seen = (unscripted, printed, paper[:5])
    assert seen == ([True, True, False, True], [True, True, False, False], b"%PDF-"), explain(
        subject="what can be seen without scripts (verdict, checks, forms, a note), in print (.., navigation, forms)",
        expected=([True, True, False, True], [True, True, False, False], b"%PDF-"),
        got=seen,
        cause="content is made by the script, or controls are printed",
    )


def _visible(page: browser.Opened, selector: str) -> bool:
    return page.page.locator(selector).first.is_visible()
