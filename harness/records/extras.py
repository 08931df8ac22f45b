"""What only an extra of the installation brings, and how it is had."""

from importlib.util import find_spec

from gymqual.harness.records.files import ROOT

EXTRAS = {
    "page": ("jinja2", "matplotlib"),
    "train": ("torch", "transformers", "trl", "peft", "safetensors"),
}
"""Packages that a part of the product imports, by the extra that brings them."""


def lacking(extra: str) -> str | None:
    """Return what is not installed of an extra, with the line that installs it; None if nothing is missing."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if not missing:
        return None
    # The checkout's environment is made from locks.
    in_checkout = (ROOT / "Makefile").is_file()
    fix = "make setup-train" if in_checkout and extra == "train" else f"pip install 'gymqual[{extra}]'"
    return f"needs {', '.join(missing)}; run: {fix}"
