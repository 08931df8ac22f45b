"""Running Verifiers' own commands from its stack on a staged subject, bounded, offline, none left behind."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymqual.gyms.verifiers.classify import TRACES
from gymqual.gyms.verifiers.launch import ENVIRONMENT, OFFLINE, python_path
from gymqual.harness.process.owner import Owner
from gymqual.harness.process.server import Finished, Launch, run_command
from gymqual.harness.records.errors import ServerFailed
from gymqual.harness.stacks.environments import Stack
from gymqual.harness.stacks.staging import Subject

LIMIT_S = 240.0
"""An import of upstream costs 4.5 CPU seconds a process; another job may have the cores."""


@dataclass(frozen=True)
class Verifiers:
    """Where upstream's commands run: stack, staged subject, owner, and the folder that takes runs and logs."""

    stack: Stack
    subject: Subject
    owner: Owner
    folder: Path
    extra_path: str = ""
    """A folder that comes before the subject's on ``PYTHONPATH``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Further environment variables of every command."""

    def command(self, name: str, *arguments: str, limit_s: float = LIMIT_S) -> Finished:
        """Run a console script of upstream's, or Python's ``-m`` or ``-c``; raises ServerFailed when it hangs."""
        options = name in ("-m", "-c")
        script = name if options else str(Path(self.stack.python).parent / name)
        path = python_path(self.subject.folder)
        path = f"{self.extra_path}:{path}" if self.extra_path else path
        launch = Launch(
            (self.stack.python, "-P", script, *arguments),
            {**OFFLINE, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **self.variables},
        )
        label = "python" if options else name
        try:
            return run_command(label, launch, owner=self.owner, folder=self.folder, limit_s=limit_s)
        finally:
            # Upstream links its latest log; what a run keeps are files, not names for them.
            for link in self.folder.glob("*/logs/latest"):
                link.unlink()

    def evaluate(self, run: str, *arguments: str, limit_s: float = LIMIT_S, environment: str = ENVIRONMENT) -> "Run":
        """Run ``vf-eval`` on an environment, without upload; raises ServerFailed when it hangs."""
        local = ("--no-push", "--no-rich", "-o", str(self.folder), "--run.name", run)
        ended = self.command("vf-eval", environment, *arguments, *local, limit_s=limit_s)
        return Run(self.folder / run, ended)

    def play(self, run: str, plan: Mapping[str, Any], *options: str, limit_s: float = LIMIT_S) -> "Run":
        """Play a plan (see ``gyms/verifiers/play.py``) in one process; raises ServerFailed if it could not."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"{run}.plan.json"
        file.write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
        ended = self.command(
            "-m", "gymqual.gyms.verifiers.play", str(file), str(self.folder / run), *options, limit_s=limit_s
        )
        if ended.exit_code != 0:
            raise ServerFailed(f"play ended with {ended.exit_code}; its log ends:\n{ended.output[-2000:]}")
        return Run(self.folder / run, ended)


@dataclass(frozen=True)
class Run:
    """One run folder of upstream's."""

    folder: Path
    ended: Finished

    @property
    def lines(self) -> list[str]:
        """The saved episodes as lines, in the order in which they ended; raises ServerFailed if there are none."""
        file = self.folder / TRACES
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        if not lines:
            raise ServerFailed(
                f"{self.ended.name} (exit code {self.ended.exit_code}) saved no rollout; "
                f"its log ends:\n{self.ended.output[-2000:]}"
            )
        return lines

    @property
    def episodes(self) -> list[dict[str, Any]]:
        """The saved episodes."""
        return [json.loads(line) for line in self.lines]

    @property
    def traces(self) -> dict[str, dict[str, Any]]:
        """The saved traces by task key."""
        return {episode["task"]["key"]: trace for episode in self.episodes for trace in episode["traces"]}

    @property
    def resolved(self) -> dict[str, Any]:
        """The resolved configuration."""
        return json.loads((self.folder / "configs/resolved/eval.json").read_bytes())
