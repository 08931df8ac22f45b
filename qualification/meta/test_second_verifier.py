"""The audit's second verifier against the task core: two implementations, one task."""

import itertools
import json
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymqual.gyms.base import ToolCall
from gymqual.gyms.german import episode, tasks, tools
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.registry import explain
from gymqual.qualification.broken import german
from gymqual.qualification.support.german.expressions import expressions
from gymqual.qualification.support.german.tables import ANSWERS, HEAVY, HOSTILE, TABLE, malformed_calls
from gymqual.qualification.support.scenarios import HOSTILE_CALLS
from gymqual.trainer.replay import reference_verifier

pytestmark = pytest.mark.self_test

TASK_IDS = [f"{pool}/{split}/43/{index}" for pool in tasks.POOLS for split in tasks.SPLIT_SHARES for index in range(5)]
LONG_EPISODE = episode.MAX_CALLS + 2
Judge = Callable[..., reference_verifier.Judgement]


class Played(NamedTuple):
    """What either implementation is given."""

    task_id: str
    calls: Sequence[ToolCall]
    answer: str | None
    truncated: bool = False


def differences(
    episodes: Iterable[Played], judge: Judge = reference_verifier.judge
) -> Iterator[tuple[str, object, object]]:
    """Yield what the two say otherwise, as (call or episode, core's, second verifier's)."""
    for played in episodes:
        replay = GermanOrders().replay(*played)
        second = judge(played.task_id, [(c.tool, c.arguments) for c in played.calls], played.answer, played.truncated)
        verdict = replay.verdict
        core = (verdict.reward, verdict.strict, verdict.outcome, dict(verdict.parts), verdict.truncated)
        pairs: list[tuple[str, object, object]] = [
            (f"{call.tool[:20]}({call.arguments[:80]})", (shown.text, shown.is_error), seen)
            for call, shown, seen in itertools.zip_longest(played.calls, replay.observations, second.observations)
        ]
        told = (second.reward, second.strict, second.outcome, second.parts, second.truncated)
        pairs.append((f"{played.task_id}, {len(played.calls)} calls, answer {played.answer!r:.80}", core, told))
        yield from (pair for pair in pairs if pair[1] != pair[2])


def call(tool: str, value: str) -> ToolCall:
    return ToolCall(tool, json.dumps({tools.PARAMETERS[tool]: value}, ensure_ascii=False))


@cache
def tables() -> tuple[Played, ...]:
    """Every table, script and hostile call of the qualification, as episodes."""
    orders, played = GermanOrders(), []
    for task_id in TASK_IDS:
        played += [Played(task_id, script.calls, script.answer) for script in orders.scripts(task_id).values()]
    task_id = "canary/train/0/0"
    task = tasks.find_task(task_id)
    oracle = orders.scripts(task_id)["oracle"].calls
    right = task.answer
    for form in ANSWERS:
        text = form.format(
            plain=right, grouped=f"{right:,}".replace(",", "."), next=right + 1,
            expression=task.formula.write(task.quantities),
        )  # fmt: skip
        played += [Played(task_id, oracle, text, truncated) for truncated in (False, True)]
    played += [Played(task_id, oracle, text) for text in TABLE]
    played += [Played(task_id, oracle, str(right).ljust(length)) for length in (100, 101, 102)]
    broken = [ToolCall(*malformed) for malformed in malformed_calls(task.record_id)]
    texts = [*TABLE, *HOSTILE, *HEAVY]
    singles = [*broken, *HOSTILE_CALLS, *(call("calculator", text) for text in texts)]
    singles += [call("lookup", text) for text in texts]
    # Each call after the right lookup, so that what it does to the verdict shows as well.
    played += [Played(task_id, (oracle[0], single, oracle[1]), str(right)) for single in singles]
    # A number read otherwise shows in the result, or in what counts as revealed.
    played += [Played(task_id, (call("calculator", f"{form}+1"),), None) for form in TABLE]
    played.append(Played(task_id, [ToolCall("nachschlagen", "{}")] * (LONG_EPISODE - 2) + [*oracle], str(right)))
    played += [Played(task_id, (oracle[0], single, oracle[1]), str(right)) for single in bounds(task.record_id)]
    drawn = [tasks.make_task("train", 43, index) for index in range(500)]
    in_steps = next(task for task in drawn if task.formula.name == "mit_losen")
    copied = next(task for task in drawn if task.answer in task.quantities)
    return (*played, *ways(in_steps), *ways(copied))


