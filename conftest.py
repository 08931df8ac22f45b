"""The short options of this checkout: ``--gym`` for ``--gymqual-gym``, and so on.

An installed gymqual leaves these names to the projects that it is installed beside.
"""

import pytest

from gymqual.plugin import OPTIONS, destination

pytest_plugins = ["gymqual.plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("gymqual")
    for option, settings in OPTIONS.items():
        group.addoption(f"--{option}", dest=destination(option), **settings)
