"""How every command ends its ``--help``: with an example to copy, and what its exit codes mean."""

from collections.abc import Mapping

UNDOABLE = "it could not be done; one sentence says why"


def ending(example: str, codes: Mapping[int, str]) -> str:
    """Return an epilog for ``argparse.RawDescriptionHelpFormatter``."""
    known = {**codes, 2: codes.get(2, UNDOABLE)}
    lines = "\n".join(f"  {code:<5}{meaning}" for code, meaning in sorted(known.items()))
    return f"example:\n  .venv/bin/python -m {example}\n\nexit codes:\n{lines}"
