"""A checkpoint and its run, for the verbs that use a trained network."""

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint import BEST, NEWEST, find
from runner.config.configuration import load_stored
from runner.config.schema import Config
from runner.data.dataset import Facts, Normalisation
from runner.data.own_files import OwnFiles
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError, DataError, ResourceError
from runner.records.data_facts import FACTS_FILE, DataRecord, difference, read_record
from runner.records.run_directory import CONFIG_FILE
from runner.system.files import replace_durably

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredNetwork:
    """A trained network.

    config: stored configuration of its run. checkpoint: its directory, ``step-N``. data: record of the training data;
    None for runs of earlier versions.
    """

    config: Config
    run_dir: Path
    checkpoint: Path
    data: DataRecord | None

    def normalisation(self) -> Normalisation:
        """Return the normalisation of training; if it was not stored, compute it from the data, with a warning.

        Raises DataError if the data cannot be read.
        """
        if self.data is not None and self.data.normalisation is not None:
            return self.data.normalisation
        _log.warning(
            "%s does not hold the normalisation of training: computed from the present data",
            self.run_dir / FACTS_FILE,
        )
        data: DatasetSettings = self.config.data
        return data.normalisation()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of :func:`stored_network`."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run directory, or a checkpoint in one")
    parser.add_argument(
        "--which", choices=(BEST, NEWEST), help="of a run's checkpoints (default: the best if one is kept, else newest)"
    )


def stored_network(path: Path, which: str | None) -> StoredNetwork:
    """Return the network in ``path``, the directory of a run or of one of its checkpoints.

    Raises CheckpointError if there is no checkpoint, ConfigError if the run has no configuration, DataError if the
    classes or images of the data changed since training.
    """
    checkpoint = find(path.absolute(), which)
    run_dir = checkpoint.parent.parent
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{checkpoint}: {run_dir} holds no {CONFIG_FILE}; expected a checkpoint in the directory of its run, "
            "RUN/checkpoints/step-N, because the configuration says which network it is"
        )
    config = load_stored(run_dir / CONFIG_FILE)
    kept = read_record(run_dir)
    if kept is not None:
        _require_same_data(config.data, kept.facts, run_dir)
    return StoredNetwork(config, run_dir, checkpoint, kept)


def write_output(path: Path, text: str) -> None:
    """Write a file that the user named. Raises ResourceError if that fails."""
    try:
        replace_durably(path, text.encode())
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot be written: {error.strerror}; choose another file with --output"
        ) from error


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
