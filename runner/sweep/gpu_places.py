"""GPUs for the jobs of a sweep that run at the same time: each has a place among them, and each place its GPUs.

A place is held by a lock as long as its job runs, so that the next job has the GPUs of the one that ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.config.devices import ALL_GPUS, GpuShare, Look
from runner.config.schema import LocalCluster
from runner.engine.graph.device import GPU
from runner.sweep.locks import place_lock


@contextmanager
def gpu_share(sweep_dir: Path, at_once: int, look: Look, *, had: Sequence[int] = ()) -> Iterator[GpuShare]:
    """Hold a share of the GPUs, while others of the ``at_once`` jobs hold theirs.

    had: GPUs of a run that goes on with them; the place they belong to is taken if it is free, so that no other job
    is dealt them.
    """
    if at_once == 1:
        yield ALL_GPUS
        return
    wanted = _place_of(had, at_once, look) if had else 0
    with place_lock(sweep_dir, wanted) as place:
        yield GpuShare(place, at_once)


def dealt_text(asked: LocalCluster, taken: LocalCluster, share: GpuShare, look: Look) -> str:
    """What a job was dealt, in words; "" where it has no GPU, named its GPUs or has the machine to itself."""
    if share == ALL_GPUS or asked.gpus is not None or taken.device_taken != GPU:
        return ""
    return share.text(look().gpus)


def _place_of(had: Sequence[int], at_once: int, look: Look) -> int:
    """The first place with such a GPU, 0 where there is none."""
    gpus = look().gpus
    shares = (GpuShare(place, at_once).of(gpus) for place in range(at_once))
    return next((place for place, own in enumerate(shares) if {gpu.number for gpu in own} & set(had)), 0)
