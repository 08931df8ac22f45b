"""What upstream loads by the harness id ``fixture_harness``: scripted rollouts, or upstream's loop in this process.

A module of its own, named on the command line: a harness beside the taskset would become its default.
"""

from pathlib import Path

from gymqual.gyms import loaded

loaded.install()
loaded.record(Path(__file__))

from gymqual.gyms.verifiers.fixture import FixtureHarness  # noqa: E402

__all__ = ["FixtureHarness"]
