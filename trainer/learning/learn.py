"""Learning, shown: GRPO through each gym raises strict success on held-out records, by a paired comparison.

    gymqual learn --out reports/sample/learning

For each gym the policy is evaluated on the dev split at temperature 1, trained on the train split by the audited
training of ``grpo.train``, and evaluated again on the same tasks with the same seeds, all through the gym's
own service. What is written to ``--out`` holds digests and outcomes from which ``differences`` recomputes every figure
of ``summary.json``; the raw evidence stays in ``--work``. A stage that finished there is not run again.
"""

import platform
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
from cyclopts import Parameter
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from gymqual import __version__
from gymqual.gyms import loaded
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.harness.records.manifest import MANIFEST
from gymqual.trainer.evaluation.evaluate import SEED as TASK_SEED
from gymqual.trainer.evaluation.evaluate import Evaluation, measure
from gymqual.trainer.grpo.train import train
from gymqual.trainer.learning.card import agreement_words, readme, words
from gymqual.trainer.learning.check import strangers_in
from gymqual.trainer.learning.result import (
    AFTER,
    BASELINE,
    CARD,
    EPISODES,
    FILES,
    GROUPS_PER_STEP,
    HELD,
    LIBRARIES,
    REPLAY,
    RUN,
    SPLIT,
    SUMMARY,
    WORK,
    Protocol,
    Summary,
    compare_runs,
    due_of,
    evaluated_of,
    read_result,
    settings_of,
    success_of,
    summarise_arm,
    tasks_of,
)
from gymqual.trainer.policy.loading import POLICY_HELP, Policy, load_policy, policy_folder
from gymqual.trainer.replay import audit
from gymqual.trainer.runs import manifest as run_manifest
from gymqual.trainer.runs.config import CONFIG, TrainingConfig, training_config
from gymqual.trainer.runs.errors import Stopped
from gymqual.trainer.runs.manifest import ADAPTER, COMPLETED, INTERRUPTED, PolicyRecord
from gymqual.trainer.runs.open_gym import GYMS, GymName
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS


def make_protocol(policy: Policy, seed: int, steps: int, episodes: int = EPISODES) -> Protocol:
    """Return the protocol for a policy; raises HarnessError for values that cannot be."""
    try:
        return Protocol(
            policy=policy.identity.name,
            seed=seed,
            steps=steps,
            training_tasks=f"v1/train/{seed}/0..{steps * GROUPS_PER_STEP - 1}",
            evaluation_tasks=f"v1/{SPLIT}/{TASK_SEED}/0..{episodes - 1}",
            device="cuda" if torch.cuda.is_available() else "cpu",
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise HarnessError(f"--{'.'.join(map(str, first['loc']))} {first['input']}: {first['msg']}") from None


def arm_config(protocol: Protocol, named: str, weights: str, gym: str) -> TrainingConfig:
    """Return the training of an arm; ``named`` is where its policy is loaded from."""
    made = training_config(named, weights, gym, protocol.seed, protocol.steps, protocol.steps * GROUPS_PER_STEP)
    return TrainingConfig.model_validate({**made.model_dump(), **settings_of(protocol, gym)})


# ---- the stages -------------------------------------------------------------------------------------------


def run_arm(protocol: Protocol, named: str, gym: str, work: Path, console: Console) -> None:
    """Run an arm's stages into ``work``, those that finished before excepted.

    Raises HarnessError, InfrastructureError, and Stopped for a training that did not complete.
    """
    weights = load_policy(named).identity.weights
    _evaluate(protocol, named, gym, work / BASELINE, None, console)
    _train(arm_config(protocol, named, weights, gym), work, console)
    _replay(named, gym, work, console)
    _evaluate(protocol, named, gym, work / AFTER, work / RUN / ADAPTER, console)


def _evaluate(protocol: Protocol, named: str, gym: str, path: Path, adapter: Path | None, console: Console) -> None:
    policy = load_policy(named, adapter)
    label = sha256_file(adapter / TENSORS) if adapter else None
    if path.is_file():
        result = read_result(path, Evaluation)
        due = due_of(protocol, policy.identity.weights, loaded.core_on_disk(), gym, label)
        _require_same(path, evaluated_of(result), due)
    else:
        episodes = len(tasks_of(protocol.evaluation_tasks))
        with console.status("") as status:
            result = measure(
                policy,
                gym,
                SPLIT,
                episodes,
                lambda text: status.update(f"{gym}, {path.stem}: {text}"),
                seed=protocol.evaluation_seed,
                adapter=label,
            )
        write_atomically(path, readable_json(result.model_dump(mode="json")))
    console.print(f"{gym}, {path.stem}: {words(success_of(result.temperature_1))}")


def _train(config: TrainingConfig, work: Path, console: Console) -> None:
    folder = work / RUN
    if _finished(folder):
        run = run_manifest.read(folder)
        _require_same(folder, run.config.model_dump(), config.model_dump())
    else:
        _clear(folder)
        for name in (REPLAY, AFTER):
            (work / name).unlink(missing_ok=True)
        run = train(config, folder, None, console)
    if run.outcome == INTERRUPTED:
        raise KeyboardInterrupt
    if run.outcome != COMPLETED:
        raise Stopped(f"{config.gym}: {run.outcome}; its evidence is in {folder}, name another --work to train again")
    console.print(f"{config.gym}, trained: {len(run.steps)} steps in {run.seconds:.0f} s")


def _finished(folder: Path) -> bool:
    return (folder / MANIFEST).exists() and run_manifest.read(folder).outcome != INTERRUPTED


def _clear(folder: Path) -> None:
    """Remove what an interrupted training left, and nothing else."""
    if folder.exists():
        if any(folder.iterdir()) and not (folder / CONFIG).exists():
            raise HarnessError(f"--work: {folder} is no training run; name another folder")
        shutil.rmtree(folder)


def _replay(named: str, gym: str, work: Path, console: Console) -> None:
    path = work / REPLAY
    if not path.is_file():
        with console.status(f"{gym}: the replay audit"):
            lines = audit.audit(work / RUN, policy_folder(named)).lines
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode())
    lines = path.read_text(encoding="utf-8").splitlines()
    console.print(f"{gym}, replay audit: {sum(line.startswith(HELD) for line in lines)} of {len(lines)} claims held")


