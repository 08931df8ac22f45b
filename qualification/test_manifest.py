"""The manifest: whoever gets a run directory can recompute what it claims, and finds what was changed."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from xml.etree import ElementTree

import pytest

from harness import manifest
from harness.checks import explain
from harness.errors import HarnessError
from qualification.commands import run_harness

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
    "manifest space": (
        lambda run: (run / "manifest.json").write_bytes((run / "manifest.json").read_bytes() + b" "),
        "manifest.json: bytes changed",
    ),
    "outcome": (
        lambda run: _edit_manifest(run, lambda fields: fields["checks"][0].update(outcome="failed")),
        "manifest.json: content changed after sealing",
    ),
    "junit outcome": (_fail_in_junit, "outcome passed is not that of junit.xml"),
    "verdict": (
        lambda run: _edit_manifest(run, lambda fields: fields["verdict"].update(qualified=True, reasons=[])),
        "verdict: not qualified (no gym was examined) follows",
    ),
}


def test_an_untouched_run_holds(run_copy: Path) -> None:
    """Every claim of a run directory MUST hold wherever it is copied to, offline."""
    verified = run_harness("verify", run_copy)
    assert (verified.returncode, "BROKEN" in verified.stdout) == (0, False), explain(
        subject="harness verify on an untouched copy",
        expected="exit 0, no claim broken",
        got=(verified.returncode, verified.stdout + verified.stderr),
        cause="the manifest depends on where it was written, or was written before the last file",
    )


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_changed_run_is_named(run_copy: Path, tampering: str) -> None:
    """``verify`` MUST exit 1 and name any changed, missing or extra byte and any claim that no longer follows."""
    tamper, named = TAMPERINGS[tampering]
    tamper(run_copy)
    verified = run_harness("verify", run_copy)
    assert (verified.returncode, named in verified.stdout) == (1, True), explain(
        subject=f"harness verify after: {tampering}",
        expected=(1, named),
        got=(verified.returncode, verified.stdout + verified.stderr),
        cause="the file or claim is not covered by the manifest",
    )


@pytest.mark.parametrize("content", [b"", b'{"format": "gymqual.manifest/1", "run', b"[]", b"{}"])
def test_a_half_written_manifest_is_refused_in_one_sentence(run_copy: Path, content: bytes) -> None:
    """A manifest that is not whole MUST be refused by name, with the fix, and no claim called held."""
    (run_copy / "manifest.json").write_bytes(content)
    with pytest.raises(HarnessError) as refused:
        manifest.verify(run_copy)
    assert "manifest.json is not a whole manifest" in str(refused.value), explain(
        subject=f"manifest of {content!r}",
        expected="manifest.json is not a whole manifest (...); restore it or run again",
        got=str(refused.value),
        cause="the reader trusts what it finds",
    )


def test_atomic_writes_leave_the_old_file_when_they_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way MUST leave the old content and no temporary file."""
    target = tmp_path / "manifest.json"
    manifest.write_atomically(target, b"old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("harness.files.os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        manifest.write_atomically(target, b"new")
    left = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert left == {"manifest.json": b"old"}, explain(
        subject="folder after a failed write",
        expected={"manifest.json": b"old"},
        got=left,
        cause="the file is written in place",
    )
