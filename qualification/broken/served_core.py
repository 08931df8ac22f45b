"""Defects of the task core inside a server's own process, the same ones in every gym.

Staged as ``gyms/broken_core.py`` beside a gym's broken app, whose switch sets ``defect``: each patch lies where the
servers look a function up, so that both doors of a gym, native and bridge, have the fault.
"""

import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from gymqual.gyms import served
from gymqual.gyms.german import episode, tasks
from gymqual.gyms.german.tasks import Task
from gymqual.gyms.german.tools import Call, Observation, as_json, is_well_formed
from gymqual.gyms.german.verifier import Verdict

defect = ""
"""The one that is on."""

_observe, _replay, _make_task = episode.observe, episode.replay, tasks.make_task
_prompt = Task.prompt


def observe(task: Task, call: Call) -> Observation:
    """Execute a call under a defect of the tools."""
    if is_well_formed(call):
        # lookup_ignores_the_id: a mocked tool, it returns the fixture whatever was asked for.
        if defect == "lookup_ignores_the_id" and call.tool == "lookup":
            call = Call("lookup", as_json({"record_id": task.record_id}))
        # calculator_ignores_the_expression: the same of the other tool, with the stored result.
        if defect == "calculator_ignores_the_expression" and call.tool == "calculator":
            return Observation(str(task.answer), is_error=False)
    shown = _observe(task, call)
    # errors_tell_the_record: what a traceback or a helpful message holds, in what the model sees.
    if defect == "errors_tell_the_record" and shown.is_error:
        return shown._replace(text=as_json({"fehler": f"erwartet: {task.quantities}"}))
    # errors_name_the_process: a text for the log, in what the model sees.
    if defect == "errors_name_the_process" and shown.is_error:
        return shown._replace(text=f"{shown.text} {os.getpid()}")
    return shown


def replay(
    task: Task, calls: Sequence[Call], answer: str | None, truncated: bool = False
) -> tuple[tuple[Observation, ...], Verdict]:
    """Judge an episode under a defect of the verifier, which reads its answer otherwise."""
    number = re.search(r"\d+", answer or "")
    # malformed_answers_pay: the first number of whatever was said, as a lenient pattern finds it.
    if defect == "malformed_answers_pay" and number:
        answer = number[0]
    # any_number_pays: a verifier that asks whether there is a number, and not which.
    if defect == "any_number_pays" and number:
        answer = str(task.answer)
    return _replay(task, calls, answer, truncated)


def make_task(split: str, seed: int, index: int, pool: str = "v1") -> Task:
    """Build a task under a defect of the generator."""
    task = _make_task(split, seed, index, pool)
    # quantities_are_drawn_anew: Gymnasium #1084, a generator that goes on where the last episode left it.
    if defect == "quantities_are_drawn_anew":
        boxes, *others = task.quantities
        return replace(task, quantities=(boxes + secrets.randbelow(3), *others))
    return task


def prompt(task: Task) -> list[dict[str, str]]:
    """Return what the model starts from, under a defect of the template."""
    told = _prompt.fget(task)  # type: ignore[misc]
    # prompt_tells_the_record: a template over the whole task, gold and all.
    if defect == "prompt_tells_the_record":
        told[-1]["content"] += f" {task.quantities}"
    return told


episode.observe = observe
served.replay = replay
tasks.make_task = make_task
Task.prompt = property(prompt)  # type: ignore[misc]
