"""Fixtures of the NeMo checks."""

from gymqual.qualification.fixtures.nemo import *  # noqa: F403
