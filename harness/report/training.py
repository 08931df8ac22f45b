"""What a page shows of a training run: curves, tensors, totals, and its rollouts for the viewer."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, ValidationError

from gymqual.harness.records import training_run
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.manifest import MANIFEST
from gymqual.harness.records.run_records import GymRecord
from gymqual.harness.records.trace import TRACE, Step
from gymqual.harness.records.training_run import PolicyRecord, ReplayTotals, TensorTotals, TokenTotals
from gymqual.harness.report import document, rollouts

COMPLETED = "completed"
_LAYER = re.compile(r"\.(?:layers|h|blocks)\.(\d+)\.")
_ADAPTER = re.compile(r"\.lora_([AB])(?:\.\w+)?\.weight$")


class Run(BaseModel):
    """A training run's manifest, as far as it is shown; the rest is the replay audit's."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    outcome: str
    config: dict[str, Any]
    policy: PolicyRecord
    gym: GymRecord
    core: str
    consumed_tasks: dict[str, int]
    tokens: TokenTotals
    replay: ReplayTotals
    tensors: TensorTotals | None
    strict_training_success: float | None
    mean_shaped_reward: float | None
    varied_groups: int
    processes: int = 1
    device: str = "cpu"
    deviations: tuple[str, ...]
    seconds: float


@dataclass
class Training:
    """One training run, read from its directory."""

    name: str
    """Of the directory, relative to the page."""
    folder: Path
    run: Run

    @cached_property
    def seen(self) -> rollouts.Seen:
        """The trace; raises HarnessError."""
        return rollouts.read(self.folder)

    @property
    def completed(self) -> bool:
        """Whether it ended by itself."""
        return self.run.outcome == COMPLETED

    @property
    def alike(self) -> str:
        """What two trainings share whose traces must be the same: everything but the service and how it is kept."""
        kept = {name: value for name, value in self.run.config.items() if name not in _OF_THE_SERVICE}
        return json.dumps([kept, self.run.policy.weights, self.run.core], sort_keys=True)


_OF_THE_SERVICE = ("gym", "deadline_s", "checkpoint_every")


def read(folder: Path, name: str = ".") -> Training:
    """Read a training run's manifest; raises HarnessError naming what is wrong with it."""
    path = folder / MANIFEST
    try:
        return Training(name, folder, Run.model_validate_json(path.read_bytes()))
    except ValidationError as error:
        first = error.errors()[0]
        raise HarnessError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except OSError as error:
        raise HarnessError(f"{path} cannot be read ({error.strerror})") from None


def folders_in(folder: Path) -> Iterator[Path]:
    """Yield the directory of every training run below a run's that holds a trace, in order of its name."""
    for path in sorted(folder.glob(f"**/{MANIFEST}")):
        if path.parent != folder and (path.parent / TRACE).is_file() and training_run.is_run(path.parent):
            yield path.parent


def found_in(folder: Path) -> tuple[list[Training], list[tuple[str, str]]]:
    """Return every training run below a run's folder; and by name why one cannot be read."""
    found, unreadable = list[Training](), list[tuple[str, str]]()
    for path in folders_in(folder):
        name = path.relative_to(folder).as_posix()
        try:
            each = read(path, name)
            each.seen  # noqa: B018 (read now, where an error is told by name)
            found.append(each)
        except HarnessError as error:
            unreadable.append((name, str(error).replace(str(folder), "").lstrip("/")))
    return found, unreadable


def curves(steps: list[Step], name: str) -> list[Markup]:
    """Return the small plots of a training, by optimizer step."""
    # Imported here: most runs of pytest end without a plot, and matplotlib takes its time.
    from gymqual.harness.report import plots
    from gymqual.harness.report.plots import Line, Panel

    numbers = [step.step for step in steps]

    def panel(title: str, values: list[float | None], *, share: bool = False) -> Panel:
        return Panel(title, (Line(title, numbers, values),), share=share)

    panels = (
        panel("mean reward", [step.reward for step in steps]),
        panel("strict success of its rollouts", [step.strict for step in steps], share=True),
        panel(
            "groups that vary, share",
            [step.varied_groups / step.groups if step.groups else None for step in steps],
            share=True,
        ),
        panel("gradient norm, before clipping", [step.gradient_norm for step in steps]),
        panel("learning rate", [step.learning_rate for step in steps]),
        panel("sampler against loss, nats", [step.logprob_gap_max for step in steps]),
    )
    return [plots.draw(each, f"{name}-{number}") for number, each in enumerate(panels)]


def tensor_table(tensors: TensorTotals) -> dict[str, Any]:
    """Return the update of every adapted matrix, by layer and module: its ratio, and whether both tensors changed."""
    unchanged = set(tensors.unchanged)
    stacks = {tensor[: layer.start()] for tensor in tensors.update_ratio if (layer := _LAYER.search(tensor))}
    cells: dict[tuple[str, str], dict[str, Any]] = {}
    for tensor, ratio in tensors.update_ratio.items():
        layer = _LAYER.search(tensor)
        part = _ADAPTER.search(tensor)
        module = _ADAPTER.sub("", tensor[layer.end() :] if layer else tensor)
        if layer and len(stacks) > 1:
            # Two stacks of layers, such as encoder and decoder, count theirs alike.
            module = f"{tensor[: layer.start()].rpartition('.')[2]}: {module}"
        cell = cells.setdefault((layer[1] if layer else "-", module), {"ratio": None, "unchanged": []})
        if ratio is not None and (part is None or part[1] == "A" or cell["ratio"] is None):
            cell["ratio"] = ratio
        if tensor in unchanged:
            cell["unchanged"].append(part[1] if part else tensor)
    largest = max((cell["ratio"] for cell in cells.values() if cell["ratio"]), default=1.0)
    for cell in cells.values():
        cell["share"] = round((cell["ratio"] or 0.0) / largest, 2)
    modules = list(dict.fromkeys(module for _, module in cells))
    layers = sorted({layer for layer, _ in cells}, key=lambda layer: (not layer.isdigit(), layer.zfill(4)))
    has_adapter = any(_ADAPTER.search(tensor) for tensor in tensors.update_ratio)
    return {"modules": modules, "layers": layers, "cells": cells, "has_adapter": has_adapter}


def shown(each: Training, number: int) -> dict[str, Any]:
    """Return what the template shows of a training; raises HarnessError for a trace that cannot be read."""
    steps = each.seen.steps
    return {
        "name": each.name,
        "anchor": f"training-{number}",
        "number": number,
        "run": each.run,
        "completed": each.completed,
        "steps": steps,
        "curves": curves(steps, f"t{number}") if each.completed and len(steps) > 1 else [],
        "tensors": tensor_table(each.run.tensors) if each.run.tensors else None,
        "rollouts": len(each.seen.rows.keys() | each.seen.episodes.keys()),
    }


def viewer(trainings: list[Training]) -> dict[str, Any]:
    """Return the data of the rollout viewer, and how many ids the loss is taken on that no model sampled."""
    runs = [
        {
            "name": each.name,
            "outcome": each.run.outcome,
            "tokens": rollouts.tokens(each.seen),
            "rollouts": rollouts.rollouts(each.seen),
        }
        for each in trainings
    ]
    return {"runs": runs, "leaked": sum(rollouts.leaked(run["rollouts"]) for run in runs)}


def page(folder: Path) -> bytes:
    """Return the page of one training run; raises HarnessError."""
    each = read(folder)
    return document.render(
        "training.html.j2",
        title=f"Training: {each.run.outcome}",
        training=shown(each, 0),
        viewer=viewer([each]),
    )
