"""The links of a described cluster, and the route between any two devices."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import groupby

from runner.engine.graph.device import server_task, worker_task
from runner.engine.simulate.hardware import ANY, TREE, Hardware, LinkDescription, expanded, places
from runner.system.schema import Violation


@dataclass(frozen=True)
class Link:
    """One link. name: "from -> to", or "a -- b" if both directions share it. latency_s: seconds for each message.

    host_s_per_byte: seconds of a thread at each end for each byte. serial: whether messages use the link one after the
    other.
    """

    name: str
    bytes_per_s: float
    latency_s: float
    host_s_per_byte: float = 0.0
    serial: bool = False


@dataclass(frozen=True)
class Route:
    """The links from one device to another, as indices, and the sums of their latencies and host seconds per byte."""

    links: tuple[int, ...]
    latency_s: float
    host_s_per_byte: float = 0.0


@dataclass(frozen=True)
class Network:
    """The links of a cluster. place: task of a device -> its place. neighbours: place -> (next place, link index)."""

    links: tuple[Link, ...]
    place: Mapping[str, str]
    neighbours: Mapping[str, Sequence[tuple[str, int]]]
    _found: dict[str, dict[str, Route]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def route(self, source: str, destination: str) -> Route:
        """Return the route with the fewest links between two tasks.

        If several routes have the fewest links, return the route whose links are listed first. Tasks at one place need
        no link. Raises Violation if no route exists.
        """
        start, end = self.place[source], self.place[destination]
        routes = self._routes_from(start)
        if end in routes:
            return routes[end]
        before, last = self._last_links.get(end, (end, 0))
        if before not in routes:
            raise Violation(f"no link leads from {start!r} to {end!r}; add links between them")
        return self._longer(routes[before], last)

    def nearest(self, task: str) -> tuple[str, ...]:
        """Return the places that are joined to the place of a task by one link, such as the switch of its host."""
        return tuple(there for there, _ in self.neighbours.get(self.place[task], ()))

    def _longer(self, route: Route, link: int) -> Route:
        own = self.links[link]
        work_s = route.host_s_per_byte + own.host_s_per_byte
        return Route((*route.links, link), route.latency_s + own.latency_s, work_s)

    @cached_property
    def _last_links(self) -> dict[str, tuple[str, int]]:
        """Place with one neighbour -> (neighbour, first link from it); no route leads through such a place."""
        ends = {place for place, own in self.neighbours.items() if len({there for there, _ in own}) == 1}
        pairs = ((place, each) for place, own in self.neighbours.items() for each in own)
        found: dict[str, tuple[str, int]] = {}
        for place, (there, number) in pairs:
            if there in ends:
                found.setdefault(there, (place, number))
        return found

    @cached_property
    def _onward(self) -> dict[str, list[tuple[str, int]]]:
        """Place -> its neighbours that have other neighbours."""
        ends = self._last_links
        return {place: [each for each in own if each[0] not in ends] for place, own in self.neighbours.items()}

    def _routes_from(self, start: str) -> dict[str, Route]:
        """Return the routes from a place to all places that have several neighbours."""
        if start not in self._found:
            routes, waiting = {start: Route((), 0.0)}, deque([start])
            while waiting:
                here = waiting.popleft()
                for there, number in self._onward.get(here, ()):
                    if there not in routes:
                        routes[there] = self._longer(routes[here], number)
                        waiting.append(there)
            self._found[start] = routes
        return self._found[start]


def network_of(hardware: Hardware, workers: int, servers: int) -> Network:
    """Return the network of a cluster with ``workers`` workers and ``servers`` parameter servers.

    Raises Violation if the hardware has too few places, names no places for parameter servers, or has links that form
    a cycle although ``routes`` is "tree".
    """
    if servers and hardware.servers is None:
        raise Violation(f"servers=null: expected a kind and places for {servers} parameter servers")
    place = dict(zip(map(worker_task, range(workers)), places("workers", hardware.workers, workers), strict=True))
    if hardware.servers is not None:
        named = places("servers", hardware.servers, servers)
        place |= dict(zip(map(server_task, range(servers)), named, strict=True))
    links: list[Link] = []
    neighbours: dict[str, list[tuple[str, int]]] = {}
    joined: dict[str, str] = {}
    for key, wire in hardware.links.items():
        for one, other in _pairs(key, wire, list(place.values())):
            ends = _joined(joined, one), _joined(joined, other)
            if one == other or (hardware.routes == TREE and ends[0] == ends[1]):
                raise Violation(
                    f"links.{key}: the link between {one!r} and {other!r} closes a cycle, expected one route between "
                    "two places; remove a link, or use routes=shortest"
                )
            if ends[0] != ends[1]:
                joined[ends[0]] = ends[1]
            for source, target in ((one, other), (other, one)):
                if not wire.shared or source == one:
                    name = f"{one} -- {other}" if wire.shared else f"{source} -> {target}"
                    work_s = 0.0 if wire.host_gbyte_per_s is None else 1e-9 / wire.host_gbyte_per_s
                    links.append(Link(name, 1e9 * wire.gbyte_per_s, 1e-6 * wire.latency_us, work_s, wire.serial))
                neighbours.setdefault(source, []).append((target, len(links) - 1))
    return Network(tuple(links), place, neighbours)


def workers_per_host(network: Network, workers: int) -> int | None:
    """Return the number of workers per host; None if hosts have different numbers of workers.

    A host is a group of successive workers with links to the same places. The result is also None if each host has one
    worker, or if one host has all workers.
    """
    groups = [len(list(group)) for _, group in groupby(network.nearest(worker_task(k)) for k in range(workers))]
    return groups[0] if 1 < len(groups) < workers and len(set(groups)) == 1 else None


def _joined(joined: dict[str, str], place: str) -> str:
    """Return the representative of all places that links join with this place (union-find)."""
    while place in joined:
        place = joined[place]
    return place


def _pairs(key: str, wire: LinkDescription, devices: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the two places of each link of a wire. devices: the places of devices, which a star matches."""
    first, second = (_named(name, devices) for name in wire.between)
    if len(first) != len(second) and 1 not in (len(first), len(second)):
        raise Violation(
            f"links.{key}.between={wire.between}: {len(first)} and {len(second)} places, expected equally many, or one"
        )
    count = max(len(first), len(second)) if first and second else 0
    for number in range(count):
        yield first[number % len(first)], second[number % len(second)]


def _named(name: str, devices: Sequence[str]) -> list[str]:
    if ANY in name:
        return list(dict.fromkeys(each for each in devices if fnmatchcase(each, name)))
    return list(expanded(name))
