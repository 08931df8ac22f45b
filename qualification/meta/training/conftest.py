"""The fixtures of the training checks, for what examines the trainer."""

from gymqual.qualification.fixtures.pages import *  # noqa: F403
from gymqual.qualification.fixtures.serving import *  # noqa: F403
from gymqual.qualification.fixtures.training import *  # noqa: F403
