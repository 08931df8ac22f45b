"""Derive again everything that a training run claims, from its raw evidence alone.

``gymqual replay RUN_DIR`` prints one line a claim: ``held``, ``BROKEN``, or ``untried`` where the
policy that it needs is not at hand.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gymqual.harness.records.claims import Claims
from gymqual.harness.records.errors import HarnessError
from gymqual.trainer.replay import claims as manifest_claims
from gymqual.trainer.replay import episodes, evidence, steps, tokens, weights
from gymqual.trainer.replay.evidence import Evidence, read_evidence

SHOWN = 3
"""Faults of one claim that are printed; of the others, their number."""

DERIVED: dict[str, Callable[[Evidence], Iterator[str]]] = {
    "manifest": evidence.form_faults,
    "files": evidence.file_faults,
    "records": evidence.record_faults,
    "configuration": evidence.config_faults,
    "identity": manifest_claims.identity_faults,
    "contexts": tokens.context_faults,
    "rows": tokens.row_faults,
    "masks": tokens.mask_faults,
    "sampled ids": tokens.sampled_faults,
    "log-probabilities": tokens.logprob_faults,
    "groups": tokens.group_faults,
    "tasks": tokens.task_faults,
    "observations": episodes.observation_faults,
    "verdicts": episodes.verdict_faults,
    "rewards": episodes.reward_faults,
    "advantages": steps.advantage_faults,
    "passes": steps.pass_faults,
    "steps": steps.step_faults,
    "gradients": steps.gradient_faults,
    "log-probability gap": steps.gap_faults,
    "reference": steps.reference_faults,
    "policies": steps.policy_faults,
    "token totals": manifest_claims.token_faults,
    "consumed tasks": manifest_claims.consumption_faults,
    "replay totals": manifest_claims.replay_faults,
    "tensors": manifest_claims.tensor_faults,
    "summary": manifest_claims.summary_faults,
}
"""Every claim that needs the run directory alone; the first line of each function's docstring is its wording."""

WITH_POLICY = ("policy", "transcripts", "legend", "adapter", "forward passes", "gradients again", "training again")


def audit(folder: Path, policy: Path | None = None) -> Claims:
    """Return every claim of a run directory, held or broken; raises HarnessError if it cannot be read.

    ``policy`` is the folder of the policy that was trained; null: an embedded one, or where training.json says.
    """
    read = read_evidence(folder)
    claims = Claims()
    for name, faults in DERIVED.items():
        _hold(claims, name, _meaning(faults), lambda faults=faults: faults(read))
    found = weights.find_policy(read, policy)
    if found is None:
        for name in WITH_POLICY:
            claims.lines.append(f"untried {name}: {read.config.policy} is not at hand; name its folder with --policy")
        return claims
    _add_policy_claims(claims, read, found)
    return claims


def _add_policy_claims(claims: Claims, read: Evidence, found: Path) -> None:
    _hold(
        claims, "policy", _meaning(weights.policy_identity_faults), lambda: weights.policy_identity_faults(read, found)
    )
    for name, faults in (("transcripts", episodes.transcript_faults), ("legend", episodes.legend_faults)):
        _hold(claims, name, _meaning(faults), lambda faults=faults: faults(read, weights.load_tokenizer(found)))
    if read.run.tensors is not None:
        _hold(claims, "adapter", _meaning(weights.reload_faults), lambda: weights.reload_faults(read, found))
    try:
        again = weights.retrain(read, found)
    except Exception as error:
        reason = [_underivable(error)]
        again = weights.Retraining(passes=reason, gradients=reason, adapter=reason)
    count = f"{again.steps} of {len(read.steps)} steps done again"
    gap = f"log-probabilities of the forward passes, at most {again.largest_gap:.2g} nats apart ({count})"
    _hold(claims, "forward passes", gap, lambda: again.passes)
    _hold(claims, "gradients again", f"their norms ({count})", lambda: again.gradients)
    if again.ended_by:
        claims.lines.append(f"untried training again: {again.ended_by}")
        return
    update = "none to compare" if again.cosine is None else f"cosine {again.cosine:.6f} to the saved one"
    _hold(claims, "training again", f"the adapter's update, {update} ({count})", lambda: again.adapter)


def _hold(claims: Claims, name: str, meaning: str, faults: Callable[[], Iterable[str]]) -> None:
    """Add a claim. What cannot be derived, because other evidence is missing, does not hold."""
    found: list[str] = []
    source = iter(())
    try:
        source = iter(faults())
        found = list(islice(source, SHOWN))
        more = sum(1 for _ in source)
        found += [f"and {more} more"] if more else []
    except Exception as error:
        found.append(_underivable(error))
    claims.add(f"{name}: {meaning}", [f"{name}: {fault}" for fault in found])


def _underivable(error: Exception) -> str:
    detail = str(error).strip().split("\n")[0][:200]
    # Ours are whole sentences; any other says that evidence is missing or makes no sense.
    return detail if isinstance(error, HarnessError) else f"cannot be derived ({type(error).__name__}: {detail})"


def _meaning(function: Callable[..., object]) -> str:
    return (function.__doc__ or "").split("\n")[0].rstrip(".")


def command(
    run: Annotated[Path, Parameter(name="RUN_DIR", help="A training run, complete or stopped.")],
    /,
    *,
    policy: Annotated[
        Path | None,
        Parameter(
            help="Folder of the policy that was trained: an embedded one, or where training.json says, without it."
        ),
    ] = None,
) -> int:
    """Derive every claim of a training run again from its raw evidence; returns 1 if one is broken."""
    claims = audit(run, policy)
    print("\n".join(claims.lines))
    return 1 if claims.broken else 0
