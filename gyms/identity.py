"""What this server process is made of: our bytes as executed, upstream's bytes as installed."""

import hashlib
import platform
import sys
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from importlib.metadata import PackagePath, distribution

from gymqual.gyms import loaded
from gymqual.gyms.base import GymIdentity


@dataclass(frozen=True)
class Upstream:
    """An upstream framework."""

    distribution: str
    package: str
    """Its import package."""
    stands_for: str
    """The revision the published distribution stands for, and whether the two could be compared."""


def identify(gym: str, upstream: Upstream) -> GymIdentity:
    """Identify this process. Call it after every module of ours has been imported."""
    installed = distribution(upstream.distribution)
    files = {file.as_posix(): file for file in installed.files or () if _is_shipped(file)}
    sources = loaded.executed()
    return GymIdentity(
        gym=gym,
        upstream=f"{upstream.distribution} {installed.version}",
        upstream_digest=loaded.combine((name, _recorded(file)) for name, file in files.items()),
        upstream_modified=_modified(files, upstream.package),
        stands_for=upstream.stands_for,
        python=f"{platform.python_implementation()} {platform.python_version()}",
        core=loaded.core_digest(sources),
        sources=sources,
    )


def _is_shipped(file: PackagePath) -> bool:
    # Console scripts and the installer's own notes differ by installation; the rest is the wheel's.
    inside_metadata = file.parts[0].endswith(".dist-info")
    return file.hash is not None and ".." not in file.parts and not inside_metadata and file.suffix != ".pyc"


def _recorded(file: PackagePath) -> str:
    return file.hash.value if file.hash else ""


def _modified(files: dict[str, PackagePath], package: str) -> tuple[str, ...]:
    """Return the upstream files this process has loaded whose bytes differ from the wheel's record."""
    modified = []
    for module in list(sys.modules.values()):
        name = getattr(module, "__name__", "")
        origin = getattr(module, "__file__", None)
        if origin is None or name.partition(".")[0] != package:
            continue
        path = name.replace(".", "/")
        file = files.get(f"{path}/__init__.py") or files.get(f"{path}.py")
        with open(origin, "rb") as source:
            digest = urlsafe_b64encode(hashlib.sha256(source.read()).digest()).rstrip(b"=").decode()
        if file is None or _recorded(file) != digest:
            modified.append(name)
    return tuple(sorted(modified))
