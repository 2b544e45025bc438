"""Train a small network under a strategy, in this process, and compare two runs."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.compile.compile import Compiled, Observer, compile_signature
from runner.engine.compile.passes.layer_groups import devices_of_layers
from runner.engine.compile.program import Client, InputSource, Program
from runner.engine.compile.program_placement import place_program
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.compile.transfer_times import transfers
from runner.engine.graph import Cluster, Gpus, Node, Tensor, local_cluster, worker_device
from runner.engine.run.interleaving import Interleaving, VirtualTime, virtual_time
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session, scalar
from runner.engine.run.step_driver import bind
from runner.kernels.registry import Registry
from runner.strategies import ModelParallel, Single, Strategy, Workload
from runner.strategies.collectives import HIERARCHICAL
from runner.testing import check_equal
from tests.strategies.networks import Examples

Array = NDArray[Any]
Weights = Mapping[str, Array]
Run = tuple[Weights, list[Any]]
"""Weights, and (loss, accuracy) of each step."""

Wires = Counter[tuple[int, int]]
"""A map (sender, receiver) -> bytes sent in a step."""


def combined_by(combine: str, workers: int) -> dict[str, Any]:
    """Return the settings of ``parallelism`` that sum gradients by ``combine``."""
    groups = {"workers_per_host": 1 + (workers + 1) % 2} if combine == HIERARCHICAL else {}
    return {"workers": workers, "combine": combine, **groups}


class Trainer:
    """A program in a session, with methods for the steps of a training loop."""

    def __init__(self, program: Program, session: Session, dtype: str, source: InputSource | None = None) -> None:
        self.program = program
        self.session = session
        self.source = source
        self.step_driver = bind(program.step_driver, session)
        self.dtype = dtype

    def train(self, steps: Iterable[int]) -> list[tuple[float, float]]:
        """Run steps with a decreasing learning rate; return (loss, accuracy) of each step."""
        fetched = [self.step_driver.update(step, rate_of(step, self.dtype)) for step in steps]
        return [(float(each["loss"]), float(each["accuracy"])) for each in fetched]

    def sent(self, steps: Iterable[int]) -> list[int]:
        """Run steps and wait for all clients; return the number of bytes that each device sent."""
        before = self.session.sent_bytes()
        for step in steps:
            self.step_driver.update(step, rate_of(step, self.dtype))
        self.step_driver.synchronize()
        return [after - now for after, now in zip(self.session.sent_bytes(), before, strict=True)]

    def evaluate(self, batch: int = 0) -> Weights:
        """Return the fetches of the "eval" client for a batch of the test split."""
        self.step_driver.synchronize()
        fetched = self.session.run("eval", step=batch, feeds={"step": scalar(0, "int64")})
        return {name: value.copy() for name, value in fetched.items()}

    def weights(self) -> Weights:
        """Return every variable by its name in the unsharded network."""
        self.step_driver.synchronize()
        return {name: value.copy() for name, value in self.session.run("save").items()}

    def restore(self, weights: Weights) -> None:
        """Set every variable."""
        self.session.run("restore", feeds=dict(weights))


def rate_of(step: int, dtype: str) -> Array:
    """Return a learning rate that decreases with the step number."""
    return scalar(0.1 / (1 + step), dtype)


@dataclass(frozen=True)
class Planned:
    """A program, its cluster and the plans of its clients."""

    program: Program
    cluster: Cluster
    plans: ProgramPlans


_PLANNED: dict[Any, Planned] = {}
_KEPT = 16  # programs whose plans are kept: most tests open several sessions of one program


def _planned(
    strategy: Strategy, workload: Workload, registry: Registry, compression: str, gpus: bool, more: dict[str, Client]
) -> Planned:
    """Return the program with its plans. Sessions on CPUs share the plans of equal programs."""
    key = type(strategy), repr(strategy), workload.network, repr(workload), registry, compression
    shared = not (gpus or more)
    if shared and key in _PLANNED:
        return _PLANNED[key]
    program = strategy.build(workload)
    program = replace(program, clients={**program.clients, **more})
    workers, servers = program.workers, program.servers
    cluster = local_cluster(workers, servers, compression=compression, gpus=first_gpu(workers, servers, gpus))
    made = Planned(program, cluster, ProgramPlans(program, cluster, registry))
    if shared:
        _PLANNED[key] = made
        if len(_PLANNED) > _KEPT:
            del _PLANNED[next(iter(_PLANNED))]
    return made


@contextmanager
def opened(
    strategy: Strategy,
    workload: Workload,
    registry: Registry | None = None,
    *,
    compression: str = "none",
    source: InputSource | None = None,
    gpus: bool = False,
    interleaving: Interleaving | None = None,
    **more: Client,
) -> Iterator[Trainer]:
    """Yield a trainer of a strategy's program, with variables that are not initialised.

    registry: the available kernels; None for those of the host. compression: the format of transfers. source: the
    examples; None for :class:`Examples`. gpus: whether all devices are on the first GPU. interleaving: the order of
    clients, None for the program's order. more: additional clients.
    """
    registry = registry or load_kernels()
    source = source or Examples(workload.batch_size, workload.fields["x"].shape, dtype=workload.state_dtype)
    planned = _planned(strategy, workload, registry, compression, gpus, more)
    program, alone = planned.program, planned.program.one_process
    if interleaving is None and alone is not None and alone.clock is not None:
        interleaving = virtual_time(alone.clock)
    with closing(LocalSession(program, planned.cluster, registry, source, interleaving=interleaving)) as session:
        session._planned = planned.plans
        yield Trainer(program, session, workload.state_dtype, source)


@contextmanager
def begun(strategy: Strategy, workload: Workload, saved: Weights | None = None, **options: Any) -> Iterator[Trainer]:
    """Yield a trainer whose variables have their initial or the saved values. options: see :func:`opened`."""
    with opened(strategy, workload, **options) as trainer:
        trainer.session.run("init") if saved is None else trainer.restore(saved)
        yield trainer


def replicas_of(strategy: Strategy, workload: Workload) -> dict[str, Client]:
    """Return clients ``replica_K`` that fetch the variables of each replica."""
    names = list(strategy.build(workload).variables)
    return {
        f"replica_{k}": Client(f"replica_{k}", {name: Tensor(f"replica_{k}/{name}") for name in names})
        for k in range(strategy.workers)
    }


def first_gpu(workers: int, servers: int, gpus: bool = True) -> Gpus | None:
    """Return the first GPU for all devices, or None if ``gpus`` is false."""
    return Gpus((0,) * workers, (0,) * servers) if gpus else None


def trained(
    strategy: Strategy, workload: Workload, steps: int | Iterable[int], saved: Weights | None = None, **options: Any
) -> Run:
    """Return weights and history after some steps from initial or saved values. options: see :func:`opened`."""
    with begun(strategy, workload, saved, **options) as trainer:
        history = trainer.train(range(steps) if isinstance(steps, int) else steps)
        return trainer.weights(), history


_SINGLE: dict[Any, Run] = {}


def single(workload: Workload, steps: int, microbatches: int = 1) -> Run:
    """Return the run of ``single``; runs with equal arguments are computed only once."""
    workload = replace(workload, microbatches=microbatches)
    key = workload.network, repr(workload), steps
    if key not in _SINGLE:
        _SINGLE[key] = trained(Single(), workload, steps)
    return _SINGLE[key]


@dataclass(frozen=True)
class Outcome:
    """The variables after a run, the loss and metrics of each step, and the scores of each evaluated batch."""

    weights: Weights
    metrics: list[dict[str, float]]
    scores: list[Weights]

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [each["loss"] for each in self.metrics]


def outcome(
    strategy: Strategy,
    workload: Workload,
    steps: Iterable[int] = range(3),
    saved: Weights | None = None,
    *,
    batches: int = 1,
    **options: Any,
) -> Outcome:
    """Return the results of some steps and of an evaluation, in float64. options: see :func:`opened`.

    Variables to which a rule with a schedule applies have another learning rate.
    """
    with begun(strategy, workload, saved, **options) as trainer:
        metrics = []
        for step in steps:
            rates = [0.1 / (1 + step), *[0.2 / (1 + step) ** 2] * len(workload.optimizer.schedules)]
            found = trainer.step_driver.update(step, np.asarray(rates).reshape(workload.optimizer.rate_shape))
            metrics.append({name: float(each) for name, each in found.items()})
        return Outcome(trainer.weights(), metrics, [trainer.evaluate(batch) for batch in range(batches)])


_SINGLE_OUTCOMES: dict[Any, Outcome] = {}


def expect_like_single(
    strategy: Strategy, workload: Workload, source: InputSource | None = None, **options: Any
) -> Outcome:
    """Require the results of ``single`` up to rounding, and return the results. options: see :func:`outcome`."""
    key = workload.network, repr(workload), source, repr(options)
    if key not in _SINGLE_OUTCOMES:
        _SINGLE_OUTCOMES[key] = outcome(Single(), workload, source=source, **options)
    found, expected = outcome(strategy, workload, source=source, **options), _SINGLE_OUTCOMES[key]
    assert found.weights.keys() == expected.weights.keys()
    assert difference(found.weights, {name: expected.weights[name] for name in found.weights}) < 1e-12
    for ours, theirs in zip(found.metrics, expected.metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)
    for ours, theirs in zip(found.scores, expected.scores, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-11, atol=1e-12, err_msg=name)
    return found


def difference(a: Weights, b: Weights) -> float:
    """Return the largest absolute difference of any weight."""
    assert list(a) == list(b)
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def expect_same_bits(a: Weights, b: Weights) -> None:
    """Require equal names, shapes, dtypes and bits."""
    assert list(a) == list(b)
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name, strict=True)


def expect_same_run(found: Run, expected: Run, tolerance: float = 0.0) -> None:
    """Require equal weights and history: bit for bit, or up to a tolerance."""
    if not tolerance:
        expect_same_bits(found[0], expected[0])
        assert found[1] == expected[1]
        return
    assert list(found[0]) == list(expected[0])
    check_equal(found[0], expected[0], tolerance)
    np.testing.assert_allclose(found[1], expected[1], rtol=tolerance)


def near(workers: int) -> Cluster:
    """Return a cluster with nearly free links, so that layers are distributed."""
    return local_cluster(workers, latency_s=1e-9, bytes_per_s=1e15)


@dataclass
class Placed:
    """A model-parallel strategy whose program is placed on a cluster.

    cluster: None for the cluster of :func:`near`. registry: the available kernels; None for those of the host.
    """

    strategy: ModelParallel
    cluster: Cluster | None = None
    name: str = "model"
    registry: Registry | None = None

    @property
    def workers(self) -> int:
        return self.strategy.workers

    def build(self, workload: Workload) -> Program:
        cluster = self.cluster or near(self.workers)
        return place_program(self.strategy.build(workload), cluster, self.registry or load_kernels()).program


def layers_of(program: Program) -> dict[str, str]:
    """Return layer -> number of the worker that computes it."""
    return {layer: device.split("/")[2].split(":")[1] for layer, device in devices_of_layers(program.graph).items()}


def compiled(program: Program, cluster: Cluster | None = None, observe: Observer | None = None) -> Compiled:
    """Compile a training step. cluster: None for a cluster on this host."""
    cluster = cluster or local_cluster(program.workers, program.servers)
    return compile_signature(program.graph, program.clients["train"].signature, cluster, load_kernels(), observe)


def bytes_on_links(program: Program, cluster: Cluster | None = None) -> Wires:
    """Return the bytes that the plans of a training step send on each link. cluster: see :func:`compiled`."""
    number = {worker_device(k): k for k in range(program.workers)}
    sent: Wires = Counter()
    for each in transfers(compiled(program, cluster), cluster or local_cluster(program.workers)):
        sent[number[each.source], number[each.destination]] += each.nbytes
    return sent


def by_sender(sent: Wires, workers: int) -> list[int]:
    """Return the bytes that each worker sends."""
    return [sum(nbytes for (source, _), nbytes in sent.items() if source == k) for k in range(workers)]


def sends_of(program: Program) -> list[Node]:
    """Return the send nodes of a training step."""
    return [node for part in compiled(program).parts.values() for node in part.graph if node.op == "send"]


@dataclass
class Course:
    """The results of a run. iterations: (loss, accuracy, objective) of each. sent: bytes that each device sent."""

    weights: Weights
    iterations: list[tuple[float, float, float]]
    metrics: list[Mapping[str, float]]
    record: Mapping[str, Any]
    sent: list[int]
    program: Program = field(repr=False)

    @property
    def evaluations(self) -> int:
        """Number of evaluations of the objective."""
        return int(sum(each["train/evaluations"] for each in self.metrics))

    @property
    def duplicated(self) -> int:
        """Number of times that a portion was computed again."""
        return sum(each["duplicated"] for each in self.record["evaluations"])


def speeds(*seconds: float) -> VirtualTime:
    """Return a clock with the seconds that each worker needs for a portion; commands and fetches are fast."""

    def part_s(client: str, device: str, step: int) -> float:
        return seconds[int(client.split("_")[1])] if client.startswith("compute") else 0.01

    return VirtualTime(part_s, lambda nbytes: 0.1)


def iterated(
    strategy: Strategy, workload: Workload, steps: Iterable[int], saved: Weights | None = None, **options: Any
) -> Course:
    """Return the results of iterations that start at the initial or the saved values. options: see :func:`opened`."""
    with begun(strategy, workload, saved, **options) as trainer:
        step_driver, iterations, metrics = trainer.step_driver, [], []
        for step in steps:
            answer = step_driver.update(step, scalar(1.0, workload.state_dtype))
            metrics.append(step_driver.metrics())
            iterations.append((float(answer["loss"]), float(answer["accuracy"]), metrics[-1]["train/objective"]))
        step_driver.synchronize()
        # Count first, because reading the variables sends bytes too.
        sent = trainer.session.sent_bytes()
        return Course(trainer.session.run("save"), iterations, metrics, step_driver.decisions(), sent, trainer.program)
