"""The LSTM language model: the same steps as in PyTorch, truncated back-propagation, and the sampled softmax."""

import math
from typing import Any

import numpy as np
import pytest

from runner.engine.graph import Graph, NetworkBuilder, Outputs, Tensor, Variables, gradients, ops
from runner.engine.graph.network import CarriedState
from runner.errors import ConfigError
from runner.fields import BEGINS, Field
from runner.models import Lstm, Mlp
from runner.tasks.language import Language
from tests.nn.support import Array, initial_values
from tests.oracles import evaluate

WORDS, STEPS, ROWS = 13, 4, 3
FIELDS = {
    "x": Field((STEPS,), "int64", tuple(map(str, range(WORDS)))),
    "y": Field((STEPS,), "int64", tuple(map(str, range(WORDS)))),
    BEGINS: Field((), "int64"),
}
RATE = 0.5


class Built:
    """A language model in a separate graph: one copy over whole batches."""

    def __init__(self, task: Language, *, training: bool = True, dtype: str = "float64", **model: Any) -> None:
        graph = Graph()
        self.batch = {
            name: ops.placeholder(graph, (ROWS, *each.shape), "int64", name=name) for name, each in FIELDS.items()
        }
        variables = Variables(graph, seed=1)
        self.step = ops.placeholder(graph, (), "int64", name="step")
        self.net = NetworkBuilder(
            graph,
            variables,
            dtype=dtype,
            seed=1,
            training=training,
            step=self.step,
            index=ops.placeholder(graph, (ROWS,), "int64", name="index"),
            begins=self.batch[BEGINS],
            carried=CarriedState(variables, (0, ROWS), ROWS),
        )
        network = task.network(Lstm(units=[5, 4], embedding=3, init_scale=0.6, **model), FIELDS)
        self.outputs: Outputs = network(self.net, self.batch)
        self.trained = variables.trainable
        self.states = [each for each in variables if not each.trainable]
        self.loss = ops.reduce_mean(graph, self.outputs.losses)
        self.values = initial_values(self.net)

    def run(self, tensors: list[Tensor], x: Array, y: Array, begins: Array, step: int = 0) -> list[Array]:
        feeds = {**self.values, **dict(zip(self.batch.values(), (x, y, begins), strict=True))}
        return evaluate(self.net.graph, tensors, {**feeds, self.step: np.asarray(step)})

    def carried(self) -> list[Tensor]:
        return [self.net.graph.nodes[name].inputs[1] for name in self.net.carrying]


def texts(step: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(step)
    x, y = rng.integers(0, WORDS, (2, ROWS, STEPS))
    return x, y, np.array([step == 0, step == 2 or step == 0, step == 0]).astype(np.int64)


@pytest.mark.parametrize("chunks", [1, 2])
def test_losses_and_gradients_of_steps_equal_those_of_pytorch(chunks: int) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    built = Built(Language(), chunks=chunks)
    found = gradients(built.net.graph, [built.loss], [each.tensor for each in built.trained])
    model = torch.nn.ModuleDict(
        {
            "embedding": torch.nn.Embedding(WORDS, 3),
            "lstm1": torch.nn.LSTM(3, 5, batch_first=True),
            "lstm2": torch.nn.LSTM(5, 4, batch_first=True),
            "softmax": torch.nn.Linear(4, WORDS),
        }
    ).double()
    places = {
        "embedding/table": model["embedding"].weight,
        "softmax/table": model["softmax"].weight,
        "softmax/bias": model["softmax"].bias,
    }
    for name in ("lstm1", "lstm2"):
        places |= {
            f"{name}/weights": model[name].weight_ih_l0,
            f"{name}/recurrent": model[name].weight_hh_l0,
            f"{name}/bias": model[name].bias_ih_l0,
        }
        model[name].bias_hh_l0.data.zero_()
    turned = {name: "lstm" in name and place.ndim == 2 for name, place in places.items()}
    assert places.keys() == {each.name for each in built.trained}
    for each in built.trained:
        value = built.values[each.tensor]
        places[each.name].data = torch.tensor(value.T.copy() if turned[each.name] else value)
    state = {name: (torch.zeros(1, ROWS, units).double(),) * 2 for name, units in (("lstm1", 5), ("lstm2", 4))}
    for step in range(5):
        x, y, begins = texts(step)
        kept = torch.tensor(1.0 - begins).reshape(1, ROWS, 1)
        h = model["embedding"](torch.tensor(x))
        for name in state:
            h, new = model[name](h, tuple(each.detach() * kept for each in state[name]))
            state[name] = new
        expected = torch.nn.functional.cross_entropy(
            model["softmax"](h).reshape(-1, WORDS), torch.tensor(y).reshape(-1)
        )
        slopes = torch.autograd.grad(expected, list(places.values()))
        loss, *rest = built.run([built.loss, *(each for each in found if each), *built.carried()], x, y, begins, step)
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-8)
        for each, slope in zip(built.trained, rest, strict=False):
            other = dict(zip(places, slopes, strict=True))[each.name]
            other = other.T if turned[each.name] else other
            np.testing.assert_allclose(slope, other.numpy(), rtol=0, atol=1e-8 * float(other.abs().max()))
            built.values[each.tensor] = built.values[each.tensor] - RATE * slope
            places[each.name].data -= RATE * (other.T if turned[each.name] else other)
        for variable, value in zip(built.states, rest[len(built.trained) :], strict=True):
            built.values[variable.tensor] = value


