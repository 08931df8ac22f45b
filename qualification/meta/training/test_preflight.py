"""Preflight: a policy that multi-turn training cannot trust is refused before anything runs, in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch
import trl
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from gymqual.__main__ import main
from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.policy import sft
from gymqual.trainer.policy.loading import FOLDER, load_policy, preflight

pytestmark = [pytest.mark.self_test, pytest.mark.cpu_qualification]

TEMPLATES = Path(trl.__file__).parent / "chat_templates"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A copy of the small embedded policy, to be damaged."""
    return copytree(FOLDER / "mini4", tmp_path / "policy")


def _edit(folder: Path, file: str, **fields: object) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _poison(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = torch.nan
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100_000])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "holds no *.safetensors"),
    "half the weights": (_cut, "cannot be loaded"),
    "NaN in the weights": (_poison, "not finite, the first is model.norm.weight"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "half a config": (lambda folder: (folder / "config.json").write_text('{"architectures'), "cannot be read"),
    "another architecture": (
        lambda folder: _edit(folder, "config.json", architectures=["BertForMaskedLM"]),
        "not a causal language model",
    ),
    "another end of turn": (lambda folder: _edit(folder, "config.json", eos_token_id=7), "the config with [7]"),
    "padding is the end of turn": (
        lambda folder: _edit(folder, "tokenizer_config.json", pad_token="<|im_end|>"),
        "padding must be a token of its own",
    ),
    "no template": (lambda folder: (folder / "chat_template.jinja").unlink(), "renders no tool calls"),
    "a template without tools": (
        lambda folder: (folder / "chat_template.jinja").write_text("{{ messages[0].content }}<|im_end|>"),
        "renders no tool calls",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_policy_is_refused_by_name(copied: Path, damage: str) -> None:
    """A checkpoint that is not whole, not finite or not what it seems MUST be refused, naming what is wrong."""
    spoil, named = DAMAGES[damage]
    spoil(copied)
    with pytest.raises(HarnessError) as refused:
        load_policy(str(copied))
    said = str(refused.value)
    assert (named in said, "\n" in said) == (True, False), explain(
        subject=f"a policy with {damage}",
        expected=f"one sentence with {named!r}",
        got=said,
        cause="the damage is met later, or told in a traceback",
    )


KNOWN_TEMPLATES = {
    "qwen2_5": "",
    "qwen3_instruct_2507": "",
    "qwen3": "replaced",
    "qwen3_5_think": "token 11 '<think>' becomes '<tool_call>'",
    "llama3": "renders no tool calls",
    "qwen3_training": "nothing can parse",
}


@pytest.mark.parametrize("name", KNOWN_TEMPLATES)
def test_a_template_is_judged_by_what_it_keeps(name: str) -> None:
    """A template that changes earlier turns MUST be refused with the first diverging token, or replaced on record."""
    policy = load_policy("mini4")
    tokenizer = AutoTokenizer.from_pretrained(FOLDER / "mini4")
    tokenizer.response_template = None
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    try:
        said = " ".join(preflight(name, tokenizer, policy.model.config))
    except HarnessError as refused:
        said = str(refused)
    assert KNOWN_TEMPLATES[name] in said if KNOWN_TEMPLATES[name] else said == "", explain(
        subject=f"TRL's {name}.jinja",
        expected=KNOWN_TEMPLATES[name] or "accepted without a note",
        got=said,
        cause="prefixes, parsing or thinking were not looked at",
    )


COMMANDS = {
    "unknown policy": ("evaluate", ["--policy", "maxi"], "--policy maxi"),
    "unconsumed test split": ("evaluate", ["--split", "test"], "--consume-test"),
    "no episodes": ("evaluate", ["--episodes", "0"], "--episodes 0"),
    "a URL for no service": ("evaluate", ["--gym-url", "http://127.0.0.1:1"], "leave one of them out"),
    "a URL that is none": ("evaluate", ["--gym", "nemo", "--gym-url", "localhost:1"], "write it like http://"),
    "no threads": ("evaluate", ["--threads", "0"], "--threads 0"),
    "an adapter that is none": ("evaluate", ["--policy", "mini4", "--adapter", "nowhere"], "--adapter nowhere"),
    "a seed below zero": ("sft", ["--out", "nowhere", "--seed", "-1"], "--seed -1"),
    "a result that is none": ("evaluate", ["--against", "README.md"], "--against README.md"),
    "steps of a fixed recipe": ("sft", ["--out", "nowhere", "--steps", "3"], "--steps: mini is built"),
    "no steps": ("sft", ["--policy", "smollm2", "--out", "nowhere", "--steps", "0"], "--steps 0 must be"),
    "an unknown policy to serve": ("serve-policy", ["--policy", "maxi", "--port", "18999"], "mini, mini4, smollm2 nor"),
    "a port that does not exist": ("serve-policy", ["--port", "70000"], "port 70000 does not exist"),
    "no threads to serve with": ("serve-policy", ["--port", "18999", "--threads", "0"], "--threads 0"),
    "a folder that exists": ("sft", ["--out", "trainer"], "--out trainer exists"),
    "problems without answers": ("retention", ["--data", "README.md"], "line 1 is not a question"),
    "no problems": ("retention", ["--data", "nowhere.tsv"], "--data nowhere.tsv"),
    "no steps to learn in": ("learn", ["--out", "nowhere", "--steps", "0"], "--steps 0: "),
    "a training seed below zero": ("learn", ["--out", "nowhere", "--seed", "-1"], "--seed -1: "),
    "an unknown policy to train": ("learn", ["--out", "nowhere", "--policy", "maxi"], "--policy maxi"),
    "a gym named twice": ("learn", ["--out", "nowhere", "--gyms", "nemo", "nemo"], "names a gym twice"),
    "a file as the result's folder": ("learn", ["--out", "README.md"], "--out README.md is no folder"),
    "a folder of other files": ("learn", ["--out", "requirements"], "--out: requirements/harness.in would"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_refuses_bad_input_in_one_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command MUST name the option and the fix, and MUST NOT exit with 0."""
    command, arguments, named = COMMANDS[name]
    code = main([command, *arguments])
    said = capsys.readouterr().err
    assert (code, named in said, "Traceback" in said) == (2, True, False), explain(
        subject=f"gymqual {command} {' '.join(arguments)}",
        expected=(2, named),
        got=(code, said),
        cause="the input is used before it is checked",
    )


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that cannot be written to its end MUST leave no folder that a later run would take for a policy."""

    def full_disk(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    policy = load_policy("mini4")
    monkeypatch.setattr(sft, "write_atomically", full_disk)
    with pytest.raises(OSError, match="No space left"):
        sft.save("mini4", sft.RECIPES["mini4"], policy.model, policy.tokenizer, sft.Curve(), tmp_path / "out")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [], explain(
        subject="folder after a build on a full disk",
        expected=[],
        got=list(tmp_path.iterdir()),
        cause="files are written where the policy will be, one by one",
    )
