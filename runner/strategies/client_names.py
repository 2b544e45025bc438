"""Names of the clients that several strategies launch: what one does, and for whom."""

from __future__ import annotations


def numbered(action: str, *numbers: int) -> str:
    """The name of a client that does something for a worker, a server or a portion: "push_0_2"."""
    return "_".join([action, *map(str, numbers)])


def action_of(client: str) -> str:
    """What a client of such a name does: "push"."""
    return client.partition("_")[0]
