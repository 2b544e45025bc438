"""``model``: model parallelism. One copy of the network, with its layers distributed over the workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from runner.bounds import CountOrZero, SmallCount
from runner.engine.compile.passes.layer_groups import colocate_layers, home_layers
from runner.engine.compile.program import Program
from runner.engine.graph import NetworkFunction, worker_task
from runner.errors import ConfigError, require_one_of
from runner.strategies.base import LayerPlacement, Strategy, TrainingFacts, Workload
from runner.strategies.layer_names import by_pattern, matched, shard_of
from runner.strategies.microbatches import in_microbatches, in_stale_parts
from runner.strategies.sharded.blueprint import Blueprint
from runner.strategies.sharded.layer_cuts import DENSE_WAYS, Way, dense_layers
from runner.strategies.sharded.sharded_network import ShardedNetwork

PIPELINES = {"same_gradients": in_microbatches, "stale": in_stale_parts}
"""Option of ``parallelism.pipeline`` -> function that builds a program that computes each batch in parts."""

ANY_WORKER = "/job:worker"


@dataclass
class ModelParallel(Strategy):
    """One copy of the network on K devices (TensorFlow whitepaper 2016, sections 3.2.1, 4.3 and 7).

    The program leaves the worker of each layer open, and
    :func:`~runner.engine.compile.program_placement.place_program` chooses it once for all clients. The unit of
    placement is the layer (:mod:`~runner.engine.compile.passes.layer_groups`): the variables, slots, updates, forward
    and backward passes and evaluations of a layer share one worker. The placement changes no bit of the results:
    without sharded layers, ``same_gradients`` with n parts equals ``single`` with ``train.microbatches=n``.

    concurrent_steps: the number of parts of the batch, which go through the devices as a pipeline (Fig. 9). pipeline:
    ``same_gradients`` sums the gradients of the parts in order for one update; ``stale`` makes an update for each part,
    with gradients at the step's initial weights (:func:`~runner.strategies.microbatches.in_stale_parts`).
    constraints: shell pattern of layer names -> number of the worker for these layers; None for no constraints.
    shard: shell pattern of names of dense layers -> ``column`` or ``row``: the layers are sharded by their output or
    input units over all workers, the j-th shard on worker j
    (:class:`~runner.strategies.sharded.sharded_network.ShardedNetwork`); None for no shards. A sharded layer equals the
    whole layer up to rounding. The shards are placed like layers, under the names that
    :func:`~runner.strategies.layer_names.shard_name` returns.
    costs: ``trace_summary.json`` of a traced run of ``single`` or ``model`` with the same network and number of parts;
    when layers are placed, the measured times replace estimates. placement: ``placement.json`` of an earlier run, which
    is used unchanged. compare_steps: number of steps of ``single``, of ``sync_data`` and of this run that are measured
    before training; 0 for no comparison.

    Bytes on the wire in a step: an activation or gradient of s bytes that layers on d other devices read is sent once
    to each of these devices, d s bytes in all; shards count as layers. Also sent to each device that reads them, except
    the first such device: the learning rate, values that an optimizer computes once for all variables (Adam: two
    corrections) and, for dropout, the step number and the examples' global indices. Clipping by global norm sends one
    value per gradient to the device of the first gradient, and one value from there to each other device. Examples and
    labels are read on the devices that need them; loss and metrics are summed on the device of the loss.
    """

    splits_batch: ClassVar[bool] = False
    keeps_rows: ClassVar[bool] = True
    variants: ClassVar[tuple[Mapping[str, object], ...]] = tuple({"concurrent_steps": each} for each in (1, 2, 4))

    name: str = "model"
    workers: SmallCount = 2
    concurrent_steps: SmallCount = 1
    pipeline: str = "same_gradients"
    # Maps from str to int and from str to str. With declared types, OmegaConf would reject new command-line keys.
    constraints: Any = None
    shard: Any = None
    costs: str | None = None
    placement: str | None = None
    compare_steps: CountOrZero = 0

    def __post_init__(self) -> None:
        require_one_of("parallelism.pipeline", self.pipeline, PIPELINES)
        if self.pipeline == "stale" and self.concurrent_steps == 1:
            raise ConfigError(
                "parallelism.pipeline=stale with parallelism.concurrent_steps=1: expected 2 parts or more, or "
                "pipeline=same_gradients"
            )
        if not _is_map(self.constraints, lambda worker: type(worker) is int):
            raise ConfigError(
                f"parallelism.constraints={self.constraints!r}: expected a map from patterns of layer names to numbers "
                "of workers, such as {conv*: 0, fc*: 1}, or null"
            )
        if not _is_map(self.shard, lambda way: way in DENSE_WAYS):
            raise ConfigError(
                f"parallelism.shard={self.shard!r}: expected a map from patterns of names of dense layers to "
                f"{' or '.join(DENSE_WAYS)}, such as {{fc6: column, fc7: row}}, or null"
            )
        for key in ("constraints", "costs"):
            if self.placement is not None and getattr(self, key):
                raise ConfigError(
                    f"parallelism.{key} with parallelism.placement={self.placement}: a stored placement is used "
                    "unchanged; leave out one of the two"
                )

    @property
    def layer_placement(self) -> LayerPlacement:
        """The placement of layers without a constraint, and the strategies to compare: ``single`` and ``sync_data``."""
        rivals = {"single": {}, "sync_data": {"workers": self.workers}}
        return LayerPlacement(self.costs, self.placement, rivals, self.compare_steps)

    def faults(self, facts: TrainingFacts) -> Iterator[str]:
        """Yield faults, including more parts than examples, and ``train.microbatches`` larger than 1."""
        yield from super().faults(facts)
        if self.concurrent_steps > facts.batch_size > 0:
            yield (
                f"parallelism.concurrent_steps={self.concurrent_steps} is larger than "
                f"train.batch_size={facts.batch_size}: every part needs an example; use fewer parts or a larger batch"
            )
        if facts.microbatches > 1:
            yield (
                f"train.microbatches={facts.microbatches} with parallelism={self.name}: the number of parts is "
                "parallelism.concurrent_steps; set this key, and train.microbatches=1"
            )

    def build(self, workload: Workload) -> Program:
        """Return the program, in which only shards and constrained layers have a worker; the others are placed later.

        Raises ConfigError if a pattern matches no layer, or if a constraint names a worker that does not exist or
        matches a layer that is sharded.
        """
        in_parts = PIPELINES[self.pipeline]
        shaped = replace(workload, network=self._network(workload), microbatches=self.concurrent_steps)
        program = in_parts(shaped, ANY_WORKER)
        workers = self._workers(list(dict.fromkeys(home_layers(program.graph).values())))
        devices = {layer: worker_task(worker) for layer, worker in workers.items()}
        return replace(program, graph=colocate_layers(program.graph, devices), workers=self.workers)

    def _network(self, workload: Workload) -> NetworkFunction:
        """Return the network of a workload, with the layers in ``shard`` sharded."""
        if not self.shard:
            return workload.network
        layers = dense_layers(Blueprint.of(workload, workload.batch_size, training=True))
        ways = by_pattern("shard", self.shard, layers, "dense layer")
        return ShardedNetwork(workload, {layer: Way(way) for layer, way in ways.items()}, self.workers)

    def _workers(self, placed: Sequence[str]) -> dict[str, int]:
        """Return the worker of each shard and each constrained layer. placed: names of layers and of shards."""
        shards = {name: shard for name in placed if self.shard and (shard := shard_of(name)) is not None}
        layers = dict.fromkeys(shards[name][0] if name in shards else name for name in placed)
        cut = dict.fromkeys(layer for layer, _ in shards.values())
        return {name: worker for name, (_, worker) in shards.items()} | self._constrained(list(layers), list(cut))

    def _constrained(self, layers: Sequence[str], cut: Sequence[str]) -> dict[str, int]:
        """Return the worker of each layer that a constraint matches. cut: the sharded layers."""
        constraints = self.constraints or {}
        chosen = by_pattern("constraints", constraints, layers, "layer")
        for pattern, worker in constraints.items():
            where, matching = f"parallelism.constraints: {pattern!r}: {worker}", matched(pattern, layers)
            if not 0 <= worker < self.workers:
                raise ConfigError(
                    f"{where}: there is no worker {worker}, expected 0 to {self.workers - 1}; the pattern matches "
                    f"{', '.join(matching)} of the layers {', '.join(layers)}"
                )
            spread = [layer for layer in matching if layer in cut]
            if spread:
                raise ConfigError(
                    f"{where}: parallelism.shard distributes layer {spread[0]!r} over workers 0 to "
                    f"{self.workers - 1}; expected patterns that match none of {', '.join(cut)}"
                )
        return chosen


def _is_map(value: object, is_setting: Callable[[object], bool]) -> bool:
    """Return whether a value is None or a map from text to settings."""
    if value is None:
        return True
    return isinstance(value, Mapping) and all(type(k) is str and is_setting(v) for k, v in value.items())
