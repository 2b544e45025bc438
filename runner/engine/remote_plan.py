"""A client whose parts workers hold, as the master keeps it: what to hand out, and where to feed and to fetch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runner.engine.assignment import Assignment, feed_key, feed_sizes, fetch_key, peer_of, sent_sizes
from runner.engine.compile import Compiled
from runner.engine.feeds import fed_array
from runner.engine.plan import DevicePlan
from runner.engine.program import Client
from runner.engine.tensor import Tensor
from runner.engine.transport.names import MASTER
from runner.engine.transport.shared_memory import ArenaReader, ArenaWriter, create_arena, unlink_arena
from runner.kernels.contract import Layout

Array = NDArray[Any]


class RemotePlan:
    """One client, cut by worker, and the shared memory it is fed and fetched through.

    plans, assignments: by worker; only workers that have something to do are in them. begun: runs so far.
    """

    def __init__(
        self,
        name: str,
        client: Client,
        compiled: Compiled,
        plans: Mapping[str, DevicePlan],
        layouts: Callable[[str], Mapping[str, Layout]],
        directory: Path,
        epoch: int,
    ) -> None:
        """Make the arenas in ``directory``. Raises ResourceError when there is no room for them.

        plans: of every device that takes part. layouts: device -> those of its variables.
        """
        self.name = name
        self.begun = 0
        self._compiled = compiled
        inputs = {
            device: tuple(slot for slot in client.inputs if slot.tensor in part.feeds)
            for device, part in compiled.parts.items()
        }
        sizes: dict[str, dict[str, int]] = {MASTER: {}}
        for device, plan in plans.items():
            sizes[MASTER].update(feed_sizes(plan, inputs[device]))
            sizes[peer_of(device)] = sent_sizes(plan)
        self._arenas = {
            owner: create_arena(directory, f"{name} {owner}", owner, epoch, needed) for owner, needed in sizes.items()
        }
        self.assignments = {
            peer_of(device): Assignment(
                device, part, inputs[device], self._arenas, dict(layouts(device)), plans[device]
            )
            for device, part in compiled.parts.items()
        }
        self.plans: Mapping[str, DevicePlan] = {peer_of(device): plan for device, plan in plans.items()}
        self._feeds = {
            feed.tensor: feed.spec
            for plan in plans.values()
            for feed in plan.feeds
            if feed_key(feed.tensor) in sizes[MASTER]
        }
        self._writer = ArenaWriter(self._arenas[MASTER])
        self._readers = {owner: ArenaReader(spec) for owner, spec in self._arenas.items() if owner != MASTER}

    def unlink(self) -> None:
        """Take away the names of the arenas, once every worker has opened them."""
        for spec in self._arenas.values():
            unlink_arena(spec)

    def feed(self, values: Mapping[Tensor, Any]) -> None:
        """Put what this plan takes of ``values`` where its workers read it.

        Raises RunnerError for a value of wrong shape or dtype.
        """
        for tensor, spec in self._feeds.items():
            self._writer.put(feed_key(tensor), fed_array(tensor, values[tensor], spec))

    def fetch(self, tensor: Tensor) -> Array:
        """Copy a fetched value out of shared memory, where the plan writes when it is begun again."""
        device, local = self._compiled.location[tensor]
        spec = self._compiled.parts[device].graph.spec(local)
        return self._readers[peer_of(device)].read(fetch_key(local), spec.dtype, spec.shape).copy()
