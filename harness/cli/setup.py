"""``gymqual setup``: the locked environment of a gym."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.stacks.environments import set_up
from gymqual.harness.stacks.specs import STACKS


def setup(
    gym: Annotated[str, Parameter(help="nemo, openenv or verifiers; all of them without one.")] = "all", /
) -> None:
    """Build the locked environment of a gym, unless it is there."""
    if gym != "all" and gym not in STACKS:
        raise HarnessError(f"{gym} is no gym with an environment; name one of {', '.join([*STACKS, 'all'])}")
    console = Console(highlight=False, soft_wrap=True)
    for name in STACKS if gym == "all" else [gym]:
        with console.status(f"{name}: looking for its stack") as status:

            def say(text: str) -> None:
                status.update(text)
                if not console.is_terminal:
                    console.print(text)

            stack = set_up(name, say)
        deviation = f"; deviation: {stack.deviation}" if stack.deviation else ""
        console.print(f"{name}: ready, CPython {stack.version}, {Path(stack.python).parent.parent}{deviation}")
