"""Trying a sample of mutants on a copy of the tree."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from compileall import compile_dir
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymqual.harness.records.errors import HarnessError, NotTestable
from gymqual.harness.records.files import ROOT
from gymqual.qualification.studies.mutation.result import Mutant, Sample
from gymqual.qualification.studies.mutation.subjects import Subject

DRAWS, RUNS = (Path(__file__).with_name(name) for name in ("mutants.py", "warm.py"))
ENVIRONMENT = ROOT / "build" / "mutation"
"""Holds cosmic-ray; nothing of it is needed where the checks run."""
LIMIT_FACTOR, LIMIT_FLOOR_S = 10.0, 120.0
"""How much longer a mutant's checks may take than the CPU time of the unchanged ones, before it counts as noticed."""
SEED = "43"
UNCHANGED_LIMIT_S = 1800.0
COPIED = ("gyms", "harness", "qualification", "reports", "requirements", "trainer")
CANARY = "raise RuntimeError('a mutant that nobody can miss')\n"


def find_python() -> Path:
    """Return the interpreter that holds cosmic-ray; raises NotTestable if there is none."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        raise NotTestable(f"{ENVIRONMENT} holds no cosmic-ray; run `make setup-mutation`")
    return python


def sample_of(subject: Subject, root: Path, seed: str = SEED, count: int | None = None) -> list[dict[str, Any]]:
    """Draw a subject's mutants: module, operator, lines before and after, and the whole changed module."""
    command = [str(find_python()), str(DRAWS), str(root), f"{seed} {subject.name}"]
    ran = subprocess.run(
        [*command, str(count or subject.mutants), *subject.modules], capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise NotTestable(f"cosmic-ray draws no mutants; run `make setup-mutation` again. It said: {ran.stderr[-500:]}")
    return [json.loads(line) for line in ran.stdout.splitlines()]


def try_subject(
    subject: Subject,
    folder: Path,
    say: Callable[[str], None],
    *,
    seed: str = SEED,
    count: int | None = None,
    known: Iterable[Mutant] = (),
) -> Iterator[Mutant]:
    """Yield a subject's sample, tried in a copy of the tree under ``folder`` once its checks have passed unchanged.

    What was noticed already, by ``known``, is not tried again. Raises HarnessError if the checks fail unchanged, or do
    not even notice a module that cannot be imported.
    """
    root = copy_tree(folder / "tree", subject)
    drawn = sample_of(subject, root, seed, count)
    noticed = {mutant.key: mutant for mutant in known if not mutant.survived}
    with _warm(subject, root) as ask:
        task = {"commands": subject.commands, "log": str(folder / "checks.log"), "limit_s": UNCHANGED_LIMIT_S}
        first = subject.modules[0]
        unchanged = ask({**task, "module": first, "content": (root / first).read_text(encoding="utf-8")})
        if unchanged["ended"] != "passed":
            raise HarnessError(f"{subject.name}: its checks fail unchanged: {unchanged}; see {task['log']}")
        task["limit_s"] = max(LIMIT_FLOOR_S, LIMIT_FACTOR * unchanged["seconds"])
        say(f"{subject.name}: its checks take {unchanged['seconds']} CPU seconds unchanged")
        for module in subject.modules:
            if ask({**task, "module": module, "content": CANARY})["ended"] != "failed":
                raise HarnessError(f"{subject.name}: its checks do not run {module} of the copy")
        for number, mutant in enumerate(drawn, 1):
            content = mutant.pop("content")
            key = (subject.name, mutant["operator"], mutant["before"], mutant["after"])
            if key in noticed:
                yield noticed[key].model_copy(update={"module": mutant["module"]})
                continue
            own = {"module": mutant["module"], "content": content, "log": str(folder / f"{number:03}.log")}
            tried = Mutant(subject=subject.name, **mutant, **ask({**task, **own}))
            how = f"{tried.ended} ({tried.by}, {tried.seconds} s)"
            say(f"{subject.name} {number}/{len(drawn)}: {how}: {tried.operator} in {tried.module}: {tried.after}")
            yield tried


def sample(seed: str, tried: Sequence[Mutant]) -> Sample:
    """Return all that were tried, with where."""
    machine = f"{platform.machine()}, {os.cpu_count()} CPU cores shared with others, Python {platform.python_version()}"
    return Sample(seed=seed, machine=machine, mutants=tuple(tried))


def copy_tree(root: Path, subject: Subject) -> Path:
    """Copy what is mutated and what examines it, compiled but for what is going to change."""
    for name in COPIED:
        # Run directories are large, and none of a check's business.
        ignored = shutil.ignore_patterns("__pycache__", "20[0-9][0-9]*-*-*")
        shutil.copytree(ROOT / name, root / name, ignore=ignored, dirs_exist_ok=True)
    for name in ("README.md", "Makefile", "conftest.py", "pyproject.toml", "pytest.ini"):
        shutil.copy(ROOT / name, root / name)
    compile_dir(root, quiet=1)
    for module in subject.modules:
        if not (root / module).is_file():
            raise HarnessError(f"{subject.name}: {module} is not there; name what stands in its place in subjects.py")
        # What is compiled is told by size and second alone: a mutant could be taken for the one before.
        for compiled in (root / module).parent.glob(f"__pycache__/{Path(module).stem}.*"):
            compiled.unlink()
    return root


@contextmanager
def _warm(subject: Subject, root: Path) -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    """Yield what runs checks in the copy; see ``warm``."""
    process = subprocess.Popen(
        [sys.executable, str(RUNS), *subject.preloaded],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(task: dict[str, Any]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        if not answer:
            raise HarnessError(f"{subject.name}: the process that runs its checks has ended; see {task['log']}")
        return json.loads(answer)

    with process:
        try:
            yield ask
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
