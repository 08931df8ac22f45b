"""Single alterations of a training run's trace that the run tells of, by the claim of the replay that owns each."""

from collections.abc import Callable
from typing import Any

from gymqual.qualification.support.training.small_run import Dump

Alteration = Callable[[Dump], object]


def other(token: int) -> int:
    """Another id of the vocabulary that ends no turn."""
    return token + 1 if token < 300 else token - 1


def a_sampled_id(run: Dump) -> None:
    sampled = run.first("call")["sampled"]
    sampled[0] = other(sampled[0])


def a_trained_id(run: Dump) -> None:
    completion = run.first("row")["completion"]
    completion[1] = other(completion[1])


def a_context_id(run: Dump) -> None:
    context = run.first("call", turn=1)["context"]
    context[-1] = other(context[-1])


def a_prompt_id(run: Dump) -> None:
    prompt = run.first("row")["prompt"]
    prompt[3] = other(prompt[3])


def a_mask_bit(run: Dump) -> None:
    mask = run.first("row")["mask"]
    mask[mask.index(0)] = 1


def a_mask_bit_off(run: Dump) -> None:
    run.first("row")["mask"][-1] = 0


def a_span(run: Dump) -> None:
    run.first("row")["spans"][0]["end"] -= 1


def a_cut(run: Dump) -> None:
    run.first("row")["cut"] = 2


def a_reward(run: Dump) -> None:
    rewards = run.first("row")["rewards"]
    rewards["shaped"] = 1.0 - rewards["shaped"]


def a_missing_reward(run: Dump) -> None:
    run.first("row")["rewards"]["strict"] = None


def an_advantage(run: Dump) -> None:
    run.first("row")["advantage"] += 1e-4


def an_observation(run: Dump) -> None:
    run.first("episode")["calls"][0]["text"] += " "


def an_error_flag(run: Dump) -> None:
    use = run.first("episode")["calls"][0]
    use["is_error"] = not use["is_error"]


def a_dropped_call(run: Dump) -> None:
    episode = next(episode for episode in run.of("episode") if episode["strict"])
    del episode["calls"][0]


def an_outcome(run: Dump) -> None:
    run.first("episode", strict=False)["outcome"] = "solved"


def a_strict_flag(run: Dump) -> None:
    run.first("episode", strict=False)["strict"] = True


def a_milestone(run: Dump) -> None:
    parts = run.first("episode")["parts"]
    parts["lookup"] = 1.0 - parts["lookup"]


def a_truncation(run: Dump) -> None:
    run.first("episode")["truncated"] = True


def a_samplers_logprob(run: Dump) -> None:
    run.first("call")["logprobs"][2] -= 1e-5


def a_passes_logprob(run: Dump) -> None:
    run.first("pass", step=2)["logprobs"][2] -= 1e-5


def a_logprob_that_is_none(run: Dump) -> None:
    run.first("pass")["logprobs"][0] = "NaN"


def a_logprob_above_zero(run: Dump) -> None:
    run.first("call")["logprobs"][0] = 0.5


def a_logprob_less(run: Dump) -> None:
    run.first("call")["logprobs"].pop()


def a_dropped_row(run: Dump) -> None:
    run.records.remove(run.first("row", rollout=1))


def a_repeated_row(run: Dump) -> None:
    row = run.first("row")
    run.records.insert(run.records.index(row), row)


def an_unequal_group(run: Dump) -> None:
    run.first("row")["group"] = 1


def rows_swapped_in_a_group(run: Dump) -> None:
    one, two = unlike_rows(run)
    one["rollout"], two["rollout"] = two["rollout"], one["rollout"]


