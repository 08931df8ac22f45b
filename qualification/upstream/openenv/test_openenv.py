"""OpenEnv's own validator, pointed at our environment and at the running service."""

import json
import subprocess

import pytest

from gymqual.harness.plugin.evidence import Evidence
from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.server import child_environment
from gymqual.harness.stacks.services import GymService

pytestmark = [pytest.mark.gym("openenv"), pytest.mark.upstream]


def _validate(run: Run, *arguments: str) -> tuple[int, str]:
    """Run ``openenv validate``; return its exit code and what it printed."""
    python = run.stack("openenv").python
    command = [python, "-P", str(python).removesuffix("python") + "openenv", "validate", *arguments]
    home = run.folder / run.mine("validator")
    home.mkdir(exist_ok=True)
    environment = child_environment({"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(run.subject.python_path)}, home)
    ran = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def test_the_validator_passes_the_manifest_and_fails_nothing(run: Run, evidence: Evidence) -> None:
    """``openenv validate`` MUST pass static.manifest and fail nothing; what it skips goes on record."""
    code, printed = _validate(run, str(run.subject.package / "gyms" / "openenv"))
    marks = [line.split()[:2] for line in printed.splitlines() if line.split()[:1] in (["PASS"], ["FAIL"], ["SKIP"])]
    outcomes = {name: mark for mark, name in marks}
    evidence.attach("validate.txt", printed)
    evidence.measure(skipped=sorted(name for name, mark in outcomes.items() if mark == "SKIP"))
    failed = [name for name, mark in outcomes.items() if mark == "FAIL"]
    assert (code, outcomes.get("static.manifest"), failed) == (0, "PASS", []), explain(
        subject="exit code, static.manifest and failures of openenv validate",
        expected=(0, "PASS", []),
        got=(code, outcomes.get("static.manifest"), printed[-800:]),
        cause="openenv.yaml is not what upstream's schema demands",
    )


def test_the_validator_passes_the_running_service(run: Run, service: GymService, evidence: Evidence) -> None:
    """``openenv validate --url`` MUST pass all six of its checks of the running service."""
    code, printed = _validate(run, "--url", service.server.url)
    marks = [line.split()[0] for line in printed.splitlines() if line.startswith("  ")]
    passed = [mark for mark in marks if mark == "PASS"]
    evidence.attach("validate.txt", printed)
    evidence.measure(passed=len(passed), printed=json.dumps(printed))
    assert (code, len(passed), "FAIL" in marks) == (0, 6, False), explain(
        subject="exit code, passed and failed checks of openenv validate --url",
        expected=(0, 6, False),
        got=(code, len(passed), printed[-800:]),
        cause="an HTTP route that upstream's mode contract names is missing",
    )
