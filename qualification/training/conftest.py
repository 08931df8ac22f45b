"""Fixtures of the training checks, and what becomes of them where training is not installed."""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.checks import Planted
from harness.errors import NotTestable

if TYPE_CHECKING:
    from qualification.training.small_experiment import Freeze
    from trainer.policy import Policy

MISSING = [name for name in ("torch", "transformers", "trl", "peft") if find_spec(name) is None]


class UntestableModule(pytest.Module):
    """A module that cannot be imported here: if it is selected it fails with the fix, it does not vanish."""

    def collect(self) -> Iterable[pytest.Item]:
        """Return one case that says what is missing."""
        item = UntestableItem.from_parent(self, name="training_environment")
        item.add_marker("cpu_qualification")
        yield item


class UntestableItem(pytest.Item):
    """Fails as not testable."""

    def runtest(self) -> None:
        """Fail."""
        raise NotTestable(f"training needs {', '.join(MISSING)}; run: make setup-train")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Collect modules of this folder as untestable where training is not installed."""
    return UntestableModule.from_parent(parent, path=module_path) if MISSING else None


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """One torch thread: results in bits depend on how sums are split."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def mini() -> "Policy":
    """The embedded policy."""
    from trainer.policy import load_policy

    return load_policy("mini")


@pytest.fixture(scope="session")
def policy_name(request: pytest.FixtureRequest) -> str:
    """The policy that training checks train, from ``--policy``."""
    return request.config.option.policy


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> "Freeze":
    """Freezes small experiments, whose trainings play their tasks in this process."""
    from qualification.training.small_experiment import freezing

    return freezing(monkeypatch)


@pytest.fixture(autouse=True)
def defect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Planted | None:
    """The defect planted for this test: a patch of the policy code."""
    planted: Planted | None = getattr(request, "param", None)
    if planted is not None:
        from qualification.broken import audits, generation, policies, training

        {**policies.DEFECTS, **training.DEFECTS, **audits.DEFECTS, **generation.DEFECTS}[planted.defect](monkeypatch)
    return planted
