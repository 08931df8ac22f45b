"""The attestation: a statement that others' tools read, and of which nothing has to be believed."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
from google.protobuf import json_format
from in_toto_attestation.predicates.test_result.v0 import test_result_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.resource_descriptor import ResourceDescriptor
from in_toto_attestation.v1.statement import Statement

from gymqual.gyms import loaded
from gymqual.harness.plugin import attestation
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records import manifest
from gymqual.harness.records.files import readable_json, sha256_file
from gymqual.harness.records.manifest import RunManifest
from gymqual.harness.records.run_records import CheckRecord, GymRecord, Outcome, StackRecord
from gymqual.harness.stacks import environments
from gymqual.qualification.support.commands import run_gymqual

pytestmark = pytest.mark.self_test

STATEMENT = "attestation.json"


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the run to be tampered with."""
    return copytree(finished_run, tmp_path / finished_run.name)


def _edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads((folder / STATEMENT).read_text())
    change(fields)
    (folder / STATEMENT).write_bytes(readable_json(fields))


def _rewrite(folder: Path, content: bytes) -> None:
    (folder / STATEMENT).write_bytes(content)


def _seal_another_manifest(folder: Path) -> None:
    run = manifest.read(folder)
    manifest.write(run.model_copy(update={"deviations": ("another",)}), folder)


def _pass_a_failed_test(folder: Path) -> None:
    run = manifest.read(folder)
    records = (run.checks[0].model_copy(update={"outcome": "failed"}), *run.checks[1:])
    verdict = manifest.decide(run.registered, records, run.run.exit_status, run.run.mode)
    manifest.write(run.model_copy(update={"checks": records, "verdict": verdict}), folder)
    attestation.write(folder)
    _edit(folder, lambda s: s["predicate"]["passedTests"].append(s["predicate"]["failedTests"].pop()))


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda run: (run / STATEMENT).unlink(), f"{STATEMENT}: missing"),
    "another file's link": (
        lambda run: ((run / STATEMENT).unlink(), (run / STATEMENT).symlink_to("/etc/hostname")),
        f"{STATEMENT}: missing",
    ),
    "a byte more": (lambda run: _rewrite(run, (run / STATEMENT).read_bytes() + b" "), f"{STATEMENT}: bytes changed"),
    "another manifest sealed": (_seal_another_manifest, "the subject is not this manifest.json"),
    "another manifest's digest": (
        lambda run: _edit(run, lambda s: s["subject"][0]["digest"].update(sha256="0" * 64)),
        "the subject is not this manifest.json",
    ),
    "a subject added": (
        lambda run: _edit(run, lambda s: s["subject"].append({"name": "x", "digest": {"sha256": "0" * 64}})),
        "subject does not follow",
    ),
    "a failed test passed": (_pass_a_failed_test, "predicate.failedTests does not follow"),
    "a test left out": (
        lambda run: _edit(run, lambda s: s["predicate"]["passedTests"].pop()),
        "predicate.passedTests does not follow",
    ),
    "another result": (
        lambda run: _edit(run, lambda s: s["predicate"].update(result="PASSED")),
        "predicate.result does not follow",
    ),
    "another lock": (
        lambda run: _edit(run, lambda s: s["predicate"]["configuration"].pop()),
        "predicate.configuration does not follow",
    ),
    "another type": (
        lambda run: _edit(run, lambda s: s.update(predicateType="https://slsa.dev/provenance/v1")),
        "predicateType does not follow",
    ),
    "a url": (
        lambda run: _edit(run, lambda s: s["predicate"].update(url="https://ci.example/1")),
        "predicate.url is in no statement of ours",
    ),
    "a field emptied": (lambda run: _edit(run, lambda s: s.update(subject={})), "the subject is not this manifest"),
    "half written": (lambda run: _rewrite(run, b'{"_type"'), f"{STATEMENT}: not readable"),
    "nested too deep": (lambda run: _rewrite(run, b"[" * 100_000), f"{STATEMENT}: not readable"),
    "something else": (lambda run: _rewrite(run, b"[]"), f"{STATEMENT}: no statement"),
}


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_a_changed_statement_is_named(run_copy: Path, tampering: str) -> None:
    """``verify`` MUST name a statement that is missing, of another manifest, or says what does not follow from it."""
    tamper, named = TAMPERINGS[tampering]
    tamper(run_copy)
    claims = manifest.verify(run_copy)
    before = claims.broken
    attestation.verify(run_copy, claims)
    seen = (claims.broken - before, named in "\n".join(claims.lines[-2:]))
    assert (seen[0] > 0, seen[1]) == (True, True), explain(
        subject=f"the statement's claims after: {tampering}",
        expected=f"a broken one: ... {named}",
        got=claims.lines,
        cause="a field is read from the statement and not derived from the manifest",
    )


