"""The order of fetches, steps and pushes of all replicas in Downpour SGD (Dean et al. 2012, section 4.1)."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.compile.program import DriverSettings
from runner.engine.run.step_driver import Clients, Finished, StepDriver, drives, number_of
from runner.strategies.clients import action_of, client_name, numbers_of

Array = NDArray[Any]


@dataclass(frozen=True)
class Rules(DriverSettings):
    """Settings of :class:`Downpour`.

    shards: number of parameter servers. fetches: whether replicas fetch copies. overlaps: whether replicas fetch and
    push while they compute. n_fetch, n_push: steps between fetches and between pushes. warmstart_steps: updates that
    the first replica makes alone. most_ahead: the largest lead over the slowest replica, in finished steps, at which a
    replica may start a step; None for no limit. most_stale: largest staleness of an applied push; None for no limit.
    """

    replicas: int
    shards: int
    fetches: bool = True
    overlaps: bool = True
    n_fetch: int = 1
    n_push: int = 1
    warmstart_steps: int = 0
    most_ahead: int | None = None
    most_stale: int | None = None

    @property
    def descends(self) -> bool:
        """Whether a replica applies each gradient to its copy; False without copies, or with a fetch in each step."""
        return self.fetches and (self.overlaps or self.n_fetch > 1)


@dataclass
class _Replica:
    """The state of a replica.

    released: whether the replica may start steps; during the warm start, only replica 0 may. taken: steps finished
    since the start of the run or the last checkpoint. since_release: steps finished since all replicas were released.
    fetching, pushing: shards with a running fetch or push.
    """

    index: int
    released: bool
    taken: int = 0
    since_release: int = 0
    has_copy: bool = False
    fetch_due: bool = True
    push_due: bool = False
    fetching: set[int] = field(default_factory=set)
    pushing: set[int] = field(default_factory=set)
    computing: bool = False


@drives(Rules)
class Downpour(StepDriver):
    """A step driver whose update is complete when the n replicas have, in total, finished n more steps.

    When an update is complete, running fetches, steps and pushes continue; replicas do not wait for each other.
    After :meth:`synchronize`, the variables may therefore include one step per replica that no update has counted.
    """

    def __init__(self, clients: Clients, rules: Rules) -> None:
        self._clients = clients
        self._rules = rules
        self._synchronizing = False
        self._learning_rate: Any = None
        self._taken_before = [0] * rules.replicas
        self._staleness: list[Counter[int]] = [Counter() for _ in range(rules.shards)]
        self._since_last: list[int] = []
        self._begin()

    def _begin(self) -> None:
        """Reset the order: no replica has a copy, and the next update is the first one."""
        self._replicas = [_Replica(k, released=k == 0) for k in range(self._rules.replicas)]
        self._first_step: int | None = None
        self._scores: deque[Mapping[str, Array]] = deque()

    def update(self, step: int, learning_rate: Array) -> Mapping[str, Array]:
        """Run until the n replicas have, in total, finished n more steps; return the mean loss and metrics.

        Every client launched during the update uses this learning rate. See
        :class:`~runner.engine.run.step_driver.StepDriver`.
        """
        if self._first_step is None:
            self._first_step = step
            # The initial push count of each shard, if the run starts or resumes after ``step`` updates.
            applied = np.int64(step * self._rules.replicas // self._rules.n_push)
            self._clients.run("begin", step=step, feeds={"applied": applied})
        self._learning_rate = learning_rate
        self._synchronizing = False
        if step >= self._rules.warmstart_steps and not all(each.released for each in self._replicas):
            for each in self._replicas:
                each.released, each.since_release = True, 0
        self._launch_ready(self._replicas)
        while len(self._scores) < self._rules.replicas:
            self._launch_ready(self._take(self._clients.finished()))
        counted = [self._scores.popleft() for _ in self._replicas]
        return {name: _mean([each[name] for each in counted]) for name in counted[0]}

    @property
    def warm_up(self) -> int:
        """2 if replicas fetch and push while they compute: no push delays the fetch for the second step."""
        return 2 if self._rules.overlaps else 1

    def synchronize(self) -> None:
        """Start no further step, and wait until running steps and due pushes are finished."""
        self._synchronizing = True
        while not self.is_synchronized:
            self._launch_ready(self._take(self._clients.finished()))

    @property
    def is_synchronized(self) -> bool:
        """Whether no client is running. The servers' variables then lack only gradients that are not yet due."""
        return not any(each.computing or each.fetching or each.pushing for each in self._replicas)

    @property
    def keeps_valid_variables(self) -> bool:
        """True: a server applies a push at once or not at all, and pushes do not depend on each other."""
        return True

    def begin_again(self) -> None:
        """Synchronize, apply the accumulated gradients of all replicas, and reset the order.

        Scores of steps after the last update are dropped. See :class:`~runner.engine.run.step_driver.StepDriver`.
        """
        self.synchronize()
        for each in self._replicas:
            if each.taken % self._rules.n_push:
                feeds = {"learning_rate": self._learning_rate}
                found = self._clients.run(client_name("flush", each.index), step=self._step_of(each), feeds=feeds)
                for shard in range(self._rules.shards):
                    self._record_staleness(shard, found[f"staleness_{shard}"])
            self._taken_before[each.index] += each.taken
        self._begin()

    def metrics(self) -> Mapping[str, float]:
        """Return the mean and largest staleness of the pushes since the last call, and the number of dropped pushes."""
        noted, self._since_last = self._since_last, []
        if not noted:
            return {}
        values = {"comm/staleness_mean": sum(noted) / len(noted), "comm/staleness_max": float(max(noted))}
        if self._rules.most_stale is not None:
            values["comm/dropped_pushes"] = float(sum(each > self._rules.most_stale for each in noted))
        return values

    def record(self) -> Mapping[str, Any]:
        """Return each replica's steps and, for each shard, the pushes by staleness and the dropped pushes."""
        shards = [dict(sorted(counts.items())) for counts in self._staleness]
        most = self._rules.most_stale
        dropped = [sum(n for staleness, n in each.items() if most is not None and staleness > most) for each in shards]
        return {
            "replica_steps": [
                before + each.taken for before, each in zip(self._taken_before, self._replicas, strict=True)
            ],
            "staleness": [{str(staleness): n for staleness, n in each.items()} for each in shards],
            "dropped_pushes": dropped,
        }

    def _take(self, ended: Finished) -> Sequence[_Replica]:
        """Handle the end of a client; return the replicas that may start clients now, in order."""
        action, numbers = action_of(ended.client), numbers_of(ended.client)
        replica, shard = self._replicas[numbers[0]], numbers[-1]
        if action == "fetch":
            replica.fetching.remove(shard)
            replica.has_copy = replica.has_copy or not replica.fetching
        elif action == "push":
            replica.pushing.remove(shard)
            self._record_staleness(shard, ended.fetches["staleness"])
        else:
            self._scores.append(ended.fetches)
            replica.computing = False
            replica.taken += 1
            replica.since_release += 1
            replica.push_due = replica.taken % self._rules.n_push == 0
            replica.fetch_due = replica.taken % self._rules.n_fetch == 0
        # With a limit, a finished step can also allow replicas that were too far ahead to start a step.
        return [replica] if self._rules.most_ahead is None else self._replicas

    def _record_staleness(self, shard: int, staleness: Array) -> None:
        self._staleness[shard][int(staleness)] += 1
        self._since_last.append(int(staleness))

    def _launch_ready(self, replicas: Sequence[_Replica]) -> None:
        """Launch every client of these replicas that may start now, replica by replica."""
        for each in replicas:
            if not each.computing:
                self._advance(each)

    def _advance(self, replica: _Replica) -> None:
        """Launch a replica's due push, fetch and step; at most one push and one fetch per shard run at a time."""
        waits = not self._rules.overlaps
        if replica.push_due:
            if replica.pushing:
                return
            self._launch_all("push", replica, replica.pushing, learning_rate=self._learning_rate)
            replica.push_due = False
        if (waits and replica.pushing) or not self._may_begin(replica):
            return
        if self._rules.fetches and replica.fetch_due:
            if replica.fetching:
                return
            self._launch_all("fetch", replica, replica.fetching)
            replica.fetch_due = False
        if replica.fetching and (waits or not replica.has_copy):
            return
        step = self._step_of(replica)
        feeds = {"step": number_of(step), "learning_rate": self._learning_rate}
        self._clients.launch(client_name("compute", replica.index), step=step, feeds=feeds)
        replica.computing = True

    def _may_begin(self, replica: _Replica) -> bool:
        if self._synchronizing or not replica.released:
            return False
        if self._rules.most_ahead is None:
            return True
        slowest = min(each.since_release for each in self._replicas if each.released)
        return replica.since_release - slowest <= self._rules.most_ahead

    def _launch_all(self, action: str, replica: _Replica, running: set[int], **feeds: object) -> None:
        """Launch one client of a replica for every shard."""
        for shard in range(self._rules.shards):
            self._clients.launch(client_name(action, replica.index, shard), step=self._step_of(replica), feeds=feeds)
            running.add(shard)

    def _step_of(self, replica: _Replica) -> int:
        """Return the number of a replica's next step, which is also the number of its batch."""
        assert self._first_step is not None, "a replica steps only within update()"
        return self._first_step + replica.taken


def _mean(values: Sequence[Array]) -> Array:
    """Return the mean of values in their dtype; the values are summed in the given order."""
    total = reduce(np.add, values)
    return np.asarray(total / len(values), dtype=total.dtype)
