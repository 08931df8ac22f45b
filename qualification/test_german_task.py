"""The German task core: exact numbers, bounded work, separate splits, one verdict, nothing given away.

The core is what every gym serves and what every verdict is replayed with, so these checks need no gym.
"""

import ast
import hashlib
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from babel.numbers import format_decimal
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from simpleeval import simple_eval

import gyms
from gyms.german import calculator, episode, numbers, tasks, tools, verifier
from gyms.german.calculator import MAX_CHARS, MAX_RESULT_CHARS
from gyms.german.numbers import MAX_DIGITS
from gyms.german_orders import GermanOrders
from harness.checks import check, explain
from qualification.german.expressions import Expression, counted, expressions
from qualification.german.tables import (
    ANSWERS,
    CALL_REFUSALS,
    HEAVY,
    HOSTILE,
    OUTCOMES,
    REFUSED,
    TABLE,
    Reading,
    malformed_calls,
)

pytestmark = pytest.mark.cpu_smoke

ROOT = Path(gyms.__file__).resolve().parents[1]
# For checks whose message names the culprit already: a smaller failing draw would say no more, and cost minutes.
UNSHRUNK = (Phase.explicit, Phase.generate)


def reading(text: str) -> Reading:
    """What a text is read as: its exact value, or REFUSED."""
    try:
        return numbers.parse(text)
    except numbers.NumberError:
        return REFUSED


def differences(expected: dict[Any, Any], got: dict[Any, Any]) -> dict[Any, tuple[Any, Any]]:
    """The rows of a table that came out otherwise, as (expected, got)."""
    return {key: (expected.get(key), got.get(key)) for key in expected | got if expected.get(key) != got.get(key)}


# --- Numbers ---------------------------------------------------------------------------------------


@st.composite
def terminating_values(draw: st.DrawFn) -> Decimal:
    """Decimals that are written with at most MAX_DIGITS digits, a leading zero included."""
    places = draw(st.integers(0, MAX_DIGITS - 1))
    digits = draw(st.integers(-(10**MAX_DIGITS - 1), 10**MAX_DIGITS - 1))
    return Decimal(digits).scaleb(-places)


@check("TASK-01", broken="naive_comma_swap")
@given(terminating_values())
def test_a_written_number_reads_back_as_itself(value: Decimal) -> None:
    """A terminating value of at most MAX_DIGITS digits MUST read back exactly, plain or with thousands points."""
    exact = Fraction(value)
    # Babel is asked to write, never to read: its reader takes 1.5 for fifteen.
    plain, grouped = numbers.render(exact), format_decimal(value, locale="de", decimal_quantization=False)

    got = {text: reading(text) for text in (plain, grouped)}

    assert set(got.values()) == {exact}, explain(
        subject=f"the value {value} in German",
        expected=exact,
        got=got,
        cause="points and commas are not read by the table of gyms/german/numbers.py",
    )


@check("TASK-02", broken="lenient_digits")
def test_every_form_of_a_number_has_its_stated_reading() -> None:
    """Every form in the table MUST have exactly its stated value, or be refused."""
    got = {text: reading(text) for text in TABLE}

    assert got == TABLE, explain(
        subject="forms read otherwise than the table states, as (expected, got)",
        expected="none",
        got=differences(TABLE, got),
        cause="the number pattern accepts or refuses more than its docstring says",
    )


# --- Calculator ------------------------------------------------------------------------------------


def calculated(text: str) -> tuple[Reading, tuple[Fraction, ...]]:
    """The calculator's value and the literals it read; (REFUSED, ()) if it refuses."""
    try:
        calculation = calculator.evaluate(text)
    except calculator.CalculatorError:
        return REFUSED, ()
    except ArithmeticError as error:
        return repr(error), ()
    return calculation.value, calculation.literals


