"""A page as one file: template, style and script stand in it, and nothing is asked of a network.

Whatever comes from a model, an environment or a server is escaped by Jinja2 or stands in a block of JSON data that
no text can end. The page's own policy (Content-Security-Policy) lets run the one script whose digest it names, so
that even a text that slipped through could not run.
"""

import base64
import hashlib
import json
import math
import re
import unicodedata
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from gymqual import __version__

_FOLDER = Path(__file__).parent / "templates"
_UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
MADE_BY = ("jinja2", "matplotlib")
"""Libraries whose version the bytes of a page depend on."""


def render(template: str, **values: Any) -> bytes:
    """Return the page that a template makes of plain data, the same bytes for the same data and versions."""
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    page = _environment().get_template(template)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = page.render(
        style=Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=digest,
        generator=generator(),
        **values,
    )
    return text.encode("utf-8", "backslashreplace")


def generator() -> str:
    """Return what makes pages, by version and by the digest of what draws: what else their bytes depend on."""
    product = f"gymqual {__version__} (page {_drawn_by()[:12]})"
    libraries = [f"{name} {version(name)}" for name in MADE_BY]
    return ", ".join([product, *libraries, f"Unicode {unicodedata.unidata_version}"])


@cache
def _drawn_by() -> str:
    """Return one sha256 over templates, style, script and the code of pages: a version may have had several."""
    drawn = hashlib.sha256()
    folder = Path(__file__).parent
    records = ("claims", "divergence", "legend", "manifest", "run_records", "trace")
    beside = [folder.parent / "records" / f"{name}.py" for name in records]
    for path in [*beside, *sorted(folder.rglob("*.*"))]:
        if path.suffix != ".pyc":
            drawn.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return drawn.hexdigest()


def generator_of(page: bytes) -> str | None:
    """Return what made a page, as the page says; None if it does not."""
    found = re.search(rb'<meta name="generator" content="([^"]*)">', page)
    return found[1].decode("utf-8", "replace") if found else None


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "data": data,
        "href": href,
        "visible": visible,
        "short": lambda digest: str(digest)[:16],
        "figure": figure,
        "readable": readable,
        "size": size,
        "duration": duration,
    }
    return environment


def data(value: Any) -> Markup:
    """Return JSON for a script element: no text in it can end the element. What is no number there is written out."""
    text = json.dumps(_finite(value), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_UNSAFE))


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case dict():
            return {name: _finite(each) for name, each in value.items()}
        case list() | tuple():
            return [_finite(each) for each in value]
        case _:
            return value


def href(path: str) -> str:
    """Return a link to a file beside the page, whatever its name is."""
    return "./" + quote(path.encode("utf-8", "surrogateescape"))


def visible(text: object) -> str:
    """Return a text with control characters written out, direction marks among them; line ends and tabs stay."""
    return "".join(
        character
        if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs")
        else f"\\u{{{ord(character):x}}}"
        for character in str(text)
    )


def figure(value: object) -> str:
    """Return a number for people: four digits that count, nothing for None."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def readable(value: Any) -> str:
    """Return measured values as people read them: short ones on a line, others as indented JSON."""
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, str):
        return visible(value)
    line = json.dumps(value, ensure_ascii=False)
    return visible(line if len(line) <= 100 else json.dumps(value, ensure_ascii=False, indent=1))


def size(count: int) -> str:
    """Return a number of bytes for people."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000 or unit == "MB":
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000  # type: ignore[assignment]
    raise AssertionError


def duration(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s"
