"""What an episode is worth, told from the text of the MUST and without the core's judgement."""

import json
import re
from fractions import Fraction

from simpleeval import simple_eval

from gymqual.gyms.german import tasks, tools


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
