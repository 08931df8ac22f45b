"""What the token ids and task ids of a trace say to people, so that a page can show them without a tokenizer.

``legend.json`` stands in the run directory and is derived again by the replay audit. Nothing is trained or judged
by it.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers.convert_slow_tokenizer import bytes_to_unicode

from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.records.legend import Legend, PartOfCharacter
from gymqual.harness.records.trace import Call, Episode, Record, Row, read_trace

_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}
"""How byte-level vocabularies write bytes."""


def of_run(trace: Path, tokenizer: Any) -> Legend:
    """Return the legend of a trace: the text of every id in it, and the question family of every task."""
    return of_records(read_trace(trace), tokenizer)


def of_records(records: Iterable[Record], tokenizer: Any) -> Legend:
    """Return the legend of records; see ``of_run``."""
    ids: set[int] = set()
    tasks: set[str] = set()
    for record in records:
        match record:
            case Call():
                ids.update(record.context, record.sampled)
            case Row():
                ids.update(record.prompt, record.completion)
            case Episode():
                tasks.add(record.task_id)
            case _:
                pass
    names = GermanOrders()
    return Legend(
        tokens={token: _text(tokenizer, token) for token in sorted(ids)},
        families={task: names.family(task) for task in sorted(tasks)},
    )


def _text(tokenizer: Any, token: int) -> str | PartOfCharacter:
    """Return what an id stands for: its text, or its bytes where they are a part of a character."""
    text = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
    entry = str(tokenizer.convert_ids_to_tokens(token))
    if "\ufffd" in text:
        written = bytes(_BYTES[character] for character in entry) if set(entry) <= _BYTES.keys() else entry.encode()
        return {"hex": written.hex()}
    # SentencePiece writes a blank so, and decodes it to nothing at the beginning of a text.
    return entry.replace("\u2581", " ") if "\u2581" in entry else text
