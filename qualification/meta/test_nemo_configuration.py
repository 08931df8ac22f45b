"""NeMo Gym, configuration: what a server refuses to be started with."""

import json
import subprocess
from typing import Any

import pytest

from gymqual.gyms.nemo.launch import INSTANCE, NemoSettings
from gymqual.harness.plugin.registry import explain
from gymqual.harness.plugin.run import Run
from gymqual.harness.process.server import child_environment

pytestmark = [pytest.mark.gym("nemo"), pytest.mark.self_test]


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [("host", "0.0.0.0", "loopback"), ("capacity", 0, "capacity"), ("session_ttl_s", 0, "session_ttl_s")],
)
def test_a_wrong_setting_ends_the_server_by_name(run: Run, setting: str, value: Any, named: str) -> None:
    """A server MUST NOT come up beyond loopback, without room or with sessions that expire at once."""
    environment = NemoSettings(port=1, nonce="n", secret="s").environment()
    config = json.loads(environment["NEMO_GYM_CONFIG_DICT"])
    config[INSTANCE]["resources_servers"][INSTANCE][setting] = value
    environment |= {"NEMO_GYM_CONFIG_DICT": json.dumps(config), "PYTHONPATH": str(run.subject.python_path)}
    started = subprocess.run(
        [run.stack("nemo").python, "-P", str(run.subject.nemo_entry)],
        env=child_environment(environment, home=run.folder),
        cwd=run.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = started.stdout + started.stderr
    assert (started.returncode != 0, named in said) == (True, True), explain(
        subject=f"starting with {setting}={value!r}",
        expected=f"an exit code that is not 0, naming {named}",
        got=(started.returncode, said[-800:]),
        cause="the setting is taken without a look",
    )
