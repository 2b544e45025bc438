"""Adaptation to a target domain: pooled statistics, divergence, CORAL, and runs with adapted networks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.checkpoint import find, load
from runner.cli import main
from runner.config.configuration import load_stored
from runner.config.schema import Adaptation
from runner.data import Digits, Domains
from runner.data.dataset import Split
from runner.data.pipeline import Pipeline
from runner.records.summary import Summary
from runner.tasks.classification import Classification
from runner.training import recording
from runner.training.adaptation import coral, storing
from runner.training.adaptation.coral import aligned, classifier
from runner.training.adaptation.domains import domain_program
from runner.training.adaptation.moments import Moments, divergence
from runner.training.build import workload_of
from runner.training.exported import ExportedNetwork, export
from runner.training.inference import pipeline_as_trained
from runner.training.run import run
from tests.refusal import Capture
from tests.small_runs import small_config

NETWORK = ("model=cifar_convnet", "model.widths=[4]", "model.units=8", "train.steps=20", "data=digits")
SETTINGS: dict[str, Any] = {"split_seed": 1, "test_fraction": 0.3}
TARGET = {"name": "digits", **SETTINGS}


def test_pooled_moments_are_those_of_all_examples() -> None:
    x = np.random.default_rng(0).normal(3, 2, (5, 8, 6)) * np.arange(1, 7)
    found = Moments.none(neurons=6)
    for batch in x:
        found = found.pooled(batch.mean(axis=0), batch.var(axis=0))
    np.testing.assert_allclose(found.mean, x.reshape(40, 6).mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.variance, x.reshape(40, 6).var(axis=0), rtol=1e-12)
    assert found.batches == 5


def test_the_divergence_is_that_of_normal_distributions() -> None:
    rng = np.random.default_rng(1)
    one, other = (Moments(rng.normal(size=3), rng.uniform(0.5, 2, 3)) for _ in range(2))

    def kl(i: Moments, j: Moments) -> Any:
        away = np.square(i.mean - j.mean)
        return np.log(np.sqrt(j.variance / i.variance)) + (i.variance + away) / (2 * j.variance) - 0.5

    assert divergence(one, other) == pytest.approx(np.mean(kl(one, other) + kl(other, one)))
    assert divergence(one, one) == 0
    constant = Moments(np.append(one.mean, 0.0), np.append(one.variance, 0.0))
    varying = Moments(np.append(other.mean, 9.0), np.append(other.variance, 1.0))
    assert divergence(constant, varying) == pytest.approx(divergence(one, other))


def test_aligned_features_have_the_covariance_of_the_target() -> None:
    rng = np.random.default_rng(2)
    source, target = (rng.normal(size=(count, 4)) @ rng.normal(size=(4, 4)) for count in (50, 70))
    regular = np.cov(source, rowvar=False) + np.eye(4), np.cov(target, rowvar=False) + np.eye(4)
    transformed = np.linalg.lstsq(source, aligned(source, target), rcond=None)[0]
    np.testing.assert_allclose(transformed.T @ regular[0] @ transformed, regular[1], atol=1e-10)


def test_the_classifier_of_coral_follows_a_scaled_and_shifted_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coral, "ITERATIONS", 10)
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(10), 30)
    source = rng.normal(size=(10, 5))[labels] * 3 + rng.normal(size=(300, 5))
    target = source * [0.1, 2, 5, 1, 30] + [1, -7, 3, 0, 50]
    constant = np.full((300, 1), 0.1)  # the mean of 300 of these is not 0.1
    config = small_config(*NETWORK)
    assert isinstance(config.task, Classification)
    source, target = np.hstack([source, constant]), np.hstack([target, constant])
    for features in (source, target):
        weights, bias = classifier(source, labels, features, config)
        predicted = (features.astype(np.float32) @ weights + bias).argmax(axis=1)
        assert np.mean(predicted == labels) > 0.95
    plain, _ = classifier(source, labels, source, config)
    assert np.mean((target @ plain).argmax(axis=1) == labels) < 0.6


def test_coral_finds_the_last_layer_with_every_precision() -> None:
    for precision in ("float32", "bfloat16"):
        config = replace(small_config(*NETWORK), precision=precision)
        found = domain_program(workload_of(config, config.data.facts())).classifier
        assert found is not None
        assert (found.weights, found.bias) == ("fc2/weights", "fc2/bias")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a run that was adapted by both methods after its last update."""
    folder = tmp_path_factory.mktemp("adapted") / "run"
    keys = ("adapt.methods=[adabn,coral]", "adapt.batch_size=50", "adapt.curve=[1,20]")
    target = (f"adapt.data.{key}={value}" for key, value in TARGET.items())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(coral, "ITERATIONS", 3)
        patched.setattr(recording, "session_sources", lambda: {"data_own.py": "x = 1\n"})
        run(small_config(*NETWORK, *target, *keys, "tracking.pictures=true"), folder, overrides=[])
    return folder


def test_a_run_records_scores_and_divergences_of_its_target(trained: Path) -> None:
    final = Summary.read(trained / "summary.json").final
    record = json.loads((trained / "adapted" / "adaptation.json").read_text())
    for name in ("source", "adabn", "coral"):
        assert final[f"adapt/{name}/accuracy"] == record["scores"][name]["accuracy"]
        assert final[f"adapt/{name}/divergence/stage1_conv2"] == record["divergence"][name]["stage1_conv2"]
    assert record["examples"] == 1250  # 25 whole batches of the 1,257 training examples
    assert final["adapt/adabn_20/accuracy"] != final["adapt/adabn_1/accuracy"]
    assert record["divergence"]["source"]["stage1_conv1"] == record["divergence"]["adabn"]["stage1_conv1"]
    assert {path.name for path in (trained / "adapted").glob("*.png")} == {"divergence.png", "target_batches.png"}


