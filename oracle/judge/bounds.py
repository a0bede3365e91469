"""Tail bounds for rounding errors, and the false-alarm budget they share.

Rounding errors are bounded and, where the values do not collide with the grid, centred: a sum of them is sub-Gaussian
with the variance proxy u**2/3 a uniform error has. Two bounds follow and no tolerance is needed:

* one element:   P(|e| > z sigma) <= 2 exp(-z**2 / 2)
* a sum of squares (Hsu, Kakade & Zhang 2012, for a sub-Gaussian quadratic form with trace V, squared Frobenius norm F
  and operator norm O):   P(S > V + 2 sqrt(F x) + 2 O x) <= exp(-x)
"""

from __future__ import annotations

import math

from torch import Tensor

#: Chance that a right implementation fails one verdict: design figure, split evenly over the statistical checks below.
FALSE_ALARM = 1e-6
#: Chance at which a verdict becomes SUSPECT and is tried on fresh seeds.
SUSPICION = 1e-3
#: Statistical checks that share the chance: element, row, head, query, column, global, bias.
SHARES = 7


def deviations(count: int, chance: float) -> float:
    """How many standard deviations ``count`` sub-Gaussian errors stay within, all at once, but for ``chance``."""
    return math.sqrt(2.0 * math.log(2.0 * max(count, 1) / chance))


def exponent(count: int, chance: float) -> float:
    """x of the quadratic bound for ``count`` sums at once, but for ``chance``."""
    return math.log(max(count, 1) / chance)


def quadratic_limit(trace: Tensor, frobenius2: Tensor, norm: Tensor, x: float) -> Tensor:
    """Largest sum of squares that chance explains: V + 2 sqrt(F x) + 2 O x."""
    return trace + 2.0 * (frobenius2 * x).sqrt() + 2.0 * norm * x


def quadratic_exponent(observed: Tensor, trace: Tensor, frobenius2: Tensor, norm: Tensor) -> Tensor:
    """The x at which the quadratic bound equals what was observed; 0 where it is below the trace."""
    excess = (observed - trace).clamp_min(0.0)
    norm = norm.clamp_min(1e-300)
    root = ((frobenius2 + 2.0 * norm * excess).sqrt() - frobenius2.sqrt()) / (2.0 * norm)
    return root * root
