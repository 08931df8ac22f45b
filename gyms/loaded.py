"""Which source bytes this process really executed.

A digest taken from disk says what a file holds now, and a cached ``.pyc`` what it held once. ``install()``
makes every later import of ``gymqual.gyms.*`` compile the very bytes whose sha256 it records.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

PACKAGE = Path(__file__).parent

EQUAL_CORES = frozenset(
    {
        # Its modules named each other by ``gyms.german``, when that was a top-level package.
        "d0568e0e28a5b4b804d3a313b0fef5d0fbac4dbeda088ac5f27979f64d9e23ba",
        # The same, but for these import lines, which are relative.
        "8fb03a8143a38946c45623c84dcac3a881705f600ca2a5564a12e14914750f8e",
    }
)
"""Digests of one and the same task core; ``FROZEN*.sha256`` beside it have those of the files."""

_executed: dict[str, str] = {}


def install() -> None:
    """Record every module of the gyms imported from now on, and the three files that ran before."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        for file in (PACKAGE.parent / "__init__.py", PACKAGE / "__init__.py", PACKAGE / "loaded.py"):
            record(file)


def record(file: Path) -> None:
    """Record a file that this process executes without importing it, such as its entry script."""
    _executed[_name(file)] = hashlib.sha256(file.read_bytes()).hexdigest()


def executed() -> dict[str, str]:
    """Return the sha256 of every recorded source file, by name such as ``gyms/german/tasks.py``."""
    return dict(sorted(_executed.items()))


def core_digest(sources: Mapping[str, str]) -> str:
    """Return one sha256 over the core's files: over lines of ``sha256  name`` in name order."""
    return combine((name, digest) for name, digest in sources.items() if name.startswith("gyms/german/"))


def same_core(one: str, other: str) -> bool:
    """Return whether two digests are of task cores that judge alike: equal, or both of ``EQUAL_CORES``."""
    return one == other or {one, other} <= EQUAL_CORES


def core_on_disk(package: Path = PACKAGE) -> str:
    """Return ``core_digest`` of the files in a ``gyms`` folder, executed or not."""
    files = (package / "german").glob("*.py")
    return combine((f"gyms/german/{file.name}", hashlib.sha256(file.read_bytes()).hexdigest()) for file in files)


def combine(entries: Iterable[tuple[str, str]]) -> str:
    """Return one sha256 over (name, sha256) pairs, independent of their order."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(entries))
    return hashlib.sha256(lines.encode()).hexdigest()


class _RecordingLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        source = self.get_data(path)
        _executed[_name(Path(path))] = hashlib.sha256(source).hexdigest()
        return self.source_to_code(source, path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__package__}."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _RecordingLoader(fullname, spec.origin)
        return spec


def _name(file: Path) -> str:
    if file == PACKAGE.parent / "__init__.py":
        return "gymqual/__init__.py"
    return file.relative_to(PACKAGE.parent).as_posix() if file.is_relative_to(PACKAGE.parent) else file.name
