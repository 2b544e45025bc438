"""Checks of your own models, ops, optimizers and strategies, for your own tests: ``import runner.testing``.

The checks run in this process. A check that fails raises an AssertionError that names a variable, an index, the value
found and the value expected. Pass a model, an optimizer or a strategy as an object, such as ``MyNet(hidden=4)``. An op
must be installed (``runner.install(["my_op.py"])``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from runner.engine.compile.program_placement import place_program
from runner.engine.graph import Constant, NetworkBuilder, NetworkFunction, Outputs, Tensor, local_cluster, ops
from runner.engine.graph.network import LOSS
from runner.engine.run.interleaving import virtual_time
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.local_session import LocalSession
from runner.engine.run.session import Session, scalar
from runner.engine.run.step_driver import StepDriver, bind
from runner.errors import ConfigError
from runner.fields import Field, labelled
from runner.models import Mlp
from runner.models.base import Model
from runner.optimizers import Momentum, Optimizer, Sgd
from runner.strategies.base import Strategy, Workload
from runner.strategies.single import Single
from runner.tasks.classification import classifier

Array = NDArray[Any]
Batch = Mapping[str, Tensor]
SHAPE, CLASSES = (1, 6, 6), 3
STEP = 1e-5
"""Step of the difference quotients, whose error is of the order STEP ** 2."""

GRADIENTS: dict[str, Callable[[int], float]] = {
    "zero": lambda step: 0.0,
    "tiny": lambda step: 1e-30,  # the square is 0 in float32
    "huge": lambda step: 1e15,
    "huge, then zero": lambda step: 1e15 if step < 3 else 0.0,
}
"""Name of a series of gradients -> the standard deviation of their entries in each step."""


def check_gradients(
    checked: Model | NetworkFunction | str,
    inputs: Sequence[ArrayLike] = (),
    *,
    attributes: Mapping[str, Any] | None = None,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    fields: Mapping[str, Field] | None = None,
    examples: int = 4,
    entries: int = 8,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> None:
    """Compare gradients with difference quotients of the loss, in float64, at ``entries`` indices of each variable.

    checked: a model, whose loss is the cross-entropy of ``classes`` for random inputs of shape ``shape``; or a function
    that adds a network with its loss; or the name of an op with ``attributes``, whose float ``inputs`` are variables,
    and whose loss is a sum of its float outputs with random weights. fields: the fields of an example, in place of
    shape and classes, if ``checked`` is a function, such as the result of ``MyTask().network(Mlp(), fields)``.
    tolerance: absolute and relative, see `numpy.isclose`. At a kink, such as that of ReLU at 0, gradients and quotients
    differ: give another ``seed``.
    """
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(each, "float64" if np.asarray(each).dtype.kind == "f" else None) for each in inputs]
    network = _op(checked, arrays, attributes or {}, rng) if isinstance(checked, str) else _network(checked, classes)
    trained: list[str] = []

    def noted(net: NetworkBuilder, batch: Batch) -> Outputs:
        outputs = network(net, batch)
        trained[:] = [variable.name for variable in net.variables.trainable]
        return outputs

    batch_size = 1 if isinstance(checked, str) else examples
    workload = Workload(noted, Sgd(), fields or _fields(shape, classes), "float64", seed, batch_size, batch_size)
    with _opened(Single(), workload) as (session, driver):
        point = {name: np.array(value) for name, value in session.run("save").items()}
        for name in trained:
            # Move each variable away from its initial value, which can be a special case, such as a bias of 0.
            point[name] += 0.1 * rng.standard_normal(point[name].shape)
        point |= {f"input/{k}": array for k, array in enumerate(arrays) if f"input/{k}" in trained}

        def stepped(values: Mapping[str, Array], rate: float) -> float:
            session.run("restore", feeds=dict(values))
            return float(driver.update(0, scalar(rate, "float64"))[LOSS])

        stepped(point, 1.0)
        moved = session.run("save")
        for name in trained:
            found = np.asarray(point[name] - moved[name])
            for index in rng.permutation(list(np.ndindex(found.shape)))[:entries].tolist():
                steps = np.zeros_like(found)
                steps[tuple(index)] = STEP
                above, below = (stepped({**point, name: point[name] + each}, 0.0) for each in (steps, -steps))
                where = f"gradient of {name}{index}"
                expected = (above - below) / (2 * STEP)
                if not np.isclose(value := found[tuple(index)], expected, tolerance, tolerance):
                    raise AssertionError(_difference(where, value, expected, tolerance, "(by finite differences)"))


def check_equals_single(
    strategy: Strategy,
    model: Model | NetworkFunction | None = None,
    *,
    optimizer: Optimizer | None = None,
    shape: tuple[int, ...] = SHAPE,
    classes: int = CLASSES,
    fields: Mapping[str, Field] | None = None,
    batch_size: int = 8,
    steps: int = 4,
    tolerance: float = 1e-10,
    seed: int = 0,
) -> None:
    """Train with a strategy and with ``single`` in float64; require equal losses of all steps and equal variables.

    model: None for two dense layers; for a function and its fields, see :func:`check_gradients`. optimizer: None for
    momentum; ``optimizer.lr`` is the learning rate of all steps. batch_size: over all workers. tolerance: absolute.
    """
    network, trained_by = _network(Mlp(hidden=[8]) if model is None else model, classes), optimizer or Momentum()
    read = fields or _fields(shape, classes)
    workload = Workload(network, trained_by, read, "float64", seed, batch_size, batch_size)
    found, expected = (_trained(each, workload, steps) for each in (strategy, Single()))
    check_equal(found, expected, tolerance)


def check_finite_state(optimizer: Optimizer, *, steps: int = 20, dtype: str = "float32") -> None:
    """Require finite weights and slots after each step with zero, tiny and huge gradients (:data:`GRADIENTS`).

    Raises ConfigError for an optimizer with a line search, which needs a loss with a minimum.
    """
    if optimizer.line_search:
        raise ConfigError(f"check_finite_state({optimizer}): expected an optimizer without a line search")

    def linear(net: NetworkBuilder, batch: Batch) -> Outputs:
        with net.layer("layer", "dense"):
            w = net.parameter("weights", (3,), Constant(1.0), decayed=True).tensor
            losses = net.output(ops.reduce_sum(net.graph, ops.mul(net.graph, batch["x"], w), axes=(1,)))
        return Outputs(losses, {}, {}, losses)

    workload = Workload(linear, optimizer, {"x": Field((3,))}, dtype, 0, 1, 1)
    for series, size in GRADIENTS.items():
        with _opened(Single(), workload, size) as (session, driver):
            for step in range(steps):
                driver.update(step, np.full(optimizer.rate_shape, optimizer.lr, dtype))
                for name, value in session.run("save").items():
                    for index in np.argwhere(~np.isfinite(value)):
                        raise AssertionError(
                            f"{type(optimizer).__name__}: {name}{index.tolist()} is {value[tuple(index)]} after step "
                            f"{step} with {series} gradients, of size {size(step):g}; expected a finite number"
                        )


def check_equal(found: Mapping[str, Array], expected: Mapping[str, Array], tolerance: float = 0.0) -> None:
    """Require equal arrays for each name in ``expected``, up to an absolute tolerance. NaN equals nothing."""
    for name, right in expected.items():
        left = found.get(name)
        if left is None or left.shape != right.shape:
            came = "no such variable" if left is None else f"an array of shape {left.shape}"
            raise AssertionError(f"{name}: found {came}, expected an array of shape {right.shape}")
        differ = np.argwhere(~(np.abs(left - right) <= tolerance)).tolist()
        for index in differ[:1]:
            where, several = f"{name}{index}", f"({len(differ)} of {right.size} values differ)"
            raise AssertionError(_difference(where, left[tuple(index)], right[tuple(index)], tolerance, several))


def _difference(where: str, found: float, expected: float, tolerance: float, more: str) -> str:
    return f"{where}: found {float(found)!r}, expected {float(expected)!r} within {tolerance:g} {more}"


def _fields(shape: tuple[int, ...], classes: int) -> Mapping[str, Field]:
    return labelled(shape, tuple(map(str, range(classes))))


def _network(model: Model | NetworkFunction, classes: int) -> NetworkFunction:
    return classifier(model, classes) if isinstance(model, Model) else model


def _op(op: str, inputs: Sequence[Array], attributes: Mapping[str, Any], rng: np.random.Generator) -> NetworkFunction:
    """Return a network of one op, whose float inputs are the variables "input/0", ... and whose loss is a sum."""

    def network(net: NetworkBuilder, batch: Batch) -> Outputs:
        graph, tensors = net.graph, []
        with net.layer("input", "input"):
            for k, each in enumerate(inputs):
                if each.dtype.kind == "f":
                    tensors.append(net.parameter(str(k), each.shape, Constant(0.0)).tensor)
                else:
                    tensors.append(ops.constant(graph, each))
        with net.layer("loss", "loss"):
            sums = []
            for output in graph.add(op, tensors, attributes).tensors:
                if "float" in graph.spec(output).dtype:
                    weights = ops.constant(graph, rng.uniform(-1, 1, graph.spec(output).shape))
                    sums.append(ops.reduce_sum(graph, ops.mul(graph, output, weights)))
            losses = net.output(ops.reshape(graph, ops.add_n(graph, sums), (1,)))
        return Outputs(losses, {}, {}, losses)

    return network


def _trained(strategy: Strategy, workload: Workload, steps: int) -> dict[str, Array]:
    """Return all variables after some steps and, as "loss", the losses of the steps."""
    with _opened(strategy, workload) as (session, driver):
        rate = np.full(workload.optimizer.rate_shape, workload.optimizer.lr, workload.state_dtype)
        losses = [float(driver.update(step, rate)[LOSS]) for step in range(steps)]
        driver.synchronize()
        return {**session.run("save"), LOSS: np.array(losses)}


@contextmanager
def _opened(
    strategy: Strategy, workload: Workload, size: Callable[[int], float] = lambda step: 1.0
) -> Iterator[tuple[Session, StepDriver]]:
    """Open a session of a strategy's program in this process, with initial weights. size: see :class:`_Examples`."""
    kernels, program = load_kernels(), strategy.build(workload)
    cluster = local_cluster(program.workers, program.servers)
    if strategy.layer_placement is not None:
        program = place_program(program, cluster, kernels).program
    alone = program.one_process
    interleaving = None if alone is None or alone.clock is None else virtual_time(alone.clock)
    source = _Examples(workload, size)
    with closing(LocalSession(program, cluster, kernels, source, interleaving=interleaving)) as session:
        session.run("init")
        yield session, bind(program.step_driver, session)


@dataclass(frozen=True)
class _Examples:
    """Endless random examples, equal for any division of a batch into shares. size: step -> scale of the inputs."""

    workload: Workload
    size: Callable[[int], float]

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Array]:
        """Return rows lo..hi-1 of a batch."""
        count, dtype = self.workload.batch_size, self.workload.state_dtype
        rng = np.random.default_rng([step, split == "test"])
        batch: dict[str, Array] = {"index": step * count + np.arange(count), "mask": np.ones(count, dtype)}
        for name, field in self.workload.fields.items():
            whole = (count, *field.shape)
            numbers = (self.size(step) * rng.standard_normal(whole)).astype(dtype)
            batch[name] = numbers if field.dtype is None else rng.integers(0, len(field.names), whole)
        return {name: values[lo:hi] for name, values in batch.items()}
