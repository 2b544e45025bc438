"""The rule for a training loss that exploded but stayed finite."""

import math
from collections.abc import Sequence

from runner.errors import DivergenceError

FACTOR = 10
LAST = 3


def divergence(losses: Sequence[float], classes: int, advice: str) -> DivergenceError | None:
    """Return an error if the training loss of a run diverged, else None.

    A run diverged if the last :data:`LAST` logged losses are all above :data:`FACTOR` times a reference: the loss of
    the first step or the loss of uniform guessing, ln(classes), whichever is larger. Several losses are required,
    because the loss of one small batch varies. losses: all logged training losses, the first of them from the initial
    weights, which does not count as one of the last.
    """
    last = losses[1:][-LAST:]
    if not last:
        return None
    first, guessing = losses[0], math.log(classes)
    limit = FACTOR * max(first, guessing)
    if min(last) <= limit:
        return None
    return DivergenceError(
        f"the training loss diverged: the last {len(last)} logged values are {min(last):.4g} or more; expected at most "
        f"{limit:.4g}, {FACTOR} times the larger of the first loss, {first:.4g}, and the loss of uniform guessing, "
        f"{guessing:.4g}; {advice}"
    )