def unlike_rows(run: Dump) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two rows of a group with different completions and rewards."""
    for one in run.of("row"):
        for two in run.of("row"):
            if one["group"] == two["group"] and one["rewards"] != two["rewards"]:
                return one, two
    raise AssertionError("no group of the run varied")


def rewards_swapped_in_a_group(run: Dump) -> None:
    one, two = unlike_rows(run)
    for name in ("rewards", "advantage"):
        one[name], two[name] = two[name], one[name]


def a_normaliser(run: Dump) -> None:
    run.first("pass")["normaliser"] *= 2


def a_pass_less(run: Dump) -> None:
    run.records.remove(run.of("pass")[-1])


def a_row_trained_twice(run: Dump) -> None:
    made = run.of("pass")[-1]
    run.records.insert(run.records.index(made), {**made})
    run.first("step", step=made["step"])["rollouts"].append(made["rollout"])


def a_pass_of_a_step_that_was_not_taken(run: Dump) -> None:
    made = run.of("pass")[-1]
    run.records.append({**made, "step": made["step"] + 1})


def a_turn_that_ended_said_to_be_cut(run: Dump) -> None:
    run.first("call", stop="end")["stop"] = "length"


def a_turn_that_was_cut_said_to_have_ended(run: Dump) -> None:
    sampled = run.first("call", stop="end")["sampled"]
    sampled[-1] = other(sampled[-1])


def a_steps_success(run: Dump) -> None:
    run.first("step")["strict"] += 0.125


def a_learning_rate(run: Dump) -> None:
    run.first("step")["learning_rate"] *= 2


def a_reason_to_learn_nothing(run: Dump) -> None:
    run.first("step")["nothing_to_learn"] = "equal rewards"


def a_gradient_norm(run: Dump) -> None:
    run.first("step")["gradient_norm"] = 0.0


def an_oracle_out_of_band(run: Dump) -> None:
    run.first("step")["oracle"]["cosine"] = 0.9


def a_missing_oracle(run: Dump) -> None:
    run.first("step")["oracle"] = None


def a_gap(run: Dump) -> None:
    run.first("step")["logprob_gap_max"] = 0.0


def a_gap_within_the_band_excused(run: Dump) -> None:
    run.first("pass")["magnified"] = 1e-3


def a_policy_digest(run: Dump) -> None:
    run.first("step")["policy_after"] = "0" * 64


def another_policy_sampled(run: Dump) -> None:
    run.first("call")["policy"] = "0" * 64


def a_loss_type(run: Dump) -> None:
    run.first("header")["objective"]["loss_type"] = "bnpo"


OWNERS: dict[Alteration, str] = {
    a_sampled_id: "rows", a_trained_id: "rows", a_span: "rows", a_cut: "rows", rows_swapped_in_a_group: "rows",
    a_context_id: "contexts", a_prompt_id: "contexts", a_mask_bit: "masks", a_mask_bit_off: "sampled ids",
    a_reward: "rewards", a_missing_reward: "rewards", rewards_swapped_in_a_group: "rewards", an_advantage: "advantages",
    an_observation: "observations", an_error_flag: "observations", a_dropped_call: "verdicts", an_outcome: "verdicts",
    a_strict_flag: "verdicts", a_milestone: "verdicts", a_truncation: "verdicts",
    a_samplers_logprob: "log-probability gap", a_passes_logprob: "log-probability gap", a_gap: "log-probability gap",
    a_gap_within_the_band_excused: "log-probability gap", a_logprob_that_is_none: "log-probabilities",
    a_logprob_above_zero: "log-probabilities", a_logprob_less: "log-probabilities", a_dropped_row: "groups",
    an_unequal_group: "groups", a_repeated_row: "records", a_normaliser: "passes", a_pass_less: "passes",
    a_row_trained_twice: "passes", a_pass_of_a_step_that_was_not_taken: "records",
    a_turn_that_ended_said_to_be_cut: "sampled ids", a_turn_that_was_cut_said_to_have_ended: "sampled ids",
    a_steps_success: "steps", a_learning_rate: "steps", a_reason_to_learn_nothing: "steps",
    a_gradient_norm: "gradients", an_oracle_out_of_band: "gradients", a_missing_oracle: "gradients",
    a_policy_digest: "policies", another_policy_sampled: "policies", a_loss_type: "configuration",
}  # fmt: skip
