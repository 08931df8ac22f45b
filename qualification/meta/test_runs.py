"""Whole runs: they need no network once set up, and come to the same in parallel."""

import subprocess
import sys
from pathlib import Path

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records import manifest
from gymqual.harness.records.errors import NotTestable
from gymqual.harness.records.files import ROOT
from gymqual.qualification.support.commands import run_gymqual, run_pytest

pytestmark = [pytest.mark.self_test, pytest.mark.slow, pytest.mark.timeout(600)]

# A fresh network namespace has a loopback device, but it is down.
LOOPBACK_UP_THEN = """
import fcntl, os, socket, struct, sys
with socket.socket() as control:
    request = struct.pack("16sh14x", b"lo", 0)
    flags = struct.unpack("16sh14x", fcntl.ioctl(control, 0x8913, request))[1]
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", flags | 1))
os.execvp(sys.argv[1], sys.argv[1:])
"""


def _outcomes(reports: Path) -> tuple[dict[str, str], int]:
    """Return the outcome of every check of the one run in a folder, and the exit code of its verification."""
    (folder,) = reports.iterdir()
    return {record.id: record.outcome for record in manifest.read(folder).checks}, run_gymqual(
        "verify", folder
    ).returncode


@pytest.mark.parametrize("gym", [pytest.param(gym, marks=pytest.mark.gym(gym)) for gym in ("nemo", "verifiers")])
def test_qualification_needs_no_network(gym: str, tmp_path: Path) -> None:
    """After set-up, the README's command MUST qualify the gym on a machine without any network."""
    if subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode:
        raise NotTestable("this kernel gives no network namespace to a user; run as root or allow user namespaces")
    make = ["make", "qualify", f"GYM={gym}", f"PYTEST_ARGS=--reports {tmp_path / 'reports'}"]
    ran = subprocess.run(
        ["unshare", "-rn", sys.executable, "-c", LOOPBACK_UP_THEN, *make],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert (ran.returncode, f"QUALIFIED: {gym}" in ran.stdout) == (0, True), explain(
        subject=f"make qualify GYM={gym} in a network namespace with loopback alone",
        expected=(0, f"QUALIFIED: {gym}"),
        got=(ran.returncode, (ran.stdout + ran.stderr)[-3000:]),
        cause="set-up, server or client reaches for the network",
    )


@pytest.mark.gym("nemo")
def test_a_parallel_run_comes_to_the_same(tmp_path: Path) -> None:
    """Two workers MUST give the outcomes of one, in one manifest that verifies."""
    seen = {}
    for name, options in (("serial", ()), ("parallel", ("-n", "2", "--dist", "loadgroup"))):
        run_pytest("--reports", tmp_path / name, "-m", "cpu_smoke", *options)
        seen[name] = _outcomes(tmp_path / name)
    outcomes, verified = seen["serial"]
    assert (seen["parallel"], verified, set(outcomes.values())) == (seen["serial"], 0, {"passed"}), explain(
        subject="outcomes by check, and exit code of gymqual verify, with one worker and with two",
        expected=seen["serial"],
        got=seen["parallel"],
        cause="checks share state across workers, or a worker's records do not arrive",
    )