def test_the_command_looks_at_the_statement(run_copy: Path) -> None:
    """``gymqual verify`` MUST hold a run's statement, and MUST exit 1 once it says more than the manifest."""
    sound = run_gymqual("verify", run_copy)
    _edit(run_copy, lambda s: s["predicate"].update(result="PASSED"))
    forged = run_gymqual("verify", run_copy)
    seen = (sound.returncode, "attestation.json is of this manifest" in sound.stdout, forged.returncode)
    assert seen == (0, True, 1), explain(
        subject="exit codes of gymqual verify before and after a forged result, and a line on the statement",
        expected=(0, True, 1),
        got=(seen, sound.stdout, forged.stdout),
        cause="verify looks at the manifest alone",
    )


def _served(gym: str, *names: str) -> GymRecord:
    sources = {"gyms/german/tasks.py": "1" * 64, **dict.fromkeys(names, "2" * 64)}
    return GymRecord(
        gym=gym,
        upstream=f"{gym} 1",
        upstream_digest="0" * 64,
        upstream_modified=(),
        stands_for="",
        python="",
        core="3" * 64,
        sources=sources,
    )


def _record(id: str, gym: str | None = "nemo", outcome: Outcome = "passed", case: str = "") -> CheckRecord:
    return CheckRecord(id=id, must="", gym=gym, test=f"file.py::test{case}", outcome=outcome, duration_s=0.0)


def _stack(name: str, deviation: str | None = None) -> StackRecord:
    return StackRecord(name=name, version="3.13", lock_sha256="4" * 64, platform="", flags=(), deviation=deviation)


def _run(folder: Path, **changed: Any) -> RunManifest:
    """The manifest of a run of two gyms, the one that is set otherwise sealed again."""
    fields: dict[str, Any] = {
        "gyms": (_served("nemo", "app.py"), _served("openenv", "a.py"), _served("openenv", "b.py")),
        "stacks": (_stack("nemo"), _stack("openenv")),
        "registered": {"nemo": ("NEMO-S-01",), "openenv": ("PARITY-01",)},
        "checks": (_record("NEMO-S-01"), _record("PARITY-01", "openenv", case="[openenv]"), _record("TASK-01", None)),
        "deviations": (),
        **changed,
    }
    run = manifest.read(folder).model_copy(update=fields)
    verdict = manifest.decide(run.registered, run.checks, 0, run.run.mode)
    return run.model_copy(update={"verdict": verdict})


