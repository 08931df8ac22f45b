"""Fixtures of the Verifiers checks."""

from gymqual.qualification.fixtures.verifiers import *  # noqa: F403