@check("TASK-03", broken="float_arithmetic")
@settings(max_examples=300)
@given(expressions())
def test_the_calculator_computes_exactly(expression: Expression) -> None:
    """An expression MUST evaluate to the exact value of its tree, and of Python's own reading where that applies."""
    shown = REFUSED if expression.value == REFUSED else numbers.render(Fraction(expression.value))
    assume(len(shown) <= MAX_RESULT_CHARS and len(expression.text) <= MAX_CHARS)
    oracle = Fraction(simple_eval(expression.text)) if expression.plain else expression.value
    expected = (expression.value, () if expression.value == REFUSED else expression.literals)

    got = calculated(expression.text)

    assert (got, got[0]) == (expected, oracle), explain(
        subject=f"calculator({expression.text})",
        expected=expected,
        got=got,
        cause="inexact arithmetic, or precedence or signs other than in arithmetic",
    )


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("0,1+0,2", "0,3"),
        ("1,5+2,5", "4"),
        ("1.000*2", "2000"),
        ("2--3", "5"),
        ("\u22122*-3", "6"),
        ("1/3*3", "1"),
        ("1/3", "1/3"),
        ("-7/2", "-3,5"),
        (" 17 * (4 - 1) ", "51"),
        ("2-3-4", "-5"),
        ("12/3/2", "2"),
    ],
)
def test_the_calculator_shows_a_plain_german_number(expression: str, shown: str) -> None:
    assert calculator.evaluate(expression).text == shown


@pytest.mark.parametrize(
    ("within", "beyond", "refusal"),
    [
        ("1+" * 99 + "11", "1+" * 99 + "111", "Ausdruck zu lang"),
        ("(" * 16 + "1" + ")" * 16, "(" * 17 + "1" + ")" * 17, "zu viele Klammern"),
        ("9" * 15, "9" * 16, "Zahl zu lang"),
        ("100000000000000*" * 2 + "10000000000", "100000000000000*" * 2 + "1000000000000", "Ergebnis zu lang"),
        ("1/8192/8192", "1/8192/8192/8192", "Ergebnis zu lang"),
    ],
)
def test_each_bound_of_the_calculator_refuses_what_lies_just_beyond(within: str, beyond: str, refusal: str) -> None:
    calculator.evaluate(within)

    with pytest.raises(calculator.CalculatorError) as refused:
        calculator.evaluate(beyond)

    assert str(refused.value) == refusal


@check("TASK-04", broken="unlimited_length")
@settings(phases=UNSHRUNK)
@given(st.lists(st.text(max_size=300) | st.text("0123456789.,+-*/() \u2212", max_size=210), max_size=5))
def test_no_text_costs_more_than_bounded_work(texts: list[str]) -> None:
    """Whatever is written, the calculator MUST do at most 2 * MAX_CHARS operations and answer in its own words."""
    works = {text: counted(text) for text in (*HOSTILE, *HEAVY, *texts)}

    faults = {text[:60]: fault for text, work in works.items() if (fault := work.fault(text in HOSTILE))}

    assert not faults, explain(
        subject="expressions that cost too much or were answered with something else",
        expected="none",
        got=faults,
        cause="work starts before the text is known to be small, or an error repeats what was written",
    )


# --- Tasks -----------------------------------------------------------------------------------------


@check("TASK-05", broken="shared_records")
@settings(max_examples=20, phases=UNSHRUNK)
@given(
    st.fixed_dictionaries(
        {
            split: st.tuples(st.sampled_from(sorted(tasks.POOLS)), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1))
            for split in tasks.SPLIT_SHARES
        }
    )
)
def test_splits_share_neither_records_nor_quantities(draws: dict[str, tuple[str, int, int]]) -> None:
    """Splits MUST share no record id and no quantities, whatever the seeds, and a run of tasks repeats no id."""
    length = 250
    owners: dict[object, set[str]] = {}
    for split, (pool, seed, first) in draws.items():
        for index in range(first, first + length):
            task = tasks.make_task(split, seed, index, pool)
            owners.setdefault(task.record_id, set()).add(split)
            owners.setdefault(task.quantities, set()).add(split)

    shared = [key for key, splits in owners.items() if len(splits) > 1]
    records = sum(isinstance(key, str) for key in owners)

    assert (shared, records) == ([], length * len(draws)), explain(
        subject=f"{length} tasks of each split, drawn with (pool, seed, first index) {draws}",
        expected=f"nothing shared and {length * len(draws)} different records",
        got=f"{len(shared)} shared ({shared[:5]}) and {records} different records",
        cause="a split is not a property of the record and the quantities themselves",
    )