def _require_same(where: Path, found: dict[str, Any], due: dict[str, Any]) -> None:
    differing = [name for name in due if found[name] != due[name]]
    if differing:
        raise HarnessError(f"--work: {where} was made with another {differing[0]}; name another folder")


# ---- the command ------------------------------------------------------------------------------------------


def learn(
    named: str,
    gyms: Sequence[str],
    seed: int,
    steps: int,
    out: Path,
    work: Path,
    console: Console,
    episodes: int = EPISODES,
) -> Summary:
    """Run all arms and write the result; raises HarnessError, InfrastructureError and Stopped."""
    policy = load_policy(named)
    protocol = make_protocol(policy, seed, steps, episodes)
    if strangers := strangers_in(out, gyms):
        raise HarnessError(f"--out: {out / strangers[0]} would not be of this result; name another folder")
    for gym in gyms:
        run_arm(protocol, named, gym, work / gym, console)
    for gym in gyms:
        for name in FILES:
            made = work / gym / RUN / name if name == MANIFEST else work / gym / name
            write_atomically(out / gym / name, made.read_bytes())
    summary = Summary(
        protocol=protocol,
        versions={name: version(name) for name in LIBRARIES}
        | {"gymqual": __version__, "python": platform.python_version()},
        platform=f"{platform.system()} {platform.machine()}",
        policy=PolicyRecord(**policy.identity.to_json()),
        core=loaded.core_on_disk(),
        arms={gym: summarise_arm(out / gym) for gym in gyms},
        agreement=compare_runs({gym: work / gym / RUN for gym in gyms}),
    )
    write_atomically(out / CARD, readme(summary).encode())
    write_atomically(out / SUMMARY, readable_json(summary.model_dump(mode="json")))
    return summary


def command(
    *,
    out: Annotated[Path, Parameter(help="Folder that gets the result.")],
    gyms: Annotated[list[GymName] | None, Parameter(help=f"To train through; {' and '.join(GYMS)} without it.")] = None,
    policy: Annotated[str, Parameter(help=POLICY_HELP)] = "mini",
    seed: Annotated[int, Parameter(help="Of training.")] = 43,
    steps: Annotated[int, Parameter(help="Optimizer steps, of 16 rollouts each.")] = 40,
    work: Annotated[Path, Parameter(help="Folder of the raw evidence.")] = WORK,
) -> int:
    """Show whether a policy learns through each gym; returns 1 if success did not rise significantly."""
    for option, path in (("out", out), ("work", work)):
        if path.exists() and not path.is_dir():
            raise HarnessError(f"--{option} {path} is no folder")
    chosen = list(gyms or GYMS)
    if len(set(chosen)) != len(chosen):
        raise HarnessError(f"--gyms {' '.join(chosen)} names a gym twice")
    # Sums of floats depend on how they are split over threads.
    torch.set_num_threads(1)
    console = Console(highlight=False, soft_wrap=True)
    summary = learn(policy, chosen, seed, steps, out, work, console)
    _show(console, summary)
    return 0 if summary.rose() else 1


def _show(console: Console, summary: Summary) -> None:
    table = Table("gym", "before", "after", "difference", "p", "rose significantly")
    for gym, arm in summary.arms.items():
        figures = (words(arm.baseline), words(arm.after), f"{arm.difference:+.3f}", f"{arm.p_value:.2g}")
        table.add_row(gym, *figures, "yes" if arm.significant_rise else "no")
    console.print(table)
    if summary.agreement is not None:
        console.print(agreement_words(summary.agreement))
