"""The manifest: whoever gets a run directory can recompute what it claims, and finds what was changed."""

import itertools
import json
from collections.abc import Callable
from os import mkfifo
from pathlib import Path
from shutil import copytree
from xml.etree import ElementTree

import pytest

from gymqual.gyms import loaded
from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records import manifest
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.run_records import CheckRecord, FileRecord, GymRecord, Outcome
from gymqual.qualification.support.commands import run_gymqual

pytestmark = pytest.mark.self_test


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the run to be tampered with."""
    return copytree(finished_run, tmp_path / finished_run.name)


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(bytes(content))


def _edit_manifest(folder: Path, change: Callable[[dict], None]) -> None:
    fields = json.loads((folder / "manifest.json").read_text())
    change(fields)
    (folder / "manifest.json").write_bytes(manifest.readable_json(fields))


def _fail_in_junit(folder: Path) -> None:
    tree = ElementTree.parse(folder / "junit.xml")
    ElementTree.SubElement(next(tree.iter("testcase")), "failure", message="changed")
    tree.write(folder / "junit.xml")


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "evidence byte": (lambda run: _flip(run / "evidence/TASK-01/values.json"), "evidence/TASK-01/values.json: changed"),
    "missing file": (lambda run: (run / "junit.xml").unlink(), "junit.xml: missing"),
    "extra file": (lambda run: (run / "evidence/more.txt").write_text("x"), "evidence/more.txt: not recorded"),
    "a link to a file": (
        lambda run: (run / "evidence/link").symlink_to(run / "junit.xml"),
        "evidence/link: neither a file nor a folder",
    ),
    "a pipe": (lambda run: mkfifo(run / "evidence/pipe"), "evidence/pipe: neither a file nor a folder"),
    "manifest space": (
        lambda run: (run / "manifest.json").write_bytes((run / "manifest.json").read_bytes() + b" "),
        "manifest.json: bytes changed",
    ),
    "a lower digest": (
        lambda run: _edit_manifest(run, lambda fields: fields.update(digest="0" * 64)),
        "manifest.json: content changed after sealing",
    ),
    "a higher digest": (
        lambda run: _edit_manifest(run, lambda fields: fields.update(digest="f" * 64)),
        "manifest.json: content changed after sealing",
    ),
    "a line end less": (
        lambda run: (run / "manifest.json").write_bytes((run / "manifest.json").read_bytes()[:-1]),
        "manifest.json: bytes changed",
    ),
    "outcome that junit does not know": (
        lambda run: _edit_manifest(run, lambda fields: fields["checks"][0].update(outcome="failed")),
        "outcome failed is not that of junit.xml",
    ),
    "outcome": (
        lambda run: _edit_manifest(run, lambda fields: fields["checks"][0].update(outcome="failed")),
        "manifest.json: content changed after sealing",
    ),
    "a report that is cut off": (
        lambda run: (run / "junit.xml").write_bytes((run / "junit.xml").read_bytes()[:-20]),
        "junit.xml: not readable",
    ),
    "junit outcome": (_fail_in_junit, "outcome passed is not that of junit.xml"),
    "verdict": (
        lambda run: _edit_manifest(run, lambda fields: fields["verdict"].update(qualified=True, reasons=[])),
        "verdict: not qualified (no gym was examined) follows",
    ),
}


def test_an_untouched_run_holds(run_copy: Path) -> None:
    """Every claim of a run directory MUST hold wherever it is copied to, offline."""
    verified = run_gymqual("verify", run_copy)
    assert (verified.returncode, "BROKEN" in verified.stdout) == (0, False), explain(
        subject="gymqual verify on an untouched copy",
        expected="exit 0, no claim broken",
        got=(verified.returncode, verified.stdout + verified.stderr),
        cause="the manifest depends on where it was written, or was written before the last file",
    )


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_changed_run_is_named(run_copy: Path, tampering: str) -> None:
    """``verify`` MUST exit 1 and name any changed, missing or extra byte and any claim that no longer follows."""
    tamper, named = TAMPERINGS[tampering]
    tamper(run_copy)
    verified = run_gymqual("verify", run_copy)
    assert (verified.returncode, named in verified.stdout) == (1, True), explain(
        subject=f"gymqual verify after: {tampering}",
        expected=(1, named),
        got=(verified.returncode, verified.stdout + verified.stderr),
        cause="the file or claim is not covered by the manifest",
    )


def test_a_digest_is_that_of_everything_else(finished_run: Path) -> None:
    """The digest MUST change with every field of a manifest but itself."""
    content = manifest.read(finished_run).model_dump(mode="json")
    sealed = manifest._digest(content)
    without = [name for name in content if manifest._digest({**content, name: "changed"}) == sealed]
    assert without == ["digest"], explain(
        subject="fields that may change after sealing",
        expected=["digest"],
        got=without,
        cause="a field is left out of the digest",
    )


def test_no_claim_is_made_of_a_report_that_is_elsewhere(run_copy: Path) -> None:
    """Of a run whose junit.xml was written to another place, nothing MUST be said to agree with it."""
    (run_copy / "junit.xml").unlink()
    run = manifest.read(run_copy).model_copy(update={"files": manifest.list_files(run_copy)})
    manifest.write(run, run_copy)
    claims = manifest.verify(run_copy)
    told = [line for line in claims.lines if "junit.xml" in line]
    assert (claims.broken, told) == (0, []), explain(
        subject="claims of a run without its junit.xml: broken ones, and those about junit.xml",
        expected=(0, []),
        got=(claims.broken, told),
        cause="records are held to a report that is not there, and pass",
    )


HALF_WRITTEN = {
    b"": "the whole file: Invalid JSON",
    b'{"format": "gymqual.manifest/1", "run': "the whole file: Invalid JSON",
    b"[]": "the whole file: Input should be",
    b"{}": "product: Field required",
}


@pytest.mark.parametrize("content", HALF_WRITTEN)
def test_a_half_written_manifest_is_refused_in_one_sentence(run_copy: Path, content: bytes) -> None:
    """A manifest that is not whole MUST be refused by name and place, with the fix, and no claim called held."""
    (run_copy / "manifest.json").write_bytes(content)
    with pytest.raises(HarnessError) as refused:
        manifest.verify(run_copy)
    assert f"manifest.json is not a whole manifest ({HALF_WRITTEN[content]}" in str(refused.value), explain(
        subject=f"manifest of {content!r}",
        expected=f"manifest.json is not a whole manifest ({HALF_WRITTEN[content]} ...); restore it or run again",
        got=str(refused.value),
        cause="the reader trusts what it finds",
    )


def test_atomic_writes_leave_the_old_file_when_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way MUST leave the old content and no temporary file."""
    target = tmp_path / "manifest.json"
    manifest.write_atomically(target, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gymqual.harness.records.files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        manifest.write_atomically(target, b"new")
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {"manifest.json": b"old"}, explain(
        subject="folder after a failed write",
        expected={"manifest.json": b"old"},
        got=left,
        cause="the file is written in place",
    )


def _record(check_id: str, outcome: Outcome = "passed") -> CheckRecord:
    return CheckRecord(id=check_id, must="", gym="nemo", test=check_id, outcome=outcome, duration_s=0.0)


BOTH = {"nemo": ("NEMO-S-01", "NEMO-S-02")}
FIRST, SECOND = _record("NEMO-S-01"), _record("NEMO-S-02")
VERDICTS = {
    "all passed": (BOTH, [FIRST, SECOND], 0, "qualification", True),
    "one failed": (BOTH, [FIRST, _record("NEMO-S-02", "failed")], 1, "qualification", False),
    "one not testable": (BOTH, [FIRST, _record("NEMO-S-02", "not_testable")], 0, "qualification", False),
    "one not run": (BOTH, [FIRST], 0, "qualification", False),
    "another failed beside them": (BOTH, [FIRST, SECOND, _record("TASK-01", "failed")], 0, "qualification", False),
    "pytest failed": (BOTH, [FIRST, SECOND], 1, "qualification", False),
    "interrupted": (BOTH, [FIRST, SECOND], 2, "qualification", False),
    "no gym": ({}, [_record("TASK-01")], 0, "qualification", False),
    "no gym, and the checks themselves are examined": ({}, [_record("TASK-01")], 0, "broken", True),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_verdict_needs_every_check_and_nothing_else_wrong(name: str) -> None:
    """A run MUST be qualified only if every registered check has a record, all passed, and pytest ended well."""
    registered, records, exit_status, mode, qualified = VERDICTS[name]
    verdict = manifest.decide(registered, records, exit_status, mode)
    assert (verdict.qualified, bool(verdict.reasons)) == (qualified, not qualified), explain(
        subject=f"verdict of a run: {name}",
        expected=qualified,
        got=verdict,
        cause="a reason for not being qualified is not looked at",
    )


GYM = GymRecord(
    gym="nemo",
    upstream="nemo-gym 0.7.0",
    upstream_digest="0" * 64,
    upstream_modified=(),
    stands_for="",
    python="",
    core=loaded.combine([("gyms/german/tasks.py", "1" * 64)]),
    sources={"gyms/german/tasks.py": "1" * 64, "app.py": "2" * 64},
)


def _with_sources_of(*, lower: bool) -> GymRecord:
    """The gym with sources whose core has a lower or a higher digest than it says; neither may pass."""
    others = ({"gyms/german/tasks.py": f"{number:064x}"} for number in itertools.count())
    sources = next(each for each in others if (loaded.core_digest(each) < GYM.core) == lower)
    return GYM.model_copy(update={"sources": sources})


SERVED_OTHERWISE = {
    "nothing": (GYM, ""),
    "another source": (GYM.model_copy(update={"sources": {"gyms/german/tasks.py": "3" * 64}}), "is not the staged one"),
    "another core": (GYM.model_copy(update={"core": "4" * 64}), "another task core"),
    "a core of other sources, of a lower digest": (_with_sources_of(lower=True), "does not follow from its sources"),
    "a core of other sources, of a higher digest": (_with_sources_of(lower=False), "does not follow from its sources"),
    "a core of lower digest": (GYM.model_copy(update={"core": "0" * 64}), "another task core"),
    "a core of higher digest": (GYM.model_copy(update={"core": "f" * 64}), "another task core"),
    "patched upstream": (GYM.model_copy(update={"upstream_modified": ("nemo_gym.judge",)}), "nemo_gym.judge"),
}


@pytest.mark.parametrize("name", SERVED_OTHERWISE)
def test_what_was_served_is_held_against_what_was_staged(run_copy: Path, name: str) -> None:
    """A server that executed other bytes than the staged ones MUST be named, whatever the checks said."""
    gym, named = SERVED_OTHERWISE[name]
    staged = FileRecord(path="subject/python/gyms/german/tasks.py", sha256="1" * 64, size=1)
    run = manifest.read(run_copy)
    examiner = {"gyms/german/tasks.py": "1" * 64}
    update = {"gyms": (gym,), "files": (staged,), "core": GYM.core, "examiner": examiner}
    faults = list(manifest._source_faults(run.model_copy(update=update)))
    assert (bool(faults), named in "".join(faults)) == (name != "nothing", True), explain(
        subject=f"a gym with {name} changed",
        expected=named or "no fault",
        got=faults,
        cause="identity is recorded and never compared",
    )


def test_evidence_that_a_check_did_not_write_is_named(run_copy: Path) -> None:
    """A file that replaced a check's evidence before the manifest was written MUST be named."""
    run = manifest.read(run_copy)
    record = run.checks[0].model_copy(update={"files": {"evidence/TASK-01/values.json": "0" * 64}})
    faults = list(manifest._evidence_faults(run.model_copy(update={"checks": (record,)})))
    assert faults == ["TASK-01: evidence/TASK-01/values.json is not the file that the check wrote"], explain(
        subject="evidence with another sha256 than the check took",
        expected="the file, by name",
        got=faults,
        cause="hashes are taken at the end of the run only",
    )


@pytest.mark.parametrize("value", [float("nan"), 2**60, "\ud800", {"path": Path("x")}], ids=repr)
def test_a_value_that_no_manifest_can_hold_fails_its_own_check(tmp_path: Path, value: object) -> None:
    """A measured value that RFC 8785 cannot write MUST be refused where it is measured, by its name."""
    with pytest.raises((ValueError, TypeError)):
        Evidence(tmp_path, "X").measure(figure=value)


@pytest.mark.parametrize("path", ["README.md", "harness"])
def test_what_is_no_run_directory_is_refused(path: str) -> None:
    """``verify`` and ``compare`` of a path that is no run MUST say so without a traceback."""
    said = [run_gymqual("verify", path), run_gymqual("compare", path, path)]
    seen = [(ran.returncode, "not a run directory" in ran.stderr, "Traceback" in ran.stderr) for ran in said]
    assert seen == [(2, True, False)] * 2, explain(
        subject=f"verify and compare of {path}",
        expected="exit 2 and one sentence",
        got=[ran.stderr[-300:] for ran in said],
        cause="only a missing file is expected, not every other kind",
    )
