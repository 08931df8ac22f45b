"""Tasks as a pure function of (pool, split, seed, index).

A task shows a record id and a German question; the four quantities it needs are hidden in the record.
Splits never share a record id, nor a combination of the four quantities, whatever the seed: both are
assigned to a split by their own hash. The default pool is ``v1``; the others are parameters outside it.
"""

import hashlib
import math
import random
import re
from dataclasses import dataclass
from functools import lru_cache

SYSTEM_PROMPT = "Nutze zuerst lookup, dann calculator. Antworte nur mit der Zahl."

FIELDS = ("kisten", "stück", "lose", "defekt")
"""Keys of a record, in the fixed order in which lookup shows them."""

Quantities = tuple[int, int, int, int]
"""Boxes, pieces per box, loose pieces, defective pieces."""

# A split's share of record ids and of quantity combinations, out of 16.
SPLIT_SHARES = {"sft": 8, "train": 4, "dev": 2, "test": 2}

_LIMIT = 10**9
"""Seeds and indices are smaller, so that every task's id can be read back."""

_ITEMS = ("Schrauben", "Muttern", "Dübel", "Nägel")
_ORDERS = ("Lieferung", "Bestellung", "Sendung", "Partie")


@dataclass(frozen=True)
class Formula:
    """One question family: how it is asked and what its answer is."""

    name: str
    wordings: tuple[str, ...]
    expression: str
    """Template over the four quantities by field position, e.g. ``{0}*{1}-{3}``."""

    def write(self, quantities: Quantities) -> str:
        """Return the expression with this record's quantities in it."""
        return self.expression.format(*quantities)

    def solve(self, quantities: Quantities) -> int:
        """Return the right answer."""
        boxes, pieces, loose, defective = quantities
        return {
            "kisten": boxes * pieces,
            "mit_losen": boxes * pieces + loose,
            "ohne_defekte": boxes * pieces - defective,
            "gesamt": boxes * pieces + loose - defective,
        }[self.name]


FORMULAS = {
    formula.name: formula
    for formula in (
        Formula(
            "kisten",
            (
                "Wie viele {item} liegen in den Kisten der {order} {id}?",
                "Wie viele {item} ergeben alle Kisten der {order} {id}?",
                "{order} {id}: Wie viele {item} stecken in den Kisten?",
            ),
            "{0}*{1}",
        ),
        Formula(
            "mit_losen",
            (
                "Wie viele {item} enthält {order} {id} mit den losen?",
                "Wie viele {item} sind es in {order} {id} samt losen?",
                "{order} {id}: Wie viele {item} sind es mit den losen?",
            ),
            "{0}*{1}+{2}",
        ),
        Formula(
            "ohne_defekte",
            (
                "Wie viele {item} in {order} {id} sind ohne die defekten übrig?",
                "Wie viele {item} der {order} {id} bleiben ohne die defekten?",
                "{order} {id}: Wie viele {item} bleiben ohne die defekten?",
            ),
            "{0}*{1}-{3}",
        ),
        Formula(
            "gesamt",
            (
                "Wie viele {item} enthält {order} {id} mit den losen, ohne die defekten?",
                "{order} {id}: Wie viele {item} sind es mit den losen, ohne die defekten?",
            ),
            "{0}*{1}+{2}-{3}",
        ),
    )
}


@dataclass(frozen=True)
class Pool:
    """Which question families and number sizes tasks are drawn from."""

    name: str
    formulas: tuple[str, ...]
    ranges: tuple[tuple[int, int], ...]
    """Inclusive range of each quantity, in the order of FIELDS."""


V1_FORMULAS = ("kisten", "mit_losen", "ohne_defekte")
POOLS = {
    pool.name: pool
    for pool in (
        Pool("v1", V1_FORMULAS, ((2, 29), (2, 12), (1, 59), (1, 9))),
        Pool("extended", tuple(FORMULAS), ((20, 299), (20, 120), (10, 599), (10, 99))),
        # Quantities so long that finding one in a byte stream cannot be chance.
        Pool("canary", V1_FORMULAS, ((1_000_000, 9_999_999),) * 4),
    )
}


