"""The card of a learning result: what people read beside ``summary.json``."""

from gymqual.trainer.learning.agreement import Agreement
from gymqual.trainer.learning.result import BLOCK, SUMMARY, Success, Summary


def readme(summary: Summary) -> str:
    """Return the tables."""
    protocol, versions = summary.protocol, summary.versions
    blocks = [range(start, min(start + BLOCK, protocol.steps)) for start in range(0, protocol.steps, BLOCK)]
    rows, curves, replays = [], [], []
    for gym, arm in summary.arms.items():
        change = f"{arm.difference:+.3f} ({arm.gained} gained, {arm.lost} lost)"
        rows.append(f"| {gym} | {words(arm.baseline)} | {words(arm.after)} | {change} | {arm.p_value:.1g} |")
        means = (sum(arm.training_success[step] for step in block) / len(block) for block in blocks)
        curves.append(f"| {gym} | {' | '.join(f'{mean:.2f}' for mean in means)} |")
        replays.append(f"- {gym}: {arm.replay_held} of {arm.replay_held + len(arm.replay_others)}")
        replays += [f"  - `{line}`" for line in arm.replay_others]
    rollouts = protocol.groups_per_step * protocol.group_size
    lines = [
        "# Learning through the gyms",
        "",
        f"`{protocol.policy}` before and after {protocol.steps} audited GRPO steps of {rollouts} rollouts "
        f"({protocol.groups_per_step} groups of {protocol.group_size}),",
        f"seed {protocol.seed}, LoRA r {protocol.lora.rank} alpha {protocol.lora.alpha}, learning rate "
        f"{protocol.learning_rate:g} constant, beta {protocol.beta:g}, temperature "
        f"{protocol.training_temperature:g}, binary strict reward,",
        f"tasks `{protocol.training_tasks}`. Evaluated at temperature {protocol.evaluation_temperature:g} on "
        f"`{protocol.evaluation_tasks}`, before and after with the same",
        f"seed; evaluated and trained through the gym's own service. {summary.platform}, {protocol.device}, "
        f"{protocol.precision}, torch {versions['torch']}, TRL {versions['trl']}.",
        "",
        "Strict success, 95 % Wilson interval; p of the exact two-sided McNemar test over pairs:",
        "",
        "| gym | before | after | difference | p |",
        "|---|---|---|---|---|",
        *rows,
        "",
        "Strict success of the training rollouts, mean over steps. It is no held-out score:",
        "",
        f"| steps | {' | '.join(f'{block[0] + 1} to {block[-1] + 1}' for block in blocks)} |",
        "|---" * (len(blocks) + 1) + "|",
        *curves,
        "",
        *([agreement_words(summary.agreement), ""] if summary.agreement else []),
        "Of the claims of each training run, the replay audit derived again from the raw evidence:",
        "",
        *replays,
        "",
        "What these figures do not say:",
        "",
        *(f"- {limit}" for limit in summary.limits),
        "",
        f"Made by `gymqual learn`. `{SUMMARY}` holds every figure above and the sha256 of the files",
        "beside it, from whose single outcomes the suite computes them again.",
    ]
    return "\n".join(lines) + "\n"


def agreement_words(agreement: Agreement) -> str:
    """Say how far the trainings through all gyms sampled the same, in up to two lines."""
    arms, difference = " and ".join(agreement.arms), agreement.first_difference
    counted = f"{agreement.tokens} ids in {agreement.calls} turns"
    if difference is not None:
        where = "in what it saw" if difference.position < 0 else f"at sampled id {difference.position}"
        return (
            f"{arms} sampled the same {counted}; rollout {difference.rollout}, turn {difference.turn} differs {where}."
        )
    names = {"traces": agreement.same_trace, "adapters": agreement.same_adapter}
    bytes_ = " and ".join(f"their {name} are {'the same' if same else 'other'} bytes" for name, same in names.items())
    return f"{arms} sampled the same {counted}, none otherwise;\n{bytes_}."


def words(success: Success) -> str:
    """Return a share of successes with its interval."""
    low, high = success.interval
    return f"{success.share:.3f} [{low:.3f}, {high:.3f}]"
