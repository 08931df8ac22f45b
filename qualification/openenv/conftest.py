"""Fixtures of the OpenEnv checks: the served subject and its bridge, healthy or defective."""

from collections.abc import Callable, Iterator
from shutil import copy2
from typing import Any

import httpx
import pytest

from gyms.base import TaskSet
from gyms.blocking import BlockingGym
from gyms.german_orders import GermanOrders
from gyms.openenv.client import OpenEnvGym
from gyms.openenv.launch import BRIDGE_MODULE, SERVER_MODULE
from harness.checks import Planted
from harness.files import ROOT
from harness.process import Server
from harness.run import Run
from harness.services import GymService, start_bridge, start_openenv
from harness.stage import Subject
from qualification.broken import clients
from qualification.openenv.wire import Wire, wired

Connect = Callable[..., BlockingGym]
Serve = Callable[..., GymService]
BridgeTo = Callable[..., Server]

BROKEN = ROOT / "qualification" / "broken"


@pytest.fixture(scope="session")
def serve(run: Run, pytestconfig: pytest.Config) -> Iterator[Serve]:
    """Start further OpenEnv servers: ``serve(subject=..., capacity=...)``; all are stopped at the end."""
    started: list[GymService] = []
    stack = run.stack("openenv")

    def start(subject: Subject | None = None, broken: bool = False, **settings: Any) -> GymService:
        subject = subject or run.subject
        module = SERVER_MODULE
        if pytestconfig.option.broken or broken:
            # The same server with a switch for one defect at a time.
            module = "gyms.openenv.broken_app"
            copy2(BROKEN / "openenv_app.py", subject.python_path / "gyms" / "openenv" / "broken_app.py")
            copy2(BROKEN / "served_core.py", subject.python_path / "gyms" / "broken_core.py")
        folder = run.folder / run.mine("servers") / f"openenv-{len(started)}"
        started.append(start_openenv(stack, subject, run.owner, folder, module=module, **settings))
        return started[-1]

    yield start
    for service in started:
        service.server.stop()


@pytest.fixture(scope="session")
def small_service(serve: Serve) -> GymService:
    """A server with room for three sessions, which frees one whose client answers no ping for a second or two."""
    return serve(capacity=3, ping_interval_s=1.0, ping_timeout_s=1.0)


@pytest.fixture(scope="session")
def bridge_to(run: Run, pytestconfig: pytest.Config) -> Iterator[BridgeTo]:
    """Start bridges: ``bridge_to(service)``, or ``bridge_to(service, url=...)`` through a proxy; stopped at the end."""
    started: list[Server] = []
    stack = run.stack("openenv")

    def start(service: GymService, url: str | None = None, subject: Subject | None = None) -> Server:
        subject = subject or run.subject
        module = BRIDGE_MODULE
        if pytestconfig.option.broken:
            module = "gyms.openenv.broken_bridge"
            copy2(BROKEN / "openenv_bridge.py", subject.python_path / "gyms" / "openenv" / "broken_bridge.py")
        folder = run.folder / run.mine("servers") / f"bridge-{len(started)}"
        started.append(
            start_bridge(
                stack, subject, run.owner, folder, url=url or service.server.url, secret=service.secret, module=module
            )
        )
        return started[-1]

    yield start
    for bridge in started:
        bridge.stop()


@pytest.fixture(scope="session")
def served(run: Run, serve: Serve, bridge_to: BridgeTo) -> tuple[GymService, Server]:
    """The server that most checks share and the bridge to it; both go on record, whatever is examined."""
    service = serve()
    bridge = bridge_to(service)
    with BlockingGym(OpenEnvGym(bridge.port, service.secret, GermanOrders(), blocking=True)) as gym:
        run.note_gym(gym.identity())
    return service, bridge


@pytest.fixture(scope="session")
def service(served: tuple[GymService, Server]) -> GymService:
    """The server that most checks share."""
    return served[0]


@pytest.fixture(scope="session")
def bridge(served: tuple[GymService, Server]) -> Server:
    """The bridge to the shared server."""
    return served[1]


@pytest.fixture(autouse=True)
def defect(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted | None]:
    """The defect planted for this test: a patch of the client, or a switch of the servers or bridges."""
    planted: Planted | None = getattr(request, "param", None)
    if planted is None or planted.defect in clients.DEFECTS:
        if planted:
            clients.DEFECTS[planted.defect](monkeypatch)
        yield planted
        return
    services = [request.getfixturevalue("service"), request.getfixturevalue("small_service")]
    # Bridges are processes that come and go; they look for their defect here.
    switch = run.folder / run.mine("servers") / "defect"
    switch.write_text(planted.defect)
    for each in services:
        _switch(each, planted.defect)
    yield planted
    switch.unlink()
    for each in services:
        _switch(each, "")


def _switch(service: GymService, name: str) -> None:
    url, headers = f"{service.server.url}/bridge/defect", service.bridge_headers
    httpx.post(url, json={"name": name}, headers=headers, trust_env=False).raise_for_status()


@pytest.fixture
def wire(service: GymService) -> Iterator[Wire]:
    """A raw WebSocket client of the shared server."""
    with wired(service) as opened:
        yield opened


@pytest.fixture
def small_wire(small_service: GymService) -> Iterator[Wire]:
    """A raw WebSocket client of the server with room for three."""
    with wired(small_service) as opened:
        yield opened


@pytest.fixture
def connect(service: GymService, bridge: Server, orders: GermanOrders) -> Iterator[Connect]:
    """Connect the trainer's client: ``connect(bridge, secret, deadline_s=...)``; all are closed at the end."""
    gyms: list[BlockingGym] = []

    def connect_to(
        to: Server | None = None, secret: str | None = None, tasks: TaskSet | None = None, **settings: Any
    ) -> BlockingGym:
        port, secret = (to or bridge).port, secret or service.secret
        gyms.append(BlockingGym(OpenEnvGym(port, secret, tasks or orders, blocking=True, **settings)))
        return gyms[-1]

    yield connect_to
    for gym in gyms:
        gym.close()
