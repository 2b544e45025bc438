"""A network as an MLflow model: registered, loaded without its run directory, and equal to ``runner predict``."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.commands.stored_network import network_in, with_device
from runner.config.check import check
from runner.errors import ConfigError, DataError
from runner.records.summary import Summary
from runner.system.machine import usable_cores
from runner.tracking import MlflowTracking
from runner.training.exported import ExportedNetwork
from runner.training.inference import answers, one_device
from runner.training.run import run
from tests.integration.command import succeed
from tests.small_runs import small_config

KEPT = ("checkpoint.keep_best=true", "train.eval_every=1", "train.log_every=1", "train.steps=4", "optimizer.lr=0.3")


def trained(folder: Path, uri: str, log_model: str, *overrides: str) -> Summary:
    tracking = MlflowTracking(uri=uri, log_model=log_model, pictures=False)
    return run(replace(small_config(*KEPT, *overrides), tracking=tracking), folder, overrides=[])


def logged(client: Any, summary: Summary) -> Any:
    (found,) = client.search_runs(["1"], f"tags.`runner.run_id` = '{summary.run_id}'")
    (model,) = client.search_logged_models(["1"], filter_string=f"source_run_id = '{found.info.run_id}'")
    assert [output.model_id for output in found.outputs.model_outputs] == [model.model_id]
    return model


@pytest.mark.parametrize("log_model", ["last", "best"])
def test_a_registered_network_predicts_like_the_verb(
    uri: str, client: Any, tmp_path: Path, log_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    summary = trained(tmp_path / "run", uri, log_model)
    network = network_in(tmp_path / "run", "best" if log_model == "best" else "newest")
    pixels = np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8)).astype(np.float64)
    inputs = network.normalisation().apply(pixels, np.dtype(np.float64))
    device = one_device(with_device(network.config, []), usable_cores())
    expected = answers(device, network.checkpoint, inputs)
    shutil.rmtree(tmp_path / "run")

    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    model = logged(client, summary)
    mlflow.register_model(model.model_uri, f"digits-{log_model}")
    loaded = mlflow.pyfunc.load_model(f"models:/digits-{log_model}/1")
    np.testing.assert_array_equal(loaded.predict(pixels), expected)
    assert loaded.metadata.signature.inputs.input_types() == [np.dtype(np.float64)]
    assert loaded.predict(loaded.input_example).shape == (1, 10)
    with pytest.raises(mlflow.exceptions.MlflowException, match="Shape of input"):
        loaded.predict(pixels[:, :, :4])
    files = {path.name for path in Path(model.artifact_location).rglob("*") if path.is_file()}
    assert {"mlflow_network.py", "network.yaml", "variables.safetensors", "input_example.json"} <= files
    assert not [file for file in files if file.endswith((".pkl", ".pickle"))]


def test_a_network_is_recorded_once_however_often_its_record_is_written(
    uri: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = trained(tmp_path, uri, "last")
    first = logged(client, summary)
    again = replace(small_config(*KEPT), tracking=MlflowTracking(uri=uri, log_model="last"))
    run(again, tmp_path, overrides=[], resume=True)
    assert logged(client, summary).model_id == first.model_id


def test_an_exported_network_refuses_other_shapes(tmp_path: Path, uri: str) -> None:
    trained(tmp_path, uri, "last")
    network = ExportedNetwork(tmp_path / "model")
    for shape in ((8, 8), (0, 1, 8, 8), (2, 3, 8, 8)):
        with pytest.raises(DataError, match=r"expected \(N, 1, 8, 8\) with N of at least 1"):
            network.predict(np.zeros(shape))
    assert list((tmp_path / "model").rglob("*.safetensors"))
    assert not any("velocity" in name for name in _weights(tmp_path / "model"))


def test_the_best_network_must_be_kept() -> None:
    config = replace(small_config(), tracking=MlflowTracking(log_model="best"))
    message = r"tracking\.log_model=best: no best checkpoint is kept; set checkpoint\.keep"
    with pytest.raises(ConfigError, match=message):
        check(config)


def _weights(folder: Path) -> list[str]:
    from runner.checkpoint import load, newest

    path = newest(folder / "weights")
    assert path is not None
    return list(load(path).variables)


LOAD = """
import mlflow, numpy, sys
loaded = mlflow.pyfunc.load_model(sys.argv[1])
print(loaded.predict(numpy.zeros((2, 1, 8, 8))).shape)
"""


@pytest.mark.slow
def test_a_network_with_an_op_of_a_plugin_is_loaded_by_a_process_without_the_plugin(tmp_path: Path) -> None:
    plugin = shutil.copytree(Path(__file__).parents[2] / "examples" / "own_op", tmp_path / "plugin")
    given = ("--plugin", str(plugin / "swish.py"), "--config-dir", str(plugin / "conf"))
    options = ("model=swish_mlp", "parallelism=single", "train.steps=2", "tracking.log_model=last")
    succeed(tmp_path, *given, *options, "tracking.pictures=false", "hydra.run.dir=run")
    shutil.rmtree(plugin)
    shutil.rmtree(tmp_path / "run")
    (model,) = (tmp_path / "mlruns" / "runner" / "models").iterdir()
    command = [sys.executable, "-c", LOAD, str(model / "artifacts")]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.stdout == "(2, 10)\n", answer.stderr
