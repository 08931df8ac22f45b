"""The German task core: one episode, its observations, its verdict, and what none of them gives away."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gymqual.gyms.german import episode, tasks, tools, verifier
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.support.german.expressions import expressions
from gymqual.qualification.support.german.ledger import STEPS, Ledger, arguments, grouped, step
from gymqual.qualification.support.german.tables import ANSWERS, CALL_REFUSALS, OUTCOMES, differences, malformed_calls

pytestmark = pytest.mark.cpu_smoke


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
            earned = "all" if shaped == 1.0 else "half at most" if shaped <= 0.5 else shaped
            # (outcome, reward, what is earned in training, at least what silence earns)
            got[task_id, name] = (verdict.outcome, verdict.reward, earned, shaped >= silence)
            whole = name == "oracle"
            expected[task_id, name] = (OUTCOMES.get(name), float(whole), "all" if whole else "half at most", True)

    assert got == expected, explain(
        subject="scripted episodes: (outcome, reward, what is earned in training, at least what silence earns)",
        expected="as stated for each script",
        got=differences(expected, got),
        cause="a milestone pays like success, or a failed try costs more than doing nothing",
    )


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
