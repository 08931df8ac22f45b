"""Two runs side by side: what differs in subject, environment, outcomes and measured values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymqual.gyms import loaded
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.manifest import RunManifest
from gymqual.harness.records.run_records import GymRecord, StackRecord


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same in two runs, as both have it."""

    name: str
    left: Any
    right: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.left} -> {self.right}"


@dataclass(frozen=True)
class Section:
    """Things of one kind that were compared."""

    title: str
    differences: tuple[Difference, ...]
    same: str
    """What is said when none differs."""

    @property
    def lines(self) -> list[str]:
        """The section as text."""
        return [str(difference) for difference in self.differences] or [self.same]


@dataclass
class Comparison:
    """What was compared, and whether the two runs came to the same outcomes."""

    sections: list[Section] = field(default_factory=list)
    same_outcomes: bool = True
    refusal: str = ""
    """Why measured values were not compared."""

    @property
    def lines(self) -> list[str]:
        """Lines to print."""
        return [line for section in self.sections for line in section.lines]


def compare(left: RunManifest, right: RunManifest) -> Comparison:
    """Compare two manifests; measured values only if both runs carried the same task core.

    Raises HarnessError when one examined gyms and the other the checks themselves.
    """
    if left.run.mode != right.run.mode:
        raise HarnessError(
            f"{left.run.id} is a run of mode {left.run.mode}, {right.run.id} of mode {right.run.mode}; "
            "compare runs of one mode"
        )
    facts = differences(_facts(left), _facts(right))
    outcomes = _by_test(left, "outcome"), _by_test(right, "outcome")
    changed = differences(*outcomes)
    result = Comparison(
        [
            Section("Subject, locks and machine", facts, "subject, locks and machine: the same"),
            Section("Outcomes", changed, f"outcomes: the same for all {len(outcomes[0])} records"),
        ],
        same_outcomes=not changed,
    )
    if not loaded.same_core(left.core, right.core):
        result.refusal = (
            f"the runs carry different task cores ({left.core[:16]}, {right.core[:16]}): their measured values and "
            "scores are of different tasks and are not compared"
        )
        return result
    measured = differences(_measured(left), _measured(right))
    result.sections.append(Section("Measured values", measured, "measured values: the same"))
    return result


def differences(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Return by name what is not the same in two mappings; what one lacks is absent there."""
    pairs = ((name, left.get(name, "(absent)"), right.get(name, "(absent)")) for name in left.keys() | right.keys())
    return tuple(Difference(*pair) for pair in sorted(pairs, key=lambda pair: pair[0]) if pair[1] != pair[2])


def _facts(run: RunManifest) -> dict[str, Any]:
    return {
        "product": f"{run.product.version} {run.product.commit}{' (dirty)' if run.product.dirty else ''}",
        "machine": f"{run.machine.platform}, {run.machine.cpus} CPUs, {run.machine.python}",
        "task core": run.core,
        **{f"stack {stack.name}": _stack(stack) for stack in run.stacks},
        # Several, where a gym is more than one process.
        **{
            f"gym {name}": sorted(_gym(gym) for gym in run.gyms if gym.gym == name)
            for name in {g.gym for g in run.gyms}
        },
        "deviations": "; ".join(run.deviations) or "none",
        "verdict": "qualified" if run.verdict.qualified else "; ".join(run.verdict.reasons),
    }


def _stack(stack: StackRecord) -> str:
    return f"CPython {stack.version}, lock {stack.lock_sha256[:16]}, {stack.platform}"


def _gym(gym: GymRecord) -> str:
    sources = ", ".join(f"{name} {digest[:8]}" for name, digest in sorted(gym.sources.items()))
    return f"{gym.upstream} ({gym.upstream_digest[:16]}), {gym.python}, {sources}"


def _by_test(run: RunManifest, name: str) -> dict[str, Any]:
    return {record.case: getattr(record, name) for record in run.checks}


def _measured(run: RunManifest) -> dict[str, Any]:
    return {f"measured {r.case} {name}": value for r in run.checks for name, value in r.measured.items()}
