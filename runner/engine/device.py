"""Device names and the cluster they belong to (TensorFlow whitepaper 2016, section 3).

A full name is ``/job:worker/task:3/device:cpu:0``; a constraint may leave parts out: a strategy says the task, and of
which type its device is, the cluster does. Devices are logical: several may share a core or a card.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace

from runner.engine.card_use import AS_USUAL, CardUse

_PATTERN = re.compile(
    r"(?:/job:(?P<job>[a-z_]+))?(?:/task:(?P<task>\d+))?(?:/device:(?P<type>[a-z]+)(?::(?P<index>\d+))?)?"
)


@dataclass(frozen=True, order=True)
class DeviceName:
    """A full or partial device name; None stands for any."""

    job: str | None = None
    task: int | None = None
    type: str | None = None
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> DeviceName:
        """Read a full or partial name; raises ValueError showing the form expected."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"device {text!r}: expected '/job:NAME/task:N/device:TYPE:N' or some of these parts in this order"
            )
        parts = match.groupdict()
        return cls(
            parts["job"],
            None if parts["task"] is None else int(parts["task"]),
            parts["type"],
            None if parts["index"] is None else int(parts["index"]),
        )

    def __str__(self) -> str:
        text = "" if self.job is None else f"/job:{self.job}"
        text += "" if self.task is None else f"/task:{self.task}"
        if self.type is not None:
            text += f"/device:{self.type}" + ("" if self.index is None else f":{self.index}")
        return text

    @property
    def is_full(self) -> bool:
        return None not in (self.job, self.task, self.type, self.index)

    def matches(self, constraint: DeviceName) -> bool:
        """Whether this name satisfies every part the constraint names."""
        return all(
            wanted is None or wanted == mine
            for wanted, mine in (
                (constraint.job, self.job),
                (constraint.task, self.task),
                (constraint.type, self.type),
                (constraint.index, self.index),
            )
        )


CPU, GPU = DEVICE_TYPES = ("cpu", "gpu")
"""What a device can be: cores of a processor, or a card."""


@dataclass(frozen=True)
class Device:
    """A logical device and the rates the cost model assumes for it.

    flops_per_s: floating-point operations a second; bytes_per_s: memory traffic a second. The defaults are those of one
    core that nobody shares. card: number of the card that it computes on, of those its process sees; None for a
    processor. use: how that card is used.

    Raises ValueError for a card of a device of another type, and for a GPU without one.
    """

    name: str
    flops_per_s: float = 2e11
    bytes_per_s: float = 1e10
    card: int | None = None
    use: CardUse = AS_USUAL

    def __post_init__(self) -> None:
        has_card = self.card is not None and self.card >= 0
        if has_card != (self.type == GPU) or (self.use != AS_USUAL and not has_card):
            raise ValueError(
                f"device {self.name!r} with card={self.card} and {self.use}: expected a number of a card, from "
                "0, for type gpu, and neither for others"
            )

    @property
    def type(self) -> str:
        return DeviceName.parse(self.name).type or ""


COMPRESSIONS = ("none", "high16")
"""How tensors travel: as they are, or float32 as its upper 16 bits."""

NO_LIBRARY, NCCL = COLLECTIVES = ("none", "nccl")
"""What sums over devices: nothing but the devices themselves, of parts that travel like all else, or NCCL."""

DISTRIBUTIONS = ("none", "constant", "lognormal")
"""How the delays of slow workers are spread: there are none, all are the median, or their logarithms are normal."""

LONGEST_DELAY_S = 60.0
"""A draw above this counts as this: what a step may take before a worker counts as stuck is longer."""


