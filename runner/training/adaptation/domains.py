"""The program that computes a network on a source and a target domain, and its session."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.data.dataset import Normalisation
from runner.data.pipeline import Pipeline
from runner.data.settings import DatasetSettings, limited_facts
from runner.engine.compile.program import Client, Fields, InputSlot, Program
from runner.engine.graph import Graph, NetworkBuilder, Outputs, Tensor, ops, worker_task
from runner.engine.run.local_session import LocalSession
from runner.errors import ConfigError
from runner.strategies.base import Workload
from runner.strategies.clients import program_of
from runner.strategies.replica import Replica, cast_fields, placeholders
from runner.training.adaptation.moments import Moments
from runner.training.build import workload_of
from runner.training.evaluation import TEST, Scores, evaluate
from runner.training.inference import OneDevice, opened, pipeline_as_trained
from runner.training.saving import restore

SOURCE, TARGET = DOMAINS = ("source", "target")
_TRAIN = "train"
_STATISTICS, _MOMENTS, _FEATURES = "statistics", "moments", "features"
_COMPARED = ("conv", "dense", "norm")  # kinds of layers whose outputs are compared between the domains
Array = NDArray[Any]
Weights = Mapping[str, Array]  # name of a variable of the network -> its value


@dataclass(frozen=True)
class Classifier:
    """The last dense layer of a network. features: its input (N, F). weights, bias: names of its variables."""

    features: Tensor
    weights: str
    bias: str


@dataclass(frozen=True)
class DomainProgram:
    """A program with the usual clients except "train", and clients that read train batches of a domain.

    "eval" reads the test split of the target. "statistics/target" normalises by batch statistics, without dropout, and
    fetches the mean and the variance of each batch normalization, named like its moving averages. "moments/DOMAIN"
    computes as in an evaluation, and fetches the mean and the variance of each compared layer's outputs, LAYER/mean and
    LAYER/variance. "features/DOMAIN" fetches "features", the input of the classifier, and "y"; without a classifier,
    there is no such client.

    normalised: moving variance -> moving mean of the same layer. layers: layer -> number of its neurons.
    """

    program: Program
    normalised: Mapping[str, str]
    layers: Mapping[str, int]
    classifier: Classifier | None


@dataclass(frozen=True)
class _Pass:
    """A forward pass over a batch of any domain. fed: field -> placeholder."""

    net: NetworkBuilder
    outputs: Outputs
    fed: Mapping[str, Tensor]

    def client(self, name: str, domain: str, fetches: Mapping[str, Tensor]) -> Client:
        """Return a client that runs the pass on train batches of a domain."""
        count = self.net.graph.spec(self.fed["index"]).shape[0]
        slots = [InputSlot(tensor, f"{domain}/{_TRAIN}", field, 0, count) for field, tensor in self.fed.items()]
        return Client(f"{name}/{domain}", fetches, inputs=tuple(slots), feeds={"step": (self.net.step,)}, exact=True)


def domain_program(workload: Workload) -> DomainProgram:
    """Return the program for one device. Raises ConfigError for a moving average outside batch normalization."""
    graph = Graph()
    replica = Replica(graph, workload, device=worker_task(0))
    scored = program_of(graph, [replica], [], scored=[replica.evaluate((0, workload.eval_batch_size), averages=False)])
    slots = tuple(replace(slot, split=f"{TARGET}/{slot.split}") for slot in scored.clients["eval"].inputs)
    clients = [replace(scored.clients["eval"], inputs=slots)]

    by_batch = _forward_pass(replica, _STATISTICS, batch_statistics=True)
    updates = by_batch.net.state_updates
    normalised = {update.variable.name: update.around.name for update in updates if update.around is not None}
    if others := {each.variable.name for each in updates} - normalised.keys() - set(normalised.values()):
        raise ConfigError(f"{min(others)} is a moving average without a variance: AdaBN pools batch normalization only")
    clients.append(by_batch.client(_STATISTICS, TARGET, {each.variable.name: each.batch_value for each in updates}))

    plain = _forward_pass(replica, _MOMENTS, batch_statistics=False)
    with replica.within(_MOMENTS):
        layers, moments = _moments(plain.net)
    clients += [plain.client(_MOMENTS, domain, moments) for domain in DOMAINS]
    classifier = _classifier(replica, plain.outputs.prediction)
    if classifier is not None:
        fetches = {_FEATURES: classifier.features, "y": plain.fed["y"]}
        clients += [plain.client(_FEATURES, domain, fetches) for domain in DOMAINS]
    program = replace(scored, clients={**scored.clients, **{client.name: client for client in clients}})
    return DomainProgram(program, normalised, layers, classifier)


def _forward_pass(replica: Replica, scope: str, *, batch_statistics: bool) -> _Pass:
    with replica.within(scope):
        fed = placeholders(replica.graph, replica.workload, replica.workload.batch_size)
        batch = cast_fields(replica.graph, replica.workload, fed)
        net = replica.builder(batch, replica.variables, training=False)
        net.batch_statistics = batch_statistics
        return _Pass(net, replica.workload.network(net, batch), fed)


def _moments(net: NetworkBuilder) -> tuple[dict[str, int], dict[str, Tensor]]:
    """Return layer -> number of neurons (channels), and "LAYER/mean" and "LAYER/variance" -> tensor (neurons,)."""
    graph, layers, found = net.graph, dict[str, int](), dict[str, Tensor]()
    for name, output in net.layer_outputs.items():
        stamp, spec = graph.nodes[output.node].layer, graph.spec(output)
        if stamp is None or stamp.kind not in _COMPARED or spec.rank not in (2, 4):
            continue
        layers[name] = spec.shape[1]
        one, zero = (ops.fill(graph, value, (spec.shape[1],), net.state_dtype) for value in (1.0, 0.0))
        _, found[f"{name}/mean"], found[f"{name}/variance"] = ops.batch_norm(graph, output, one, zero, epsilon=1.0)
    return layers, found


def _classifier(replica: Replica, prediction: Tensor) -> Classifier | None:
    """Return the layer that computes the prediction if it is dense with one product, weights and bias; else None."""
    node = replica.graph.nodes[prediction.node]
    if node.op == "cast":  # with precision=bfloat16, the task casts the prediction
        node = replica.graph.nodes[node.inputs[0].node]
    stamp = node.layer
    if stamp is None or stamp.kind != "dense":
        return None
    scope = node.name.rpartition("/")[0]
    products = [node for node in replica.graph if node.op == "matmul" and node.name.rpartition("/")[0] == scope]
    names = {variable.name for variable in replica.variables}
    weights, bias = f"{stamp.name}/weights", f"{stamp.name}/bias"
    if len(products) != 1 or not {weights, bias} <= names:
        return None
    return Classifier(products[0].inputs[0], weights, bias)


class _Domains:
    """An input source over two domains, whose splits are "source/train", "target/train" and "target/test"."""

    def __init__(self, pipelines: Mapping[str, Pipeline]) -> None:
        self._pipelines = pipelines

    def read(self, split: str, step: int, lo: int, hi: int) -> Fields:
        domain, _, split = split.partition("/")
        return self._pipelines[domain].read(split, step, lo, hi)


@dataclass(frozen=True)
class DomainSession:
    """A session of a :class:`DomainProgram`.

    batch_size: examples of a train batch, equal for both domains. batches: domain -> number of whole train batches in
    an epoch.
    """

    session: LocalSession
    built: DomainProgram
    config: Any
    batch_size: int
    batches: Mapping[str, int]
    test_batches: int
    classes: int

    def restore(self, weights: Weights) -> None:
        restore(self.session, weights)

    def scores(self) -> Scores:
        task = self.config.task
        return evaluate(self.session, task, batches=self.test_batches, classes=self.classes, split=TEST)

    def statistics(self, batches: int) -> Iterator[dict[str, Array]]:
        """Yield variable -> statistic of every batch normalization, pooled over the target batches so far."""
        pools: dict[str, Moments] = {}
        for fetched in self._fetched(_STATISTICS, TARGET, batches):
            for name, around in self.built.normalised.items():
                before = pools.get(name) or Moments.none(len(fetched[name]))
                pools[name] = before.pooled(fetched[around], fetched[name])
            values = {name: pool.variance for name, pool in pools.items()}
            values |= {self.built.normalised[name]: pool.mean for name, pool in pools.items()}
            yield {name: value.astype(fetched[name].dtype) for name, value in values.items()}

    def moments(self, domain: str) -> dict[str, Moments]:
        """Return layer -> moments of its outputs on all train batches of a domain."""
        pools = {layer: Moments.none(neurons) for layer, neurons in self.built.layers.items()}
        for fetched in self._fetched(_MOMENTS, domain, self.batches[domain]):
            for layer, before in pools.items():
                pools[layer] = before.pooled(fetched[f"{layer}/mean"], fetched[f"{layer}/variance"])
        return pools

    def features(self, domain: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return features (N, F) and labels (N,) of all train batches of a domain."""
        found = list(self._fetched(_FEATURES, domain, self.batches[domain]))
        features = np.concatenate([each[_FEATURES] for each in found]).astype(np.float64)
        return features, np.concatenate([each["y"] for each in found])

    def _fetched(self, client: str, domain: str, batches: int) -> Iterator[dict[str, Array]]:
        for step in range(batches):
            feeds = {"step": np.asarray(step, np.int64)}
            yield self.session.run(f"{client}/{domain}", step=step, feeds=feeds)


