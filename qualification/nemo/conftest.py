"""Fixtures of the NeMo checks: the served subject, healthy or defective, and clean-up by count."""

from collections.abc import Callable, Iterator
from shutil import copy2
from typing import Any

import httpx
import pytest

from gyms.base import TaskSet
from gyms.blocking import BlockingGym
from gyms.german_orders import GermanOrders
from gyms.nemo.client import NemoGym
from harness.checks import Planted
from harness.files import ROOT
from harness.run import Run
from harness.services import GymService, start_nemo
from harness.stage import Subject
from qualification.broken import clients
from qualification.nemo.wire import Wire

Connect = Callable[..., BlockingGym]
Serve = Callable[..., GymService]

BROKEN = ROOT / "qualification" / "broken"


@pytest.fixture(scope="session")
def serve(run: Run, pytestconfig: pytest.Config) -> Iterator[Serve]:
    """Start further NeMo servers: ``serve(subject=..., capacity=...)``; all are stopped at the end."""
    started: list[GymService] = []
    stack = run.stack("nemo")

    def start(subject: Subject | None = None, **settings: Any) -> GymService:
        subject = subject or run.subject
        entry = subject.nemo_entry
        if pytestconfig.option.broken:
            # The same server with a switch for one defect at a time.
            entry = entry.with_name("broken_app.py")
            copy2(BROKEN / "nemo_app.py", entry)
            copy2(BROKEN / "served_core.py", subject.python_path / "gyms" / "broken_core.py")
        folder = run.folder / run.mine("servers") / f"nemo-{len(started)}"
        service = start_nemo(stack, subject, run.owner, folder, entry=entry, **settings)
        started.append(service)
        return service

    yield start
    for service in started:
        service.server.stop()


@pytest.fixture(scope="session")
def service(run: Run, serve: Serve) -> GymService:
    """The server that most checks share."""
    served = serve()
    run.note_gym(served.identity)
    return served


@pytest.fixture(scope="session")
def small_service(serve: Serve) -> GymService:
    """A server with room for three sessions, which it gives up after three seconds without a call."""
    return serve(capacity=3, session_ttl_s=3.0)


@pytest.fixture(autouse=True)
def defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Planted | None]:
    """The defect planted for this test: a patch of the client, or a switch of the servers that checks share."""
    planted: Planted | None = getattr(request, "param", None)
    if planted is None or planted.defect in clients.DEFECTS:
        if planted:
            clients.DEFECTS[planted.defect](monkeypatch)
        yield planted
        return
    services = [request.getfixturevalue("service"), request.getfixturevalue("small_service")]
    for each in services:
        _switch(each, planted.defect)
    yield planted
    for each in services:
        _switch(each, "")


def _switch(service: GymService, name: str) -> None:
    answer = httpx.post(
        f"{service.server.url}/bridge/defect", json={"name": name}, headers=service.bridge_headers, trust_env=False
    )
    answer.raise_for_status()


@pytest.fixture
def nemo(service: GymService) -> Wire:
    """A raw HTTP client of the shared server."""
    return Wire(service)


@pytest.fixture
def connect(service: GymService, orders: GermanOrders) -> Iterator[Connect]:
    """Connect the trainer's client: ``connect(service, url=..., deadline_s=...)``; all are closed at the end."""
    gyms: list[BlockingGym] = []

    def connect_to(
        to: GymService | None = None, url: str | None = None, tasks: TaskSet | None = None, **settings: Any
    ) -> BlockingGym:
        to = to or service
        client = NemoGym(url or to.server.url, to.secret, tasks or orders, blocking=True, **settings)
        gyms.append(BlockingGym(client))
        return gyms[-1]

    yield connect_to
    for gym in gyms:
        gym.close()
