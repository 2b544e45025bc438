"""The description of a cluster's hardware: kinds of devices, their places, and the links between places.

The dataclasses are the schema of ``cluster.hardware`` and are not frozen, so that OmegaConf can check types.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from runner.bounds import Count, Fraction, NonNegative, Positive
from runner.engine.graph.device import CPU, DEVICE_TYPES
from runner.engine.simulate.disturbances import Disturbances
from runner.system.schema import Violation

ANY = "*"
"""In the name of a place: the number of any worker or parameter server."""

_NUMBER = re.compile(r"\d+")
_RANGE = re.compile(r"(.*)\[(\d+)-(\d+)\](.*)")


@dataclass
class DeviceKind:
    """The rates of a kind of device.

    flops_per_s: floating-point operations per second; bytes_per_s: memory traffic. convolutions, products: the fraction
    of flops_per_s that convolutions and matrix products reach; traffic: the fraction of bytes_per_s that is reached.
    multiprocessors: number of units that each compute one tile of a convolution or product at a time; null: tiles are
    not modelled. tile: number of outputs of a tile. If the tiles of an op exceed one wave, the op takes whole waves
    (NVIDIA, Matrix Multiplication Background, "Wave Quantization"); otherwise, its sums are divided among the units.
    launch_us: microseconds added to every instruction. copies: whether the device itself copies sent and received
    tensors, at the rate of its memory; otherwise, a copy engine copies them. memory_gib: its memory, null if unknown.
    profile: path of a file that `runner profile` wrote on such a device; the rates then apply only to ops that the file
    lacks. cores: number of cores of a host of such devices. source: origin of the numbers.
    """

    flops_per_s: Positive
    bytes_per_s: Positive
    type: str = CPU
    convolutions: Fraction = 1.0
    products: Fraction = 1.0
    traffic: Fraction = 1.0
    multiprocessors: Count | None = None
    tile: Count = 256 * 128
    launch_us: NonNegative = 0.0
    copies: bool = False
    memory_gib: Positive | None = None
    profile: str | None = None
    cores: Count | None = None
    source: str = ""


@dataclass
class Group:
    """The devices of one role. kind: name of their kind. at: the place of each, as in "gpu[0-7]" or "worker*".

    host: name of the machine whose cores these devices share; null if no device slows another device.
    """

    kind: str
    at: str
    host: str | None = None


@dataclass
class LinkDescription:
    """Links between places, each with its own capacity in each direction.

    between: two names of places. A range or a star in one name makes a link for each of its places; in both names, a
    link for each pair of places in order. gbyte_per_s: 10^9 bytes per second in each direction. latency_us:
    microseconds for each message. host_gbyte_per_s: rate at which one thread of the sender, and one of the receiver,
    copy and encrypt a message while it is transferred; null: these take no time. shared: both directions share the
    capacity. serial: messages use the link one after the other instead of sharing it. source: origin of the numbers.
    """

    between: list[str]
    gbyte_per_s: Positive
    latency_us: NonNegative = 0.0
    host_gbyte_per_s: Positive | None = None
    shared: bool = False
    serial: bool = False
    source: str = ""


SHORTEST, TREE = ROUTES = ("shortest", "tree")


@dataclass
class Hardware:
    """The hardware of a cluster.

    kinds: name -> kind of device. links: name -> links between places. routes: "tree" if there is exactly one route
    between two places, so that links form no cycle; "shortest" for the route with the fewest links, as in a torus; of
    equal routes, the one whose links are listed first. about: a note on the description.
    message_us: microseconds that the sending device's host spends on every message, one message after the other.
    in_order: whether the messages of a step from one device to another are transferred one after the other, as over one
    connection; otherwise they share the links.
    step_us: microseconds of serial work of the host before every step, during which no device computes. disturbances:
    see :mod:`runner.engine.simulate.disturbances`.
    """

    kinds: dict[str, DeviceKind]
    workers: Group
    links: dict[str, LinkDescription] = field(default_factory=dict)
    servers: Group | None = None
    routes: str = TREE
    message_us: NonNegative = 0.0
    in_order: bool = False
    step_us: NonNegative = 0.0
    disturbances: Disturbances = field(default_factory=Disturbances)
    about: str = ""

    def faults(self) -> Iterator[str]:
        """Yield a line for each invalid value: the key, the value, and the expected value."""
        for name, kind in self.kinds.items():
            if kind.type not in DEVICE_TYPES:
                yield f"kinds.{name}.type={kind.type!r}: expected one of {', '.join(DEVICE_TYPES)}"
        for role, group in (("workers", self.workers), ("servers", self.servers)):
            if group is not None and group.kind not in self.kinds:
                yield f"{role}.kind={group.kind!r}: expected one of {', '.join(self.kinds)}"
        one, other = self.workers, self.servers or self.workers
        cores = {each.kind: self.kinds[each.kind].cores for each in (one, other) if each.kind in self.kinds}
        if one.host is not None and one.host == other.host and len(set(cores.values())) > 1:
            yield f"servers.host={other.host}: workers are on this host too; expected equal cores, found {cores}"
        for name, wire in self.links.items():
            if len(wire.between) != 2:
                yield f"links.{name}.between={wire.between}: expected the names of two places"
            elif not all(any(expanded(each)) for each in wire.between):
                yield f"links.{name}.between={wire.between}: a range falls, so it has no place; expected [LEAST-MOST]"
        if self.routes not in ROUTES:
            yield f"routes={self.routes!r}: expected one of {', '.join(ROUTES)}"
        yield from (f"disturbances.{fault}" for fault in self.disturbances.faults())
        groups = [group for group in (self.workers, self.servers) if group is not None]
        for key, at in self.disturbances.places():
            known = groups[:1] if key == "input.at" else groups  # parameter servers read no input
            if not any(_has_place(group, at) for group in known):
                expected = " or ".join(repr(group.at) for group in known)
                yield f"disturbances.{key}={at!r}: no device is there, expected places of {expected}"


def places(role: str, group: Group, count: int) -> list[str]:
    """Return the places of ``count`` devices; raises Violation if the group of this role has fewer."""
    if ANY in group.at:
        return [group.at.replace(ANY, str(number)) for number in range(count)]
    named = list(expanded(group.at))
    if count > len(named):
        raise Violation(f"{role}.at={group.at!r} has {len(named)} places, expected {count} or more")
    return named[:count]


def _has_place(group: Group, at: str) -> bool:
    """Return whether ``at``, a name with a range or a star, can name a place of a group with any number of devices."""
    return any(
        fnmatchcase(place.replace(ANY, number), name)
        for name in expanded(at)
        for place in expanded(group.at)
        for number in ("0", *_NUMBER.findall(name))
    )


def expanded(name: str) -> Iterator[str]:
    """Yield the names that a name with a range such as [0-7] stands for; a name without a range is one name."""
    match = _RANGE.fullmatch(name)
    if match is None:
        yield name
        return
    before, first, last, after = match.groups()
    for number in range(int(first), int(last) + 1):
        yield f"{before}{number}{after}"
