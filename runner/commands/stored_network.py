"""A checkpoint, its run, and the device that runs its network, for the verbs that use a trained network."""

import argparse
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from runner.checkpoint import BEST, NEWEST, find, load
from runner.commands.plugins import require_session_classes
from runner.config.check import check_devices
from runner.config.configuration import from_plain, load_stored
from runner.config.hydra_app import overridden
from runner.config.schema import Config, LocalCluster
from runner.data.dataset import Facts, Normalisation
from runner.data.own_files import OwnFiles
from runner.data.settings import DatasetSettings
from runner.engine.graph.device import CPU
from runner.errors import ConfigError, DataError
from runner.records.data_facts import FACTS_FILE, DataRecord, difference, read_record
from runner.records.run_directory import CONFIG_FILE
from runner.system.files import replace_durably, writing

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredNetwork:
    """A trained network.

    config: the configuration of its run. checkpoint: the directory ``step-N`` with its weights. data: facts about the
    training data; None for runs of earlier versions.
    """

    config: Config
    run_dir: Path
    checkpoint: Path
    data: DataRecord | None

    def normalisation(self) -> Normalisation:
        """Return the input normalisation of training; if it was not stored, compute it from the data and log a warning.

        Raises DataError if the data cannot be read.
        """
        if self.data is not None and self.data.normalisation is not None:
            return self.data.normalisation
        path = self.run_dir / FACTS_FILE
        _log.warning("%s lacks the normalisation of training, so it is computed from the present data", path)
        data: DatasetSettings = self.config.data
        return data.normalisation()

    def variables(self) -> dict[str, NDArray[Any]]:
        """Load all variables; if the run kept averages of the weights, they replace the weights."""
        stored: dict[str, NDArray[Any]] = self.config.optimizer.evaluated(load(self.checkpoint).variables)
        return stored


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of :func:`network_in`."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run directory, or a checkpoint in one")
    parser.add_argument("--which", choices=(BEST, NEWEST), help="checkpoint (default: best if kept, else newest)")


def network_in(path: Path, which: str | None) -> StoredNetwork:
    """Return the network in ``path``, the directory of a run or of one of its checkpoints.

    Raises CheckpointError if there is no checkpoint, ConfigError if the run has no configuration, DataError if the
    classes or images of the data changed since training.
    """
    checkpoint = find(path.absolute(), which)
    run_dir = checkpoint.parent.parent
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{checkpoint}: {run_dir} holds no {CONFIG_FILE}; expected a checkpoint in the directory of its run, "
            "RUN/checkpoints/step-N, because the configuration describes the network"
        )
    require_session_classes(run_dir)
    config = load_stored(run_dir / CONFIG_FILE)
    kept = read_record(run_dir)
    if kept is not None:
        _require_same_data(config.data, kept.facts, run_dir)
    return StoredNetwork(config, run_dir, checkpoint, kept)


def write_output(path: Path, content: bytes) -> None:
    """Write a file of results. Raises ResourceError if the file cannot be written."""
    with writing(str(path), "choose another file with --output"):
        replace_durably(path, content)


def _require_same_data(data: DatasetSettings, known: Facts, run_dir: Path) -> None:
    """Raise DataError if classes or images changed since the run; warn if the validation split may have changed."""
    found = data.facts()
    where = data.path if isinstance(data, OwnFiles) else f"data={data.name}"
    if changed := difference(found, known):
        raise DataError(f"{where}: {changed} ({run_dir / FACTS_FILE}); restore the data of the run")
    if found.train_examples != known.train_examples:
        _log.warning(
            "%s: %d train examples, but %d in training: the validation split can differ",
            where,
            found.train_examples,
            known.train_examples,
        )


DEVICE_KEYS = ("cluster.device", "cluster.gpus", "cluster.tf32")
DEVICE_HELP = "cluster.device=cpu, gpu or auto, cluster.gpus=[K] and cluster.tf32=true choose the device, as in a run"


def split_device(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split arguments into those of the form KEY=VALUE with a key of :data:`DEVICE_KEYS`, and the others."""
    device_overrides: list[str] = []
    others: list[str] = []
    for argument in arguments:
        key, is_pair, _ = argument.partition("=")
        (device_overrides if is_pair and key in DEVICE_KEYS else others).append(argument)
    return device_overrides, others


def with_device(stored: Config, device_overrides: Sequence[str]) -> Config:
    """Return the configuration of a trained network with one device, which is ``auto`` by default.

    Only the key ``tf32`` of the stored cluster is kept, unless ``device_overrides`` set it or choose the CPU. Raises
    ConfigError for an unknown device, or if ``cluster.gpus`` is neither null nor one GPU.
    """
    tf32 = stored.cluster.tf32 and f"cluster.device={CPU}" not in device_overrides
    fresh = replace(stored, cluster=LocalCluster(tf32=tf32))
    config = from_plain(overridden(fresh, device_overrides, DEVICE_KEYS, f"expected one of {', '.join(DEVICE_KEYS)}"))
    check_devices(config)
    gpus = config.cluster.gpus
    if gpus is not None and len(gpus) != 1:
        raise ConfigError(f"cluster.gpus={gpus}: expected the number of one GPU, such as [0], or null for the first")
    return config
