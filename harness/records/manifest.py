"""The manifest of a run: what was examined, what came out, and the sha256 of every file that shows it.

``manifest.json`` is written last and atomically. It is indented for people, in the one form that
``readable_json`` gives its content, so that a changed byte shows even where the content is the same; its
``digest`` is the sha256 of the RFC 8785 canonical form of everything else in it.
"""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import rfc8785
from pydantic import ValidationError

from gymqual.gyms import loaded
from gymqual.harness.records.claims import Claims
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.run_records import (
    CheckRecord,
    FileRecord,
    GymRecord,
    Machine,
    Product,
    RunFacts,
    Sha256,
    StackRecord,
    StrictModel,
    VerdictRecord,
)

MANIFEST = "manifest.json"
JUNIT = "junit.xml"
"""pytest's own report; not in the run if ``--junit-xml`` names another place, and then no claim is made of it."""
ATTESTATION = "attestation.json"
PAGE = "index.html"
UNLISTED = frozenset({MANIFEST, ATTESTATION, PAGE})
"""Files of a run that a manifest does not list: itself, and what is made of it afterwards."""


class RunManifest(StrictModel):
    """Everything a run claims."""

    format: Literal["gymqual.manifest/1"] = "gymqual.manifest/1"
    product: Product
    run: RunFacts
    machine: Machine
    core: Sha256
    """sha256 of the task core that the replay executed."""
    examiner: dict[str, Sha256]
    """sha256 of every source file of the gyms that the examining process executed: client and replay."""
    stacks: tuple[StackRecord, ...]
    gyms: tuple[GymRecord, ...]
    registered: dict[str, tuple[str, ...]]
    """Ids of all documented checks of every selected gym."""
    checks: tuple[CheckRecord, ...]
    verdict: VerdictRecord
    deviations: tuple[str, ...]
    files: tuple[FileRecord, ...]
    digest: Sha256 = ""
    """sha256 of the RFC 8785 form of all other fields."""


def decide(
    registered: Mapping[str, Iterable[str]], checks: Iterable[CheckRecord], exit_status: int, mode: str
) -> VerdictRecord:
    """Return the verdict: every registered check of every selected gym has a record, and every record passed."""
    records = list(checks)
    reasons = [f"{record.id} {record.outcome.replace('_', ' ')}" for record in records if record.outcome != "passed"]
    ran = {(record.gym, record.id) for record in records}
    for gym, ids in sorted(registered.items()):
        missing = sorted(id for id in set(ids) if (gym, id) not in ran)
        if missing:
            reasons.append(f"{gym}: no record of {', '.join(missing)}")
    if not registered and mode == "qualification":
        reasons.append("no gym was examined")
    if exit_status != 0:
        reasons.append(f"pytest ended with exit status {exit_status}")
    return VerdictRecord(qualified=not reasons, reasons=tuple(reasons))


def list_files(folder: Path) -> tuple[FileRecord, ...]:
    """Hash every regular file of a run but the unlisted ones, in path order."""
    paths = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if _is_plain(file)}
    return tuple(
        FileRecord(path=name, sha256=sha256_file(file), size=file.stat().st_size)
        for name, file in sorted(paths.items())
        if name not in UNLISTED and not _is_page_of_training(file)
    )


def _is_page_of_training(file: Path) -> bool:
    """Whether a file is the page that somebody had made of a training run within a run."""
    return file.name == PAGE and (file.parent / MANIFEST).is_file()


def _is_plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()


def seal(manifest: RunManifest) -> RunManifest:
    """Return the manifest with its digest."""
    return manifest.model_copy(update={"digest": _digest(manifest.model_dump(mode="json"))})


def write(manifest: RunManifest, folder: Path) -> Path:
    """Seal and write the manifest of a run; return its path."""
    path = folder / MANIFEST
    write_atomically(path, readable_json(seal(manifest).model_dump(mode="json")))
    return path


def read(folder: Path) -> RunManifest:
    """Read a run's manifest; raises HarnessError naming what is wrong with it."""
    path = folder / MANIFEST
    try:
        return RunManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise HarnessError(f"{path} {reason}: not a run directory, or the run did not end; run it again") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise HarnessError(
            f"{path} is not a whole manifest ({where}: {first['msg']}); restore it or run again"
        ) from None


def schema() -> bytes:
    """Return the JSON Schema of a manifest, as committed in ``reports/schema``."""
    return readable_json(RunManifest.model_json_schema())


