"""With ``recompute``, every strategy computes the same weights bit for bit and needs less memory for a step."""

from dataclasses import dataclass, field, replace

import pytest

from runner import nn
from runner.config import hydra_app
from runner.config.configuration import fix_machine_values
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph import NetworkBuilder, NetworkFunction, Outputs
from runner.engine.run.kernel_table import load_kernels
from runner.errors import ConfigError
from runner.optimizers import Lbfgs, Momentum, Optimizer
from runner.strategies import AsyncData, Hybrid, ModelParallel, Sandblaster, Single, Strategy, SyncData, Workload
from runner.strategies.layer_names import require_selected
from runner.tasks.classification import Classification
from runner.training.build import build
from tests.strategies.networks import CLASSES, Batch, workload_of
from tests.strategies.training import Placed, Run, begun, expect_same_run, speeds

STEPS = 2
BATCH = 8
CHEAP = ("norm", "activation", "regularizer")
SEGMENTS = ("unit*_norm?", "unit*_relu?", "unit*_conv?", "drop")


def residual(net: NetworkBuilder, batch: Batch, *, normalised: bool = True) -> Outputs:
    """Build two residual units with pre-activations and dropout, two dense layers, and dropout between them."""
    h = nn.conv(net, batch["x"], 4, 3, name="conv", padding="same", bias=None)
    for unit in (1, 2):
        branch = h
        for i in (1, 2):
            if normalised:
                branch = nn.batch_norm(net, branch, name=f"unit{unit}_norm{i}")
            branch = nn.sigmoid(net, branch, name=f"unit{unit}_sigmoid") if i == unit else branch
            branch = nn.relu(net, branch, name=f"unit{unit}_relu{i}")
            branch = nn.conv(net, branch, 4, 3, name=f"unit{unit}_conv{i}", padding="same", bias=None)
        h = nn.add(net, nn.dropout(net, branch, 0.1, name=f"unit{unit}_drop"), h, name=f"unit{unit}_sum")
    h = nn.flatten(net, nn.relu(net, nn.max_pool(net, h, 2, name="pool"), name="last"), name="flat")
    h = nn.relu(net, nn.dense(net, h, 40, name="fc1"), name="relu")
    return Classification().score(net, nn.dense(net, nn.dropout(net, h, 0.4, name="drop"), CLASSES, name="fc2"), batch)


def plain(net: NetworkBuilder, batch: Batch) -> Outputs:
    """Build the same network without batch normalisation."""
    return residual(net, batch, normalised=False)


@dataclass(frozen=True)
class Case:
    """A strategy and the layers that it recomputes. seconds: the times of racing workers for a portion, if any."""

    strategy: Strategy | Placed
    recompute: tuple[str, ...] = CHEAP
    network: NetworkFunction = residual
    optimizer: Optimizer = field(default_factory=lambda: Momentum(weight_decay=1e-3))
    dtype: str = "float64"
    microbatches: int = 1
    seconds: tuple[float, ...] = ()

    def workload(self, recompute: tuple[str, ...]) -> Workload:
        numbers = {"batch_size": BATCH, "microbatches": self.microbatches, "dtype": self.dtype}
        workload = workload_of(self.network, self.optimizer, **numbers)
        return replace(workload, recompute=recompute)