@contextmanager
def opened_domains(
    device: OneDevice, normalisation: Normalisation, target: DatasetSettings, batch_size: int
) -> Iterator[DomainSession]:
    """Yield a session for the domain of the training data and for ``target``, with variables that have no values yet.

    normalisation: as in training, for both domains. batch_size: largest number of examples in a train batch.
    Raises ConfigError if the pixels of the domains have different units, DataError if data cannot be read,
    ResourceError if a GPU cannot hold a batch.
    """
    config: Any = device.config
    data = {SOURCE: config.data, TARGET: target}
    examples = {domain: limited_facts(each).train_examples for domain, each in data.items()}
    size = min(batch_size, *examples.values())
    config = replace(config, train=replace(config.train, batch_size=size))
    facts = config.data.facts()
    built = domain_program(workload_of(config, facts))
    batches = {domain: count // size for domain, count in examples.items()}
    tested = -(-limited_facts(target).test_examples // config.train.eval_batch_size)
    with ExitStack() as ended:
        pipelines = {
            domain: ended.enter_context(closing(pipeline_as_trained(each, normalisation, config)))
            for domain, each in data.items()
        }
        session = ended.enter_context(opened(replace(device, config=config), built.program, _Domains(pipelines), facts))
        yield DomainSession(session, built, config, size, batches, tested, facts.classes)
