"""Supervised start of a policy on teacher transcripts of the ``sft`` split.

    gymqual sft --out DIR [--policy mini|mini4] [--seed N]
    gymqual sft --out DIR --policy smollm2 [--seed N] [--steps N]

``mini`` is built from nothing: a shallow model learns to copy digits and to call tools, is grown to its full depth
without changing its function, and is trained a little more so that every tensor counts. Half of its teachers are
faulty in one decision, which sets a start from which reinforcement learning can rise. ``smollm2`` is tuned by LoRA
(``lora_sft``). The loss is on assistant tokens only. Equal seed, threads and versions give equal weights.
"""

import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import transformers
from cyclopts import Parameter
from rich.console import Console
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from gymqual.gyms import loaded
from gymqual.gyms.base import TaskSet
from gymqual.gyms.german_orders import GermanOrders
from gymqual.harness.cli.checks import require_at_least_one
from gymqual.harness.records.errors import HarnessError
from gymqual.harness.records.files import readable_json, sha256_file, write_atomically
from gymqual.trainer.policy import smollm2
from gymqual.trainer.policy.loading import FOLDER as POLICIES
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.policy.lora_sft import LoraRecipe, tune
from gymqual.trainer.policy.mini import DEEP_LAYERS, SHALLOW_LAYERS, build_model, build_tokenizer, grow
from gymqual.trainer.policy.transcripts import Tokens, encode, render, teacher_messages
from gymqual.trainer.runs.statistics import wilson

Say = Callable[[str], None]

SUMS = "SHA256SUMS"
TOKENIZER_TRANSCRIPTS = 2000
"""Transcripts the tokenizer is trained on: the first of the pool."""


@dataclass(frozen=True)
class Stage:
    """One stretch of training."""

    layers: int
    steps: int
    transcripts: int
    """Size of the pool; a small one is learnt by heart."""
    matrix_lr: float
    """Muon, for the matrices of the blocks."""
    other_lr: float
    """AdamW, for embeddings and norms."""
    warm_up: int


@dataclass(frozen=True)
class Recipe:
    """How an embedded policy is built."""

    seed: int = 0
    batch: int = 32
    """Transcripts a step."""
    faulty_share: float = 0.4
    """Share of transcripts whose teacher writes k+j where k*j is right."""
    stages: tuple[Stage, ...] = (
        Stage(SHALLOW_LAYERS, steps=350, transcripts=16_000, matrix_lr=0.02, other_lr=3e-3, warm_up=30),
        Stage(DEEP_LAYERS, steps=24, transcripts=2_000, matrix_lr=0.004, other_lr=5e-4, warm_up=4),
    )


RECIPES: dict[str, Recipe | LoraRecipe] = {
    "mini": Recipe(),
    "mini4": Recipe(stages=Recipe().stages[:1]),
    smollm2.NAME: LoraRecipe(),
}


