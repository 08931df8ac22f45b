"""What upstream loads by the id ``verifiers_environment``: the taskset and the env that plays it.

Staged as a top-level module beside the ``gyms`` package; upstream finds both on ``PYTHONPATH``. No harness
stands in ``__all__``: upstream would silently make it the default.
"""

from pathlib import Path

from gymqual.gyms import loaded

loaded.install()
loaded.record(Path(__file__))

from gymqual.gyms.verifiers.offline import use_this_interpreter_for_the_chat_program  # noqa: E402
from gymqual.gyms.verifiers.taskset import GermanOrdersEnv, GermanOrdersTaskset  # noqa: E402

use_this_interpreter_for_the_chat_program()

__all__ = ["GermanOrdersEnv", "GermanOrdersTaskset"]
