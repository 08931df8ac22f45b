"""What only an extra of the installation brings, and how it is had."""

from importlib.util import find_spec

from gymqual.harness.records.files import ROOT

EXTRAS = {
    "page": ("jinja2", "matplotlib"),
    "train": ("torch", "transformers", "trl", "peft", "safetensors", "accelerate", "datasets", "tokenizers"),
    "policies": ("gguf", "starlette", "uvicorn"),
    "checks": ("babel", "pytest_timeout", "simpleeval", "websockets", "xdist"),
}
"""Packages that a part of the product imports, by the extra that brings them."""


def lacking(extra: str) -> str | None:
    """Return what is not installed of an extra, with the line that installs it; None if nothing is missing."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if not missing:
        return None
    # The checkout's environment is made from locks.
    in_checkout = (ROOT / "Makefile").is_file()
    by_goal = in_checkout and extra in ("train", "policies")
    fix = "make setup-train" if by_goal else f"pip install 'gymqual[{extra}]'"
    return f"needs {', '.join(missing)}; run: {fix}"


def lacking_for(error: ImportError) -> str | None:
    """Return what is not installed, as ``lacking`` does, of the extra whose package an import did not find.

    None for an import that failed for anything else, which is a fault of ours.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ModuleNotFoundError):
        cause = cause.__cause__ or cause.__context__
    package = ((cause.name if cause else None) or "").partition(".")[0]
    extra = next((name for name, packages in EXTRAS.items() if package in packages), None)
    return lacking(extra) if extra else None
