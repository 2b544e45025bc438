"""A trained skip-gram model: neighbours of words, evaluation, explanation, PyTorch, ONNX and parameter servers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from runner.api.runs import Run
from runner.api.weights import from_state_dict
from runner.commands import predict

ANIMALS, TOOLS = ("cat", "dog", "horse"), ("saw", "axe", "drill")
SETTINGS = (
    *("task=embeddings", "task.window=3", "model=skip_gram", "model.features=6"),
    *("data=text", "data.steps=5", "data.vocabulary=20"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    lines = []
    for animal in rng.random(400) < 0.5:
        word, rest = (ANIMALS, "eats grass and sleeps") if animal else (TOOLS, "cuts hard wood here")
        lines.append(f"{word[rng.integers(3)]} {rest}\n")
    (folder / "train.txt").write_text("".join(lines))
    (folder / "test.txt").write_text("".join(lines[:10]))
    return f"data.path={folder}"


@pytest.fixture(scope="module")
def run(trained: Callable[..., Path], data: str) -> Run:
    rate = ("optimizer=adagrad", "optimizer.lr=0.5", "optimizer.clip_norm=null", "schedule=constant")
    return Run(trained(*SETTINGS, data, *rate, "train.steps=300", "train.batch_size=8", "train.eval_batch_size=4"))


def test_a_run_finds_the_neighbours_of_words(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run.evaluate()["test/loss"] == pytest.approx(run.summary.final["test/loss"], rel=1e-5)
    for words in (ANIMALS, TOOLS):
        (tmp_path / "word.txt").write_text(words[0])
        assert predict.main([str(run.directory), str(tmp_path / "word.txt"), "--top=2", "cluster.device=cpu"]) == 0
        out = capsys.readouterr().out
        assert "class and similarity" in out
        assert all(f" {word} 0." in out for word in words[1:]), out


def test_explain_shows_both_tables(run: Run) -> None:
    text = str(run.explain())
    assert "words" in text
    assert "contexts" in text


def test_an_onnx_file_computes_the_same_similarities(run: Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).integers(0, 10, (5, 5))
    session = onnxruntime.InferenceSession(str(run.export(tmp_path / "words.onnx")), providers=["CPUExecutionProvider"])
    (found,) = session.run(["prediction"], {"x": x})
    np.testing.assert_allclose(found, run.predict(x, cluster={"device": "cpu"}), atol=1e-5)


def test_tables_of_pytorch_come_back(run: Run) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")
    found = from_state_dict(run.state_dict(), tables=("words", "contexts"))
    for name, value in found.items():
        np.testing.assert_array_equal(value, run.weights()[name])
    assert found.keys() == {"words/table", "contexts/table"}


@pytest.mark.slow
def test_parameter_servers_in_processes_train_like_single(trained: Callable[..., Path], data: str) -> None:
    usual = (*SETTINGS, data, "optimizer=adagrad", "train.steps=5", "train.batch_size=4", "precision=float64")
    servers = ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.servers=2")
    found, expected = (Run(trained(*usual, *each)).weights() for each in (servers, ("parallelism=single",)))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-14)
