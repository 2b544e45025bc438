"""The configurations by which the simulator is compared with real runs, drawn by a seed, and those of its profile."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.cases import CASES

PROFILED_BATCHES: Mapping[str, tuple[int, ...]] = {
    "mlp": (4, 16, 64, 128),
    "lenet": (2, 8, 32, 64),
    "resnet20": (2, 8, 32),
    "alexnet": (1, 4, 8),
}
"""Case -> batch sizes of the profile."""

DRAWN_BATCHES: Mapping[str, tuple[int, ...]] = {
    "mlp": (24, 48, 96),
    "lenet": (12, 24, 48),
    "resnet20": (12, 16, 24),
    "alexnet": (3, 5, 6),
}
"""Case -> batch sizes of which one is drawn; none of them is in the profile."""

VARIANTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "single": ((),),
    "sync_data": tuple(
        (f"parallelism.combine={combine}",)
        for combine in ("sharded_reduce", "ring_all_reduce", "parameter_server", "all_reduce")
    ),
    "model": ((), ("parallelism.concurrent_steps=2",)),
    "hybrid": tuple((f"parallelism.scheme={scheme}",) for scheme in "abc"),
    "async_data": tuple((f"parallelism.loop={loop}",) for loop in ("overlapped", "sequential", "direct")),
    "sandblaster": (("parallelism.portions_per_worker=2",),),
}
"""Strategy -> overrides of its variants, of which one is drawn."""

NETWORKS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "1 Gbit/s": ("cluster.emulate=true", "cluster.bandwidth_mbit=1000", "cluster.latency_ms=0.2"),
    "100 Mbit/s": ("cluster.emulate=true", "cluster.bandwidth_mbit=100", "cluster.latency_ms=0.5"),
}
"""Emulated network -> overrides."""

SLOWEST = "100 Mbit/s"
"""The network on which AlexNet is not run, because the exchange of its 244 MB would take 20 s."""

DENSE = ("mlp", "lenet", "alexnet")
"""Cases with dense layers before the last layer; the others are not trained with ``hybrid``."""

SMALL = ("mlp", "lenet")
"""Cases that are trained with L-BFGS."""


@dataclass(frozen=True)
class Setting:
    """What configurations have in common whose strategies are ordered by time. network: a key of ``NETWORKS``."""

    case: str
    batch: int
    network: str = ""

    @property
    def name(self) -> str:
        """Text for a table."""
        return ", ".join(filter(None, (self.case, f"batch {self.batch}", self.network)))


@dataclass(frozen=True)
class Configuration:
    """One compared configuration. variant: one of ``VARIANTS[strategy]``."""

    setting: Setting
    strategy: str
    workers: int = 1
    variant: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The strategy, its number of workers and its variant, for a table."""
        options = [each.partition(".")[2] for each in self.variant]
        return " ".join([self.strategy, *([] if self.strategy == "single" else [str(self.workers)]), *options])

    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of the run, which are also those of its simulation."""
        case = CASES[self.setting.case]
        network = () if self.strategy == "single" else NETWORKS[self.setting.network]
        workers = () if self.strategy == "single" else (f"parallelism.workers={self.workers}",)
        parallelism = (f"parallelism={self.strategy}", *workers, *self.variant)
        given = case.overrides(threads=1, parallelism=parallelism, batch=self.setting.batch, batches=4)
        by_optimizer = ("optimizer=lbfgs",) if self.strategy == "sandblaster" else ()
        kept = [
            each
            for each in given
            if not each.startswith("cluster.threads_per_worker") and not (by_optimizer and each.startswith("optimizer"))
        ]
        return (*kept, *by_optimizer, "train.steps=1000000", "train.log_every=1000000", *network)


def drawn(seed: int, count: int) -> list[Configuration]:
    """Draw configurations: settings in turn of the cases, and one variant of each strategy in every setting.

    The result is a pure function of the arguments, and a larger ``count`` continues the list, at most until all
    settings are drawn.
    """
    random_ = random.Random(seed)
    found: list[Configuration] = []
    seen: set[Setting] = set()
    settings = sum(len(batches) * len(_networks(case)) for case, batches in DRAWN_BATCHES.items())
    while len(found) < count and len(seen) < settings:
        for case, batches in DRAWN_BATCHES.items():
            setting = Setting(case, random_.choice(batches), random_.choice(_networks(case)))
            each = list(_of_setting(setting, random_))
            if setting not in seen:
                found += each
            seen.add(setting)
    return found[:count]


def profiled() -> Iterator[Configuration]:
    """Yield the configurations whose instructions are measured: all variants on one to four workers."""
    for case, batches in PROFILED_BATCHES.items():
        for batch in batches:
            setting = Setting(case, batch)
            for strategy in _strategies(case):
                for variant in VARIANTS[strategy]:
                    for workers in _workers(strategy, batch):
                        yield Configuration(setting, strategy, workers, variant)


def _of_setting(setting: Setting, random_: random.Random) -> Iterator[Configuration]:
    for strategy in _strategies(setting.case):
        workers, variant = random_.choice(_workers(strategy, setting.batch)), random_.choice(VARIANTS[strategy])
        yield Configuration(setting, strategy, workers, variant)


def _networks(case: str) -> list[str]:
    return [network for network in NETWORKS if (case, network) != ("alexnet", SLOWEST)]


def _strategies(case: str) -> list[str]:
    left_out = {"hybrid": case not in DENSE, "sandblaster": case not in SMALL}
    return [strategy for strategy in VARIANTS if not left_out.get(strategy, False)]


def _workers(strategy: str, batch: int) -> Sequence[int]:
    least = 2 if strategy in ("model", "hybrid") else 1
    portions = 2 if strategy == "sandblaster" else 1
    return [1] if strategy == "single" else [count for count in range(least, 5) if portions * count <= batch]