@pytest.mark.parametrize("split", tasks.SPLIT_SHARES)
def test_a_split_uses_each_of_its_records_once_before_it_repeats_one(split: str) -> None:
    ids = [number for number in range(1000, 10_000) if tasks._split_of("record", number) == split]

    drawn = [tasks.make_task(split, 7, index).record_id for index in range(len(ids))]

    assert sorted(drawn) == [f"L-{number}" for number in ids]


@pytest.mark.parametrize(
    "task_id",
    [
        "", "v1", "v1/train/43", "v1/train/43/0/0", "v1/train/043/0", "v1/train/-1/0", "V1/train/43/0", "v2/train/43/0",
        "v1/eval/43/0", "v1/train/٤/0", "v1/train/43/0\n", " v1/train/43/0", "v1/train/1e3/0", "v1/train/1/9999999999",
    ],
)  # fmt: skip
def test_a_task_id_in_another_form_names_no_task(task_id: str) -> None:
    with pytest.raises(tasks.UnknownTask):
        tasks.find_task(task_id)


def task_digests() -> dict[str, str]:
    """Digest of the first 50 tasks of each split in every pool, with all that is shown of them.

    Its source runs in other interpreters too, hence the imports in the body.
    """
    import hashlib

    from gyms.german.tasks import POOLS, SPLIT_SHARES, find_task
    from gyms.german.tools import Call, as_json, observe

    digests = {}
    for split in SPLIT_SHARES:
        lines = []
        for task in (find_task(f"{pool}/{split}/43/{index}") for pool in sorted(POOLS) for index in range(50)):
            look = observe(task, Call("lookup", as_json({"record_id": task.record_id})))
            result = observe(task, Call("calculator", as_json({"expression": task.formula.write(task.quantities)})))
            lines.append(repr((task.task_id, task.record_id, task.prompt, task.answer, tuple(look), tuple(result))))
        digests[split] = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return digests


FIRST_TASKS = {
    "sft": "580fa6281afe30e3e04c37190cbc330c842a584b8010e306df8b9e6de2c523f2",
    "train": "2107499b6f2528b7f8408f2ecd66eea53c3aad03bbed7048ca61d6478c566788",
    "dev": "623e0d8c18e1b0a95ccc44dbd3c86bfd29570581039ea29a612110867a1ea17d",
    "test": "e5adeec0f222c9d199cc9e035a20e7ba88fe9c4711917f057d84a701a2e802e1",
}


