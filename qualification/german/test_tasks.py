"""The German task core: separate splits, the same tasks everywhere, and nothing beside the standard library."""

import ast
import hashlib
import inspect
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymqual.gyms import loaded
from gymqual.gyms.german import tasks
from gymqual.harness.plugin.registry import check, explain
from gymqual.qualification.support.german.interpreters import ROOT, interpreters, run_python, task_digests
from gymqual.qualification.support.german.tables import UNSHRUNK

pytestmark = pytest.mark.cpu_smoke

LENGTH = 250
"""Tasks in a row that are drawn of a split."""


@check("TASK-05", broken="shared_records")
@settings(max_examples=20, phases=UNSHRUNK)
@given(
    st.fixed_dictionaries(
        {
            split: st.tuples(
                st.sampled_from(sorted(tasks.POOLS)), st.integers(0, 10**9 - 1), st.integers(0, 10**9 - LENGTH)
            )
            for split in tasks.SPLIT_SHARES
        }
    )
)
def test_splits_share_neither_records_nor_quantities(draws: dict[str, tuple[str, int, int]]) -> None:
    """Splits MUST share no record id and no quantities, whatever the seeds, and a run of tasks repeats no id."""
    owners: dict[object, set[str]] = {}
    for split, (pool, seed, first) in draws.items():
        for index in range(first, first + LENGTH):
            task = tasks.make_task(split, seed, index, pool)
            owners.setdefault(task.record_id, set()).add(split)
            owners.setdefault(task.quantities, set()).add(split)

    shared = [key for key, splits in owners.items() if len(splits) > 1]
    records = sum(isinstance(key, str) for key in owners)

    assert (shared, records) == ([], LENGTH * len(draws)), explain(
        subject=f"{LENGTH} tasks of each split, drawn with (pool, seed, first index) {draws}",
        expected=f"nothing shared and {LENGTH * len(draws)} different records",
        got=f"{len(shared)} shared ({shared[:5]}) and {records} different records",
        cause="a split is not a property of the record and the quantities themselves",
    )


@pytest.mark.parametrize("split", tasks.SPLIT_SHARES)
def test_a_split_uses_each_of_its_records_once_before_it_repeats_one(split: str) -> None:
    ids = [number for number in range(1000, 10_000) if tasks._split_of("record", number) == split]

    drawn = [tasks.make_task(split, 7, index).record_id for index in range(len(ids))]

    assert sorted(drawn) == [f"L-{number}" for number in ids]


@pytest.mark.parametrize(
    "task_id",
    [
        "", "v1", "v1/train/43", "v1/train/43/0/0", "v1/train/043/0", "v1/train/-1/0", "V1/train/43/0", "v2/train/43/0",
        "v1/eval/43/0", "v1/train/٤/0", "v1/train/43/0\n", " v1/train/43/0", "v1/train/1e3/0", "v1/train/1/9999999999",
    ],
)  # fmt: skip
def test_a_task_id_in_another_form_names_no_task(task_id: str) -> None:
    with pytest.raises(tasks.UnknownTask):
        tasks.find_task(task_id)


FIRST_TASKS = {
    "sft": "580fa6281afe30e3e04c37190cbc330c842a584b8010e306df8b9e6de2c523f2",
    "train": "2107499b6f2528b7f8408f2ecd66eea53c3aad03bbed7048ca61d6478c566788",
    "dev": "623e0d8c18e1b0a95ccc44dbd3c86bfd29570581039ea29a612110867a1ea17d",
    "test": "e5adeec0f222c9d199cc9e035a20e7ba88fe9c4711917f057d84a701a2e802e1",
}


@check("TASK-06", broken="salted_hash")
def test_a_task_is_the_same_in_every_interpreter() -> None:
    """A task id MUST name the same task, byte for byte, in every process, hash seed and Python version."""
    program = f"{inspect.getsource(task_digests)}\nimport json\nprint(json.dumps(task_digests()))"
    printed = {python: run_python(python, program, str(seed)) for seed, python in enumerate(interpreters(), start=1)}

    got = {"this process": task_digests(), **{python: json.loads(text or "{}") for python, text in printed.items()}}

    assert all(digests == FIRST_TASKS for digests in got.values()), explain(
        subject="the first 50 tasks of each split in every pool, seed 43",
        expected=FIRST_TASKS,
        got=got,
        cause="a draw depends on hash(), set order or a library function that changed, or the tasks were edited",
    )


@dataclass(frozen=True)
class Source:
    """One file and the only packages, besides the standard library, that it may import."""

    path: Path
    own: str


def foreign_imports(source: Source) -> list[str]:
    """Modules that a file imports and may not."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source.path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # "from package import module" names the module in its second half.
            inside = f"{source.own}." if node.level else ""
            names += [f"{inside}{node.module or ''}.{alias.name}" for alias in node.names if node.level < 2]
            names += [f"{'.' * node.level}{node.module or ''}" for _ in node.names if node.level > 1]
    return [
        name
        for name in names
        if name.split(".")[0] not in sys.stdlib_module_names and not f"{name}.".startswith(f"{source.own}.")
    ]


def own_sources() -> Sequence[Source]:
    core = [Source(path, "gymqual.gyms.german") for path in sorted((ROOT / "gyms/german").rglob("*.py"))]
    return [*core, *(Source(ROOT / f"gyms/{name}.py", "gymqual.gyms") for name in ("base", "german_orders"))]


@check("TASK-11", broken="package_in_the_core")
def test_the_core_needs_nothing_but_the_standard_library() -> None:
    """The core MUST import the standard library and itself only, so that it runs in every gym's environment."""
    sources = own_sources()

    foreign = {str(source.path.relative_to(ROOT)): foreign_imports(source) for source in sources}

    assert not any(foreign.values()), explain(
        subject="imports of the task core and the gym contract",
        expected="sys.stdlib_module_names and gymqual.gyms only",
        got={path: names for path, names in foreign.items() if names},
        cause="a package that a gym's own environment may lack, or with which it would disagree",
    )


def test_the_core_is_frozen() -> None:
    frozen = (ROOT / "gyms/german/FROZEN.sha256").read_text(encoding="utf-8")
    files = sorted((ROOT / "gyms/german").glob("*.py"))
    current = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    assert current == frozen, explain(
        subject="files of gyms/german",
        expected=frozen,
        got=current,
        cause="the core was edited, though policies and figures were made with the frozen one; make a new version",
    )


def test_the_core_is_the_earlier_one_but_for_its_import_lines() -> None:
    earlier = (ROOT / "gyms/german/FROZEN-absolute-imports.sha256").read_text(encoding="utf-8")
    files = sorted((ROOT / "gyms/german").glob("*.py"))
    absolute = {
        file.name: re.sub(rb"(?m)^from \.(?=\w+ import )", b"from gyms.german.", file.read_bytes()) for file in files
    }
    digests = {f"gyms/german/{name}": hashlib.sha256(content).hexdigest() for name, content in absolute.items()}
    listed = "".join(f"{digest}  {Path(name).name}\n" for name, digest in digests.items())
    seen = (listed, {loaded.core_digest(digests), loaded.core_on_disk()})
    assert seen == (earlier, loaded.EQUAL_CORES), explain(
        subject="files of gyms/german with absolute imports, and the digests that loaded.py takes for one core",
        expected=(earlier, sorted(loaded.EQUAL_CORES)),
        got=(seen[0], sorted(seen[1])),
        cause="more than import lines differs from the core that policies and samples were made with",
    )
