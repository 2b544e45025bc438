"""What is done about gradients that are stale when they reach the parameters they are for."""

from __future__ import annotations

from dataclasses import dataclass

from runner.bounds import CountOrZero
from runner.errors import ConfigError
from runner.strategies.base import require, require_one_of

POLICIES = ("none", "bounded", "drop", "scale")
_LIMITED = ("bounded", "drop")


@dataclass
class Staleness:
    """A section of ``parallelism=async_data``.

    The staleness of a push on a shard is the number of pushes the shard has applied since the fetch on which the push's
    oldest gradient was computed; the replica's own are counted, the push itself is not.

    policy: ``none``: every push is applied as it is. ``bounded``: no replica begins a step while it has finished more
    than ``limit`` steps more than the slowest one (stale synchronous parallel, Ho et al. 2013); 0 is lockstep.
    ``drop``: a push staler than ``limit`` changes nothing on its shard and is counted there. ``scale``: the learning
    rate of a push is divided by its staleness where that is above 1, per push (Zhang et al. 2016, "Staleness-aware
    Async-SGD", equation 7; Gupta et al. 2016 divide by its mean); where the rate multiplies the gradient alone, that is
    dividing the gradient.
    """

    policy: str = "none"
    limit: CountOrZero | None = None

    def __post_init__(self) -> None:
        require_one_of("staleness.policy", self.policy, POLICIES)
        if self.policy in _LIMITED:
            require(self.limit is not None, "staleness.limit", f"null with policy={self.policy}", "0 or more")
        elif self.limit is not None:
            raise ConfigError(
                f"parallelism.staleness.limit={self.limit} with policy={self.policy}: only "
                f"{' and '.join(_LIMITED)} have a limit; choose one of them, or set limit to null"
            )

    @property
    def most_ahead(self) -> int | None:
        """How many finished steps a replica may be ahead of the slowest and begin another; None: any number."""
        return self.limit if self.policy == "bounded" else None

    @property
    def most_stale(self) -> int | None:
        """The largest staleness of a push that is applied; None: any."""
        return self.limit if self.policy == "drop" else None
