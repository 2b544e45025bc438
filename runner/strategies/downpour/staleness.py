"""The treatment of stale gradients on a parameter server."""

from dataclasses import dataclass

from runner.bounds import CountOrZero
from runner.errors import ConfigError
from runner.strategies.base import require, require_one_of

POLICIES = ("none", "bounded", "drop", "scale")
_LIMITED = ("bounded", "drop")


@dataclass
class Staleness:
    """The section ``staleness`` of ``parallelism=async_data``.

    The staleness of a push on a shard is the number of pushes that the shard has applied since the fetch from which the
    push's oldest gradient was computed. The replica's own earlier pushes count, the push itself does not.

    policy: ``none``: every push is applied. ``bounded``: a replica does not start a step while it is more than
    ``limit`` finished steps ahead of the slowest replica (stale synchronous parallel, Ho et al. 2013); 0 is lockstep.
    ``drop``: a push with a staleness above ``limit`` is not applied, and is counted as dropped. ``scale``: the learning
    rate of a push is divided by its staleness if that is above 1 (Zhang et al. 2016, "Staleness-aware Async-SGD",
    equation 7; Gupta et al. 2016 divide by the mean staleness).
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
        """Finished steps that a replica may be ahead of the slowest and still start another; None for no limit."""
        return self.limit if self.policy == "bounded" else None

    @property
    def most_stale(self) -> int | None:
        """The largest staleness of a push that is applied; None for no limit."""
        return self.limit if self.policy == "drop" else None
