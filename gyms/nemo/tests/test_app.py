"""Upstream's own session contract, run in process the way upstream's tools run a server's tests."""

from unittest.mock import MagicMock

from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.episode_types import EpisodeId, TaskId
from nemo_gym.server_utils import ServerClient
from nemo_gym.testing.session_conformance import check_resources_session_contract

from gymqual.gyms import loaded

loaded.install()

from gymqual.gyms.nemo import rows  # noqa: E402
from gymqual.gyms.nemo.models import GermanOrdersConfig  # noqa: E402
from gymqual.gyms.nemo.server import GermanOrdersServer  # noqa: E402


def test_the_server_keeps_upstreams_session_contract():
    """A repeated seed MUST return the same session, and a closed or refused id MUST stay closed."""
    config = GermanOrdersConfig(host="127.0.0.1", port=1, entrypoint="app.py", name="german_orders")
    server = GermanOrdersServer(config=config, server_client=MagicMock(spec=ServerClient))
    seed = ResourcesSeedSessionRequest(
        resources_session_id="conformance",
        episode_id=EpisodeId(rollout_id="conformance"),
        task_id=TaskId(taskset="german_orders", task_id="v1/dev/0/0"),
        task_data=rows.task_fields("v1/dev/0/0", server.identity().core),
    )
    check_resources_session_contract(server.setup_webserver(), seed, keeps_state=True)
