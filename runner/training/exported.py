"""A trained network in a folder, usable without the data, the optimizer and the directory of its run.

The folder holds ``network.yaml`` (a configuration with the model), ``data.json`` (classes, shape and normalisation),
``weights/step-N`` (a checkpoint of the weights alone), ``plugins``, and ``mlflow_network.py``, with which MLflow
loads the network.
"""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.checkpoint import load, newest, save
from runner.config import safe_yaml
from runner.config.configuration import from_plain, to_plain
from runner.config.groups import GROUPS
from runner.config.schema import Adaptation, Config, LocalCluster
from runner.data.synthetic import Synthetic
from runner.errors import DataError
from runner.plugin import install, provenance
from runner.plugin.loading import PIN
from runner.records.data_facts import read_record, write_record
from runner.system.machine import usable_cores
from runner.system.redaction import redact
from runner.tracking import NoTracking
from runner.tracking.records import ExportedModel
from runner.training.inference import answers, one_device, weights_of

_CONFIG, _WEIGHTS, _PLUGINS, _CODE = "network.yaml", "weights", "plugins", "mlflow_network.py"
_ONE_DEVICE = "single"  # the option of ``parallelism`` for a network that is used and not trained
_TEMPLATE = Path(__file__).with_name(f"{_CODE}.txt")


def export(config: Config, run_dir: Path, checkpoint: Path, folder: Path, version: str) -> ExportedModel:
    """Write the network of a checkpoint into ``folder``, which is replaced; return its description for a tracker.

    version: the version of runner. Raises CheckpointError or DataError if a file of the run is damaged or incomplete,
    ResourceError or OSError if the folder cannot be written.
    """
    record = read_record(run_dir)
    if record is None or record.normalisation is None:
        raise DataError(f"{run_dir}: the normalisation of the data was not stored, so the network cannot be exported")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    stored, names = load(checkpoint), weights_of(config)
    evaluated = config.optimizer.evaluated(stored.variables)
    weights = {name: evaluated[name] for name in names}
    save(folder / _WEIGHTS, step=stored.step, variables=weights, meta=stored.manifest.meta)
    write_record(folder, record)
    # The machine that uses the network may have neither the data files nor the devices of the training run.
    plain = redact(to_plain(_for_one_device(config)))
    (folder / _CONFIG).write_text(safe_yaml.dump(plain), encoding="utf-8")
    _copy_plugins(folder / _PLUGINS)
    shutil.copyfile(_TEMPLATE, folder / _CODE)
    mean, scale = record.normalisation.mean, record.normalisation.scale
    return ExportedModel(
        folder=str(folder.absolute()),
        code=_CODE,
        step=stored.step,
        shape=list(record.facts.shape),
        outputs=config.task.outputs(record.facts.fields),
        example=[float(value) * scale for value in mean],
        requirement=f"runner-dataflow=={version}",
    )


class ExportedNetwork:
    """The network in a folder that :func:`export` wrote, computed on a GPU if one can be used, else on the CPU."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Read the network; execute the code of its plugins. Raises ConfigError, CheckpointError or DataError."""
        folder = Path(folder)
        installed = provenance().values()
        references = (f"{path}{PIN}{path.parent.name}" for path in sorted((folder / _PLUGINS).glob("*/*.py")))
        install([reference for reference in references if reference.rpartition(PIN)[2] not in installed])
        record, weights = read_record(folder), newest(folder / _WEIGHTS)
        if record is None or record.normalisation is None or weights is None:
            raise DataError(f"{folder}: expected the folder of an exported network, with its weights and data.json")
        self.facts, self.normalisation, self._weights = record.facts, record.normalisation, weights
        self._device = one_device(from_plain(safe_yaml.load(folder / _CONFIG)), usable_cores())

    def predict(self, x: NDArray[Any]) -> NDArray[np.float64]:
        """Return the task's answers (N, outputs), such as class probabilities, for x (N, ...) as the dataset stores it.

        The values equal those of ``runner predict`` on the same device. Raises DataError for another shape.
        """
        x = np.asarray(x)
        if x.shape[1:] != self.facts.shape or not len(x):
            expected = ", ".join(map(str, self.facts.shape))
            raise DataError(f"x of shape {x.shape}: expected (N, {expected}) with N of at least 1")
        return answers(self._device, self._weights, self.normalisation.apply(x, np.dtype(np.float64)), self.facts)


def _for_one_device(config: Config) -> Config:
    cluster = LocalCluster(tf32=config.cluster.tf32)
    return dataclasses.replace(
        config,
        data=Synthetic(name="synthetic"),
        parallelism=GROUPS["parallelism"][_ONE_DEVICE](),
        cluster=cluster,
        tracking=NoTracking(),
        adapt=Adaptation(),
        callbacks={},
    )


def _copy_plugins(folder: Path) -> None:
    """Copy each plugin file into a folder named by its SHA-256; plugin modules must be installed by the user."""
    for reference, sha256 in provenance().items():
        if reference.endswith(".py"):
            (folder / sha256).mkdir(parents=True)
            shutil.copyfile(reference, folder / sha256 / Path(reference).name)