def run_python(python: str, program: str, hash_seed: str) -> str | None:
    """What a fresh interpreter prints, None if it does not run the program."""
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "PYTHONPATH": str(ROOT),
        "PYTHONHASHSEED": hash_seed,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run([python, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    return done.stdout if done.returncode == 0 else None


def interpreters() -> list[str]:
    """This interpreter and every other CPython 3.11 to 3.14 at hand."""
    # pyenv's own folders stand first: its stubs on PATH start only the versions that are switched on.
    path = os.pathsep.join([*map(str, Path.home().glob(".pyenv/versions/*/bin")), os.environ.get("PATH", "")])
    found = [shutil.which(f"python3.{minor}", path=path) for minor in range(11, 15)]
    name = "import sys; print(sys.implementation.name)"
    return [sys.executable, *(python for python in found if python and run_python(python, name, "0") == "cpython\n")]


@check("TASK-06", broken="salted_hash")
def test_a_task_is_the_same_in_every_interpreter() -> None:
    """A task id MUST name the same task, byte for byte, in every process, hash seed and Python version."""
    program = f"{inspect.getsource(task_digests)}\nimport json\nprint(json.dumps(task_digests()))"
    printed = {python: run_python(python, program, str(seed)) for seed, python in enumerate(interpreters(), start=1)}

    got = {"this process": task_digests(), **{python: json.loads(text or "{}") for python, text in printed.items()}}

    assert all(digests == FIRST_TASKS for digests in got.values()), explain(
        subject="the first 50 tasks of each split in every pool, seed 43",
        expected=FIRST_TASKS,
        got=got,
        cause="a draw depends on hash(), set order or a library function that changed, or the tasks were edited",
    )


# --- Episode ---------------------------------------------------------------------------------------


def arguments(tool: str, value: str) -> str:
    """The JSON text of a well-formed call's arguments."""
    return json.dumps({tools.PARAMETERS[tool]: value}, ensure_ascii=False)


def grouped(number: int) -> str:
    return f"{number:,}".replace(",", ".")


class Ledger:
    """Strict success, told call by call from the text of the MUST and without the core's judgement."""

    def __init__(self, task: tasks.Task) -> None:
        self.task = task
        self.revealed: set[Fraction] = set()
        self.right_record = self.other_record = self.right_value = False

    def follow(self, tool: str, value: str) -> None:
        """Take in one well-formed call."""
        if tool == "lookup":
            self.right_record |= value == self.task.record_id
            self.other_record |= value != self.task.record_id
            self.revealed |= {Fraction(number) for number in self.task.quantities if self.right_record}
            return
        literals, result = [Fraction(number) for number in re.findall("[0-9]+", value)], Fraction(simple_eval(value))
        if len(literals) > 1 and self.revealed.issuperset(literals):
            self.revealed.add(result)
            self.right_value |= result == self.task.answer

    def succeeds(self, right_answer: bool) -> bool:
        return self.right_record and not self.other_record and self.right_value and right_answer


# The whole way at once and in two steps, each way around it, and a wrong one.
STEPS = (
    ("lookup", "{id}"), ("lookup", "{id}0"), ("calculator", "{formula}"), ("calculator", "{0}*{1}"),
    ("calculator", "{product}{rest}"), ("calculator", "{right}*1"), ("calculator", "{0}+{1}"),
)  # fmt: skip


def step(task: tasks.Task, tool: str, form: str) -> tuple[str, str]:
    """The tool and the text of one of STEPS for this task."""
    formula = task.formula.write(task.quantities)
    first = "*".join(map(str, task.quantities[:2]))
    product, rest = str(simple_eval(first)), formula.removeprefix(first) or "*1"
    return tool, form.format(
        *task.quantities, id=task.record_id, formula=formula, product=product, rest=rest, right=task.answer
    )


class EpisodeMachine(RuleBasedStateMachine):
    """Random episodes beside a model of them that is written from the MUST text alone."""

    def __init__(self) -> None:
        super().__init__()
        self.task = tasks.make_task("train", 0, 0)
        self.episode = episode.Episode(self.task)
        self.sent: list[tuple[tools.Call, tools.Observation]] = []
        self.ledger = Ledger(self.task)
        self.verdict: verifier.Verdict | None = None
        self.faults: list[str] = []
        self.length = 0

    def compare(self, subject: str, expected: object, got: object) -> None:
        if expected != got:
            self.faults.append(f"{subject}: expected {expected}, got {got}")

    def attempt(self, tool: str, text: str, call_id: str) -> tools.Observation | str:
        try:
            return self.episode.call(tool, text, call_id)
        except (episode.EpisodeFinished, episode.CallConflict) as error:
            return type(error).__name__

    def send(self, tool: str, text: str) -> bool:
        """Make a new call; True if the episode was still open for it."""
        alone = episode.Episode(self.task).call(tool, text, "alone")
        got = self.attempt(tool, text, f"call-{len(self.sent)}")
        self.compare(f"observation of {tool}({text})", "EpisodeFinished" if self.verdict else alone, got)
        if self.verdict is None:
            self.sent.append((tools.Call(tool, text), alone))
        return self.verdict is None

    @initialize(
        pool=st.sampled_from(sorted(tasks.POOLS)),
        index=st.integers(0, 30),
        length=st.integers(2, 6) | st.just(0),
    )
    def open(self, pool: str, index: int, length: int) -> None:
        self.task = tasks.make_task("train", 0, index, pool)
        self.episode, self.ledger = episode.Episode(self.task), Ledger(self.task)
        # Episodes that may end at once hardly ever succeed.
        self.length = length

    @rule(kinds=st.sampled_from([(kind,) for kind in STEPS] + [(STEPS[0], STEPS[2])] * 2))
    def take_steps(self, kinds: tuple[tuple[str, str], ...]) -> None:
        for tool, value in (step(self.task, *kind) for kind in kinds):
            if self.send(tool, arguments(tool, value)):
                self.ledger.follow(tool, value)

    @rule(tool=st.sampled_from(["lookup", "calculator", "finish", ""]), text=st.sampled_from(["", "{", "null", "[1]"]))
    def call_wrongly(self, tool: str, text: str) -> None:
        self.send(tool, text)

    @rule(data=st.data(), conflicting=st.booleans())
    def use_a_call_id_again(self, data: st.DataObject, conflicting: bool) -> None:
        if self.sent:
            number = data.draw(st.integers(0, len(self.sent) - 1))
            call, seen = self.sent[number]
            expected = "EpisodeFinished" if self.verdict else "CallConflict" if conflicting else seen
            got = self.attempt(call.tool, call.arguments + " " * conflicting, f"call-{number}")
            self.compare(f"call-{number} again, {conflicting=}", expected, got)

    @precondition(lambda self: len(self.sent) >= self.length)
    @rule(
        answer=st.sampled_from(["{0}"] * 6 + ["{1}", " {0}\n", "{2}", "-{0}", "{0} Stück", "{0}.", "", None]),
        truncated=st.booleans(),
    )
    def finish(self, answer: str | None, truncated: bool) -> None:
        right = self.task.answer
        stated = answer in ("{0}", "{1}", " {0}\n")
        text = None if answer is None else answer.format(right, grouped(right), right + 1)
        got = self.episode.finish(text, truncated)
        if self.verdict is None:
            self.verdict = got
            earned = self.ledger.succeeds(stated) and not truncated
            self.compare(f"strict success with the answer {text!r}, {truncated=}", earned, got.strict)
            again = episode.replay(self.task, self.episode.calls, text, truncated)
            self.compare("replay", (tuple(seen for _, seen in self.sent), got), again)
        self.compare("the same verdict object", True, got is self.verdict and self.episode.verdict is got)

    @invariant()
    def agrees_with_its_model(self) -> None:
        self.compare("logged calls", tuple(call for call, _ in self.sent), self.episode.calls)
        assert not self.faults, explain(
            subject=f"an episode of {self.task.task_id}",
            expected="the observations and the verdict that the MUST states",
            got="; ".join(self.faults),
            cause="state leaks between calls, a call id runs twice, or the verdict is not final",
        )


@check("TASK-07", broken="last_answer_wins")
def test_an_episode_shows_what_was_called_and_ends_with_one_verdict() -> None:
    """An observation MUST depend on task and call alone, a repeated call id run nothing, a verdict never change.

    Strict success: the right record and only that record was looked up, a calculator call over revealed
    numbers gave the right value after that, and the final message is exactly that number.
    """
    run_state_machine_as_test(EpisodeMachine, settings=settings(max_examples=300, stateful_step_count=20))


def test_strict_success_is_what_it_says_for_every_short_episode() -> None:
    task = tasks.find_task("extended/train/43/4")
    steps = [step(task, *kind) for kind in STEPS]
    wrong = []

    for way in itertools.chain.from_iterable(itertools.product(steps, repeat=length) for length in range(5)):
        ledger = Ledger(task)
        for tool, value in way:
            ledger.follow(tool, value)
        calls = [tools.Call(tool, arguments(tool, value)) for tool, value in way]
        if verifier.judge(task, calls, str(task.answer)).strict != ledger.succeeds(right_answer=True):
            wrong.append(way)

    assert not wrong


def test_a_number_copied_from_the_record_is_no_calculation() -> None:
    drawn = (tasks.make_task("train", 43, index) for index in itertools.count())
    task = next(task for task in drawn if task.answer in task.quantities)
    calls = [
        tools.Call("lookup", arguments("lookup", task.record_id)),
        tools.Call("calculator", arguments("calculator", f"({task.answer})")),
    ]

    assert verifier.judge(task, calls, str(task.answer)).outcome == "no_calculation"


def test_a_call_beyond_the_limit_is_refused_in_the_replay_too() -> None:
    task = tasks.make_task("train", 0, 0)
    look = tools.Call("lookup", arguments("lookup", task.record_id))
    calls = [tools.Call("nachschlagen", "{}")] * episode.MAX_CALLS + [look, look]

    observations, verdict = episode.replay(task, calls, str(task.answer))

    refused = tools.Observation('{"fehler":"zu viele Aufrufe"}', is_error=True)
    assert (observations[-2:], len(observations), verdict.outcome) == ((refused,) * 2, len(calls), "no_lookup")


@pytest.mark.parametrize(("form", "outcome"), ANSWERS.items())
def test_the_final_message_is_the_number_and_nothing_else(form: str, outcome: str) -> None:
    task = tasks.make_task("train", 0, 0, "canary")
    expression = task.formula.write(task.quantities)
    calls = [
        tools.Call("lookup", arguments("lookup", task.record_id)),
        tools.Call("calculator", arguments("calculator", expression)),
    ]
    right = task.answer
    answer = form.format(plain=right, grouped=grouped(right), next=right + 1, expression=expression)

    assert verifier.judge(task, calls, answer).outcome == outcome


def answered(task: tasks.Task, call: tools.Call) -> tools.Observation | str:
    """What the first call of an episode is answered with; the exception's name if it raises."""
    try:
        return episode.Episode(task).call(call.tool, call.arguments, "1")
    except Exception as error:
        return type(error).__name__


@check("TASK-08", broken="repaired_arguments")
def test_a_malformed_call_runs_nothing_and_gives_nothing_away() -> None:
    """A malformed call MUST run no tool and be answered by one fixed error text as JSON."""
    task = tasks.make_task("train", 0, 0)
    calls = malformed_calls(task.record_id)

    shown = {call: answered(task, call) for call in calls}

    expected = {tools.Observation(tools.as_json({"fehler": text}), is_error=True) for text in CALL_REFUSALS}
    faults = {
        f"{call.tool[:20]!r} {call.arguments[:60]!r}": seen for call, seen in shown.items() if seen not in expected
    }
    assert not faults, explain(
        subject="malformed calls that were answered by something else than a fixed error",
        expected="none",
        got=faults,
        cause="the arguments were repaired and the tool was run, or the error repeats what it was given",
    )


SCRIPTED_TASKS = [
    f"{pool}/{split}/43/{index}" for pool in tasks.POOLS for split in tasks.SPLIT_SHARES for index in range(5)
]


@check("TASK-09", broken="costly_tries")
def test_only_the_whole_path_earns_the_whole_reward_and_silence_earns_least() -> None:
    """The oracle alone MUST reach the full reward, no near miss reaches it, and no try earns less than silence."""
    expected, got = {}, {}
    for task_id in SCRIPTED_TASKS:
        scripts = GermanOrders().scripts(task_id)
        verdicts = {
            name: episode.replay(
                tasks.find_task(task_id),
                [tools.Call(call.tool, call.arguments) for call in script.calls],
                script.answer,
            )[1]
            for name, script in scripts.items()
        }
        silence = verifier.shaped(verdicts["noop"])
        for name, verdict in verdicts.items():
            shaped = verifier.shaped(verdict)
            # (outcome, reward, full shaped reward, at least what silence earns)
            got[task_id, name] = (verdict.outcome, verdict.reward, shaped == 1.0, shaped >= silence)
            whole = name == "oracle"
            expected[task_id, name] = (OUTCOMES.get(name), float(whole), whole, True)

    assert got == expected, explain(
        subject="scripted episodes: (outcome, reward, full shaped reward, at least what silence earns)",
        expected="as stated for each script",
        got=differences(expected, got),
        cause="a milestone pays like success, or a failed try costs more than doing nothing",
    )


# --- What must stay hidden -------------------------------------------------------------------------


@st.composite
def blind_episodes(draw: st.DrawFn) -> tuple[str, list[tools.Call]]:
    """A task whose quantities cannot be hit by chance, and calls that are not its lookup."""
    task_id = f"canary/{draw(st.sampled_from(sorted(tasks.SPLIT_SHARES)))}/{draw(st.integers(0, 99))}/0"
    task = tasks.find_task(task_id)
    values = (
        st.text(max_size=20)
        | st.from_regex(r"L-[1-9][0-9]{3}", fullmatch=True)
        | st.text("0123456789,.+-*/()", max_size=20)
        | expressions().map(lambda expression: expression.text)
    ).filter(lambda value: value != task.record_id)
    well_formed = st.sampled_from(sorted(tools.PARAMETERS)).flatmap(
        lambda tool: values.map(lambda value: tools.Call(tool, arguments(tool, value)))
    )
    malformed = st.sampled_from(malformed_calls(task.record_id)) | st.builds(tools.Call, st.text(max_size=10), values)
    return task_id, draw(st.lists(well_formed | malformed, min_size=1, max_size=15))


@check("TASK-10", broken="telling_errors")
@given(blind_episodes())
def test_nothing_but_the_lookup_shows_the_record(blind: tuple[str, list[tools.Call]]) -> None:
    """Prompt, tool schemas and the observations of any other call MUST hold no hidden quantity and no answer."""
    task_id, calls = blind
    orders, running = GermanOrders(), episode.Episode(tasks.find_task(task_id))

    shown = [running.call(call.tool, call.arguments, str(number)).text for number, call in enumerate(calls)]

    everything = "\n".join([json.dumps([orders.prompt(task_id), orders.tools], ensure_ascii=False), *shown])
    leaked = [secret for secret in orders.secrets(task_id) if secret in everything]
    assert not leaked, explain(
        subject=f"all that a model sees of {task_id} without looking the record up",
        expected="none of the secrets",
        got=leaked,
        cause="an error text, a schema or the question carries what only the record may show",
    )


@dataclass(frozen=True)
class Source:
    """One file and the only packages, besides the standard library, that it may import."""

    path: Path
    own: str


def foreign_imports(source: Source) -> list[str]:
    """Modules that a file imports and may not."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source.path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # "from gyms import german" names the module in its second half.
            names += [f"{'.' * node.level}{node.module or ''}.{alias.name}" for alias in node.names]
    return [
        name
        for name in names
        if name.split(".")[0] not in sys.stdlib_module_names and not f"{name}.".startswith(f"{source.own}.")
    ]


def own_sources() -> Sequence[Source]:
    core = [Source(path, "gyms.german") for path in sorted((ROOT / "gyms/german").rglob("*.py"))]
    return [*core, Source(ROOT / "gyms/base.py", "gyms"), Source(ROOT / "gyms/german_orders.py", "gyms")]


@check("TASK-11", broken="package_in_the_core")
def test_the_core_needs_nothing_but_the_standard_library() -> None:
    """The core MUST import the standard library and itself only, so that it runs in every gym's environment."""
    sources = own_sources()

    foreign = {str(source.path.relative_to(ROOT)): foreign_imports(source) for source in sources}

    assert not any(foreign.values()), explain(
        subject="imports of the task core and the gym contract",
        expected="sys.stdlib_module_names and gyms only",
        got={path: names for path, names in foreign.items() if names},
        cause="a package that a gym's own environment may lack, or with which it would disagree",
    )


def test_the_core_is_frozen() -> None:
    frozen = (ROOT / "gyms/german/FROZEN.sha256").read_text(encoding="utf-8")
    files = sorted((ROOT / "gyms/german").glob("*.py"))
    current = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    assert current == frozen, explain(
        subject="files of gyms/german",
        expected=frozen,
        got=current,
        cause="the core was edited, though policies and figures were made with the frozen one; make a new version",
    )
