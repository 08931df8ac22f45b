"""The viewer of rollouts in a real browser: every id as what it was, and exactly the rollouts that are asked for."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.manifest import PAGE
from gymqual.harness.records.trace import TRACE
from gymqual.qualification.support import browser, pages

pytestmark = [pytest.mark.self_test, pytest.mark.filterwarnings("ignore")]


def test_every_id_is_shown_as_what_it_was(trained_run: Path, chromium: Browser) -> None:
    """Of every rollout, trained ids MUST be those of its mask, and observations MUST be what the tools showed."""
    records = [json.loads(line) for line in (trained_run / pages.TRAINING / TRACE).read_text().splitlines()]
    rows = {each["rollout"]: each for each in records if each["kind"] == "row"}
    episodes = {each["rollout"]: each for each in records if each["kind"] == "episode"}
    due, seen = {}, {}
    with browser.opened(chromium, trained_run / PAGE) as page:
        for rollout, row in rows.items():
            page.page.click(f"[aria-label='Show rollout {rollout}']")
            trained = page.page.locator(".turn .seg.trained .tok").count()
            ids = page.page.locator(".turn .tok").count()
            seen[rollout] = (trained, ids, page.texts(".turn .seg.observation"))
            texts = [call["text"] for call in episodes[rollout]["calls"]]
            due[rollout] = (sum(row["mask"]), len(row["prompt"] + row["completion"]), texts)
    assert seen == due, explain(
        subject="trained ids, all ids, and observations in the viewer, by rollout",
        expected=due,
        got=seen,
        cause="spans are cut in the wrong place, or framing is taken for observation",
    )


def test_log_probabilities_are_shown_when_asked_for(trained_run: Path, chromium: Browser) -> None:
    """The viewer MUST show the sampler's log-probability of every sampled id once asked, and none before."""
    records = [json.loads(line) for line in (trained_run / pages.TRAINING / TRACE).read_text().splitlines()]
    due = [
        f"{value:.3f}"
        for each in records
        if each["kind"] == "call" and each["rollout"] == 0
        for value in each["logprobs"]
    ]
    with browser.opened(chromium, trained_run / PAGE) as page:
        before = page.texts(".turn .pair small")
        page.page.check("#viewer-filters [name=logprobs]")
        after = page.texts(".turn .pair small:first-of-type")
    assert before == [], "log-probabilities are shown before they were asked for"
    apart = max(abs(float(shown) - float(value)) for shown, value in zip(after, due, strict=True))
    assert apart <= 0.0011, explain(
        subject="log-probabilities of rollout 0", expected=due, got=after, cause="turns are read in another order"
    )


def _take_reward(record: dict[str, object]) -> None:
    """Leave two rollouts without a reward, as another trainer's dump may hold them."""
    if record["kind"] == "episode" and record["rollout"] in (2, 9):
        record["reward"] = None


