"""The fixtures of the NeMo checks, for upstream's own tools."""

from gymqual.qualification.fixtures.nemo import *  # noqa: F403
