"""The page of a directory: made from the evidence in it, made again, and held to it; and a run in a few lines."""

from collections.abc import Callable, Iterator
from pathlib import Path

from gymqual.harness.records import manifest, training_run
from gymqual.harness.records.claims import Claims
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import write_atomically
from gymqual.harness.records.manifest import ATTESTATION, MANIFEST, PAGE, RunManifest
from gymqual.harness.report import document, experiment, qualification
from gymqual.harness.report import training as training_page
from gymqual.harness.report.throughput_result import RESULT as THROUGHPUT

KINDS = (
    "a run of the suite or a training run (manifest.json), a matched experiment (summary.json or report/summary.json), "
    f"or the --out folder of a bench ({THROUGHPUT}, silent-bugs.json)"
)


def write(folder: Path) -> Path:
    """Make the page of a directory, in place of one that is there; return its path.

    Raises HarnessError for a directory that no page can be made of.
    """
    path = folder / PAGE
    write_atomically(path, render(folder))
    return path


def render(folder: Path) -> bytes:
    """Return the page of a directory; raises HarnessError for one that no page can be made of."""
    try:
        return _render(folder)
    except HarnessError:
        raise
    except Exception as error:
        # Evidence may be anybody's: of whatever is no page to be made, one sentence.
        raise HarnessError(f"{folder}: no page can be drawn of it ({_told(error)})") from error


def _render(folder: Path) -> bytes:
    if training_run.is_run(folder):
        return training_page.page(folder)
    if (folder / MANIFEST).is_file():
        return qualification.page(folder)
    if experiment.is_experiment(folder):
        return experiment.page(folder)
    if (folder / THROUGHPUT).is_file():
        # Imported here, as matplotlib is wherever something is drawn.
        from gymqual.harness.report import throughput

        return throughput.page(folder)
    raise HarnessError(f"{folder}: there is nothing here to make a page of; name {KINDS}")


def verify(folder: Path, claims: Claims) -> None:
    """Add the claim that a run's page is what its manifest and evidence give, drawn again here.

    So is the page of every training in it that somebody has made one of.
    """
    made = [each for each in training_page.folders_in(folder) if (each / PAGE).exists()]
    faults = [fault for each in (folder, *made) for fault in _faults(each, folder)]
    also = f", and so are those of {len(made)} trainings in it" if made else ""
    claims.add(f"{PAGE} is what the evidence gives, drawn again{also}", faults)


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def _faults(folder: Path, run: Path) -> Iterator[str]:
    path = folder / PAGE
    name = path.relative_to(run).as_posix()
    if path.is_symlink() or not path.is_file():
        yield f"{name}: missing; gymqual report {folder} makes it"
        return
    found = path.read_bytes()
    try:
        due = render(folder)
    except HarnessError as error:
        # Evidence that was tampered with may break any assumption: that is a finding, not a crash.
        yield f"{name}: cannot be drawn again ({_told(error)})"
        return
    if found == due:
        return
    made_by = document.generator_of(found)
    if made_by not in (None, document.generator()):
        yield f"{name}: drawn by {made_by}, this is {document.generator()}; gymqual report {folder} draws it anew"
    else:
        yield f"{name}: changed, or of other evidence"


# ---- in a few lines --------------------------------------------------------------------------------


def summary(folder: Path) -> str:
    """Return a run as Markdown for the summary of a CI job; raises HarnessError."""
    if training_run.is_run(folder):
        raise HarnessError(f"--summary is of a run of the suite, {folder} is a training run; leave it out for a page")
    run = manifest.read(folder)
    parts: list[Callable[[RunManifest], Iterator[str]]] = [_verdict, _table, _trainings(folder), _notes]
    return "\n".join(line for part in parts for line in part(run)) + "\n"


def _verdict(run: RunManifest) -> Iterator[str]:
    gyms = ", ".join(run.registered) or "no gym"
    counts = ", ".join(f"{count} {word}" for word, count in qualification.totals(run).items())
    yield f"## {qualification.verdict_word(run)}: {_plain(gyms)}"
    yield ""
    yield f"{counts}. Run `{run.run.id}`, gymqual {run.product.version}, {_plain(run.machine.platform)}."
    yield ""
    for reason in qualification.reasons(run):
        record = reason["record"]
        message = f": {_plain(record.message.splitlines()[0])[:300]}" if record and record.message else ""
        yield f"- {_plain(reason['text'])}{message}"


def _table(run: RunManifest) -> Iterator[str]:
    grid = qualification.matrix(run)
    families: dict[str, list[dict[str, int]]] = {}
    for row in grid["rows"]:
        counted = families.setdefault(row["id"].rpartition("-")[0], [{} for _ in grid["gyms"]])
        for place, (cell, missing) in enumerate(row["cells"]):
            word = cell["word"] if cell else "no record" if missing else ""
            if word:
                counted[place][word] = counted[place].get(word, 0) + 1
    yield ""
    yield "| checks | " + " | ".join(gym or "no gym" for gym in grid["gyms"]) + " |"
    yield "|---|" + "---|" * len(grid["gyms"])
    for family, counted in families.items():
        cells = [", ".join(f"{count} {word}" for word, count in each.items()) for each in counted]
        yield f"| {family} | " + " | ".join(cells) + " |"


def _trainings(folder: Path) -> Callable[[RunManifest], Iterator[str]]:
    def lines(_run: RunManifest) -> Iterator[str]:
        done = [each for each in training_page.found_in(folder)[0] if each.completed]
        if done:
            yield ""
            yield "| training | gym | tensors changed | tokens trained | strict training success (not held-out) |"
            yield "|---|---|---|---|---|"
        for each in done:
            tensors, success = each.run.tensors, each.run.strict_training_success
            changed = f"{tensors.changed} of {tensors.trainable}" if tensors else "-"
            cells = (_plain(each.name), each.run.gym.gym, changed, each.run.tokens.sampled, document.figure(success))
            yield f"| {' | '.join(map(str, cells))} |"

    return lines


def _notes(run: RunManifest) -> Iterator[str]:
    if run.deviations:
        yield ""
        yield from (f"- deviation: {_plain(deviation)}" for deviation in run.deviations)
    yield ""
    yield f"`{PAGE}` in the run directory shows everything; `{MANIFEST}` and `{ATTESTATION}` are for machines."


def _plain(text: str) -> str:
    """Return a text that Markdown takes for nothing but text."""
    shown = document.visible(text.replace("\n", " "))
    # A colon, a full stop and an at sign make links of addresses, and call people.
    return "".join(f"\\{character}" if character in r"\`*_{}[]<>#|!:.@" else character for character in shown)
