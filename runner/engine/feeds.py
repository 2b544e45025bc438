"""What the caller feeds a client: a value for each name, for every tensor of that name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from runner.engine.program import Client
from runner.engine.tensor import Tensor, TensorSpec
from runner.errors import RunnerError
from runner.kernels.contract import as_array

Array = NDArray[Any]


def expand_feeds(client: Client, feeds: Mapping[str, Any]) -> dict[Tensor, Any]:
    """Give each fed name's value to every tensor of that name.

    Raises RunnerError unless the names are those that the client takes.
    """
    if feeds.keys() != client.feeds.keys():
        raise RunnerError(f"client {client.name!r} was fed {sorted(feeds)}, but takes {sorted(client.feeds)}")
    return {tensor: feeds[name] for name, tensors in client.feeds.items() for tensor in tensors}


def fed_array(tensor: Tensor, value: Any, spec: TensorSpec) -> Array:
    """The value of a fed tensor as an array, not copied; raises RunnerError for another shape or dtype than its spec.

    For values that are kept: a step that is run at once looks at what it is fed itself.
    """
    try:
        return as_array(value, spec)
    except ValueError as error:
        raise RunnerError(f"feed {tensor}: {error}") from None
