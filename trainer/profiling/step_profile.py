"""Where the time of a training step goes: phases by wall time and operations by torch's profiler.

    gymqual profile --out DIR [--policy mini] [--gym nemo] [--steps 8] [--stacks FILE]

Three trainings of the same tasks: plain TRL with tasks played in this process, and audited ones through a served gym
with exact and with cached generation. ``DIR`` gets ``profile.json`` and a README.md. ``FILE`` holds folded stacks of
a training, as ``py-spy record --format raw`` writes them, and becomes a table, too.
"""

import os
import platform
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from rich.console import Console
from rich.progress import track
from torch.profiler import ProfilerActivity, profile
from transformers import PrinterCallback, set_seed
from transformers.utils import logging

from gymqual.gyms.german_orders import GermanOrders
from gymqual.gyms.local import LocalGym
from gymqual.harness.cli.checks import require_at_least_one
from gymqual.harness.records.files import readable_json, write_atomically
from gymqual.trainer.audit.attach import Audit
from gymqual.trainer.grpo.trainer import GymTrainer, attach_audit
from gymqual.trainer.policy.loading import POLICY_HELP, load_policy
from gymqual.trainer.profiling.phases import PHASES, clocked
from gymqual.trainer.profiling.plain import PlainTRL
from gymqual.trainer.runs.config import TrainingConfig, training_config
from gymqual.trainer.runs.open_gym import GymName, opened_gym

PROFILE = "profile.json"
PLAIN, EXACT, CACHED = SUBJECTS = ("plain TRL, in process", "exact, audited", "cached, audited")
ROUNDS = 5
"""Trainings of each subject, in turns; what is told is the fastest: others on the machine only ever add time."""
OPERATIONS = 12
FUNCTIONS = 15
MAIN_THREAD = "_run_module_as_main "
"""What its stacks begin with; other threads draw bars and wait."""
STEP_OF_OPERATIONS = 2
"""Steps of a training that torch's profiler watches."""


class Workbench:
    """Makes the trainings that are looked at."""

    def __init__(self, policy: str, gym: str, steps: int, folder: Path, stack: ExitStack) -> None:
        self._policy, self._name, self._steps, self._folder = policy, gym, steps, folder
        self._tasks = GermanOrders()
        self._served = stack.enter_context(opened_gym(gym, None, self._tasks))

    def phases(self, subject: str) -> dict[str, float]:
        """Return milliseconds a step by phase, of one training, its first step left out."""
        trainer, config = self._trainer(subject, self._steps + 1)
        with clocked(trainer, None if subject == PLAIN else lambda: self._audit(trainer, config)) as clock:
            trainer.train()
        trainer.close_environments()
        return {name: 1000 * seconds / clock.steps for name, seconds in clock.seconds.items()}

    def operations(self, subject: str) -> list[dict[str, Any]]:
        """Return the operations with the largest own CPU time, of one training: name, ms a step, calls a step."""
        trainer, config = self._trainer(subject, STEP_OF_OPERATIONS)
        if subject != PLAIN:
            self._audit(trainer, config)
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            trainer.train()
        trainer.close_environments()
        found = sorted(watched.key_averages(), key=lambda each: -each.self_cpu_time_total)[:OPERATIONS]
        return [
            {
                "operation": each.key,
                "self_cpu_ms": round(each.self_cpu_time_total / 1000 / STEP_OF_OPERATIONS, 2),
                "calls": round(each.count / STEP_OF_OPERATIONS),
            }
            for each in found
        ]

    def _trainer(self, subject: str, steps: int) -> tuple[GymTrainer, TrainingConfig]:
        made = training_config(self._policy, "", self._name, 43, steps, max(steps, 16))
        mode = "cached" if subject == CACHED else "exact"
        config = TrainingConfig.model_validate({**made.model_dump(), "oracle_steps": (), "generation": mode})
        set_seed(config.seed)
        kind = PlainTRL if subject == PLAIN else GymTrainer
        gym: Any = LocalGym(self._tasks) if subject == PLAIN else self._served
        trainer = kind(config, load_policy(self._policy), gym, self._tasks, self._folder / "trl")
        trainer.remove_callback(PrinterCallback)
        return trainer, config

    def _audit(self, trainer: GymTrainer, config: TrainingConfig) -> Audit:
        return attach_audit(trainer, config, Path(tempfile.mkdtemp(dir=self._folder)) / "trace.jsonl")


def functions_of(stacks: Iterable[str]) -> list[dict[str, Any]]:
    """Return the functions that most of the main thread's folded stacks end in: name and file, share, 0 to 1.

    A line is ``outermost;...;innermost count``. Frames are told without line and without the folders before a package.
    """
    samples: Counter[str] = Counter()
    for line in stacks:
        stack, _, count = line.rpartition(" ")
        if not stack.startswith(MAIN_THREAD):
            continue
        samples[_frame(stack.rpartition(";")[2])] += int(count)
    total = samples.total()
    return [{"function": name, "share": round(n / total, 4)} for name, n in samples.most_common(FUNCTIONS)]