def bounds(record_id: str) -> list[ToolCall]:
    """Calls at each bound and just beyond it."""
    right = call("lookup", record_id).arguments
    expressions = (
        "1+" * 99 + "11", "1+" * 99 + "111", "(" * 16 + "1" + ")" * 16, "(" * 17 + "1" + ")" * 17, "9" * 15, "9" * 16,
        "0," + "0" * 13 + "1", "0," + "0" * 14 + "1", *(f"1{'0' * 14}*1{'0' * 14}*1{'0' * n}" for n in range(8, 14)),
        "1." * 14 + "11", "1." * 15 + "1", *("1" + "/2" * n for n in range(34, 44)),
        *("1/7" + "/1000000" * n for n in range(4, 8)),
    )  # fmt: skip
    return [
        *(ToolCall("lookup", right + " " * (length - len(right))) for length in (2000, 2001)),
        *(ToolCall("lookup", right[:-1] + ',"x":' + "[" * depth + "]" * depth + "}") for depth in (14, 15, 16)),
        *(call("calculator", expression) for expression in expressions),
    ]


def ways(task: tasks.Task) -> list[Played]:
    """Every way of up to three steps towards a task's answer, and around it."""
    whole, product = task.formula.write(task.quantities), "*".join(map(str, task.quantities[:2]))
    boxes, pieces, *_ = task.quantities
    steps = [
        call("lookup", task.record_id), call("lookup", "L-1"), call("calculator", whole), call("calculator", product),
        call("calculator", f"{boxes * pieces}{whole.removeprefix(product)}"),
        call("calculator", f"({task.answer})"), call("calculator", f"{task.answer}*1"), ToolCall("lookup", "{"),
    ]  # fmt: skip
    return [
        Played(task.task_id, way, answer, truncated)
        for length in range(4)
        for way in itertools.product(steps, repeat=length)
        for answer, truncated in ((str(task.answer), False), (str(task.answer), True), ("0", False))
    ]


def short_expressions() -> list[Played]:
    """Every text of up to four characters over the calculator's alphabet."""
    texts = ("".join(way) for length in range(5) for way in itertools.product("01+-/(), .\u2212", repeat=length))
    return [Played("v1/train/0/0", [call("calculator", text) for text in batch], None) for batch in batched(texts, 60)]


