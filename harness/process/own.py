"""Running the product's own commands as processes: by name, so that no module here needs to know who does the work."""

import os
import sys

from gymqual.harness.records.files import IMPORT_ROOT


def own_command(*arguments: str) -> list[str]:
    """Return the command line of ``gymqual ARGUMENTS``; whatever lies in the working folder is not imported by it."""
    return [sys.executable, "-P", "-m", "gymqual", *arguments]


def own_environment(**further: str) -> dict[str, str]:
    """Return this process's environment with this very product importable, and further variables."""
    path = os.pathsep.join(filter(None, [str(IMPORT_ROOT), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, **further}