@dataclass
class Curve:
    """What training looked like."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **row: Any) -> None:
        """Record one logged step."""
        self.rows.append(row)


def build(recipe: Recipe, tasks: TaskSet, say: Say) -> tuple[Qwen3ForCausalLM, PreTrainedTokenizerFast, Curve]:
    """Build tokenizer and model by the recipe; deterministic given seed, thread count and library versions."""
    torch.manual_seed(recipe.seed)
    pool = _transcripts(recipe, tasks, max(stage.transcripts for stage in recipe.stages))
    say(f"{len(pool)} transcripts; training the tokenizer")
    blank = build_tokenizer(["x"])
    tokenizer = build_tokenizer(render(blank, messages) for messages in pool[:TOKENIZER_TRANSCRIPTS])
    tokens = encode(tokenizer, pool)
    curve = Curve()
    model = build_model(tokenizer, recipe.stages[0].layers)
    for stage in recipe.stages:
        if stage.layers != model.config.num_hidden_layers:
            model = grow(model, tokenizer, stage.layers)
        train(model, stage, tokens[: stage.transcripts], recipe, curve, say)
    return model, tokenizer, curve


def train(
    model: Qwen3ForCausalLM, stage: Stage, pool: Sequence[Tokens], recipe: Recipe, curve: Curve, say: Say
) -> None:
    """Train one stage in place."""
    model.train()
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and name.startswith("model.layers.")]
    chosen = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    optimizers = [
        torch.optim.Muon(matrices, lr=stage.matrix_lr, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=stage.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, _warm_up_then_cosine(stage)) for each in optimizers]
    batches = _batches(pool, recipe.batch, random.Random(f"{recipe.seed}/{stage.layers}"))
    for step in range(1, stage.steps + 1):
        loss, correct = _loss(model, next(batches))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
        if step % 10 == 0 or step == stage.steps:
            row = {"layers": stage.layers, "step": step, "loss": loss.item(), "accuracy": correct}
            curve.add(**row, gradient_norm=norm.item())
            say(f"{stage.layers} layers, step {step}/{stage.steps}: loss {loss.item():.3f}, accuracy {correct:.3f}")
    model.eval()


def _transcripts(recipe: Recipe, tasks: TaskSet, count: int) -> list[list[dict[str, Any]]]:
    teachers = random.Random(f"{recipe.seed}/teachers")
    return [
        teacher_messages(tasks, f"v1/sft/{recipe.seed}/{index}", faulty=teachers.random() < recipe.faulty_share)
        for index in range(count)
    ]


def _batches(pool: Sequence[Tokens], size: int, draw: random.Random) -> Iterator[list[Tokens]]:
    while True:
        order = list(range(len(pool)))
        draw.shuffle(order)
        for start in range(0, len(order) - size + 1, size):
            yield [pool[index] for index in order[start : start + size]]


def _loss(model: Qwen3ForCausalLM, batch: Sequence[Tokens]) -> tuple[torch.Tensor, float]:
    """Return mean cross-entropy over assistant tokens, and the share of them that is predicted."""
    longest = max(len(tokens.ids) for tokens in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.bool)
    # Right padding needs no attention mask: a causal model looks at nothing to the right.
    for row, tokens in enumerate(batch):
        ids[row, : len(tokens.ids)] = torch.tensor(tokens.ids)
        mask[row, : len(tokens.mask)] = torch.tensor(tokens.mask, dtype=torch.bool)
    logits = model(input_ids=ids).logits[:, :-1][mask[:, 1:]]
    targets = ids[:, 1:][mask[:, 1:]]
    correct = (logits.argmax(-1) == targets).float().mean().item()
    return functional.cross_entropy(logits, targets), correct


def _warm_up_then_cosine(stage: Stage) -> Callable[[int], float]:
    def factor(step: int) -> float:
        if step < stage.warm_up:
            return (step + 1) / stage.warm_up
        done = (step - stage.warm_up) / max(1, stage.steps - stage.warm_up)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * done))

    return factor


# ---- the command -----------------------------------------------------------------------------------


def save(
    name: str,
    recipe: Recipe | LoraRecipe,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    curve: Curve,
    out: Path,
) -> None:
    """Write a whole policy folder, or none: weights in bf16, tokenizer, card, recipe, curve, and their sha256."""
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as made:
        folder = Path(made) / out.name
        model.bfloat16().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        write_atomically(folder / "recipe.json", readable_json({"name": name, **asdict(recipe), **_versions()}))
        write_atomically(folder / "curve.json", readable_json(curve.rows))
        write_atomically(folder / "README.md", _card(name, recipe, model).encode())
        sums = "".join(f"{sha256_file(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
        write_atomically(folder / SUMS, sums.encode())
        for file in folder.iterdir():
            file.chmod(0o644)
        folder.rename(out)


def check_sums(folder: Path) -> list[str]:
    """Return what differs between a policy folder and its recorded sha256 sums; empty if nothing does."""
    lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    recorded = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    present = {file.name: sha256_file(file) for file in folder.iterdir() if file.name != SUMS}
    return sorted(name for name in recorded.keys() | present.keys() if recorded.get(name) != present.get(name))


def _tune(name: str, recipe: LoraRecipe, say: Say) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Curve]:
    # A third of the time of fp32 where the CPU multiplies bf16, and what is saved in the end.
    policy = load_policy(name, dtype=torch.bfloat16)
    model, rows = tune(policy, recipe, GermanOrders(), say)
    return model, policy.tokenizer, Curve(rows)


def _versions() -> dict[str, str]:
    return {"torch": torch.__version__, "transformers": transformers.__version__, "core": loaded.core_on_disk()}


def _card(name: str, recipe: Recipe | LoraRecipe, model: PreTrainedModel) -> str:
    parameters = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    if isinstance(recipe, LoraRecipe):
        return _template("card_tuned.md").format(name=name, parameters=parameters, **asdict(recipe))
    stages = "\n".join(
        f"{n}. {s.layers} layers, {s.steps} steps of {recipe.batch} transcripts out of {s.transcripts:,}"
        for n, s in enumerate(recipe.stages, start=1)
    )
    return _template("card.md").format(
        name=name,
        parameters=parameters,
        layers=model.config.num_hidden_layers,
        stages=stages,
        seed=recipe.seed,
        faulty=f"{recipe.faulty_share:.0%}",
        # The trial started from the committed build; another seed's has not been tried.
        trial=_trial() if (name, recipe) == ("mini", RECIPES["mini"]) else "",
    )


def _trial() -> str:
    trial = json.loads((POLICIES / "figures" / "mini_grpo_trial.json").read_text(encoding="utf-8"))
    rows = []
    for point in trial["dev"]:
        low, high = wilson(point["solved"], point["episodes"])
        share = point["solved"] / point["episodes"]
        rows.append(f"| {point['step']} | {share:.3f} [{low:.3f}, {high:.3f}] |")
    return _template("card_trial.md").format(rows="\n".join(rows), episodes=trial["dev"][0]["episodes"])


def _template(name: str) -> str:
    return (POLICIES / name).read_text(encoding="utf-8")


def command(
    *,
    out: Annotated[Path, Parameter(help="Folder to make; must not exist.")],
    policy: Annotated[Literal["mini", "mini4", "smollm2"], Parameter(help="To build.")] = "mini",
    seed: Annotated[int, Parameter(help="From 0 to 999999999.")] = 0,
    steps: Annotated[
        int | None, Parameter(help=f"Of smollm2, {LoraRecipe().steps} without it; the others have fixed recipes.")
    ] = None,
) -> None:
    """Build a policy by supervised fine-tuning on teacher transcripts."""
    if out.exists():
        raise HarnessError(f"--out {out} exists; name a folder that does not")
    if not 0 <= seed < 10**9:
        raise HarnessError(f"--seed {seed} must be from 0 to 999999999")
    recipe = replace(RECIPES[policy], seed=seed)
    if steps is not None:
        if not isinstance(recipe, LoraRecipe):
            raise HarnessError(f"--steps: {policy} is built by its own recipe; leave it out")
        require_at_least_one("--steps", steps)
        recipe = replace(recipe, steps=steps)
    out.parent.mkdir(parents=True, exist_ok=True)
    # Sums of floats depend on how they are split over threads.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    disable_progress_bar()
    console = Console(highlight=False, soft_wrap=True)
    with console.status("") as status:
        if isinstance(recipe, LoraRecipe):
            built = _tune(policy, recipe, status.update)
        else:
            built = build(recipe, GermanOrders(), status.update)
    save(policy, recipe, *built, out)
    console.print(f"{policy}: {out}, {time.process_time():.0f} CPU-s")