def _frame(frame: str) -> str:
    name, _, place = frame.partition(" (")
    path = place.rstrip(")").partition(":")[0]
    return f"{name} ({path.rpartition('site-packages/')[2].removeprefix(os.getcwd() + '/')})" if path else name


def readme(found: Mapping[str, Any]) -> str:
    """Return the tables of a profile."""
    phases, steps = found["phases_ms"], found["steps"]
    rows = [[name, *(f"{phases[subject][name]:.1f}" for subject in SUBJECTS)] for name in PHASES]
    totals = {subject: sum(phases[subject][name] for name in PHASES) for subject in SUBJECTS}
    rows.append(["**step**", *(f"**{total:.1f}**" for total in totals.values())])
    rows.append(["over plain TRL", *(f"{total / totals[PLAIN]:.2f}" for total in totals.values())])
    parts = [
        f"""# Where the time of a training step goes

`{found["policy"]}`, one group of four rollouts a step, {found["steps"]} steps behind a first one, the fastest of
{ROUNDS} trainings in turns; audited ones through {found["gym"]}, oracle off.
{found["hardware"]}.

Milliseconds a step, each phase without those inside of it:
""",
        _table(["phase", *SUBJECTS], rows),
        f"""
By torch's profiler, own CPU time, milliseconds and calls a step (of {STEP_OF_OPERATIONS}; the profiler's own share
is in them):
""",
    ]
    for subject in SUBJECTS:
        operations = found["operations"][subject]
        cells = [[f"`{each['operation']}`", f"{each['self_cpu_ms']}", f"{each['calls']}"] for each in operations]
        parts += [f"\n{subject}:\n", _table(["operation", "own CPU", "calls"], cells)]
    if found["functions"]:
        cells = [[f"`{each['function']}`", f"{100 * each['share']:.1f} %"] for each in found["functions"]]
        parts += [
            """
By py-spy, share of the main thread's samples whose innermost frame is this function, over a whole audited run, exact,
loading of libraries and policy included:

```bash
.venv/bin/gymqual prepare RUN_DIR --steps 32
py-spy record --format raw --rate 100 --output stacks.txt -- \\
    .venv/bin/gymqual train RUN_DIR/training.json
.venv/bin/gymqual profile --out DIR --stacks stacks.txt
```
""",
            _table(["function", "share"], cells),
        ]
    parts.append(
        f"""
The model is tiny: {steps} steps take seconds, and a matrix less time than the call that multiplies it, so that what
is saved here is mostly Python around small operations. Expected of a model of billions of parameters, and not measured:
decoding is bound by reading weights, prefill and loss by arithmetic; a layer's bookkeeping, the audit's records and
gym calls shrink to percents; the adapter's own matrices stay a small share of the base's, so that merging gains less
and the cache over turns, which spares the prefill of long contexts, gains more.
"""
    )
    return "\n".join(parts)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def measured(policy: str, gym: str, steps: int, stacks: Sequence[str]) -> dict[str, Any]:
    """Train and return what ``profile.json`` holds."""
    with tempfile.TemporaryDirectory(prefix="gymqual-profile-") as folder, ExitStack() as stack:
        bench = Workbench(policy, gym, steps, Path(folder), stack)
        console = Console(stderr=True)
        turns = track(range(ROUNDS), description="phases", console=console)
        rounds = [{subject: bench.phases(subject) for subject in SUBJECTS} for _ in turns]
        watched = track(SUBJECTS, description="operations", console=console)
        operations = {subject: bench.operations(subject) for subject in watched}
    fastest = {s: min((each[s] for each in rounds), key=lambda phases: sum(phases.values())) for s in SUBJECTS}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return {
        "policy": policy,
        "gym": gym,
        "steps": steps,
        "hardware": f"{platform.machine()}, {os.cpu_count()} CPU cores, shared with others, one torch thread, {device}",
        "torch": torch.__version__,
        "phases_ms": {s: {name: round(value, 2) for name, value in fastest[s].items()} for s in SUBJECTS},
        "operations": operations,
        "functions": functions_of(stacks) if stacks else [],
    }


def command(
    *,
    out: Annotated[Path, Parameter(help=f"Folder that gets {PROFILE}.")],
    policy: Annotated[str, Parameter(help=POLICY_HELP)] = "mini",
    gym: Annotated[GymName, Parameter(help="Of the audited trainings.")] = "nemo",
    steps: Annotated[int, Parameter(help="That are measured, behind a first one.")] = 8,
    stacks: Annotated[Path | None, Parameter(help="Folded stacks by py-spy, which become a table.")] = None,
) -> None:
    """Measure where the time of a training step goes."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    require_at_least_one("--steps", steps)
    folded = stacks.read_text().splitlines() if stacks else []
    out.mkdir(parents=True, exist_ok=True)
    found = measured(policy, gym, steps, folded)
    write_atomically(out / PROFILE, readable_json(found))
    write_atomically(out / "README.md", readme(found).encode())
    for subject, values in found["phases_ms"].items():
        print(f"{subject}: {sum(values.values()):.0f} ms a step")
