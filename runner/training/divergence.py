"""The rule for a training loss that exploded but stayed finite."""

from collections.abc import Sequence

from runner.errors import DivergenceError

FACTOR = 10
LAST = 3


def divergence(losses: Sequence[float], expected: float, advice: str) -> DivergenceError | None:
    """Return an error if the training loss of a run diverged, else None.

    A run diverged if the last :data:`LAST` logged losses are all above :data:`FACTOR` times a reference: the loss of
    the first step or a loss that an untrained network can have, whichever is larger. Several losses are required,
    because the loss of one small batch varies. losses: all logged training losses; the first one belongs to the initial
    weights and never counts as one of the last losses. expected: see :meth:`~runner.tasks.base.Task.expected_loss`.
    """
    last = losses[1:][-LAST:]
    if not last:
        return None
    first = losses[0]
    limit = FACTOR * max(first, expected)
    if min(last) <= limit:
        return None
    return DivergenceError(
        f"the training loss diverged: the last {len(last)} logged values are {min(last):.4g} or more; expected at most "
        f"{limit:.4g}, {FACTOR} times the larger of the first loss, {first:.4g}, and the loss of an untrained "
        f"network, {expected:.4g}; {advice}"
    )
