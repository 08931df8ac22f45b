"""The few statistics that a paired evaluation of binary outcomes needs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""
SIGNIFICANT = 0.05
"""p values below are called significant."""


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    share = successes / trials
    shrink = 1 + Z_95**2 / trials
    centre = (share + Z_95**2 / (2 * trials)) / shrink
    half = Z_95 * math.sqrt(share * (1 - share) / trials + Z_95**2 / (4 * trials**2)) / shrink
    # Where nothing or everything succeeded, rounding may leave the share just outside.
    return min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half))


@dataclass(frozen=True)
class Paired:
    """Two evaluations of the same tasks with the same seeds."""

    gained: int
    """Tasks only the candidate solved."""
    lost: int
    """Tasks only the baseline solved."""
    trials: int

    @property
    def difference(self) -> float:
        """Candidate's success minus the baseline's."""
        return (self.gained - self.lost) / self.trials

    @property
    def rose(self) -> bool:
        """Whether the candidate is significantly better."""
        return self.gained > self.lost and self.p_value < SIGNIFICANT

    @property
    def p_value(self) -> float:
        """Exact two-sided McNemar test: the chance of a split at least so uneven if neither were better."""
        changed = self.gained + self.lost
        tail = sum(math.comb(changed, k) for k in range(min(self.gained, self.lost) + 1))
        return min(1.0, 2 * tail / 2**changed)


def paired(baseline: Sequence[bool], candidate: Sequence[bool]) -> Paired:
    """Compare outcomes of the same tasks in the same order; raises ValueError for different lengths."""
    pairs = list(zip(baseline, candidate, strict=True))
    return Paired(
        gained=sum(after and not before for before, after in pairs),
        lost=sum(before and not after for before, after in pairs),
        trials=len(pairs),
    )