def test_a_text_continues_in_the_next_batch_unless_it_begins_anew() -> None:
    built = Built(Language(), training=False)
    x, y, _ = texts(0)
    for variable in built.states:
        built.values[variable.tensor] = np.full(variable.spec.shape, 0.3)
    carried, fresh = (built.run([built.outputs.losses], x, y, np.array(each))[0] for each in ([0, 0, 0], [0, 1, 1]))
    assert carried[0] == fresh[0]
    assert (carried[1:] != fresh[1:]).all()


def test_words_without_a_target_do_not_count_in_an_evaluation() -> None:
    built = Built(Language(), training=False)
    x, y, begins = texts(0)
    y[1, 2:] = -1
    losses, weights = built.run([built.outputs.losses, built.outputs.collected["counted"]], x, y, begins)
    assert weights.tolist() == [1, 0.5, 1]
    x[1, 2:] = 0
    y[1, 2:] = y[1, :2]
    (others,) = built.run([built.outputs.losses], x, y, begins)
    assert losses[1] != others[1]
    np.testing.assert_allclose(losses[[0, 2]], others[[0, 2]], rtol=1e-13)


def test_sampled_softmax_equals_its_formula() -> None:
    task = Language(loss="sampled_softmax", samples=6)
    built = Built(task)
    graph = built.net.graph
    (drawn,) = [node[0] for node in graph if node.op == "cast" and graph.spec(node[0]).shape == (6,)][:1]
    (states,) = [node[0] for node in graph if node.op == "reshape" and graph.spec(node[0]).shape == (STEPS * ROWS, 4)]
    x, y, begins = texts(0)
    words, h, losses = built.run([drawn, states, built.outputs.losses], x, y, begins, step=3)
    table, bias = (built.values[built.net.variables[f"softmax/{name}"].tensor] for name in ("table", "bias"))
    probability = np.log1p(1 / (1 + np.arange(WORDS))) / math.log(WORDS + 1)
    assert math.isclose(probability.sum(), 1.0)
    corrected = h @ table.T + bias - np.log(6 * probability)
    expected = []
    for logits, truth in zip(corrected, y.T.reshape(-1), strict=True):
        others = [logits[word] for word in words if word != truth]
        expected.append(np.log(np.exp([logits[truth], *others]).sum()) - logits[truth])
    np.testing.assert_allclose(losses, np.reshape(expected, (STEPS, ROWS)).mean(axis=0), rtol=1e-10)


def test_words_are_drawn_anew_in_each_step_by_their_frequency() -> None:
    built = Built(Language(loss="sampled_softmax", samples=200), dtype="float32")
    graph = built.net.graph
    drawn = next(node[0] for node in graph if node.op == "cast" and graph.spec(node[0]).shape == (200,))
    draws = [built.run([drawn], *texts(0), step=step)[0] for step in range(40)]
    assert len({tuple(each) for each in draws}) == 40
    counts = np.bincount(np.concatenate(draws), minlength=WORDS)
    expected = 8000 * np.log1p(1 / (1 + np.arange(WORDS))) / math.log(WORDS + 1)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_perplexity_is_that_of_all_words_and_is_unknown_in_sampled_training() -> None:
    means = {"loss": math.log(50.0)}
    assert Language().scores(means)["perplexity"] == pytest.approx(50)
    assert Language().scores(means, training=True).keys() == {"loss", "perplexity"}
    assert Language(loss="sampled_softmax").scores(means, training=True).keys() == {"loss"}
    assert Language().scores({"loss": 1e5})["perplexity"] == math.inf


def test_a_task_and_a_model_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="task=language with model=mlp: expected a model of sequences; use model=lst"):
        Language().network(Mlp(), FIELDS)
    net = Built(Language()).net
    with pytest.raises(ConfigError, match=r"has no score\(\) of a prediction \(N, outputs\); call network\(\) instead"):
        Language().score(net, net.step, {})
    with pytest.raises(ConfigError, match="task=language: the fields x and y of the dataset are float"):
        Language().outputs({**FIELDS, "x": Field((STEPS,))})
    with pytest.raises(ConfigError, match=r"model\.units="):
        Lstm(units=[])
