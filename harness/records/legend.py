"""The legend of a trace: what its ids say to people, in a file beside it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymqual.harness.records.errors import HarnessError

LEGEND = "legend.json"

PartOfCharacter = Annotated[
    dict[Literal["hex"], Annotated[str, Field(pattern=r"^([0-9a-f]{2})+$")]], Field(min_length=1)
]


class Legend(BaseModel):
    """What the ids of a trace say to people: a file beside it, by which nothing is trained or judged."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    format: Literal["gymqual.legend/1"] = "gymqual.legend/1"
    tokens: dict[int, str | PartOfCharacter]
    """Text of every token id; ``{"hex": ...}`` where its bytes are a part of a character."""
    families: dict[str, str]
    """Question family of every task, by its id."""

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that an id stands for; none if it is not in the legend."""
        text = self.tokens.get(token, "")
        return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else bytes.fromhex(text["hex"])


def read_legend(folder: Path) -> Legend | None:
    """Return the legend in a run directory, None where there is none; raises HarnessError for another file."""
    path = folder / LEGEND
    try:
        return Legend.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError, ValueError) as error:
        raise HarnessError(f"{path} is no legend of a trace ({str(error).splitlines()[0]})") from None
