"""The report of a matched experiment for people, rendered from its summary and plan."""

from gymqual.trainer.experiment.curves import CURVES
from gymqual.trainer.experiment.frozen import PROTOCOL
from gymqual.trainer.experiment.plan import Plan
from gymqual.trainer.experiment.result import SUMMARY, Arm, Summary
from gymqual.trainer.learning.card import agreement_words, words
from gymqual.trainer.learning.result import Success

CARD = "README.md"


def card(summary: Summary, plan: Plan) -> str:
    """Return the report."""
    training = plan.training
    parts = [
        f"# {summary.policy.name} through {' and '.join(summary.arms)}: {training.steps} steps, matched",
        _verdict(summary),
        f"GRPO, {training.steps} steps of {training.groups_per_step} groups of {training.group_size} rollouts, audited "
        f"to the token, seed {training.seed}, {summary.device}, {training.precision}, torch "
        f"{summary.versions['torch']}, TRL {summary.versions['trl']}. By [the protocol]({PROTOCOL}), which was frozen "
        "before. A synthetic development task: no figure here says anything about a model's worth elsewhere.",
        f"![Curves]({CURVES})",
        "## Held-out success",
        f"The test split, {_looked(summary)}: {plan.test.episodes} new records, temperature 1, strict success with "
        "95 % Wilson intervals; p of the exact two-sided McNemar test over pairs with the baseline. Greedy "
        "decides nothing.",
        _test(summary),
        "## Selection on dev",
        f"{plan.dev.episodes} episodes each; most strict successes, of equal ones the earliest (bold).",
        _selection(summary),
        *_falls(summary),
        "## Retention",
        "Greedy answers that match exactly, and the negative log-likelihood a token of question and gold answer, "
        f"before and after. Lost: a significant fall of the one, or a rise of the other by more than "
        f"{plan.retention_rule.nats:g} nats; a baseline above {plan.retention_rule.uniform_nats:.2f} nats, a uniform "
        "guess, has none to lose.",
        _retention(summary),
        "## Parity",
        agreement_words(summary.parity) if summary.parity else "One arm: nothing to compare.",
        "## Evidence",
        _evidence(summary),
        *(["## Notes", "\n".join(f"- {note}" for note in summary.notes)] if summary.notes else []),
        "## What these figures do not say",
        "\n".join(f"- {limit}" for limit in summary.limits),
        f"Made by `gymqual experiment`. `{SUMMARY}` holds every figure above and the sha256 of the files "
        "beside it, from whose single outcomes the suite derives them again.",
    ]
    return "\n\n".join(parts) + "\n"


def _verdict(summary: Summary) -> str:
    rose = [name for name, arm in summary.arms.items() if arm.significant_rise]
    verdicts = {name: {each.verdict for each in arm.retention} for name, arm in summary.arms.items()}
    lost = [name for name, found in verdicts.items() if "lost" in found]
    knew = any("kept" in found for found in verdicts.values())
    said = f"Held-out success rose significantly through {' and '.join(rose)}" if rose else "No significant rise"
    if rose and len(rose) < len(summary.arms):
        said += f", not through {' and '.join(name for name in summary.arms if name not in rose)}"
    if lost:
        forgot = f"what the policy knew was not kept through {' and '.join(lost)}"
    else:
        forgot = "what it knew was kept" if knew else "of the retention problems it knew nothing that it could lose"
    return f"**{said}; {forgot}, by the frozen rules.**"


def _looked(summary: Summary) -> str:
    often = {owner: times for owner, times in summary.looks.items() if times > 1}
    if not often:
        return "looked at once"
    return f"looked at again after an interruption ({', '.join(f'{owner}: {n} times' for owner, n in often.items())})"


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _test(summary: Summary) -> str:
    rows = [["baseline", "0", words(summary.baseline_test), "-", "-", "-", _share(summary.baseline_greedy)]]
    for name, arm in summary.arms.items():
        change = f"{arm.difference:+.3f}"
        pairs = f"{arm.gained}, {arm.lost}"
        rows.append([name, str(arm.selected), words(arm.test), change, pairs, _p(arm.p_value), _share(arm.greedy)])
    return _table(["policy", "steps", "success", "difference", "gained, lost", "p", "greedy"], rows)


def _selection(summary: Summary) -> str:
    steps = [each.step for each in next(iter(summary.arms.values())).candidates]
    rows = [["baseline", _share(summary.baseline.dev), *[""] * len(steps)]]
    for name, arm in summary.arms.items():
        cells = [_share(each.dev) for each in arm.candidates]
        at = steps.index(arm.selected)
        cells[at] = f"**{cells[at]}**"
        rows.append([name, "", *cells])
    return _table(["steps", "0", *map(str, steps)], rows)


def _falls(summary: Summary) -> list[str]:
    """Return, where a candidate is significantly below one before it, how far training went astray."""
    told = []
    for name, arm in summary.arms.items():
        falls = [
            (best.dev.share - each.dev.share, best.step, each.step)
            for number, each in enumerate(arm.candidates)
            for best in arm.candidates[:number]
            if each.dev.interval[1] < best.dev.interval[0]
        ]
        if falls:
            fall, before, after = max(falls)
            told.append(f"{name} by {fall:.3f} from step {before} to {after}")
    if not told:
        return []
    return [f"Training was not steady: dev success fell, beyond the intervals, through {'; through '.join(told)}."]


def _retention(summary: Summary) -> str:
    rows = []
    for name, arm in summary.arms.items():
        for each in arm.retention:
            rise = each.nats[1] - each.nats[0]
            exact = f"{each.exact[0]} to {each.exact[1]} of {each.problems}"
            nats = f"{each.nats[0]:.3f} to {each.nats[1]:.3f} ({rise:+.3f})"
            rows.append([name, f"`{each.data}`", exact, _p(each.p_value), nats, each.verdict])
    return _table(["arm", "problems", "exact", "p", "nats a token", "verdict"], rows)


def _evidence(summary: Summary) -> str:
    rows = [
        [
            name,
            arm.resume,
            f"{arm.varied_groups} of {arm.groups}",
            f"{arm.sampled_tokens:,}",
            f"{arm.seconds:.0f} s",
            _replayed(arm),
            f"`{arm.manifest[:16]}`",
            f"`{arm.trace[:16]}`",
        ]
        for name, arm in summary.arms.items()
    ]
    others = [f"- {name}: `{line}`" for name, arm in summary.arms.items() for line in arm.replay_others]
    header = ["arm", "resume", "groups that varied", "tokens trained", "training", "replay", "manifest", "trace"]
    return "\n\n".join([_table(header, rows), *(["\n".join(others)] if others else [])])


def _replayed(arm: Arm) -> str:
    return f"{arm.replay_held} of {arm.replay_held + len(arm.replay_others)} claims"


def _share(success: Success) -> str:
    return f"{success.share:.3f}"


def _p(value: float) -> str:
    return f"{value:.1g}"
