"""The embedded policy: a Qwen3-architecture model of about a million weights, and its tokenizer.

28 layers, so that LoRA on the seven projections has 392 trainable tensors, as the models have that this
stands for. It is trained shallow and then grown: inserted blocks change nothing until they are trained.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl.chat_template_utils import qwen3_template

from gymqual.trainer.policy.transcripts import token_id

VOCABULARY = 512
SHALLOW_LAYERS = 4
DEEP_LAYERS = 28
MAX_POSITIONS = 512
END_OF_TURN = "<|im_end|>"
PADDING = "<|endoftext|>"
SPECIAL_TOKENS = (
    PADDING,
    "<|im_start|>",
    END_OF_TURN,
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Qwen3's, so that its parsers and renderers fit."""


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on ``texts``: every digit and operator a token, a JSON scaffold one token."""
    tokenizer = Tokenizer(models.BPE())
    # Merges may cross spaces, which makes episodes a third shorter; digits must stay apart to be copied.
    isolated = pre_tokenizers.Split(Regex(r"[0-9]|\n|[+*/\-]"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [isolated, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # A special token that is marked special would vanish from decoded tool calls.
    visible = [AddedToken(token, special=token.startswith("<|"), normalized=False) for token in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=visible,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # While it is trained, a special token is ordinary text and would eat up merges.
    specials = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    tokenizer.train_from_iterator((part for text in texts for part in specials.split(text)), trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END_OF_TURN, pad_token=PADDING)
    fast.padding_side = "left"
    fast.chat_template = (Path(__file__).parent / "embedded" / "mini.jinja").read_text(encoding="utf-8")
    fast.response_template = qwen3_template
    return fast


def build_model(tokenizer: PreTrainedTokenizerFast, layers: int) -> Qwen3ForCausalLM:
    """Return an untrained model; the caller has seeded torch."""
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=MAX_POSITIONS,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            initializer_range=0.02,
            tie_word_embeddings=True,
            eos_token_id=token_id(tokenizer.eos_token_id),
            pad_token_id=token_id(tokenizer.pad_token_id),
            bos_token_id=None,
        )
    )
    for name, parameter in model.named_parameters():
        # QK-norm caps an attention logit at sqrt(head_dim) times these gains; 1.5 lets heads get sharp early.
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(parameter, 1.5)
    return model


def grow(shallow: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, layers: int) -> Qwen3ForCausalLM:
    """Return a deeper model that computes the same function: inserted blocks add exactly nothing.

    The trained blocks keep their order and are spread evenly; every inserted block is a copy of the trained
    one before it with zeroed output projections.
    """
    deep = build_model(tokenizer, layers)
    trained = shallow.config.num_hidden_layers
    places = [round(index * (layers - 1) / (trained - 1)) for index in range(trained)]
    source, state = shallow.state_dict(), deep.state_dict()
    for name in state:
        if not name.startswith("model.layers."):
            state[name] = source[name].clone()
            continue
        _, _, layer, rest = name.split(".", 3)
        origin = max(index for index, place in enumerate(places) if place <= int(layer))
        copied = source[f"model.layers.{origin}.{rest}"].clone()
        inserted = int(layer) not in places
        silent = inserted and rest in ("self_attn.o_proj.weight", "mlp.down_proj.weight")
        state[name] = torch.zeros_like(copied) if silent else copied
    deep.load_state_dict(state)
    return deep
