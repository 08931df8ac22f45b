"""A real headless Chromium: pages opened in it, with everything that they ask for or complain of on record."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from gymqual.harness.records.errors import NotTestable

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VARIABLE = "GYMQUAL_CHROMIUM"


def executable() -> str:
    """Return where Chromium is; raises NotTestable with the fix where there is none."""
    named = os.environ.get(VARIABLE)
    found = shutil.which(named) if named else next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        raise NotTestable(
            f"pages are tested in a real Chromium, and there is {f'no {named}' if named else 'none'}; install it "
            f"(Debian: apt-get install chromium) or name one with {VARIABLE}"
        )
    return found


@contextmanager
def started() -> Iterator[Browser]:
    """Start a browser and end it."""
    with sync_playwright() as playwright:
        # Where tests run as root there is no sandbox to have.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments, timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Opened:
    """A page in the browser."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    """Lines on the console, and errors that nothing caught."""
    requests: list[str] = field(default_factory=list)
    """Everything that was asked for but the page itself."""

    def texts(self, selector: str) -> list[str]:
        """Return the text of every element that is found."""
        return self.page.locator(selector).all_text_contents()

    def shown(self, selector: str) -> int:
        """Return how many elements that are found can be seen."""
        return self.page.evaluate(
            "selector => [...document.querySelectorAll(selector)].filter(e => e.checkVisibility()).length", selector
        )


@contextmanager
def opened(browser: Browser, path: Path, **settings: Any) -> Iterator[Opened]:
    """Open a file in a context of its own; ``settings`` are those of playwright's ``new_context``."""
    context = browser.new_context(**settings)
    try:
        made = Opened(context.new_page())
        made.page.set_default_timeout(30_000)
        address = path.resolve().as_uri()
        made.page.on("console", lambda message: made.complaints.append(f"{message.type}: {message.text}"))
        made.page.on("pageerror", lambda error: made.complaints.append(str(error)))
        made.page.on("request", lambda request: made.requests.append(request.url) if request.url != address else None)
        made.page.goto(address)
        yield made
    finally:
        context.close()


def violations(page: Page) -> list[str]:
    """Return what breaks WCAG 2.1, levels A and AA, as axe-core finds it, by rule and element."""
    rules = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
    found = Axe().run(page, options=rules).response["violations"]
    return [f"{each['id']}: {each['nodes'][0]['html'][:160]} ({len(each['nodes'])})" for each in found]
