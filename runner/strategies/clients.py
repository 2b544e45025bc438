"""The clients of a program: initialize, train, evaluate, save and restore."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from runner.engine.compile.program import ONE_CLIENT, SAVE, TRAIN, Client, DriverSettings, Program
from runner.engine.graph import ops
from runner.engine.graph.graph import Graph
from runner.engine.graph.network import COUNTED, Answers
from runner.engine.graph.tensor import Tensor
from runner.engine.graph.variables import Variables
from runner.strategies.replica import Replica, ordered_sum, shares
from runner.strategies.servers import Server

Scored = tuple[Answers, Mapping[str, Tensor]]
"""The answers of a replica for its share of an evaluation batch, and the placeholders of that share."""


def program(
    graph: Graph,
    replicas: Sequence[Replica],
    *,
    metrics: Mapping[str, Tensor],
    targets: Sequence[str],
    variables: Variables | None = None,
    servers: Sequence[Server] = (),
    scored: Sequence[Scored] | None = None,
) -> Program:
    """Return the program of ``replicas`` with one training client.

    variables: the store on ``servers``. If None, every replica has its own store of whole variables or of parts; the
    parts of a variable are in the order of the replicas. scored: the answers of each replica for its share of an
    evaluation batch. If None, each replica evaluates its share with the whole network.
    """
    train = train_client(replicas, metrics=metrics, targets=targets, servers=servers)
    return program_of(graph, replicas, [train], variables=variables, servers=len(servers), scored=scored)


def train_client(
    replicas: Sequence[Replica],
    *,
    metrics: Mapping[str, Tensor],
    targets: Sequence[str],
    servers: Sequence[Server] = (),
) -> Client:
    """Return the client "train", which runs a step of all replicas. targets: the assign nodes of the update."""
    fed: list[Replica | Server] = [*replicas, *servers]
    return Client(
        TRAIN,
        fetches=metrics,
        targets=(*targets, *(node for replica in replicas for node in replica.carrying)),
        inputs=tuple(slot for replica in replicas for slot in replica.train_inputs),
        feeds={"step": tuple(each.step for each in fed), "learning_rate": tuple(each.learning_rate for each in fed)},
        slowed=True,
    )


def program_of(
    graph: Graph,
    replicas: Sequence[Replica],
    training: Sequence[Client],
    *,
    variables: Variables | None = None,
    servers: int = 0,
    scored: Sequence[Scored] | None = None,
    scratch: Sequence[Variables] = (),
    step_driver: DriverSettings = ONE_CLIENT,
) -> Program:
    """Return the program with the training clients and the clients "init", "eval", "save" and "restore".

    replicas: the copies that run the evaluation. variables, scored: see :func:`program`. scratch: variables that are
    not saved; "restore" sets a scratch variable that is a copy of a saved variable to the restored value, and any other
    scratch variable to its initial value. step_driver: see :class:`Program`.
    """
    stores = [replica.variables for replica in replicas] if variables is None else [variables]
    evaluation = _evaluation(graph, replicas, _scored(replicas) if scored is None else scored)
    scratch = [*scratch, *(replica.eval_states for replica in replicas)]
    restore = _restore(graph, stores, scratch)
    initial = tuple(variable.initial for store in (*stores, *scratch) for variable in store)
    save = Client(SAVE, fetches=_saved(graph, stores), exact=True)
    clients = [*training, Client("init", targets=initial, exact=True), evaluation, save, restore]
    return Program(
        graph,
        {client.name: client for client in clients},
        {variable.name: variable.whole for variable in stores[0]},
        workers=len(replicas),
        servers=servers,
        step_driver=step_driver,
    )


def _scored(replicas: Sequence[Replica]) -> list[Scored]:
    """Add the evaluation of each replica's share of an evaluation batch."""
    own = shares(replicas[0].workload.eval_batch_size, len(replicas))
    return [replica.evaluate(share) for replica, share in zip(replicas, own, strict=True)]