CASES = {
    "norm and activation": Case(Single(), ("norm", "activation"), dtype="float32"),
    "segments": Case(Single(), SEGMENTS, dtype="float32"),
    "reference kernels": Case(Single()),
    "bfloat16": Case(Single(), dtype="bfloat16"),
    "microbatches": Case(Single(), microbatches=2),
    "line search": Case(Single(), network=plain, optimizer=Lbfgs()),
    "statistics of shares": Case(SyncData(workers=2), dtype="float32"),
    "segments of two workers": Case(SyncData(workers=2, combine="ring_all_reduce"), SEGMENTS),
    "statistics of the batch": Case(SyncData(workers=2, statistics="pooled")),
    "parameter servers": Case(SyncData(workers=2, combine="parameter_server", servers=2)),
    "downpour": Case(AsyncData(workers=2, virtual_time=True)),
    "one worker, sequential": Case(AsyncData(workers=1, loop="sequential")),
    "pipeline": Case(Placed(ModelParallel(workers=2, concurrent_steps=2)), dtype="float32"),
    "stale pipeline": Case(Placed(ModelParallel(workers=2, concurrent_steps=2, pipeline="stale")), SEGMENTS),
    "sharded layer": Case(Placed(ModelParallel(workers=2, shard={"fc1": "column", "fc2": "row"}))),
    "hybrid": Case(Hybrid(workers=2, statistics="pooled")),
    "several updates of dense layers": Case(Hybrid(workers=2, fc_batch=BATCH // 2), SEGMENTS),
    "sandblaster": Case(Sandblaster(workers=2, portions_per_worker=1), CHEAP, plain, Lbfgs(), seconds=(1.0, 2.0)),
}


def trained(case: Case, recompute: tuple[str, ...]) -> tuple[Run, int]:
    """Return weights and history, and the planned bytes of the training steps on all devices."""
    clock = speeds(*case.seconds) if case.seconds else None
    with begun(case.strategy, case.workload(recompute), interleaving=clock) as trainer:
        history = trainer.train(range(STEPS))
        clients = [client.name for client in trainer.program.training]
        arenas = [plan.arena_bytes for name in clients for plan in trainer.session.plans(name).values()]
        return (trainer.weights(), history), sum(arenas)


@pytest.mark.parametrize("name", CASES)
def test_same_bits_in_less_memory(name: str) -> None:
    kept, bytes_kept = trained(CASES[name], ())
    found, bytes_found = trained(CASES[name], CASES[name].recompute)
    expect_same_run(found, kept)
    assert bytes_found < bytes_kept


def test_shards_of_a_layer_are_recomputed_like_the_layer() -> None:
    strategy = ModelParallel(workers=2, shard={"fc1": "column", "fc2": "row"})
    graph = strategy.build(Case(Single()).workload(("drop",))).graph
    require_selected("train.recompute", ["drop"], graph)
    marked = {node.layer.name for node in graph if node.layer is not None and node.layer.recomputed}
    assert marked == {"drop/shard_0", "drop/shard_1"}


def planned_bytes(recompute: str) -> int:
    """Return the planned memory of a training step of a residual network with bottlenecks, in bytes."""
    keys = ["model=resnet_cifar", "model.depth=56", "model.block=bottleneck", "data=synthetic", "data.shape=[3,32,32]"]
    composed = hydra_app.compose([*keys, "parallelism=single", f"train.recompute={recompute}"])
    experiment = build(fix_machine_values(composed.config(), 1))
    plans = ProgramPlans(experiment.program, experiment.cluster, load_kernels())
    (plan,) = plans.plans(experiment.program.clients["train"].signature).values()
    return plan.arena_bytes


def test_a_residual_network_needs_less_than_half_of_its_memory() -> None:
    units = "[stage?_unit*_norm?,stage?_unit*_relu?,stage?_unit*_conv?]"
    kept, short, long = map(planned_bytes, ("null", "[norm,activation,stage?_unit*_conv1]", units))
    assert long < short < kept / 2


def test_the_key_selects_layers_of_the_configured_network() -> None:
    keys = ["model=resnet_cifar", "model.depth=8", "data=synthetic", "parallelism=single"]
    composed = hydra_app.compose([*keys, "train.recompute=[norm,*_relu2]"])
    program = build(fix_machine_values(composed.config(), 1)).program
    marked = {node.layer.name for node in program.graph if node.layer is not None and node.layer.recomputed}
    assert {"stage1_unit1_norm1", "stage3_unit1_relu2", "last_norm"} <= marked
    assert marked.isdisjoint({"stage3_unit1_relu1", "stage3_unit1_conv1", "fc"})


def test_a_name_that_selects_no_layer_is_refused() -> None:
    keys = ["model=lenet", "parallelism=single", "train.recompute=[norm,conv*]"]
    with pytest.raises(ConfigError) as caught:
        build(fix_machine_values(hydra_app.compose(keys).config(), 1))
    assert str(caught.value) == (
        "train.recompute: 'norm' selects no layer: expected names of layers, with * and ?, or kinds of layers; the "
        "kinds are activation, conv, dense, loss, pool, shape, the layers conv1, pool1, conv2, pool2, flatten, fc1, "
        "relu1, fc2, ... (9 in all)"
    )
