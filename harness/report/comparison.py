"""Two runs side by side, as text and as a page: of the suite, or of the trainer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymqual.gyms import loaded
from gymqual.harness.records import manifest, training_run
from gymqual.harness.records.compare import Comparison, Section, compare, differences
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.report import document
from gymqual.harness.report import training as training_page
from gymqual.harness.report.agreement import agreement
from gymqual.harness.report.training import Training


@dataclass(frozen=True)
class Pair:
    """Two run directories, compared."""

    names: tuple[str, str]
    result: Comparison
    agreement: dict[str, Any] | None = None
    """Of two trainings: where their traces part; see ``gymqual.harness.report.agreement``."""

    @property
    def lines(self) -> list[str]:
        """Lines to print."""
        return self.result.lines


def read_pair(left: Path, right: Path) -> Pair:
    """Compare two run directories of one kind; raises HarnessError."""
    names = (str(left), str(right))
    kinds = [training_run.is_run(folder) for folder in (left, right)]
    if all(kinds):
        return _trainings(training_page.read(left, names[0]), training_page.read(right, names[1]), names)
    if any(kinds):
        raise HarnessError(f"{names[kinds.index(True)]} is a training run, the other one is not; compare two of a kind")
    return Pair(names, compare(manifest.read(left), manifest.read(right)))


def _trainings(left: Training, right: Training, names: tuple[str, str]) -> Pair:
    facts = differences(_facts(left), _facts(right))
    trained = Section("What was trained", facts, "configuration, gym, policy and core: the same")
    if not loaded.same_core(left.run.core, right.run.core):
        refusal = (
            f"the runs carry different task cores ({left.run.core[:16]}, {right.run.core[:16]}): their figures and "
            "traces are of different tasks and are not compared"
        )
        return Pair(names, Comparison([trained], same_outcomes=False, refusal=refusal))
    told = agreement(left, right)
    same = f"trace: the same in all {told['calls']} turns, {told['tokens']} sampled ids"
    parting = differences({"trace": ""}, {"trace": told["parting"]})
    figures = differences(_figures(left), _figures(right))
    sections = [
        trained,
        Section("What came of it", figures, "outcome and totals: the same"),
        Section("Trace", parting, same),
    ]
    return Pair(names, Comparison(sections, same_outcomes=not figures and not parting), told)


def _facts(each: Training) -> dict[str, Any]:
    gym = each.run.gym
    return {
        **{f"config {name}": value for name, value in each.run.config.items()},
        "gym": f"{gym.gym}, {gym.upstream} ({gym.upstream_digest[:16]}), {gym.python}",
        "policy": f"{each.run.policy.name} {each.run.policy.weights[:16]}",
        "task core": each.run.core,
        "processes": each.run.processes,
        "device": each.run.device,
    }


def _figures(each: Training) -> dict[str, Any]:
    tensors = each.run.tensors
    return {
        "outcome": each.run.outcome,
        "steps": len(each.seen.steps),
        **{f"tokens {name}": count for name, count in each.run.tokens.model_dump().items()},
        "tensors changed": f"{tensors.changed} of {tensors.trainable}" if tensors else "none",
        "strict training success": each.run.strict_training_success,
        "mean shaped reward": each.run.mean_shaped_reward,
        "groups that varied": each.run.varied_groups,
    }


def page(pair: Pair) -> bytes:
    """Return a comparison as a page."""
    return document.render("comparison.html.j2", title="Two runs compared", pair=pair)
