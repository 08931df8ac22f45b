"""What rounding explains of a gap between sampler and loss: of a sound model little, and never a wrong position."""

from contextlib import nullcontext

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from gymqual.harness.plugin.registry import explain
from gymqual.harness.records.trace import Row
from gymqual.trainer.audit import tolerances
from gymqual.trainer.audit.tolerances import Gap, explained, widest
from gymqual.trainer.policy.loading import load_policy
from gymqual.trainer.runs.config import Bands

pytestmark = pytest.mark.self_test
BANDS = Bands()


def a_row(vocabulary: int) -> Row:
    """A row of random ids, all of them trained."""
    ids = torch.randint(3, vocabulary, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    prompt, completion = ids[:20], ids[20:]
    named = {"rewards": {}, "advantage": 1.0, "old_logprobs": None, "reference_logprobs": None, "spans": [], "cut": 0}
    return Row(generation=0, rollout=0, group=0, prompt=prompt, completion=completion, mask=[1] * 20, **named)


def sharpened(times: float) -> torch.nn.Module:
    """The small policy with attention that is so many times as decided."""
    model = load_policy("mini4").model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_norm" in name:
                parameter.mul_(times)
    return model


def test_rounding_explains_more_where_a_model_magnifies_it() -> None:
    """What rounding explains MUST be far below the band at ordinary places, and grow where attention is sharp."""
    row = a_row(500)
    ordinary, sharp = (max(explained(sharpened(times), row, 1.0, nullcontext)) for times in (1.0, 60.0))
    seen = (ordinary < BANDS.logprob_gap, sharp > 10 * ordinary)
    assert seen == (True, True), explain(
        subject="(below the band as the model is, more where its attention is 60 times as sharp)",
        expected=(True, True),
        got=(ordinary, sharp),
        cause="the row is not moved, or something else than rounding moves it",
    )


def test_the_model_is_left_as_it_was() -> None:
    """Asking MUST change neither gradients, weights, mode nor the random state that sampling goes on with."""
    model = load_policy("mini4").model.train()
    before = (torch.random.get_rng_state(), model.training, [p.clone() for p in model.parameters()])
    explained(model, a_row(500), 1.0, nullcontext)
    same = all(torch.equal(old, new) for old, new in zip(before[2], model.parameters(), strict=True))
    seen = (torch.equal(before[0], torch.random.get_rng_state()), model.training, same)
    assert seen == (True, True, True), explain(
        subject="(random state, mode, weights) are the same after asking",
        expected=(True, True, True),
        got=seen,
        cause="the question is asked of the model that is trained, with what training draws from",
    )


def test_absolute_positions_are_no_rounding() -> None:
    """Of a model with learned positions the row moves by far more than any gap that rounding may excuse."""
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=100, n_positions=128, n_embd=32, n_layer=2, n_head=2, initializer_range=0.3)
    known = explained(GPT2LMHeadModel(config).eval(), a_row(100), 1.0, nullcontext)
    found, _ = widest([(0.02, at) for at in range(20)], BANDS, lambda: known)
    assert (max(known) > 0.02, found and found.explained) == (True, BANDS.logprob_gap_magnified), explain(
        subject="(a move changes more than 0.02 nats, what of a gap of 0.02 nats is excused)",
        expected=(True, BANDS.logprob_gap_magnified),
        got=(max(known), found),
        cause="a sampler and a loss at other positions are taken for rounding",
    )


GAPS: dict[str, tuple[float, float, Gap | None]] = {
    "within the band": (1e-4, 0.0, None),
    "beyond, at an ordinary place": (3e-4, 4e-6, Gap(3e-4, 1, 4e-6)),
    "beyond, where rounding is magnified": (3e-4, 1.5e-3, None),
    "more than anything excuses": (6e-3, 1.0, Gap(6e-3, 1, 5e-3)),
    "not a number": (float("nan"), 1.0, Gap(float("nan"), 1, 5e-3)),
}


@pytest.mark.parametrize("case", GAPS)
def test_a_gap_is_held_to_the_condition_of_its_own_place(case: str) -> None:
    """A gap beyond the band MUST be excused by the rounding of its own place alone, and by no more than the bound."""
    nats, known, due = GAPS[case]
    found, _ = widest([(0.0, 0), (nats, 1)], BANDS, lambda: [1.0, known])
    assert repr(found) == repr(due), explain(
        subject=f"a gap {case}",
        expected=due,
        got=found,
        cause="the excuse of another place is taken, or the bound is left out",
    )


def test_a_model_that_takes_no_positions_excuses_nothing() -> None:
    """A model without position ids MUST excuse no gap."""

    class Plain(torch.nn.Module):
        config = None

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            raise AssertionError("it is not called without positions")

    known = tolerances.explained(Plain(), a_row(100), 1.0, nullcontext)
    assert known == [0.0] * 20, explain(
        subject="what rounding explains of a model that takes no positions",
        expected=[0.0] * 20,
        got=known,
        cause="what cannot be measured is taken for what is allowed",
    )
