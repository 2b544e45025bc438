"""A network function with some of its dense layers sharded over workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from runner.engine.graph import Declaration, Graph, LayerStamp, NetworkBuilder, Node, Outputs, Tensor, ops
from runner.engine.graph.network import Lookup
from runner.engine.graph.variables import Part
from runner.strategies.base import Workload
from runner.strategies.replica import ordered_sum
from runner.strategies.sharded.blueprint import Blueprint, joined, mask_of_units
from runner.strategies.sharded.layer_cuts import LayerCut, Way, cut_layers, shard_stamp


@dataclass(frozen=True)
class ShardedNetwork:
    """The network function of a workload, with dense layers sharded over K workers (Shoeybi et al. 2019, section 3).

    The nodes of a layer's shard on worker j are marked with a separate layer name
    (:func:`~runner.strategies.sharded.layer_cuts.shard_stamp`), by which they are placed later. The shards of
    weights W (F, U) and biases are parts of the variables of the unsharded network.

    column: worker j has the j-th range of ``shares(U, K)`` of the U units, with their columns of W and entries of the
    bias. All F features are sent to worker j. Later layers that treat each unit separately are sharded in the same way;
    dropout uses the units' columns of the whole layer's mask. All units are gathered once on the device of the first
    unsharded reader, for all unsharded layers, and once on each worker with a shard of a following column layer.
    row: worker j has the j-th range of ``shares(F, K)`` of the F features, with their rows of W. After a column layer,
    these are the worker's own units; otherwise the features are split on their device. The products (N, U) are
    summed in the order of the workers, and the bias is added to the sum. The sum is colocated with the layer that first
    reads it, unless that layer is sharded.

    Bytes on the wire for N examples and values of b bytes, if all K workers have units, one of them computes the input
    and one reads the output. If gradients are needed, the same number of bytes is sent in the backward pass.

    - column: (K - 1) N F b to send the features, N (U - U_r) b to gather the units on worker r, which has U_r of them;
    - column after column: (K - 1) N F b to gather in between, where F is the number of units of the first;
    - row: N (F - F_s) b to send the features from worker s, which has F_s of them, and (K - 1) N U b for the sum;
    - column then row: no bytes in between, (K - 1) N F b before and (K - 1) N U b after.

    If a worker without units computes the input or reads the output, K - 1 becomes K, and no units are subtracted.
    Dropout on shards: 8 N for the indices of examples and 8 for the step, to each worker but the first.
    """

    workload: Workload
    ways: Mapping[str, Way]
    workers: int

    def __call__(self, net: NetworkBuilder, batch: Mapping[str, Tensor]) -> Outputs:
        """Add the network over a batch; raises ConfigError for a layer that cannot be sharded."""
        blueprint = Blueprint.of(self.workload, net.graph.spec(batch["index"]).shape[0], training=net.training)
        added = _ShardedPass(net, blueprint, batch, cut_layers(blueprint, self.ways, self.workers))
        added.add(blueprint.forward)
        for each in blueprint.state_updates:
            net.advance(net.variables[each.variable.name], added.whole(each.batch_value), each.decay)
        for lookup in blueprint.lookups:
            table = net.variables[lookup.table.name]
            net.lookups.append(Lookup(table, added.whole(lookup.indices), added.whole(lookup.rows)))
        return blueprint.outputs.mapped(added.whole)


class _ShardedPass:
    """One forward pass: the added tensors of the blueprint, whole or in parts, and the rules for adding nodes."""

    def __init__(
        self, net: NetworkBuilder, blueprint: Blueprint, batch: Mapping[str, Tensor], cuts: Mapping[str, LayerCut]
    ) -> None:
        self._net = net
        self._blueprint = blueprint
        self._cuts = cuts
        self._whole = {blueprint.step: net.step, **{blueprint.batch[field]: fed for field, fed in batch.items()}}
        self._parts: dict[Tensor, Mapping[int, Tensor]] = {}
        self._gathered: dict[tuple[Tensor, int | None], Tensor] = {}
        self._unread = {name for name, cut in cuts.items() if cut.way is Way.ROW}
        """Row layers whose sum no other layer has read so far."""

    @property
    def graph(self) -> Graph:
        return self._net.graph

    def add(self, nodes: Sequence[Node]) -> None:
        """Add nodes of the blueprint, in graph order."""
        for declared in self._blueprint.declared_for(nodes):
            self._declare(declared)
        for node in nodes:
            self._rule(node)(node)

    def whole(self, tensor: Tensor, reader: LayerStamp | None = None) -> Tensor:
        """Return a whole tensor of the blueprint; parts are gathered once, in the layer of the first ``reader``."""
        return self._all_on(None, tensor, self.graph.layer(reader))

    def _declare(self, declared: Declaration) -> None:
        variables, layer = self._net.variables, declared.layer
        cut = self._cut(layer)
        if layer is None or cut is None or (cut.way is Way.ROW and declared.spec.rank < 2):
            variables.declare(declared, variables.device)
            return
        axis = 0 if cut.way is Way.ROW else declared.spec.rank - 1
        for j, (begin, end) in cut.shares.items():
            part = Part(declared.spec, axis, begin, end)
            own = replace(declared, spec=part.spec, part=part, layer=shard_stamp(layer, j))
            variables.declare(own, variables.device)

    def _cut(self, layer: LayerStamp | None) -> LayerCut | None:
        return None if layer is None else self._cuts.get(layer.name)

    def _rule(self, node: Node) -> Callable[[Node], None]:
        cut = self._cut(node.layer)
        if node[0] in self._blueprint.declarations:
            return self._add_variable
        if cut is None or (cut.way is Way.ROW and not any(tensor in self._parts for tensor in node.inputs)):
            return self._add_whole
        if node.op == "matmul":
            return self._add_sum_of_products if cut.way is Way.ROW else self._add_columns
        return self._add_mask if node.op == "dropout_mask" else self._add_by_unit

    def _add_variable(self, node: Node) -> None:
        held = self._net.variables.parts(self._blueprint.declarations[node[0]].name)
        if held[0].part is None:
            self._whole[node[0]] = held[0].tensor
        else:
            self._parts[node[0]] = dict(zip(self._shares(node), (each.tensor for each in held), strict=True))

    def _add_whole(self, node: Node) -> None:
        inputs = [self.whole(tensor, node.layer) for tensor in node.inputs]
        with self.graph.layer(node.layer):
            colocated = self._sums_first_read(inputs, node.layer)
            copy = self.graph.add(node.op, inputs, node.attributes, name=node.name, colocate_with=colocated)
        self._whole.update(zip(node.tensors, copy.tensors, strict=True))

    def _sums_first_read(self, inputs: Sequence[Tensor], reader: LayerStamp | None) -> list[str]:
        """Return the nodes of those inputs that are sums of row layers and that no layer before ``reader`` has read."""
        found = []
        for node in (self.graph.nodes[tensor.node] for tensor in inputs):
            if node.layer is not None and node.layer != reader and node.layer.name in self._unread:
                self._unread.remove(node.layer.name)
                found.append(node.name)
        return found

    def _add_by_unit(self, node: Node) -> None:
        copies = {j: self._add(node, j, [self._parts[tensor][j] for tensor in node.inputs]) for j in self._shares(node)}
        for port, tensor in enumerate(node.tensors):
            self._parts[tensor] = {j: copy[port] for j, copy in copies.items()}

    def _add_mask(self, node: Node) -> None:
        inputs = [self.whole(tensor) for tensor in node.inputs]
        self._parts[node[0]] = {
            j: self._add(node, j, inputs, **mask_of_units(node, share))[0] for j, share in self._shares(node).items()
        }

    def _add_columns(self, node: Node) -> None:
        x, weights = node.inputs
        self._parts[node[0]] = {
            j: self._add(node, j, [self._all_on(j, x, self._on(j, node)), shard])[0]
            for j, shard in self._parts[weights].items()
        }

    def _all_on(self, worker: int | None, tensor: Tensor, place: AbstractContextManager[None]) -> Tensor:
        """Return a whole tensor for a worker's shards (None: unsharded layers). place: layer that gathers the parts."""
        if tensor not in self._parts:
            return self._whole[tensor]
        if (tensor, worker) not in self._gathered:
            with place:
                self._gathered[tensor, worker] = joined(self.graph, list(self._parts[tensor].values()), axis=1)
        return self._gathered[tensor, worker]

    def _add_sum_of_products(self, node: Node) -> None:
        x, weights = node.inputs
        features = self._parts[x] if x in self._parts else self._cut_features(node)
        products = [self._add(node, j, [features[j], shard])[0] for j, shard in self._parts[weights].items()]
        with self.graph.layer(node.layer):
            self._whole[node[0]] = ordered_sum(self.graph, products, f"{node.name}/sum")

    def _cut_features(self, node: Node) -> dict[int, Tensor]:
        """Split the input of a row layer on its device, so that each worker receives only its features."""
        whole, shares = self._whole[node.inputs[0]], self._shares(node)
        if len(shares) == 1:
            return dict.fromkeys(shares, whole)
        with self.graph.layer(self.graph.nodes[whole.node].layer):
            sizes = [end - begin for begin, end in shares.values()]
            parts = ops.split(self.graph, whole, 1, sizes, name=f"{node.name}/features")
        return dict(zip(shares, parts, strict=True))

    def _shares(self, node: Node) -> Mapping[int, tuple[int, int]]:
        cut = self._cut(node.layer)
        assert cut is not None, "only nodes of sharded layers have shares"
        return cut.shares

    def _add(self, node: Node, worker: int, inputs: Sequence[Tensor], **changes: object) -> Node:
        with self._on(worker, node):
            return self.graph.add(node.op, inputs, {**node.attributes, **changes}, name=node.name)

    @contextmanager
    def _on(self, worker: int, node: Node) -> Iterator[None]:
        """Mark added nodes as belonging to a worker's shard of a node's layer."""
        assert node.layer is not None, "only nodes of layers are sharded"
        with self.graph.name_scope(f"shard_{worker}"), self.graph.layer(shard_stamp(node.layer, worker)):
            yield
