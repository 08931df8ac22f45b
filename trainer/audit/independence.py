"""Whether rollouts were drawn independently: siblings that repeat each other, and random numbers used twice."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gymqual.trainer.runs.errors import AuditError

LAMBDAS = (-4.0, -1.0, 1.0, 4.0)
"""Bets on fewer and on more repetitions than independent draws would give."""


class Siblings:
    """A bet that nobody can win against independent draws, over all groups of a run.

    A turn repeats one that an earlier sibling was drawn in the very same context with probability ``q``, the sum of the
    probabilities of the distinct ones, which the sampler's own log-probabilities tell. Nothing is taken for granted of
    what prompts and environments say: other ids seen are another context, in which nothing is repeated. For any ``l``,
    the product of ``exp(l * repeated) / (1 + q * (exp(l) - 1))`` is then a martingale of mean 1, so that it ever
    exceeds ``1 / alpha`` with a probability of at most ``alpha`` (Ville's inequality), however long the run. The bet
    is the mean of the products for a few ``l``.
    """

    def __init__(self, alpha: float) -> None:
        self._limit = 1.0 / alpha
        self._logs = [0.0] * len(LAMBDAS)
        self.repeated = 0
        self.expected = 0.0

    def add(self, rollouts: Sequence[tuple[tuple[int, ...], float]]) -> None:
        """Add a group's draws in one context: (sampled ids, sum of their log-probabilities); raises AuditError."""
        seen: dict[tuple[int, ...], float] = {}
        for ids, logprob in rollouts:
            chance = min(1.0 - 1e-9, sum(seen.values()))
            if seen:
                again = ids in seen
                self.repeated += again
                self.expected += chance
                for index, bet in enumerate(LAMBDAS):
                    self._logs[index] += bet * again - math.log1p(chance * math.expm1(bet))
            seen[ids] = math.exp(min(0.0, logprob))
        if self.evidence > math.log(self._limit):
            detail = f"{self.repeated} turns repeat a sibling's, independent draws give {self.expected:.1f}"
            raise AuditError("siblings", f"{detail} (odds of e^{self.evidence:.0f} against chance)")

    def state(self) -> dict[str, Any]:
        """Return what the bet has come to, for ``restore``."""
        return {"logs": list(self._logs), "repeated": self.repeated, "expected": self.expected}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what an earlier part of the run has come to."""
        self._logs = list(state["logs"])
        self.repeated, self.expected = state["repeated"], state["expected"]

    @property
    def evidence(self) -> float:
        """Logarithm of what the bet has come to."""
        top = max(self._logs)
        return top + math.log(sum(math.exp(each - top) for each in self._logs) / len(self._logs))


class RandomStates:
    """The states of the random generator that sampling began with; none may come twice."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._last: list[str] = []

    def state(self) -> list[str]:
        """Return the digests of all states, for ``restore``."""
        return sorted(self._seen)

    def restore(self, seen: Sequence[str]) -> None:
        """Go on from the states of an earlier part of the run."""
        self._seen = set(seen)

    def add(self, device: torch.device) -> None:
        """Note the present state of the generator that a device samples from; raises AuditError."""
        state = torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
        digest = hashlib.sha256(state.numpy().tobytes()).hexdigest()
        if digest in self._seen:
            raise AuditError("random state", "sampled with random numbers that an earlier turn was sampled with")
        self._seen.add(digest)
        self._last.append(digest)

    def since(self) -> list[str]:
        """Return the digests of the states that were added since this was asked last."""
        taken, self._last = self._last, []
        return taken

    @staticmethod
    def require_apart(by_process: Sequence[Sequence[str]]) -> None:
        """Hold the processes of a training to random numbers of their own; raises AuditError."""
        owner: dict[str, int] = {}
        for rank, digests in enumerate(by_process):
            for digest in digests:
                if owner.setdefault(digest, rank) != rank:
                    detail = f"processes {owner[digest]} and {rank} sampled with the same random numbers"
                    raise AuditError("random state", detail)
