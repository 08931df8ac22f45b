"""The installed pytest plugin: options, marks and fixtures; nothing of ours is imported before one of them is used.

pytest loads it in every session of an environment that gymqual is installed in. It wakes up where a run is to go on
record (``--gymqual-reports`` or the ini option ``gymqual_reports``) or checks are selected by its options; what it does
then is in ``gymqual.harness.plugin``.
"""

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gymqual.harness.plugin.evidence import Evidence
    from gymqual.harness.plugin.run import Run

MARKS = {
    "gym(name)": "the check examines this gym; --gymqual-gym selects by it",
    "cpu_smoke": "documented check without training",
    "cpu_qualification": "real training on the embedded policy",
    "gpu_qualification": "the same bodies on one visible BF16 CUDA GPU",
    "self_test": "the suite examined with broken subjects",
    "upstream": "driven by the frameworks' own tools",
    "optional": "documented, optional",
    "needs_data(variable)": "needs the data that an environment variable names; left out without it, unless named",
    "slow": "over 20 seconds and not one of the documented, counted checks",
}
"""Meaning by name; a project's own checks carry them as ``gymqual_NAME``."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and the default reports folder."""
    group = parser.getgroup("gymqual", "qualification of RL agent gyms")
    for option, settings in OPTIONS.items():
        group.addoption(f"--gymqual-{option}", dest=destination(option), **settings)
    parser.addini(
        "gymqual_reports", "default of --gymqual-reports, relative to the root folder; empty: passive", default=""
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "gym": {
        "action": "append",
        "default": [],
        "metavar": "NAME",
        "help": "only checks of this gym: nemo, openenv, verifiers, all (repeat)",
    },
    "policy": {
        "default": "mini",
        "metavar": "NAME",
        "help": "policy of the checks that train: mini, mini4, smollm2 or a directory (%(default)s)",
    },
    "inference-url": {
        "metavar": "URL",
        "help": "OpenAI-compatible server of the check with a real model, e.g. http://127.0.0.1:8000/v1 "
        "(default: the embedded policy, served)",
    },
    "reports": {"metavar": "DIR", "help": "folder that run directories are made in"},
    "broken": {
        "action": "store_true",
        "default": False,
        "help": "run every check against its own defects, which it must flag, and against its neighbour's",
    },
}
"""Settings of each option by its name; gymqual's own checkout declares the short names as well."""


def destination(option: str) -> str:
    """Return the attribute of ``config.option`` that holds an option's value."""
    return f"gymqual_{option.replace('-', '_')}"


# First, since pytest's own JUnit writer looks at its option when it is configured.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks, and wake the plugin up where the session is a run of checks."""
    for name, meaning in MARKS.items():
        config.addinivalue_line("markers", f"gymqual_{name}: {meaning}")
    option = config.option
    in_worker = "gymqual_folder" in getattr(config, "workerinput", {})
    reports = option.gymqual_reports or (config.inipath and config.getini("gymqual_reports"))
    if in_worker or reports or option.gymqual_gym or option.gymqual_broken:
        from gymqual.gyms import loaded

        # Before any other module of ours: what this process executes of the gyms, client and replay included, goes on
        # record as the bytes that were compiled, not as what the files hold at the end of the run.
        loaded.install()
        from gymqual.harness.plugin import hooks

        config.pluginmanager.register(hooks, hooks.__name__)


@pytest.fixture(scope="session")
def gymqual_run(request: pytest.FixtureRequest) -> "Run":
    """The run that goes on record; checks need a reports folder to leave their evidence in."""
    from gymqual.harness.plugin.items import require_run

    return require_run(request.config)


@pytest.fixture
def gymqual_evidence(request: pytest.FixtureRequest, gymqual_run: "Run") -> "Evidence":
    """The evidence of this check."""
    from gymqual.harness.plugin.items import evidence_of

    return evidence_of(request.node, gymqual_run)
