"""A batch that stays on the device: the same steps as with one that is fed, and nothing to feed but scalars."""

import numpy as np

from benchmarks.gpu.networks import GPU_CASES, task_of
from benchmarks.gpu.resident import LOAD, resident_single
from benchmarks.network import random_batch
from benchmarks.timed_single import TimedSingle
from runner.engine.compile.program import Program
from runner.engine.graph.device import local_cluster
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import scalar
from runner.kernels.registry import Registry

CASE = GPU_CASES["smoke"]


class Given:
    """One batch, whatever is asked for."""

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, np.ndarray]:
        x, y = random_batch(CASE)
        return {"x": x, "y": y, "index": np.arange(len(y)), "mask": np.ones(len(y), np.float32)}


def losses(program: Program, registry: Registry, *, load: bool) -> list[float]:
    """Of three training steps and of a run of the gradients after them."""
    session = LocalSession(program, local_cluster(1), registry, None if load else Given())
    session.run("init")
    if load:
        session.run(LOAD, feeds=Given().read("train", 0, 0, CASE.batch))
    feeds = {"step": scalar(0, "int64"), "learning_rate": scalar(CASE.learning_rate, "float32")}
    return [
        float(session.run(name, step=0, feeds={key: feeds[key] for key in program.clients[name].feeds})["loss"])
        for name in ("train", "train", "train", "gradients")
    ]


def test_steps_are_those_of_a_batch_that_is_fed(registry: Registry) -> None:
    task = task_of(CASE, "float32")
    resident = resident_single(task)
    fed = losses(TimedSingle().build(task), registry, load=False)
    assert losses(resident, registry, load=True) == fed
    assert fed[0] > fed[1] > fed[2] > fed[3]


def test_nothing_is_read_in_a_step() -> None:
    program = resident_single(task_of(CASE, "float32"))
    assert program.clients["train"].inputs == ()
    assert set(program.clients[LOAD].feeds) == {"x", "y", "index", "mask"}