def batched(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    source = iter(texts)
    while batch := list(itertools.islice(source, size)):
        yield batch


def disagreements(episodes: Iterable[Played]) -> list[tuple[str, object, object]]:
    """The first episodes that the two judge otherwise."""
    return list(itertools.islice(differences(episodes), 3))


def told(found: object) -> str:
    return explain(
        subject="episodes that core and second verifier judge otherwise, as (episode, core, second verifier)",
        expected="none",
        got=found,
        cause="one of the two departs from what the task's checks state",
    )


def test_the_second_verifier_agrees_with_the_core_on_every_table() -> None:
    found = disagreements(tables())
    assert found == [], told(found)


def test_the_second_verifier_agrees_with_the_core_on_every_short_expression() -> None:
    found = disagreements(short_expressions())
    assert found == [], told(found)


@st.composite
def random_episodes(draw: st.DrawFn) -> Played:
    """Episodes of steps on the way, near misses, and anything a policy may write."""
    task = tasks.find_task(draw(st.sampled_from(TASK_IDS)))
    numbers = [*map(str, task.quantities), str(task.answer), f"{task.answer:,}".replace(",", ".")]
    arithmetic = st.lists(st.sampled_from([*numbers, *"+-*/() ", "1"]), max_size=9).map("".join)
    noise = st.text("0123456789.,+-*/() \u2212\t\nx", max_size=40) | st.text(max_size=20)
    value = arithmetic | noise | expressions().map(lambda expression: expression.text)
    written = (
        st.just(call("lookup", task.record_id))
        | st.just(call("calculator", task.formula.write(task.quantities)))
        | st.builds(call, st.sampled_from(["lookup", "calculator"]), value)
        | st.builds(ToolCall, st.sampled_from(["lookup", "calculator", "", "Lookup"]), JSON_TEXTS)
        | st.sampled_from([ToolCall(*malformed) for malformed in malformed_calls(task.record_id)])
    )
    answers = st.sampled_from(numbers) | noise | st.sampled_from(sorted(TABLE)) | st.none()
    calls = draw(st.lists(written, max_size=6))
    return Played(task.task_id, calls * draw(st.sampled_from([1, 1, 1, 30])), draw(answers), draw(st.booleans()))


JSON_TEXTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["L-1", "1+1", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["record_id", "expression", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
).map(json.dumps)


@settings(max_examples=400)
@given(random_episodes())
def test_the_second_verifier_agrees_with_the_core_on_random_episodes(played: Played) -> None:
    found = disagreements([played])
    assert found == [], told(found)


@settings(max_examples=400)
@given(st.lists(expressions(), min_size=1, max_size=10))
def test_the_second_verifier_computes_what_the_core_computes(drawn: list[Any]) -> None:
    found = disagreements([Played("v1/train/0/0", [call("calculator", each.text) for each in drawn], None)])
    assert found == [], told(found)


# --- That the comparison can fail -------------------------------------------------------------------

CORE_DEFECTS = (
    german.naive_comma_swap, german.lenient_digits, german.float_arithmetic, german.unlimited_length,
    german.repaired_arguments, german.telling_errors,
)  # fmt: skip


@pytest.mark.parametrize("defect", CORE_DEFECTS, ids=lambda defect: defect.__name__)
def test_a_defect_of_the_core_is_a_difference(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = tables()
    defect(monkeypatch)

    assert any(differences(episodes))


MUTATIONS = {
    "a call more": ("CALLS_EXECUTED = 64", "CALLS_EXECUTED = 65"),
    "longer arguments": ("len(text) > 2000", "len(text) > 2001"),
    "deeper arguments": ('in "{[" for character in text) > 16', 'in "{[" for character in text) > 17'),
    "a key twice": ("len(set(keys)) < len(keys)", "False"),
    "NaN": (", parse_constant=_no_constant", ""),
    "another key": ("list(items) == [parameter]", "parameter in items"),
    "longer expression": ("len(expression) > 200", "len(expression) > 201"),
    "longer result": ("len(shown) > 40", "len(shown) > 41"),
    "deeper brackets": ("len(self.levels) > 16", "len(self.levels) > 17"),
    "longer number": ("len(digits + decimals) > 15", "len(digits + decimals) > 16"),
    "leading zero": ('(first[0] == "0" and first != "0")', "False"),
    "loose grouping": ("len(group) == 3 for", "len(group) >= 3 for"),
    "negative zero": ("-value if value else None", "-value"),
    "U+2212": ('_MINUS = ("-", "\\u2212")', '_MINUS = ("-", "-")'),
    "a minus adds": ('"-": operator.sub', '"-": operator.add'),
    "a sign that stays": ('self.factor, self.minus = "*", False', 'self.factor = "*"'),
    "division by zero": ("Division durch null", "Division durch 0"),
    "two signs": ("and not level.minus:", ":"),
    "foreign forgiven": ('("foreign_record", course.foreign)', '("foreign_record", False)'),
    "one literal is a calculation": ("len(literals) >= 2", "literals"),
    "guessed numbers": ("all(literal in self._known for literal in literals)", "True"),
    "nothing revealed by results": ("self._known.add(value)", "pass"),
    "truncation forgiven": ('("truncated", truncated)', '("truncated", False)'),
    "blanks": ('answer.strip(" \\t\\n")', "answer.strip()"),
    "longer answer": ("len(answer) > 100", "len(answer) > 300"),
    "lookup part with a foreign record": (
        "lookup = course.found and not course.foreign", "lookup = course.found",
    ),
    "errors uncounted": ("self.errors += 1", "pass"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_of_the_second_verifier_is_a_difference(mutation: str) -> None:
    before, after = MUTATIONS[mutation]
    source = Path(reference_verifier.__file__).read_text(encoding="utf-8")
    assert source.count(before) == 1, f"the text to change stands {source.count(before)} times"
    mutant = types.ModuleType("mutant")
    exec(compile(source.replace(before, after), mutant.__name__, "exec"), mutant.__dict__)

    assert any(differences(tables(), mutant.judge))