def test_an_epoch_reads_each_example_of_several_sources_once() -> None:
    sources = {"a": {"name": "digits"}, "b": {"name": "digits", "split_seed": 1, "train_limit": 90}}
    dataset = Domains(sources=sources).load()
    assert isinstance(dataset.train, Split)
    count = len(dataset.train)
    config = small_config(f"train.batch_size={count}")
    pipeline = pipeline_as_trained(Domains(sources=sources), dataset.normalisation, config)
    expected = dataset.normalisation.apply(dataset.train["x"], np.dtype("float32"))
    found = pipeline.read("train", 0, 0, count)["x"]
    assert sorted(x.tobytes() for x in found) == sorted(x.tobytes() for x in expected)


@pytest.mark.slow
def test_the_verb_gives_the_results_of_the_run(
    trained: Path,
    tmp_path: Path,
    capsys: Capture,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = ("adapt.methods=[adabn]", "adapt.batch_size=50", "adapt.curve=[25,26]")
    target = (f"data.{key}={value}" for key, value in SETTINGS.items())
    arguments = ["adapt", str(trained), "data=digits", *target, *keys, "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert "1,250 target examples; written to" in capsys.readouterr().out
    assert "adapt.curve: [26] are left out, because 25 batches of the target are used" in caplog.text
    found, expected = (
        json.loads((each / "adaptation.json").read_text()) for each in (tmp_path / "out", trained / "adapted")
    )
    assert found["scores"]["adabn"] == pytest.approx(expected["scores"]["adabn"], rel=1e-5)
    assert found["curve"] == {"25": found["scores"]["adabn"]}
    monkeypatch.delattr(storing, "adapt")  # the used directory is found first
    assert main(arguments) == 9
    assert "with hydra.run.dir=DIR, or with --output DIR of `runner rerun` and" in capsys.readouterr().err


def test_the_statistics_are_those_of_all_target_examples(trained: Path) -> None:
    found = load(find(trained / "adapted" / "adabn")).variables
    x = Pipeline(Digits(**SETTINGS).load(), seed=0, batch_size=1250, dtype="float64").read("train", 0, 0, 1250)["x"]
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x[:, 0], ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    outputs = np.einsum("nijkl,fkl->nijf", windows, found["stage1_conv1/weights"][:, 0].astype(np.float64))
    for name, expected in (("mean", outputs.mean(axis=(0, 1, 2))), ("variance", outputs.var(axis=(0, 1, 2)))):
        np.testing.assert_allclose(found[f"stage1_norm1/moving_{name}"], expected, rtol=1e-4, atol=1e-6)


def test_only_statistics_change_by_adabn_and_only_the_last_layer_by_coral(trained: Path) -> None:
    before = load(find(trained)).variables
    for method, changing in (("adabn", ("moving_mean", "moving_variance")), ("coral", ("fc2/weights", "fc2/bias"))):
        after = load(find(trained / "adapted" / method)).variables
        changed = {name for name in before if not np.array_equal(before[name], after[name])}
        assert changed == {name for name in before if name.endswith(changing)}
        assert after.keys() == before.keys()


def test_an_adapted_network_is_evaluated_and_resumed_as_a_run(trained: Path, tmp_path: Path, capsys: Capture) -> None:
    adapted = trained / "adapted" / "adabn"
    assert (adapted / "session" / "data_own.py").read_text() == "x = 1\n"
    assert main(["eval", str(adapted), "--output", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    record = json.loads((trained / "adapted" / "adaptation.json").read_text())
    assert found["results"]["test/loss"] == pytest.approx(record["scores"]["adabn"]["loss"], rel=1e-5)
    assert main([f"resume={adapted}", "train.steps=22"]) == 0
    assert Summary.read(adapted / "summary.json").steps == 22


def test_an_exported_network_needs_no_data_of_its_target(trained: Path, tmp_path: Path) -> None:
    config = load_stored(trained / "config.yaml")
    absent = replace(config, adapt=Adaptation(data={"name": "image_folder", "path": str(tmp_path / "none")}))
    export(absent, trained, find(trained), tmp_path / "model", "0.1.0")
    assert "image_folder" not in (tmp_path / "model" / "network.yaml").read_text()
    assert ExportedNetwork(tmp_path / "model").predict(np.zeros((1, 1, 8, 8))).shape == (1, 10)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["adapt.data={name: digits}", "model=lenet"], "model=lenet has no batch normalization"),
        (
            ["task=language", "data=synthetic_text", "model=lstm", "adapt.data={name: synthetic_text}"],
            "parallelism.shard and adaptations to another domain do not support",
        ),
        (["adapt.data={name: digits}", "adapt.methods=[dann]"], "expected one or more of adabn, coral, adabn_coral"),
        (["adapt.data={name: digits}", "adapt.methods=[coral]", "adapt.curve=[1]"], "expected [], or adabn"),
        (["adapt.data={name: synthetic}"], "adapt.data.name=synthetic does not fit data=digits: the field x is"),
        (["adapt.data={name: digitz}"], "adapt.data: data.name is 'digitz': expected one of digits"),
        (["adapt.data={name: usps, size: 8, cache_dir: nowhere}"], "dataset 'usps' is not in the cache"),
    ],
)
def test_an_impossible_adaptation_is_refused(keys: list[str], message: str, folder: Path, capsys: Capture) -> None:
    network = [] if any(key.startswith("model=") for key in keys) else NETWORK
    given = [*network, "train.steps=1", "parallelism=single", "tracking=none", "hydra.run.dir=run", *keys]
    assert main(given) in (2, 3)
    assert message in capsys.readouterr().err
    assert not (folder / "run" / "config.yaml").exists()
