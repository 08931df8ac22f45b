"""What a GPU run needs, tried without one: the query of the device is faked, the training is in BF16 on the CPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import NotTestable
from gymqual.qualification.support.training.small_run import train_locally
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.replay import audit
from gymqual.trainer.runs.accelerator import find_accelerator
from gymqual.trainer.runs.config import BF16_BANDS, TrainingConfig, training_config
from gymqual.trainer.runs.manifest import COMPLETED

pytestmark = [pytest.mark.cpu_qualification, pytest.mark.filterwarnings("ignore")]

GIB = 2**30
H200: dict[str, Any] = {
    "name": "NVIDIA H200",
    "major": 9,
    "minor": 0,
    "count": 1,
    "free": 138 * GIB,
    "total": 139 * GIB,
}
UNUSABLE: dict[str, tuple[dict[str, Any], str, str]] = {
    "torch without CUDA": ({"built_with": None}, "built without CUDA", "CUDA build"),
    "no GPU, or no driver": ({"count": 0}, "no CUDA GPU", "nvidia-smi"),
    "two GPUs": ({"count": 2}, "2 GPUs are visible", "CUDA_VISIBLE_DEVICES=0"),
    "one without BF16": ({"name": "Tesla T4", "major": 7, "minor": 5}, "Tesla T4 has compute capability 7.5", "8.0"),
    "one that is full": ({"free": 3 * GIB}, "3.0 of 139.0 GiB of NVIDIA H200 are free", "nvidia-smi"),
}


def queried(**device: Any) -> Any:
    """Return what torch.cuda would be on a machine with such a device, and what torch was built with."""
    found = {**H200, "built_with": "13.0", **device}
    cuda = SimpleNamespace(
        is_available=lambda: found["count"] > 0,
        device_count=lambda: found["count"],
        get_device_properties=lambda index: SimpleNamespace(**found),
        mem_get_info=lambda index: (found["free"], found["total"]),
    )
    return cuda, found["built_with"]


@pytest.mark.parametrize("machine", UNUSABLE)
def test_a_machine_without_a_usable_gpu_is_told_why(machine: str) -> None:
    """A GPU that is missing, one of several, too old or full MUST be Not testable, with what is missing and the fix."""
    device, missing, fix = UNUSABLE[machine]
    with pytest.raises(NotTestable) as refused:
        find_accelerator(*queried(**device))
    said = str(refused.value)
    assert missing in said and fix in said, explain(  # noqa: PT018
        subject=f"why a GPU check is not testable: {machine}",
        expected=(missing, fix),
        got=said,
        cause="the query of the device does not tell one lack from another",
    )


def test_a_usable_gpu_is_described() -> None:
    """One visible GPU with BF16 MUST be accepted, and described as the manifest names it."""
    said = str(find_accelerator(*queried()))
    expected = "NVIDIA H200, compute capability 9.0, 139 GiB, CUDA 13.0"
    assert said == expected, explain(
        subject="description of a GPU", expected=expected, got=said, cause="its properties are read from elsewhere"
    )


def test_bf16_trains_and_replays_on_the_cpu(tmp_path: Path) -> None:
    """What a GPU run trains, mini in BF16, here four steps, MUST complete on the CPU, in its bands, and be replayed."""
    made = training_config("mini", load_policy("mini").identity.weights, "nemo", 43, 4)
    config = TrainingConfig.model_validate({**made.model_dump(exclude={"bands"}), "precision": "bf16"})
    run = train_locally(config, tmp_path)
    broken = [line for line in audit.audit(tmp_path).lines if line.startswith("BROKEN")]
    changed = run.tensors.changed if run.tensors else 0
    seen = (run.outcome, run.config.bands == BF16_BANDS, changed, broken)
    assert seen == (COMPLETED, True, 392, []), explain(
        subject="(outcome, bands are those of BF16, tensors changed, claims that do not hold)",
        expected=(COMPLETED, True, 392, []),
        got=seen,
        cause="a dtype is taken for granted on the way from sampler to adapter",
    )
