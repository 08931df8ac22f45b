"""What runs: defects planted into checks, what is left out unless asked for, and what must be on record in the end."""

import os
import sys
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import pytest

from gymqual.harness.plugin.items import RUN, check_in, check_of, gym_of, planted_in, selected_gyms
from gymqual.harness.plugin.registry import REGISTRY, Check, Planted


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With ``--broken``, run a check once under each of its own defects and each of its neighbour's."""
    check = check_of(metafunc.function)
    if not metafunc.config.option.gymqual_broken or check is None:
        return
    neighbours = sorted((other for other in REGISTRY.values() if _module(other) == _module(check)), key=lambda c: c.id)
    following = neighbours[(neighbours.index(check) + 1) % len(neighbours)]
    planted = [Planted(defect, must_flag=True) for defect in check.defects]
    planted += [Planted(defect, must_flag=False) for defect in following.defects if defect not in check.defects]
    metafunc.parametrize("defect", planted, ids=[each.label for each in planted], indirect=True)


# First, so that pytest's own -m sees the mark that is set here.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect other gyms' checks, and GPU checks and those that lack their data unless they are named."""
    gyms = selected_gyms(config)
    kept, dropped = [], []
    for item in items:
        gym = gym_of(item)
        unwanted_gym = bool(config.option.gymqual_gym) and gym not in gyms
        unasked_gpu = item.get_closest_marker("gymqual_gpu_qualification") is not None and not _names_gpu(config, item)
        unasked_data = _lacks_data(config, item)
        unbroken = config.option.gymqual_broken and planted_in(item) is None
        (dropped if unwanted_gym or unasked_gpu or unasked_data or unbroken else kept).append(item)
    for item in kept:
        if config.option.gymqual_broken:
            item.add_marker("self_test")
            item.add_marker("gymqual_self_test")
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def pytest_collection_finish(session: pytest.Session) -> None:
    """Put on record which checks of every selected gym must have a record in the end."""
    run = session.config.stash.get(RUN, None)
    for item in session.items if run else ():
        gym, check = gym_of(item), check_in(item)
        if run and gym and check:
            run.register(gym, {check.id, *documented(gym, _module(check).rpartition(".")[0])})


@cache
def documented(gym: str, package: str) -> frozenset[str]:
    """Return the ids of a gym's documented checks: of all test modules beside a selected one, selected or not.

    Those of a module with the mark ``optional`` count where they were selected.
    """
    if not package:
        return frozenset()
    for module in iter_modules(sys.modules[package].__path__):
        if module.name.startswith("test_"):
            import_module(f"{package}.{module.name}")
    return frozenset(
        check.id
        for check in REGISTRY.values()
        if _module(check).startswith(f"{package}.") and _demands(_module(check), gym)
    )


def _demands(module: str, gym: str) -> bool:
    marks = getattr(sys.modules[module], "pytestmark", [])
    listed = marks if isinstance(marks, list) else [marks]
    named = {(mark.name.removeprefix("gymqual_"), *mark.args) for mark in listed}
    return ("gym", gym) in named and ("optional",) not in named


def _names_gpu(config: pytest.Config, item: pytest.Item) -> bool:
    return "gpu_qualification" in config.option.markexpr or _is_named(config, item)


def _is_named(config: pytest.Config, item: pytest.Item) -> bool:
    _, _, name = item.nodeid.partition("::")
    for argument in config.args:
        file, colons, start = argument.partition("::")
        # Written as a user may: from another folder, or as an absolute path.
        if colons and (config.invocation_params.dir / file).resolve() == item.path and name.startswith(start):
            return True
    return False


def _lacks_data(config: pytest.Config, item: pytest.Item) -> bool:
    """Return whether a check's data is missing and nobody asked for it; if asked, it fails as not testable."""
    marker = item.get_closest_marker("gymqual_needs_data")
    if marker is None or os.environ.get(marker.args[0]):
        return False
    # GYMQUAL_MGSM is asked for by -k mgsm.
    word = marker.args[0].removeprefix("GYMQUAL_").lower()
    asked = "needs_data" in config.option.markexpr or word in config.option.keyword.lower()
    return not asked and not _is_named(config, item)


def _module(check: Check) -> str:
    return check.test.partition(":")[0]
