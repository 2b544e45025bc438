"""Skip-gram with negative sampling: the same steps as in PyTorch, drawn words, neighbours, and all strategies."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from runner.engine.graph import Graph, NetworkBuilder, Variables, ops
from runner.engine.run.session import scalar
from runner.errors import ConfigError
from runner.fields import Field
from runner.kernels import philox
from runner.models import Mlp, SkipGram
from runner.optimizers import Adagrad, Optimizer, Sgd
from runner.strategies import Single, SyncData, Workload
from runner.tasks.embeddings import Embeddings, _Noise
from tests.oracles import evaluate
from tests.strategies.networks import TEST_BATCH, Source
from tests.strategies.training import begun, expect_like_single

WORDS, STEPS, BATCH, FEATURES, SEED = 400, 5, 4, 6, 7
COUNTS = tuple(1 + 1000 // (1 + word) for word in range(WORDS))
NAMES = tuple(f"w{word}" for word in range(WORDS))
FIELDS = {"x": Field((STEPS,), "int64", NAMES, COUNTS), "y": Field((STEPS,), "int64", NAMES)}
TASK = Embeddings(window=2, negatives=3)


class Texts(Source):
    """A source of words; the last two words of a test example are padding."""

    def draw(self, rng: np.random.Generator, size: int, step: int, test: bool) -> dict[str, NDArray[Any]]:
        words = rng.integers(0, 20, (size, STEPS + 1))
        y = words[:, 1:].copy()
        if test:
            y[:, -2:] = -1
        return {"x": words[:, :-1], "y": y}


TEXTS = Texts(BATCH, padding=0)


def workload_of(optimizer: Optimizer) -> Workload:
    network = TASK.network(SkipGram(features=FEATURES), FIELDS)
    return Workload(network, optimizer, FIELDS, "float64", SEED, BATCH, TEST_BATCH)


def pairs_of(steps: int, window: int) -> list[tuple[int, int]]:
    """Return (centre, context) positions in the order of the task."""
    found = []
    for distance in range(1, window + 1):
        found += [(t, t + distance) for t in range(steps - distance)]
        found += [(t + distance, t) for t in range(steps - distance)]
    return found


def drawn(step: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the drawn words (N, P, K) of a training step."""
    noise, pairs = _Noise.of(np.array(COUNTS) ** 0.75), len(pairs_of(STEPS, 2))
    key = philox.key(SEED, "contexts/negatives")
    first, second = philox.uniform(key, index, 2 * pairs * 3, step).reshape(len(index), 2, pairs, 3).swapaxes(0, 1)
    entry = (first * WORDS).astype(np.int64)
    return np.where(second < noise.kept[entry], entry, noise.other[entry])


@pytest.mark.parametrize("optimizer", [Sgd(), Adagrad()], ids=lambda each: each.name)
def test_five_steps_equal_those_of_pytorch(optimizer: Optimizer) -> None:
    torch = pytest.importorskip("torch")
    names = ("words/table", "contexts/table")
    with begun(Single(), workload_of(optimizer), source=TEXTS) as trainer:
        start = trainer.weights()
        losses, weights = [], []
        for step in range(5):
            losses.append(float(trainer.step_driver.update(step, scalar(0.5, "float64"))["loss"]))
            weights.append(trainer.weights())
    tables = [torch.nn.Embedding(WORDS, FEATURES, sparse=True, dtype=torch.float64) for _ in names]
    for table, name in zip(tables, names, strict=True):
        table.weight.data.copy_(torch.from_numpy(start[name]))
    parameters = [each.weight for each in tables]
    rule = torch.optim.SGD(parameters, lr=0.5)
    sums = [torch.zeros_like(each) for each in parameters]
    of_centre, of_context = np.array(pairs_of(STEPS, 2)).T
    for step in range(5):
        batch = TEXTS.read("train", step, 0, BATCH)
        words = torch.from_numpy(np.ascontiguousarray(batch["x"]))
        negatives = torch.from_numpy(drawn(step, batch["index"]))
        context = words[:, of_context]
        v = tables[0](words[:, of_centre])
        near = (v * tables[1](context)).sum(-1)
        far = (v[:, :, None] * tables[1](negatives)).sum(-1)
        against = -torch.nn.functional.logsigmoid(-far) * (negatives != context[:, :, None])
        loss = (against.sum(-1) - torch.nn.functional.logsigmoid(near)).mean()
        rule.zero_grad()
        loss.backward()
        assert losses[step] == pytest.approx(loss.item(), rel=1e-8)
        if optimizer.name == "sgd":
            rule.step()
        else:
            # PyTorch's Adagrad with eps 0 divides 0 by 0 while the sum is 0.
            with torch.no_grad():
                for parameter, total in zip(parameters, sums, strict=True):
                    gradient = parameter.grad.to_dense()
                    total += gradient**2
                    parameter -= 0.5 * gradient / total.clamp(min=1e-300).sqrt()
        for parameter, name in zip(parameters, names, strict=True):
            np.testing.assert_allclose(weights[step][name], parameter.detach().numpy(), rtol=1e-8, atol=1e-14)


