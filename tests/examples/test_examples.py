"""The examples compute the documented results, and the commands in their READMEs run."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.data.pipeline import Pipeline
from runner.data.settings import load_limited
from runner.engine.graph import Graph, ops
from runner.engine.run.kernel_table import load_kernels
from runner.fields import Field
from runner.models.mlp import Mlp
from runner.optimizers import Adam, Momentum, Optimizer, Sgd
from runner.plugin import install
from runner.strategies import STRATEGIES, Single, SyncData
from runner.strategies.replica import shares
from runner.tasks.regression import Regression
from runner.testing import check_equals_single, check_finite_state, check_gradients
from tests.integration.command import succeed, summary_of
from tests.optimizers.support import RATES, START, Trainer, assert_same_path, gradient_steps
from tests.oracles import assert_gradients, evaluate
from tests.plugin_tables import EXAMPLES, example, restored_tables
from tests.strategies.networks import NETWORKS, Examples, workload_of
from tests.strategies.training import Weights, begun, difference, expect_same_bits, trained

Array = NDArray[Any]


@pytest.fixture
def swish() -> Iterator[None]:
    """Install the op of the example ``own_op`` while a test runs."""
    load_kernels()
    with restored_tables():
        install([str(EXAMPLES / "own_op" / "swish.py")])
        yield


@pytest.mark.usefixtures("swish")
def test_swish_has_correct_gradients_and_does_not_overflow() -> None:
    graph = Graph()
    x, far = (ops.placeholder(graph, (3, 4), dtype, name=dtype) for dtype in ("float64", "float32"))
    (y,), (of_far,) = (graph.add("swish", [each]) for each in (x, far))
    rng = np.random.default_rng(0)
    value = 3 * rng.standard_normal((3, 4))
    np.testing.assert_allclose(evaluate(graph, [y], {x: value})[0], value / (1 + np.exp(-value)), rtol=1e-14)
    assert_gradients(graph, [y], [x], {x: value}, rng, order=2)
    check_gradients("swish", [value])
    extreme = np.array([[-1e4, 1e4, -1e4, 1e4]] * 3, "float32")
    np.testing.assert_array_equal(evaluate(graph, [of_far], {far: extreme})[0], np.maximum(extreme, 0))


def test_gradients_of_the_example_model_equal_difference_quotients() -> None:
    model = example("own_model/all_conv.py").models["all_conv"]
    check_gradients(model(filters=2, dropout=0.2), shape=(2, 5, 6))


def test_the_losses_of_the_example_task_have_correct_gradients_and_two_workers_train_it_as_one_does() -> None:
    plugin = example("own_task/tables.py")
    fields = {"x": Field((4,)), "y": Field((2,), names=("u", "v")), "kind": Field((), "int64", ("a", "b", "c"))}
    network = plugin.tasks["numbers_and_kind"]().network(Mlp(hidden=[5]), fields)
    check_gradients(network, fields=fields)
    check_equals_single(SyncData(workers=2), network, fields=fields, tolerance=1e-12)
    with restored_tables():
        install([str(EXAMPLES / "own_task" / "tables.py")])
        check_gradients(Regression(loss="huber").network(Mlp(hidden=[5]), fields), fields=fields)


def test_the_state_of_lion_stays_finite() -> None:
    check_finite_state(example("own_optimizer/lion.py").optimizers["lion"](weight_decay=0.1, clip_norm=1.0))


def test_lion_follows_the_update_rule_of_its_paper() -> None:
    lion = example("own_optimizer/lion.py").optimizers["lion"](lr=0.1, weight_decay=0.01)
    gradients = gradient_steps()
    weights, averages = dict(START), {name: np.zeros_like(value) for name, value in START.items()}
    expected = []
    for step, rate in zip(gradients, RATES, strict=True):
        for name, g in step.items():
            direction = np.sign(0.9 * averages[name] + 0.1 * g)
            decay = 0.01 * weights[name] if name.endswith("weights") else 0.0
            weights[name] = weights[name] - rate * (direction + decay)
            averages[name] = 0.99 * averages[name] + 0.01 * g
        expected.append(dict(weights))
    assert_same_path(Trainer(lion).run(gradients, RATES), expected)


def test_bars_are_horizontal_and_vertical() -> None:
    settings = example("own_dataset/bars.py").datasets["bars"](examples=40)
    data = load_limited(settings)
    rows, columns = (data.train["x"].astype(float).mean(axis=axis)[:, 0].max(axis=1) for axis in (3, 2))
    np.testing.assert_array_equal(data.train["y"], (columns > rows).astype(int))
    batch = Pipeline(data, seed=0, batch_size=40, dtype="float64").read("train", 0, 0, 40)
    assert abs(batch["x"].mean()) < 0.1
    assert abs(batch["x"].std() - 1) < 0.1


@dataclass(frozen=True)
class OneShare:
    """The source of one of two workers: it returns the share of worker ``k`` of each training batch of 8 examples."""

    k: int

    def read(self, split: str, step: int, lo: int, hi: int) -> dict[str, Array]:
        begin, _ = shares(8, 2)[self.k] if split == "train" else (0, 0)
        return Examples(8).read(split, step, begin + lo, begin + hi)


def local_sgd(**settings: int):
    return example("own_strategy/local_sgd.py").strategies["local_sgd"](**settings)


@pytest.mark.parametrize("optimizer", [Sgd(weight_decay=0.1), Momentum()], ids=["sgd", "momentum"])
@pytest.mark.parametrize("network", ["dense", "dropped_out"])
def test_local_sgd_with_one_local_step_equals_single(network: str, optimizer) -> None:
    check_equals_single(local_sgd(workers=2, every=1), NETWORKS[network], optimizer=optimizer, tolerance=1e-12)


@pytest.mark.parametrize("optimizer", [Sgd(weight_decay=0.1), Momentum()], ids=["sgd", "momentum"])
def test_local_sgd_computes_batch_statistics_on_each_worker_as_sync_data_does(optimizer) -> None:
    workload = workload_of("batch_normalised", optimizer, batch_size=8)
    ours, history = trained(local_sgd(workers=2, every=1), workload, 4)
    theirs, their_history = trained(SyncData(workers=2), workload, 4)
    assert difference(ours, theirs) < 1e-12
    np.testing.assert_allclose(history, their_history, rtol=1e-12)


def alone(k: int, steps: range, optimizer: Optimizer, start: Weights | None = None) -> Weights:
    """Train with ``single`` on the examples of worker ``k`` of two workers; return the weights."""
    workload = workload_of("dense", optimizer, batch_size=4)
    with begun(Single(), workload, source=OneShare(k)) as trainer:
        if start is not None:
            trainer.restore({**trainer.weights(), **start})
        trainer.train(steps)
        return trainer.weights()


def test_local_sgd_is_the_mean_of_separately_trained_networks() -> None:
    workload = workload_of("dense", Momentum(), batch_size=8)
    ours, _ = trained(local_sgd(workers=2, every=3), workload, 3)
    first, second = (alone(k, range(3), Momentum()) for k in range(2))
    mean = {name: (first[name] + second[name]) / 2 for name in ours}
    assert difference(ours, mean) < 1e-12
    assert difference(first, second) > 1e-3


@pytest.mark.parametrize("name", ["local_sgd", "diloco"])
def test_training_continues_from_a_checkpoint_bit_for_bit(name: str) -> None:
    strategy = local_sgd(every=2) if name == "local_sgd" else diloco(inner_steps=2)
    workload = workload_of("dense", Momentum() if name == "local_sgd" else Sgd(), batch_size=8)
    with begun(strategy, workload) as whole:
        whole.train(range(3))
        saved = whole.weights()  # averaged over the workers, although no average is due after step 3
        whole.train(range(3, 7))
        expected = whole.weights()
    assert not any("anchor" in variable for variable in saved)
    with begun(strategy, workload, saved) as rest:
        rest.train(range(3, 7))
        expect_same_bits(rest.weights(), expected)


def test_local_sgd_sends_the_bytes_of_its_formula() -> None:
    workload = workload_of("dense", Momentum(), batch_size=9)
    strategy = local_sgd(workers=3, every=4)
    variables = sum(spec.nbytes for spec in strategy.build(workload).variables.values())
    with begun(strategy, workload) as trainer:
        trainer.train(range(3))
        apart = trainer.session.sent_bytes()
        trainer.train([3])
        average = np.subtract(trainer.session.sent_bytes(), apart)
    metrics = 2 * 2 * 8  # bytes per step: loss and accuracy of the two other workers
    assert sum(apart) == 3 * metrics
    assert sum(average) == metrics + 2 * (3 - 1) * variables


def diloco(**settings: float):
    return example("own_strategy/diloco.py").strategies["diloco"](**settings)


def test_diloco_with_one_inner_step_and_a_plain_outer_step_equals_single() -> None:
    plain = diloco(workers=1, inner_steps=1, outer_lr=1.0, outer_momentum=0.0)
    check_equals_single(plain, NETWORKS["batch_normalised"], optimizer=Adam(), tolerance=1e-12)


def test_diloco_makes_the_outer_steps_of_its_paper() -> None:
    """The expected weights come from two rounds, each of two inner steps with ``single`` and an outer step in NumPy."""
    strategy = diloco(workers=2, inner_steps=2, outer_lr=0.5, outer_momentum=0.8)
    ours, _ = trained(strategy, workload_of("dense", Sgd(), batch_size=8), 4)
    expected = alone(0, range(0), Sgd())
    velocity = {name: np.zeros_like(value) for name, value in expected.items()}
    for steps in (range(2), range(2, 4)):
        ends = [alone(k, steps, Sgd(), expected) for k in range(2)]
        for name, start in expected.items():
            gradient = sum(start - end[name] for end in ends) / 2
            velocity[name] = 0.8 * velocity[name] + gradient
            expected[name] = start - 0.5 * (gradient + 0.8 * velocity[name])
    assert difference({name: ours[name] for name in expected}, expected) < 1e-12
    assert difference({name: ours[f"{name}/outer_velocity"] for name in expected}, velocity) < 1e-12


def test_diloco_sends_the_bytes_of_its_formula() -> None:
    workload = workload_of("batch_normalised", Adam(), batch_size=9)
    strategy = diloco(workers=3, inner_steps=2)
    parameters = sum(spec.nbytes for name, spec in strategy.build(workload).variables.items() if name.count("/") == 1)
    with begun(strategy, workload) as trainer:
        trainer.train([0])
        step = sum(trainer.session.sent_bytes())
        trainer.train([1])
        outer = sum(trainer.session.sent_bytes()) - 2 * step
    assert (step, outer) == (2 * 2 * 8, 2 * (3 - 1) * parameters)


FOLDERS = sorted(path.parent.name for path in EXAMPLES.glob("*/README.md"))
FEW_STEPS = (
    *("train.steps=2", "tracking=none", "tracking.pictures=false"),
    *("cluster.threads_per_worker=1", "cluster.one_process=true"),
)
"""Overrides that shorten a run. Processes of workers load plugins in ``tests/integration/test_plugin_runs.py``."""


def command_lines(folder: str) -> list[list[str]]:
    """Return every command of a README, in order."""
    text = (EXAMPLES / folder / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_example_has_its_yaml_and_a_line_in_the_overview() -> None:
    overview = (EXAMPLES / "README.md").read_text()
    assert len(FOLDERS) == 8
    assert not {"local_sgd", "diloco"} & set(STRATEGIES), "examples are not in the tables of the package"
    for folder in FOLDERS:
        assert f"[{folder}]({folder})" in overview
        assert list((EXAMPLES / folder / "conf").glob("*/*.yaml"))


QUICK = {"own_model", "own_optimizer", "own_strategy"}


@pytest.mark.parametrize("folder", [pytest.param(f, marks=[] if f in QUICK else pytest.mark.slow) for f in FOLDERS])
def test_the_commands_of_an_example_run(folder: str, tmp_path: Path) -> None:
    place = shutil.copytree(EXAMPLES / folder, tmp_path / folder)
    lines = command_lines(folder)
    trained = [line for line in lines if "train.steps=200" in line]
    assert trained, "every README trains for 200 steps"
    for number, (program, *arguments) in enumerate(lines):
        if program == "python":
            subprocess.run([sys.executable, *arguments], cwd=place, check=True)
            continue
        assert program == "runner"
        if [program, *arguments] not in trained:
            assert arguments[0] == "explain"
            succeed(place, *arguments)
            continue
        runs = f"runs/{number}"
        directories = (f"hydra.run.dir={runs}", f"hydra.sweep.dir={runs}")
        succeed(place, *arguments, *FEW_STEPS, *directories)
        summaries = [summary_of(path.parent) for path in (place / runs).rglob("summary.json")]
        assert summaries
        for summary in summaries:
            assert (summary.status, summary.steps) == ("finished", 2)
            plugins = [Path(reference).name for reference in summary.plugins]
            assert plugins == [name for name in arguments if name.endswith(".py")]
