"""A training step of a small network is one call of machine code."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from runner import nn
from runner.engine.graph.network import NetworkBuilder, Outputs
from runner.engine.run.session import scalar
from runner.kernels.contract import NativeCall
from runner.kernels.registry import Registry
from runner.models.lenet import LeNet
from runner.optimizers.sgd import Momentum
from runner.strategies.single import Single
from tests.strategies.networks import Batch, task_of
from tests.strategies.training import opened

STEP = "loss_only"
"""A client that trains and fetches the loss alone."""


def lenet(net: NetworkBuilder, batch: Batch) -> Outputs:
    return nn.classify(net, LeNet().forward(net, batch["x"], 10), batch["y"])


def watched(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of calls in every fused call group that runs."""
    runs: list[int] = []
    join = registry.join

    def noting(calls: Sequence[NativeCall]) -> Callable[[], int]:
        together = join(calls)

        def run() -> int:
            runs.append(len(calls))
            return together()

        return run

    monkeypatch.setattr(registry, "join", noting)
    return runs


def test_a_step_of_lenet_is_one_fused_call_group(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = watched(registry, monkeypatch)
    task = task_of(lenet, Momentum(), batch_size=1, dtype="float32", example_shape=(1, 28, 28))
    train = Single().build(task).clients["train"]
    step = replace(train, name=STEP, fetches={"loss": train.fetches["loss"]})
    fed = {"step": scalar(0, "int64"), "learning_rate": scalar(0.1, "float32")}
    with opened(Single(), task, registry, **{STEP: step}) as trainer:
        trainer.session.run("init")
        trainer.session.run(STEP, feeds=fed)
        runs.clear()
        trainer.session.run(STEP, feeds=fed)
        (plan,) = trainer.session.plans(STEP).values()
    # Values that are the same in every step need not be computed in every step.
    computed = [instruction for instruction in plan.instructions if instruction.op != "fill"]
    assert len(runs) == 1
    assert len(computed) <= runs[0] <= len(plan.instructions)
