"""Bad input: one sentence that names the thing and the fix, an exit code that is not 0, nothing lost."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gymqual.gyms.base import InfrastructureError
from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.launch import SECRET_VARIABLE
from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.records.errors import HarnessError, NotTestable
from gymqual.harness.records.files import ROOT
from gymqual.harness.stacks import environments, specs
from gymqual.harness.stacks.environments import find_stack
from gymqual.harness.stacks.services import start_nemo, start_openenv
from gymqual.qualification.support.commands import run_gymqual, run_module, run_pytest
from gymqual.trainer.runs.open_gym import opened_gym

pytestmark = pytest.mark.self_test


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A loopback port that a stranger listens on."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        yield stranger.getsockname()[1]


def _assert_refused(ran: "subprocess.CompletedProcess[str]", *named: str, code: int) -> None:
    said = ran.stdout + ran.stderr
    missing = [text for text in named if text not in said]
    assert (ran.returncode, missing, "Traceback" in said) == (code, [], False), explain(
        subject=" ".join(map(str, ran.args[1:])),
        expected=f"exit {code}, naming {named}, no traceback",
        got=(ran.returncode, said[-1500:]),
        cause="the input is used before it is checked",
    )


def test_an_unknown_gym_is_refused_by_pytest() -> None:
    """``--gym`` with an unknown name MUST say which there are."""
    _assert_refused(run_pytest("--gym", "nemmo"), "--gym: unknown gym 'nemmo'", "nemo, openenv, verifiers, all", code=4)


def test_a_gym_without_a_service_is_not_served() -> None:
    """``serve`` MUST say that a gym has no service of its own, and which have one."""
    ran = run_gymqual("serve", "verifiers", "--port", "18767")
    _assert_refused(ran, "verifiers has no service of its own", "nemo, openenv", code=2)


@pytest.mark.parametrize(
    ("content", "named"),
    [(None, "cannot be read"), (b"", "holds 0 of its rollouts"), (b'{"traces": [', "line 1, is no whole episode")],
    ids=["no file", "no rollout", "half a line"],
)
def test_a_folder_without_a_whole_run_is_not_classified(tmp_path: Path, content: bytes | None, named: str) -> None:
    """The classifier MUST tell a folder without a whole run from a run without failures."""
    if content is not None:
        (tmp_path / "traces.jsonl").write_bytes(content)
    _assert_refused(run_module("gymqual.gyms.verifiers.classify", tmp_path), "classify: ", named, code=2)


def test_a_folder_that_pytest_would_take_for_tests_is_refused(tmp_path: Path) -> None:
    """``--gymqual-reports DIR`` that leaves a project its settings unread MUST be refused, ``--reports=DIR`` work."""
    refused = run_pytest("--markers", "--gymqual-reports", tmp_path)
    accepted = run_pytest("--markers", f"--reports={tmp_path}")
    assert accepted.returncode == 0, accepted.stderr
    _assert_refused(refused, f"--gymqual-reports {tmp_path}", f"write --gymqual-reports={tmp_path}", code=4)


def test_an_unwritable_reports_folder_is_refused(tmp_path: Path) -> None:
    """``--reports`` that cannot be written MUST be refused before any check runs."""
    (tmp_path / "file").write_text("")
    ran = run_pytest("--reports", tmp_path / "file" / "reports", "qualification/german/test_arithmetic.py")
    _assert_refused(ran, "--reports: cannot write", "name a writable folder", code=4)


def test_an_option_of_another_bench_is_refused(tmp_path: Path) -> None:
    """``bench`` MUST name an option that its subject does not take, and measure nothing where it cannot write."""
    _assert_refused(run_gymqual("bench", "nemo", "--out", tmp_path), "gymqual bench nemo: ", "--out", code=2)
    _assert_refused(run_gymqual("bench", "throughput", "--quick"), "gymqual bench throughput: ", "--quick", code=2)
    (tmp_path / "file").write_text("")
    ran = run_gymqual("bench", "throughput", "--out", tmp_path / "file" / "out")
    _assert_refused(ran, "nothing can be written there; name a writable folder", code=2)


def test_a_check_without_its_stack_is_not_testable(tmp_path: Path) -> None:
    """A selected check whose stack is missing MUST fail as not testable and name the command that sets it up."""
    checks = "qualification/nemo/test_service.py"
    ran = run_pytest("--reports", tmp_path / "reports", checks, GYMQUAL_CACHE=str(tmp_path / "empty"))
    _assert_refused(ran, "Not testable: the nemo stack is not set up", "gymqual setup nemo", code=1)


def test_an_unknown_gym_is_refused_by_setup() -> None:
    """``setup`` of an unknown gym MUST say which there are."""
    _assert_refused(run_gymqual("setup", "nemmo"), "nemmo", "nemo", "all", code=2)


@pytest.mark.parametrize("path", ["/nowhere/python", "/bin/ls", sys.executable])
def test_a_wrong_interpreter_is_refused(path: str) -> None:
    """``GYMQUAL_NEMO_PYTHON`` that is missing, no CPython or too old MUST be refused by name."""
    ran = run_gymqual("setup", "nemo", GYMQUAL_NEMO_PYTHON=path)
    _assert_refused(ran, f"GYMQUAL_NEMO_PYTHON={path}", "3.13.14", code=2)


def test_an_unwritable_cache_is_refused(tmp_path: Path) -> None:
    """A cache that cannot be written MUST be refused with the variable that moves it."""
    (tmp_path / "file").write_text("")
    ran = run_gymqual("setup", "nemo", GYMQUAL_CACHE=str(tmp_path / "file"))
    _assert_refused(ran, "set GYMQUAL_CACHE to a writable folder", code=2)


def test_a_taken_port_is_refused(taken_port: int) -> None:
    """``serve`` on a taken port MUST be refused, and whoever holds it left alone."""
    ran = run_gymqual("serve", "nemo", "--port", str(taken_port))
    _assert_refused(ran, f"port {taken_port} is taken", "name another port", code=2)


@pytest.mark.parametrize("port", ["0", "70000", "-1"])
def test_an_impossible_port_is_refused(port: str) -> None:
    """``serve`` on a number that is no port MUST be refused."""
    _assert_refused(run_gymqual("serve", "nemo", "--port", port), f"port {port}", code=2)


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    """``verify`` of a directory that is no run MUST say so."""
    _assert_refused(run_gymqual("verify", tmp_path), "manifest.json is missing", "run it again", code=2)


def test_a_lock_that_does_not_resolve_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that cannot be installed MUST be named, with the end of the installer's log, and leave no stack."""
    lock = tmp_path / "requirements" / "nemo.lock"
    lock.parent.mkdir()
    lock.write_text(f"filelock==4.2.11 --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(specs, "ROOT", tmp_path)
    monkeypatch.setenv("GYMQUAL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(HarnessError) as refused:
        environments.set_up("nemo", lambda text: None)
    complete = list((tmp_path / "cache").rglob("complete.json"))
    named = all(text in str(refused.value) for text in ("could not install nemo.lock", "make lock", "Hash mismatch"))
    assert (named, complete) == (True, []), explain(
        subject="set-up from a lock with a wrong hash",
        expected=(True, []),
        got=(str(refused.value), complete),
        cause="the installer's failure was not looked at",
    )


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_setup_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    """A set-up that is interrupted MUST leave nothing that a later run takes for a stack."""
    monkeypatch.setenv("GYMQUAL_CACHE", str(tmp_path))
    command = [sys.executable, "-m", "gymqual", "setup", "nemo"]
    setup = subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        # A suite that runs in the background of a shell ignores it, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("stacks/nemo-*/pyvenv.cfg")) and time.monotonic() < deadline:
        time.sleep(0.02)
    setup.send_signal(ending)
    _, said = setup.communicate(timeout=60)
    with pytest.raises(NotTestable, match="gymqual setup nemo"):
        environments.find_stack("nemo")
    half_built = bool(list(tmp_path.glob("stacks/nemo-*/pyvenv.cfg")))
    assert (half_built, setup.returncode != 0, "Traceback" in said) == (True, True, False), explain(
        subject=f"set-up ended by {ending.name} half-way",
        expected="a half-built folder, an exit code that is not 0, no traceback",
        got=(half_built, setup.returncode, said[-800:]),
        cause="the marker of a complete stack is not written last",
    )


@pytest.mark.parametrize("path", ["/nowhere/python", "/bin/ls"])
def test_a_wrong_interpreter_of_the_bridge_is_refused(path: str) -> None:
    """``GYMQUAL_OPENENV_PYTHON`` that is missing or no CPython MUST be refused by name."""
    ran = run_gymqual("setup", "openenv", GYMQUAL_OPENENV_PYTHON=path)
    _assert_refused(ran, f"GYMQUAL_OPENENV_PYTHON={path}", "3.13.0", code=2)


@pytest.mark.parametrize(("served", "asked"), [("nemo", "openenv"), ("openenv", "nemo")])
def test_the_service_of_another_gym_is_refused(
    run: Run, served: str, asked: str, orders: GermanOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL of one gym's service given for another gym MUST be refused as a wrong service, by name."""
    start = {"nemo": start_nemo, "openenv": start_openenv}[served]
    service = start(find_stack(served), run.subject, run.owner, run.folder / f"taken-for-{asked}")
    monkeypatch.setenv(SECRET_VARIABLE, service.secret)
    try:
        with pytest.raises(InfrastructureError) as refused, opened_gym(asked, service.server.url, orders):
            pass
    finally:
        service.server.stop()
    assert (refused.value.kind, "NeMo" in str(refused.value) or "OpenEnv" in str(refused.value)) == (
        "protocol",
        True,
    ), explain(
        subject=f"the URL of a {served} service given for {asked}",
        expected=("protocol", "naming the gym"),
        got=str(refused.value),
        cause="whatever answers is taken for the service",
    )