def verify(folder: Path) -> Claims:
    """Recompute everything a run claims from its files alone. Raises HarnessError if there is no manifest."""
    manifest = read(folder)
    claims = Claims()
    content = manifest.model_dump(mode="json")
    rewritten = readable_json(content) != (folder / MANIFEST).read_bytes()
    claims.add(f"{MANIFEST} has the one form of its content", [f"{MANIFEST}: bytes changed"] if rewritten else [])
    wrong_digest = manifest.digest != _digest(content)
    claims.add(f"digest {manifest.digest[:16]}", [f"{MANIFEST}: content changed after sealing"] if wrong_digest else [])
    claims.add(f"{len(manifest.files)} files are byte for byte as recorded", _file_faults(manifest, folder))
    claims.add("every check's evidence is among them", _evidence_faults(manifest))
    claims.add("what servers, client and replay executed is what was staged", _source_faults(manifest))
    if any(file.path == JUNIT for file in manifest.files):
        claims.add(f"{len(manifest.checks)} records agree with {JUNIT}", _junit_faults(manifest, folder))
    expected = decide(manifest.registered, manifest.checks, manifest.run.exit_status, manifest.run.mode)
    word = "qualified" if expected.qualified else f"not qualified ({'; '.join(expected.reasons)})"
    claims.add(f"the verdict follows: {word}", [] if expected == manifest.verdict else [f"verdict: {word} follows"])
    return claims


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(rfc8785.dumps({key: value for key, value in content.items() if key != "digest"})).hexdigest()


def _file_faults(manifest: RunManifest, folder: Path) -> Iterable[str]:
    recorded = {file.path: file for file in manifest.files}
    present = {file.path: file for file in list_files(folder)}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield f"{path.relative_to(folder)}: neither a file nor a folder"
    for name in sorted(recorded.keys() | present.keys()):
        if name not in present:
            yield f"{name}: missing"
        elif name not in recorded:
            yield f"{name}: not recorded"
        elif present[name] != recorded[name]:
            yield f"{name}: changed (sha256 {present[name].sha256[:16]}, recorded {recorded[name].sha256[:16]})"


def _evidence_faults(manifest: RunManifest) -> Iterable[str]:
    recorded = {file.path: file.sha256 for file in manifest.files}
    for record in manifest.checks:
        for path, digest in record.files.items():
            if recorded.get(path) != digest:
                yield f"{record.id}: {path} is not the file that the check wrote"


def _source_faults(manifest: RunManifest) -> Iterable[str]:
    staged: dict[str, set[str]] = {}
    for file in manifest.files:
        # subject/python/gymqual/gyms/..., or subject-<worker>/... of a parallel run.
        # Runs made before the product was one package have no gymqual/ in there.
        root, _, name = file.path.partition("/python/")
        if root.startswith("subject"):
            staged.setdefault(name.removeprefix("gymqual/"), set()).add(file.sha256)
    if manifest.core != loaded.core_digest(manifest.examiner):
        yield "core: the digest does not follow from what the examiner executed"
    executed = [("examiner", manifest.examiner)] if staged else []
    for gym in manifest.gyms:
        executed.append((gym.gym, gym.sources))
        if gym.core != manifest.core:
            yield f"{gym.gym}: served another task core than the one its episodes were replayed with"
        if gym.core != loaded.core_digest(gym.sources):
            yield f"{gym.gym}: the core digest does not follow from its sources"
        if gym.upstream_modified:
            yield f"{gym.gym}: upstream files changed after installation: {', '.join(gym.upstream_modified)}"
    for who, sources in executed:
        for name, digest in sources.items():
            if name.startswith("gyms/") and staged.get(name) != {digest}:
                yield f"{who}: executed {name} is not the staged one"


def _junit_faults(manifest: RunManifest, folder: Path) -> Iterable[str]:
    path = folder / JUNIT
    if not path.is_file():
        return
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except ElementTree.ParseError as error:
        yield f"{JUNIT}: not readable ({error})"
        return
    failed = {
        f"{case.get('classname')}.{case.get('name')}": any(child.tag in ("failure", "error") for child in case)
        for case in cases
    }
    for record in manifest.checks:
        file, _, name = record.test.partition("::")
        key = f"{file.removesuffix('.py').replace('/', '.')}.{name}"
        if key not in failed:
            yield f"{record.id}: {record.test} is not in {JUNIT}"
        elif failed[key] != (record.outcome != "passed"):
            yield f"{record.id}: outcome {record.outcome} is not that of {JUNIT}"