def test_what_the_loss_says_otherwise_is_shown_at_its_id(altered_run: Path, chromium: Browser) -> None:
    """Where loss and sampler differ by a digit that is shown, both MUST stand at that very id, and at no other."""
    records = [json.loads(line) for line in (altered_run / pages.TRAINING / TRACE).read_text().splitlines()]
    row = next(each for each in records if each["kind"] == "row" and each["rollout"] == 3)
    # The last trained id, behind every observation.
    place = max(place for place, kept in enumerate(row["mask"]) if kept)

    def another(record: dict[str, Any]) -> None:
        if record["kind"] == "pass" and record["rollout"] == 3:
            record["logprobs"][place] -= 0.5

    pages.change_records(altered_run / pages.TRAINING / TRACE, another)
    pages.seal(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        page.page.check("#viewer-filters [name=logprobs]")
        page.page.click("[aria-label='Show rollout 3']")
        told = page.texts(".turn .pair:has(small.loss) small.id")
    assert told == [f"id {row['completion'][place]}"], explain(
        subject="ids at which the loss is shown to differ",
        expected=[f"id {row['completion'][place]}"],
        got=told,
        cause="values of sampler and loss are counted through different ids",
    )


def test_a_trained_observation_is_not_passed_over(altered_run: Path, chromium: Browser) -> None:
    """An id that no model sampled and that the loss is taken on MUST be said and shown as such, NaN or not."""

    def leak(record: dict[str, Any]) -> None:
        if record["kind"] == "row" and record["rollout"] == 1:
            record["mask"][record["mask"].index(0)] = 1
            record["advantage"] = "NaN"

    pages.change_records(altered_run / pages.TRAINING / TRACE, leak)
    pages.seal(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        page.page.click("[aria-label='Show rollout 1']")
        told = page.page.locator("#rollouts > p").first.inner_text()
        seen = (page.page.locator(".turn .seg.leaked .tok").count(), "on 1 ids that no model sampled" in told)
    assert (*seen, page.complaints) == (1, True, []), explain(
        subject="ids shown as trained though not sampled, whether the page says so, and the console",
        expected=(1, True, []),
        got=(*seen, page.complaints, told),
        cause="a span's source decides alone, or what is no number ends the viewer",
    )


def test_observations_that_a_template_writes_otherwise_are_not_called_framing(
    altered_run: Path, chromium: Browser
) -> None:
    """Of observations that are not found in the ids, nothing MUST be claimed: neither observation nor framing."""

    def reword(record: dict[str, Any]) -> None:
        if record["kind"] == "episode" and record["rollout"] == 0:
            record["calls"][0]["text"] = "nowhere to be found"

    pages.change_records(altered_run / pages.TRAINING / TRACE, reword)
    pages.seal(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        kinds = {
            kind: page.page.locator(f".turn .seg.{kind} .tok").count()
            for kind in ("observation", "framing", "external")
        }
    claimed = kinds["observation"] + kinds["framing"]
    assert (claimed, kinds["external"] > 10) == (0, True), explain(
        subject="ids claimed to be observation or framing; whether the others are shown as not told apart",
        expected=(0, True),
        got=kinds,
        cause="what is not found is taken for framing",
    )


FILTERS = {
    "success": ({"state": "success"}, lambda e, step: e["strict"] and e["reward"] is not None),
    "failed": ({"state": "failed"}, lambda e, step: e["reward"] is not None and not e["strict"]),
    "infrastructure": ({"state": "no reward"}, lambda e, step: e["reward"] is None),
    "a formula": ({"family": "kisten"}, lambda e, step: e["family"] == "kisten"),
    "a step": ({"from": "2", "to": "2"}, lambda e, step: step == 2),
    "words": ({"text": "wrong_answer"}, lambda e, step: e["outcome"] == "wrong_answer"),
    "two at once": ({"state": "failed", "from": "2"}, lambda e, step: e["reward"] == 0 and step == 2),
}
"""What is set, and which episodes must then be listed."""


@pytest.mark.parametrize("which", FILTERS)
def test_a_filter_lists_exactly_the_rollouts_that_it_names(which: str, altered_run: Path, chromium: Browser) -> None:
    """Each filter MUST list exactly the rollouts that the trace says it is about."""
    trace, settings = altered_run / pages.TRAINING / TRACE, FILTERS[which]
    pages.change_records(trace, _take_reward)
    pages.seal(altered_run)
    records = [json.loads(line) for line in trace.read_text().splitlines()]
    families = json.loads((trace.parent / "legend.json").read_bytes())["families"]
    steps = {rollout: r["step"] for r in records if r["kind"] == "step" for rollout in r["rollouts"]}
    episodes = [r | {"family": families[r["task_id"]]} for r in records if r["kind"] == "episode"]
    due = sorted(e["rollout"] for e in episodes if settings[1](e, steps[e["rollout"]]))
    with browser.opened(chromium, altered_run / PAGE) as page:
        for name, value in settings[0].items():
            field = page.page.locator(f"#viewer-filters [name={name}]")
            (field.select_option if name in ("state", "family") else field.fill)(value)
        seen = [int(text) for text in page.texts("#viewer-rows button")]
        count = page.texts("#viewer-count")[0].split(" of ")[0]
    assert (seen, count, bool(due)) == (due, str(len(due)), True), explain(
        subject=f"rollouts that are listed by the filter: {which}",
        expected=due,
        got=(seen, count),
        cause="a field is compared as text, or an episode without a reward counts as failed",
    )


def test_a_training_of_many_steps_is_shown_a_page_at_a_time(altered_run: Path, chromium: Browser) -> None:
    """With 256 steps of rollouts the viewer MUST hold a page of them at a time, and reach the last."""
    pages.make_long(altered_run / pages.TRAINING, 256)
    pages.seal(altered_run)
    with browser.opened(chromium, altered_run / PAGE) as page:
        held = page.page.locator("#viewer-rows tr").count()
        page.page.fill("#viewer-filters [name=from]", "256")
        seen = (held, page.texts("#viewer-count")[0].split(";")[0], page.page.locator("#viewer-rows tr").count())
    assert seen == (50, "8 of 2048 rollouts", 8), explain(
        subject="rows at once, what is counted from step 256 on, and rows then",
        expected=(50, "8 of 2048 rollouts", 8),
        got=seen,
        cause="all rollouts are drawn at once, or steps are numbered anew",
    )