@dataclass(frozen=True)
class Task:
    """One task. Everything but ``quantities``, ``formula`` and ``answer`` may be shown to the model."""

    task_id: str
    pool: str
    split: str
    seed: int
    index: int
    record_id: str
    question: str
    formula: Formula
    quantities: Quantities

    @property
    def answer(self) -> int:
        """The number a strictly successful episode ends with."""
        return self.formula.solve(self.quantities)

    @property
    def prompt(self) -> list[dict[str, str]]:
        """Chat messages the model starts from."""
        return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": self.question}]


class UnknownTask(ValueError):
    """A task id that names no task."""


def make_task(split: str, seed: int, index: int, pool: str = "v1") -> Task:
    """Build the task; equal arguments give an equal task on every interpreter.

    Within one split and seed, consecutive indices have different record ids until the split's ids
    are used up. Raises UnknownTask for an unknown pool or split, or a seed or index outside 0 to 10**9 - 1.
    """
    if pool not in POOLS or split not in SPLIT_SHARES or not (0 <= seed < _LIMIT and 0 <= index < _LIMIT):
        raise UnknownTask(f"no such task: pool {pool!r}, split {split!r}, seed {seed}, index {index}")
    ids = _record_ids(split)
    order = _random("order", pool, split, seed)
    stride, offset = order.randrange(1, len(ids)), order.randrange(len(ids))
    while math.gcd(stride, len(ids)) != 1:
        stride += 1
    record_id = f"L-{ids[(stride * index + offset) % len(ids)]}"

    draw = _random("task", pool, split, seed, index)
    formula = FORMULAS[_pick(draw, POOLS[pool].formulas)]
    item, order_name, wording = _pick(draw, _ITEMS), _pick(draw, _ORDERS), _pick(draw, formula.wordings)
    while True:
        boxes, pieces, loose, defective = (draw.randrange(low, high + 1) for low, high in POOLS[pool].ranges)
        quantities = (boxes, pieces, loose, defective)
        # More defective pieces than there are would make the question senseless.
        if boxes * pieces > defective and _split_of("quantities", *quantities) == split:
            break
    return Task(
        task_id=f"{pool}/{split}/{seed}/{index}",
        pool=pool,
        split=split,
        seed=seed,
        index=index,
        record_id=record_id,
        question=wording.format(item=item, order=order_name, id=record_id),
        formula=formula,
        quantities=quantities,
    )


def find_task(task_id: str) -> Task:
    """Return the task that ``task_id`` names; raises UnknownTask."""
    match = re.fullmatch(r"([a-z0-9]+)/([a-z]+)/(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,8})", task_id, re.ASCII)
    if match is None:
        raise UnknownTask("a task id reads pool/split/seed/index, e.g. v1/train/43/0")
    return make_task(match[2], int(match[3]), int(match[4]), match[1])


@lru_cache(maxsize=len(SPLIT_SHARES))
def _record_ids(split: str) -> tuple[int, ...]:
    return tuple(number for number in range(1000, 10_000) if _split_of("record", number) == split)


def _split_of(kind: str, *values: int) -> str:
    slot = hashlib.sha256(f"{kind}:{values}".encode()).digest()[0] % 16
    for split, share in SPLIT_SHARES.items():
        slot -= share
        if slot < 0:
            return split
    raise AssertionError("the shares must add up to 16")


def _random(*parts: object) -> random.Random:
    # Only randrange is drawn from it: its algorithm is the same on Python 3.11 to 3.14.
    return random.Random(int.from_bytes(hashlib.sha256(repr(parts).encode()).digest(), "big"))


def _pick(draw: random.Random, options: tuple[str, ...]) -> str:
    return options[draw.randrange(len(options))]
