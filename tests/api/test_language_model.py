"""A trained language model: predictions of words, evaluation, explanation, PyTorch and ONNX."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.api.runs import Run
from runner.api.weights import from_state_dict
from runner.commands import predict
from tests.api.test_export import assert_same_logits

UNITS = (6, 5)


@pytest.fixture(scope="module")
def run(trained: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text("the cat sat on the mat\nthe dog saw the cat\n" * 20)
    (folder / "test.txt").write_text("the dog sat on the cat\n" * 5)
    data = ("task=language", "model=lstm", "data=text", f"data.path={folder}", "data.steps=4", "data.vocabulary=8")
    sizes = ("train.steps=60", "train.batch_size=4", "train.eval_batch_size=3")
    rate = ("optimizer=adam", "optimizer.lr=0.1", "schedule=constant")
    return Run(trained(*data, f"model.units={list(UNITS)}", "model.embedding=3", *sizes, *rate))


def test_a_run_learns_the_next_words(run: Run) -> None:
    perplexity = run.summary.final["test/perplexity"]
    assert perplexity < 5
    assert run.evaluate()["test/perplexity"] == pytest.approx(perplexity, rel=1e-5)
    assert run.evaluate(train={"eval_batch_size": 1})["test/perplexity"] == pytest.approx(perplexity, rel=0.5)


def test_predict_names_the_words_after_a_text(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "begun.txt").write_text("the cat sat on\n")
    assert predict.main([str(run.directory), str(tmp_path / "begun.txt"), "--top=2", "cluster.device=cpu"]) == 0
    assert " the 0." in capsys.readouterr().out
    assert run.predict(np.zeros((2, 4), int), cluster={"device": "cpu"}).sum(axis=1) == pytest.approx([1, 1])


def test_explain_counts_the_layers(run: Run) -> None:
    text = str(run.explain())
    for words in ("embedding", "lstm1", "lstm2", "softmax", f"{4 * UNITS[0] * (3 + UNITS[0] + 1)}"):
        assert words in text


X = np.random.default_rng(0).integers(0, 8, (5, 4))


def test_an_onnx_file_computes_the_same_logits(run: Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    path = run.export(tmp_path / "lstm.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(["prediction"], {"x": X})
    assert_same_logits(found, run, X)


def test_pytorch_computes_the_same_logits_and_its_weights_come_back(run: Run) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    state = run.state_dict()
    lstms = {"lstm1": torch.nn.LSTM(3, UNITS[0]), "lstm2": torch.nn.LSTM(*UNITS)}
    outer = {"embedding": torch.nn.Embedding(8, 3), "softmax": torch.nn.Linear(UNITS[1], 8)}
    modules = torch.nn.ModuleDict({**lstms, **outer})
    modules.load_state_dict(state)
    h = modules["embedding"](torch.from_numpy(X.T.copy()))
    for lstm in lstms.values():
        h, _ = lstm(h)
    assert_same_logits(modules["softmax"](h[-1]).detach().numpy(), run, X)
    weights = run.weights()
    back = from_state_dict(state, tables=("embedding", "softmax"))
    assert back.keys() == weights.keys()
    assert all(np.array_equal(back[name], weights[name]) for name in weights)


def test_an_lstm_of_two_layers_becomes_two_layers() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    module = torch.nn.ModuleDict({"rnn": torch.nn.LSTM(3, 5, num_layers=2)})
    found = from_state_dict(module.state_dict(), {"lstm": "rnn"})
    shapes = {name: value.shape for name, value in found.items()}
    assert shapes == {
        f"lstm{number}/{name}": shape
        for number, inputs in ((1, 3), (2, 5))
        for name, shape in (("weights", (inputs, 20)), ("recurrent", (5, 20)), ("bias", (20,)))
    }
    both = module["rnn"].bias_ih_l1 + module["rnn"].bias_hh_l1
    np.testing.assert_array_equal(found["lstm2/bias"], both.detach().numpy())
