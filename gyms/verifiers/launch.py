"""How upstream's commands are run on a staged copy. Read by whoever starts them; imports nothing of upstream."""

from pathlib import Path

ENVIRONMENT = "verifiers_environment"
"""Id of the environment."""
FIXTURE = "fixture_harness"
"""Id of the harness that plays scripts."""
TRIVIAL = "trivial_environment"
"""Id of the reference of benchmarks."""
TOP_LEVEL = (f"{ENVIRONMENT}.py", f"{FIXTURE}.py", f"{TRIVIAL}.py")
"""Modules that upstream imports by id: staged outside the package, beside it on ``PYTHONPATH``."""
API_KEY_VARIABLE = "LOCAL_MODEL_API_KEY"

OFFLINE = {
    # Upstream uploads every run by default, and asks the hub for tokenizers.
    "PRIME_RUNS_MODE": "disabled",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    # A local server wants none, but upstream's client sends one.
    API_KEY_VARIABLE: "unused",
}


def python_path(subject: Path) -> str:
    """Return the whole ``PYTHONPATH`` of upstream's commands on a staged copy."""
    return f"{subject / 'verifiers'}:{subject / 'python'}"