def _evaluation(graph: Graph, replicas: Sequence[Replica], scored: Sequence[Scored]) -> Client:
    """Return the client "eval", which sums losses and metrics without padding, and concatenates collected outputs."""
    summed, gathered = defaultdict[str, list[Tensor]](list), defaultdict[str, list[Tensor]](list)
    for replica, (outputs, batch) in zip(replicas, scored, strict=True):
        with replica.within("eval"):
            mask = batch["mask"]
            if COUNTED in outputs.collected:
                mask = ops.mul(graph, mask, outputs.collected[COUNTED])
            for name, values in outputs.summed.items():
                masked = ops.mul(graph, values, mask)
                summed[name].append(ops.reduce_sum(graph, masked, axes=(0,)))
        for name, each in {**outputs.collected, "mask": mask}.items():
            gathered[name].append(each)
    with graph.absolute_scope("eval/gathered"), graph.device(replicas[0].device):
        fetches = {name: ordered_sum(graph, parts, name) for name, parts in summed.items()}
        for name, parts in gathered.items():
            fetches[name] = parts[0] if len(parts) == 1 else ops.concat(graph, parts, axis=0, name=name)
    return Client(
        "eval",
        fetches=fetches,
        targets=tuple(node for replica in replicas for node in replica.eval_carrying),
        inputs=tuple(slot for replica in replicas for slot in replica.eval_inputs),
        feeds={"step": tuple(replica.step for replica in replicas)},
        exact=True,
    )


def _saved(graph: Graph, stores: Sequence[Variables]) -> dict[str, Tensor]:
    """Return name -> tensor, for each variable of the first store; parts are joined on the device of the first part."""
    saved = {}
    for name in dict.fromkeys(variable.name for variable in stores[0]):
        first, *others = [part for store in stores for part in store.parts(name)]
        saved[name] = first.tensor
        if first.part is not None and others:
            with graph.absolute_scope("save"), graph.device(stores[0].device_of(first)):
                tensors = [each.tensor for each in (first, *others)]
                saved[name] = ops.concat(graph, tensors, axis=first.part.axis, name=name)
    return saved


def _restore(graph: Graph, stores: Sequence[Variables], scratch: Sequence[Variables]) -> Client:
    feeds: dict[str, tuple[Tensor, ...]] = {}
    restored: dict[Tensor, Tensor] = {}
    for store in stores:
        scope = f"{store.prefix}/restore" if store.prefix else "restore"
        for variable in store:
            with graph.absolute_scope(scope), graph.device(store.device_of(variable)):
                value = ops.placeholder(graph, variable.whole.shape, variable.whole.dtype, name=variable.name)
                feeds[variable.name] = (*feeds.get(variable.name, ()), value)
                with graph.name_scope(variable.name):
                    own = value if variable.part is None else variable.part.cut(graph, value)
                    restored[variable.tensor] = ops.assign(graph, variable.tensor, own)
    targets = [value.node for value in restored.values()]
    for store in scratch:
        with graph.absolute_scope(f"{store.prefix}/restore"):
            for variable in store:
                source = None if variable.source is None else restored[variable.source]
                targets.append(variable.initial if source is None else ops.assign(graph, variable.tensor, source).node)
    return Client("restore", targets=tuple(targets), feeds=feeds, exact=True)


def client_name(action: str, *numbers: int) -> str:
    """Return a client's name: its action and the numbers of its worker, server or portion, such as "push_0_2"."""
    return "_".join([action, *map(str, numbers)])


def action_of(client: str) -> str:
    """Return the action in the name of a client: "push" for "push_0_2"."""
    return client.partition("_")[0]


def numbers_of(client: str) -> list[int]:
    """Return the numbers in the name of a client: [0, 2] for "push_0_2", [] for "begin"."""
    return [int(number) for number in client.split("_")[1:]]


def of_worker(client: str, worker: int) -> str:
    """Return the name of a client with another first number: "push_5_2" for "push_0_2" and 5."""
    return client_name(action_of(client), worker, *numbers_of(client)[1:])
