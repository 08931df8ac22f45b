"""Single alterations of what a training run says beside its trace, by the claim of the replay that owns each.

Of its configuration, its manifest and its adapters.
"""

from pathlib import Path

from gymqual.qualification.broken.training_traces import Alteration
from gymqual.qualification.support.training.small_run import Dump
from gymqual.trainer.runs.manifest import ADAPTER, INITIAL_ADAPTER
from gymqual.trainer.runs.tensors import ADAPTER as TENSORS


def an_adapter_byte(run: Dump) -> None:
    _flip_byte(run.folder / ADAPTER / TENSORS)


def an_initial_adapter_byte(run: Dump) -> None:
    _flip_byte(run.folder / INITIAL_ADAPTER / TENSORS)


def _flip_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def a_temperature(run: Dump) -> None:
    run.training["temperature"] = run.manifest["config"]["temperature"] = 0.7


def another_configuration(run: Dump) -> None:
    run.manifest["config"]["seed"] = 44


def another_core(run: Dump) -> None:
    run.manifest["core"] = "0" * 64


def tasks_in_another_order(run: Dump) -> None:
    for config in (run.training, run.manifest["config"]):
        config["tasks"] = [config["tasks"][1], config["tasks"][0], *config["tasks"][2:]]


def a_token_total(run: Dump) -> None:
    run.manifest["tokens"]["sampled"] += 1


def an_external_total(run: Dump) -> None:
    run.manifest["tokens"]["external"] -= 1


def a_consumed_task(run: Dump) -> None:
    tasks = run.manifest["consumed_tasks"]
    tasks[next(iter(tasks))] -= 1


def a_task_that_was_not_consumed(run: Dump) -> None:
    run.manifest["consumed_tasks"]["v1/train/43/15"] = 4


def an_observation_total(run: Dump) -> None:
    run.manifest["replay"]["observations"] += 1


def a_changed_tensor(run: Dump) -> None:
    run.manifest["tensors"]["changed"] -= 1


def a_share_of_elements(run: Dump) -> None:
    run.manifest["tensors"]["elements_changed"] = 0.5


def an_update_ratio(run: Dump) -> None:
    ratios = run.manifest["tensors"]["update_ratio"]
    ratios[next(name for name, ratio in ratios.items() if ratio)] = 1.0


def a_training_success(run: Dump) -> None:
    run.manifest["strict_training_success"] = 1.0


def a_mean_reward(run: Dump) -> None:
    run.manifest["mean_shaped_reward"] = 0.9


def varied_groups(run: Dump) -> None:
    run.manifest["varied_groups"] += 1


def a_step_of_the_manifest(run: Dump) -> None:
    run.manifest["steps"][0]["gradient_norm"] *= 1.5


OWNERS: dict[Alteration, str] = {
    an_adapter_byte: "policies", an_initial_adapter_byte: "policies", a_temperature: "configuration",
    another_configuration: "configuration", another_core: "identity", tasks_in_another_order: "tasks",
    a_token_total: "token totals", an_external_total: "token totals", a_consumed_task: "consumed tasks",
    a_task_that_was_not_consumed: "consumed tasks", an_observation_total: "replay totals", a_changed_tensor: "tensors",
    a_share_of_elements: "tensors", an_update_ratio: "tensors", a_training_success: "summary", a_mean_reward: "summary",
    varied_groups: "summary", a_step_of_the_manifest: "summary",
}  # fmt: skip
