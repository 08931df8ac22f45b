"""Fixtures of the training checks."""

from gymqual.qualification.fixtures.training import *  # noqa: F403
