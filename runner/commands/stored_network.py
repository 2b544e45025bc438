"""A checkpoint together with the run it belongs to: verbs that use a trained network start from here."""

from __future__ import annotations

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
from runner.errors import ConfigError, DataError
from runner.records.data_facts import FACTS_FILE, DataRecord, difference, read_record
from runner.records.run_directory import CONFIG_FILE

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredNetwork:
    """A trained network. config: of its run, as stored. checkpoint: its directory, ``step-N``. data: as in training.

    data is None where an earlier version kept nothing of them.
    """

    config: Config
    run_dir: Path
    checkpoint: Path
    data: DataRecord | None

    def normalisation(self) -> Normalisation:
        """How pixels became inputs in training; where that was not kept, it is computed from the data, with a warning.

        Raises DataError where the data must be read for it and cannot be.
        """
        if self.data is not None and self.data.normalisation is not None:
            return self.data.normalisation
        _log.warning(
            "%s does not say how the training images were normalised: computed from the data as they are now",
            self.run_dir / FACTS_FILE,
        )
        data: DatasetSettings = self.config.data
        return data.normalisation()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which network is meant; :func:`stored_network` takes it."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run directory, or a checkpoint in one")
    parser.add_argument(
        "--which", choices=(BEST, NEWEST), help="of a run's checkpoints (default: the best if one is kept, else newest)"
    )


def stored_network(path: Path, which: str | None) -> StoredNetwork:
    """Return what ``path``, the directory of a run or of a checkpoint in one, holds.

    Raises CheckpointError where there is no checkpoint, ConfigError where there is no configuration beside it,
    DataError where the data of the run are not of the kind any more that it was trained on.
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


def _require_same_data(data: DatasetSettings, known: Facts, run_dir: Path) -> None:
    """Raise DataError where classes or images changed since the run; warn where its validation split may have."""
    found = data.facts()
    where = data.path if isinstance(data, OwnFiles) else f"data={data.name}"
    if changed := difference(found, known):
        raise DataError(f"{where}: {changed} ({run_dir / FACTS_FILE}); bring the data back that the run had")
    if found.train_examples != known.train_examples:
        _log.warning(
            "%s: there are %d train examples, in training there were %d: the validation split may be another now",
            where,
            found.train_examples,
            known.train_examples,
        )