def test_words_are_drawn_by_their_counts_to_the_power() -> None:
    weights = np.array(COUNTS) ** 0.75
    noise = _Noise.of(weights)
    found = noise.kept.copy()
    np.add.at(found, noise.other, 1.0 - noise.kept)
    np.testing.assert_allclose(found / WORDS, weights / weights.sum(), rtol=1e-12)
    words = drawn(3, np.arange(3000))
    assert np.bincount(words.ravel(), minlength=WORDS)[0] / words.size == pytest.approx(
        weights[0] / weights.sum(), rel=0.03
    )


def test_the_first_loss_is_that_of_contexts_of_zero_and_padding_does_not_count() -> None:
    with begun(Single(), workload_of(Sgd()), source=TEXTS) as trainer:
        loss = float(trainer.step_driver.update(0, scalar(0.0, "float64"))["loss"])
        # Some of the drawn words equal the context.
        assert 3 * np.log(2.0) < loss <= TASK.expected_loss(FIELDS) == pytest.approx(4 * np.log(2.0))
        rng = np.random.default_rng(0)
        trainer.restore({name: rng.standard_normal(value.shape) for name, value in trainer.weights().items()})
        before = trainer.session.run("eval", step=0, feeds={"step": scalar(0, "int64")})["loss"].copy()
        again = trainer.session.run("eval", step=0, feeds={"step": scalar(9, "int64")})["loss"]
    assert before == again > 0


def test_the_prediction_is_the_similarity_to_all_words() -> None:
    graph = Graph()
    variables = Variables(graph, seed=1)
    x, y = (ops.placeholder(graph, (2, STEPS), "int64", name=name) for name in "xy")
    step, index = ops.placeholder(graph, (), "int64"), ops.placeholder(graph, (2,), "int64")
    net = NetworkBuilder(graph, variables, dtype="float64", seed=1, training=False, step=step, index=index)
    prediction = TASK.network(SkipGram(features=FEATURES), FIELDS)(net, {"x": x, "y": y}).prediction
    assert [each.name for each in variables if each.decayed] == ["words/table", "contexts/table"]
    table = np.random.default_rng(0).standard_normal((WORDS, FEATURES))
    words = np.array([[1, 1, 1, 1, 3], [0, 0, 0, 0, 399]])
    (found,) = evaluate(graph, [prediction], {x: words, variables["words/table"].tensor: table})
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    expected = unit[[3, 399]] @ unit.T
    expected[[0, 1], [3, 399]] = -1.0
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("combine", [{}, {"combine": "parameter_server", "servers": 3}], ids=["reduce", "servers"])
def test_strategies_train_word_vectors_like_single(combine: dict[str, Any]) -> None:
    expect_like_single(SyncData(workers=2, **combine), workload_of(Adagrad()), TEXTS)


def test_other_models_and_data_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="task=embeddings with model=mlp: expected vectors of words; use model=skip_gr"
    ):
        TASK.network(Mlp(), FIELDS)
    with pytest.raises(ConfigError, match=r"the field x of the dataset is float\[3\]; expected the ids of T words"):
        TASK.outputs({"x": Field((3,)), "y": Field((3,))})
    with pytest.raises(ConfigError, match="model=skip_gram has vectors of words; expected task=embeddings"):
        SkipGram().forward(None, None, 3)  # type: ignore[arg-type]