@dataclass(frozen=True)
class Cluster:
    """The devices a graph may be placed on and the links between them.

    latency_s and bytes_per_s hold for every ordered pair of devices, each of which has a link of its own. compression:
    one of :data:`COMPRESSIONS`, for all of them. collectives: one of :data:`COLLECTIVES`; what is not "none" sums over
    all devices that have a card, each of which has another card and is of another task.
    """

    devices: tuple[Device, ...]
    latency_s: float = 5e-4
    bytes_per_s: float = 2e9
    compression: str = "none"
    collectives: str = NO_LIBRARY

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise ValueError(f"cluster compression {self.compression!r}: expected one of {', '.join(COMPRESSIONS)}")
        names = [device.name for device in self.devices]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"cluster devices {names}: expected at least one and no name twice")
        for name in names:
            if not DeviceName.parse(name).is_full:
                raise ValueError(f"cluster device {name!r}: expected a full name")
        self._check_collectives()

    def _check_collectives(self) -> None:
        if self.collectives not in COLLECTIVES:
            raise ValueError(f"cluster collectives {self.collectives!r}: expected one of {', '.join(COLLECTIVES)}")
        cards = [device.card for device in self.devices if device.name in self.members]
        tasks = {task_of(name) for name in self.members}
        if self.members and not 1 < len(cards) == len(set(cards)) == len(tasks):
            raise ValueError(
                f"cluster collectives {self.collectives!r} of cards {cards} of {len(tasks)} tasks: expected two or "
                "more cards, none twice, each of a task of its own"
            )

    def device(self, name: str) -> Device:
        """The device of this full name; raises ValueError listing the devices when there is none."""
        for device in self.devices:
            if device.name == name:
                return device
        raise ValueError(f"device {name!r} is not in the cluster: {', '.join(d.name for d in self.devices)}")

    @property
    def members(self) -> tuple[str, ...]:
        """Names of the devices that ``collectives`` sums over, in the order of their ranks; () for "none"."""
        if self.collectives == NO_LIBRARY:
            return ()
        return tuple(device.name for device in self.devices if device.type == GPU)

    def transfer_s(self, nbytes: int) -> float:
        """Seconds the cost model allows for moving ``nbytes`` between two devices."""
        return self.latency_s + nbytes / self.bytes_per_s


def worker_task(task: int) -> str:
    """Name of the device of a worker, of whichever type it is."""
    return f"/job:worker/task:{task}"


def server_task(task: int) -> str:
    """Name of the device of a parameter server, of whichever type it is."""
    return f"/job:ps/task:{task}"


def worker_device(task: int, kind: str = CPU) -> str:
    """Full name of the first device of a type of a worker."""
    return f"{worker_task(task)}/device:{kind}:0"


def server_device(task: int, kind: str = CPU) -> str:
    """Full name of the first device of a type of a parameter server."""
    return f"{server_task(task)}/device:{kind}:0"


def task_of(name: str) -> str:
    """A device name without type and number."""
    return str(replace(DeviceName.parse(name), type=None, index=None))


def device_slug(name: str) -> str:
    """A full device name in letters that a part of a node's name may have."""
    return name.strip("/").replace("/", ".").replace(":", "")


CARD_FLOPS_PER_S = 2e13
CARD_BYTES_PER_S = 2e12
"""What the cost model assumes for a card that nobody shares, whichever it is: order and placement are the same then."""

CARD_LATENCY_S = 1e-5
CARD_LINK_BYTES_PER_S = 2e10
"""The same for a copy between devices of one process."""


@dataclass(frozen=True)
class Cards:
    """On which cards the devices of a local cluster are.

    of_workers: card of each worker. of_servers: card of each parameter server; () where they are on the processor.
    use: of all of them.
    """

    of_workers: tuple[int, ...]
    of_servers: tuple[int, ...] = ()
    use: CardUse = AS_USUAL

    def by_device(self, workers: int, servers: int) -> list[int | None]:
        """The card of each device of a cluster, workers first; raises ValueError for another number of them."""
        if len(self.of_workers) != workers or len(self.of_servers) not in (0, servers):
            raise ValueError(
                f"cards {list(self.of_workers)} of workers and {list(self.of_servers)} of servers: expected one for "
                f"each of {workers} workers, and one for each of {servers} servers or none"
            )
        return [*self.of_workers, *(self.of_servers or [None] * servers)]


def local_cluster(
    workers: int,
    servers: int = 0,
    *,
    compression: str = "none",
    collectives: str = NO_LIBRARY,
    latency_s: float = Cluster.latency_s,
    bytes_per_s: float = Cluster.bytes_per_s,
    cores: float = 1.0,
    cards: Cards | None = None,
) -> Cluster:
    """A cluster of ``workers`` tasks, then ``servers`` parameter-server tasks, with one device each.

    cores: that each CPU computes on, for the estimates; below 1 where devices share one. cards: of devices of type
    gpu, which share the rates of their card; None: all devices are CPUs.
    """
    tasks = [*(worker_task(k) for k in range(workers)), *(server_task(j) for j in range(servers))]
    numbers = [None] * len(tasks) if cards is None else cards.by_device(workers, servers)
    sharing = Counter(numbers)
    devices = []
    for task, number in zip(tasks, numbers, strict=True):
        if cards is None or number is None:
            flops, traffic = cores * Device.flops_per_s, cores * Device.bytes_per_s
            devices.append(Device(f"{task}/device:{CPU}:0", flops, traffic))
        else:
            flops, traffic = CARD_FLOPS_PER_S / sharing[number], CARD_BYTES_PER_S / sharing[number]
            devices.append(Device(f"{task}/device:{GPU}:0", flops, traffic, number, cards.use))
    return Cluster(tuple(devices), latency_s, bytes_per_s, compression, collectives)
