"""A run's result as an in-toto Statement v1 with the predicate test-result v0.1: ``attestation.json``.

It is unsigned: it shows what belongs together and proves nothing about who wrote it. Whoever wants that signs this
file with a tool of their own, such as cosign; policy engines read it as it is.

Every field follows from ``manifest.json``, so nothing in it has to be believed, and ``verify`` derives all of it again.
For that reason it names no URL of a CI run: the manifest could not answer for it.

- ``subject``: ``manifest.json``, by which a run directory leads to its statement, and every gym whose checks were
  selected, as the ``dirHash`` over the source files that it executed; their names and digests are in the manifest. Of
  a run with ``--broken`` the subject is the examining code in the gyms' place: what passes there are the checks.
- ``result``: ``PASSED`` if the verdict is qualified, ``WARNED`` if it is and a deviation is recorded, else ``FAILED``.
- ``passedTests``, ``warnedTests``, ``failedTests``: ids of checks, with the case of one that has several, such as
  ``PARITY-01[nemo]``. Warned is what passed on a gym whose stack deviates from what upstream asks for. What was not
  testable has failed, and so has a registered check without a record: nobody may take a statement without failed
  tests for one in which all were run. The reasons are in the manifest.

Runs of the trainer have no statement: what they claim is no result of tests, and their replay derives it.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gymqual.gyms import loaded
from gymqual.harness.records.claims import Claims
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.manifest import ATTESTATION, MANIFEST, RunManifest, read
from gymqual.harness.stacks.environments import AS_IT_IS

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://in-toto.io/attestation/test-result/v0.1"

_LISTS = ("passedTests", "warnedTests", "failedTests")


def statement(run: RunManifest, manifest_sha256: str) -> dict[str, Any]:
    """Return the statement of a run."""
    return {
        "_type": STATEMENT,
        "subject": [_descriptor(MANIFEST, sha256=manifest_sha256), *_examined(run)],
        "predicateType": PREDICATE,
        "predicate": {
            "result": _result(run),
            "configuration": list(_configuration(run)),
            **dict(zip(_LISTS, _sorted_by_outcome(run), strict=True)),
        },
    }


def write(folder: Path) -> Path:
    """Write the statement of a run whose manifest is written; return its path."""
    path = folder / ATTESTATION
    write_atomically(path, readable_json(_derived(folder)))
    return path


def verify(folder: Path, claims: Claims) -> None:
    """Add what the statement claims, each derived again from the manifest."""
    derived = _derived(folder)
    predicate = derived["predicate"]
    faults = list(_faults(folder, derived))
    counts = f"{predicate['result']}, {len(predicate['passedTests'])} passed" + "".join(
        f", {len(predicate[name])} {name.removesuffix('Tests')}" for name in _LISTS[1:] if predicate[name]
    )
    claims.add(f"{ATTESTATION} is of this manifest, and all in it follows: {counts}", faults)


def _derived(folder: Path) -> dict[str, Any]:
    return statement(read(folder), sha256_file(folder / MANIFEST))


def _faults(folder: Path, derived: dict[str, Any]) -> Iterable[str]:
    path = folder / ATTESTATION
    if path.is_symlink() or not path.is_file():
        yield f"{ATTESTATION}: missing"
        return
    content = path.read_bytes()
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        yield f"{ATTESTATION}: not readable ({error})"
        return
    if not (isinstance(found, dict) and isinstance(found.get("predicate"), dict)):
        yield f"{ATTESTATION}: no statement with a predicate"
        return
    named = [*_differing("", derived, found), *_differing("predicate.", derived["predicate"], found["predicate"])]
    yield from named
    if not named and content != readable_json(derived):
        yield f"{ATTESTATION}: bytes changed"


def _differing(prefix: str, derived: dict[str, Any], found: dict[str, Any]) -> Iterable[str]:
    for name in sorted(derived.keys() | found.keys()):
        if name == "predicate":
            continue
        if name not in derived:
            yield f"{ATTESTATION}: {prefix}{name} is in no statement of ours"
        elif name == "subject" and not (isinstance(found.get(name), list) and derived[name][0] in found[name]):
            yield f"{ATTESTATION}: the subject is not this {MANIFEST}"
        elif found.get(name) != derived[name]:
            yield f"{ATTESTATION}: {prefix}{name} does not follow from {MANIFEST}"


def _descriptor(name: str, annotations: dict[str, Any] | None = None, **digest: str) -> dict[str, Any]:
    return {"name": name, "digest": digest, **({"annotations": annotations} if annotations else {})}


def _examined(run: RunManifest) -> Iterable[dict[str, Any]]:
    if run.run.mode == "broken":
        yield _examiner(run)
        return
    for gym in sorted(run.registered):
        # Of several processes of one gym, such as service and bridge, all that any of them executed.
        executed = {source for served in run.gyms if served.gym == gym for source in served.sources.items()}
        if executed:
            yield _descriptor(gym, dirHash=loaded.combine(executed))


def _examiner(run: RunManifest) -> dict[str, Any]:
    return _descriptor("examiner", dirHash=loaded.combine(run.examiner.items()))


def _configuration(run: RunManifest) -> Iterable[dict[str, Any]]:
    product = run.product
    invocation = {"mode": run.run.mode, "arguments": list(run.run.arguments), "dirty": product.dirty}
    # A checkout with changes is not what its commit names.
    commit = {"digest": {"gitCommit": product.commit}} if product.commit and not product.dirty else {}
    yield {
        "name": product.name,
        "uri": f"pkg:generic/{product.name}@{product.version}",
        "annotations": invocation,
        **commit,
    }
    yield _examiner(run)
    yield _descriptor("gyms/german", dirHash=run.core)
    for stack in run.stacks:
        interpreter = {"python": stack.version, "platform": stack.platform, "deviation": stack.deviation}
        # What was not built from the lock is no file of ours: the digest is of the list of its packages.
        name = f"packages of {stack.name}" if stack.flags == AS_IT_IS else f"requirements/{stack.name}.lock"
        yield _descriptor(name, interpreter, sha256=stack.lock_sha256)


def _result(run: RunManifest) -> str:
    if not run.verdict.qualified:
        return "FAILED"
    return "WARNED" if run.deviations else "PASSED"


def _sorted_by_outcome(run: RunManifest) -> tuple[list[str], list[str], list[str]]:
    deviating = {stack.name for stack in run.stacks if stack.deviation}
    passed, warned, failed = [], [], []
    for record in run.checks:
        chosen = failed if record.outcome != "passed" else warned if record.gym in deviating else passed
        chosen.append(record.case)
    ran = {(record.gym, record.id) for record in run.checks}
    gyms = Counter(id for ids in run.registered.values() for id in ids)
    due = ((gym, id) for gym, ids in run.registered.items() for id in ids)
    failed += [id if gyms[id] == 1 else f"{id}[{gym}]" for gym, id in due if (gym, id) not in ran]
    return sorted(passed), sorted(warned), sorted(failed)