DEVIATING = {"stacks": (_stack("nemo", "old"), _stack("openenv")), "deviations": ("nemo: old",)}
RESULTS: dict[str, tuple[dict[str, Any], str, list[list[str]]]] = {
    "all passed": ({}, "PASSED", [["NEMO-S-01", "PARITY-01[openenv]", "TASK-01"], [], []]),
    "on a deviating stack": (DEVIATING, "WARNED", [["PARITY-01[openenv]", "TASK-01"], ["NEMO-S-01"], []]),
    "one failed": (
        {"checks": (_record("NEMO-S-01", outcome="failed"), _record("PARITY-01", "openenv"))},
        "FAILED",
        [["PARITY-01"], [], ["NEMO-S-01"]],
    ),
    "one not testable": (
        {"checks": (_record("NEMO-S-01", outcome="not_testable"), _record("PARITY-01", "openenv"))},
        "FAILED",
        [["PARITY-01"], [], ["NEMO-S-01"]],
    ),
    "one without a record": (
        {"checks": (_record("PARITY-01", "openenv", case="[openenv]"),)},
        "FAILED",
        [["PARITY-01[openenv]"], [], ["NEMO-S-01"]],
    ),
    "one gym's case without a record": (
        {
            "registered": {"nemo": ("PARITY-01",), "openenv": ("PARITY-01",)},
            "checks": (_record("PARITY-01", "openenv", case="[openenv]"),),
        },
        "FAILED",
        [["PARITY-01[openenv]"], [], ["PARITY-01[nemo]"]],
    ),
    "no gym": ({"registered": {}, "checks": (_record("TASK-01", None),)}, "FAILED", [["TASK-01"], [], []]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_check_without_a_pass_is_a_failed_test(finished_run: Path, name: str) -> None:
    """A statement MUST list as failed whatever did not pass or did not run, and MUST warn of a deviating stack."""
    changed, result, lists = RESULTS[name]
    predicate = attestation.statement(_run(finished_run, **changed), "0" * 64)["predicate"]
    seen = (predicate["result"], [predicate[f"{kind}Tests"] for kind in ("passed", "warned", "failed")])
    assert seen == (result, lists), explain(
        subject=f"result and passed, warned and failed tests of a run: {name}",
        expected=(result, lists),
        got=seen,
        cause="a list is made from the records that are there, not from those that must be",
    )


def test_the_subjects_are_manifest_and_examined_code(finished_run: Path) -> None:
    """The subjects MUST be the manifest and each examined gym's code; of broken gyms the examining code instead."""
    run = _run(finished_run)
    broken = run.model_copy(update={"run": run.run.model_copy(update={"mode": "broken"})})
    seen = [{s["name"]: s["digest"] for s in attestation.statement(r, "5" * 64)["subject"]} for r in (run, broken)]
    core = ("gyms/german/tasks.py", "1" * 64)
    known = {"manifest.json": {"sha256": "5" * 64}}
    expected = [
        {
            **known,
            "nemo": {"dirHash": loaded.combine([core, ("app.py", "2" * 64)])},
            "openenv": {"dirHash": loaded.combine([core, ("a.py", "2" * 64), ("b.py", "2" * 64)])},
        },
        {**known, "examiner": {"dirHash": loaded.combine(run.examiner.items())}},
    ]
    assert seen == expected, explain(
        subject="subjects of a qualification of two gyms, one of two processes, and of a run with --broken",
        expected=expected,
        got=seen,
        cause="a defective gym would be attested to have passed, or one of two processes is left out",
    )


def test_an_environment_of_ones_own_is_not_called_the_lock(finished_run: Path) -> None:
    """The configuration MUST name a stack's lock by its digest, and an environment used as it is by its packages."""
    own = _stack("openenv").model_copy(update={"flags": environments.AS_IT_IS, "lock_sha256": "6" * 64})
    content = attestation.statement(_run(finished_run, stacks=(_stack("nemo"), own)), "0" * 64)["predicate"]
    seen = [(each["name"], each["digest"]) for each in content["configuration"][-2:]]
    expected = [("requirements/nemo.lock", {"sha256": "4" * 64}), ("packages of openenv", {"sha256": "6" * 64})]
    assert seen == expected, explain(
        subject="descriptors of a stack built from its lock and of one that its owner named",
        expected=expected,
        got=seen,
        cause="a digest is given out for that of a file that it is not of",
    )


def test_others_read_the_statement(finished_run: Path) -> None:
    """in-toto's own library MUST take the statement, its predicate and every descriptor without an unknown field."""
    text = (finished_run / STATEMENT).read_text()
    proto = statement_pb2.Statement()  # type: ignore[attr-defined]
    json_format.Parse(text, proto)
    Statement.copy_from_pb(proto).validate()
    result = test_result_pb2.TestResult()  # type: ignore[attr-defined]
    json_format.ParseDict(json_format.MessageToDict(proto.predicate), result)
    for descriptor in result.configuration:
        ResourceDescriptor.copy_from_pb(descriptor).validate()
    digest = sha256_file(finished_run / "manifest.json")
    seen = (proto.predicate_type, proto.subject[0].digest["sha256"], result.result, bool(result.passed_tests))
    assert seen == (attestation.PREDICATE, digest, "FAILED", True), explain(
        subject="predicate type, subject, result and passed tests of a run without a gym, as in-toto reads them",
        expected=(attestation.PREDICATE, digest, "FAILED", True),
        got=seen,
        cause="a field is misspelt or of another type than the specification's",
    )
