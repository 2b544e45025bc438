"""A checkpoint together with the run it belongs to: verbs that use a trained network start from here."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from runner.checkpoint import BEST, NEWEST, find
from runner.config.configuration import load_stored
from runner.config.schema import Config
from runner.errors import ConfigError
from runner.records.run_directory import CONFIG_FILE


@dataclass(frozen=True)
class StoredNetwork:
    """A trained network. config: of its run, as stored. checkpoint: its directory, ``step-N``."""

    config: Config
    run_dir: Path
    checkpoint: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what says which network is meant; :func:`stored_network` takes it."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run directory, or a checkpoint in one")
    parser.add_argument(
        "--which", choices=(BEST, NEWEST), help="of a run's checkpoints (default: the best if one is kept, else newest)"
    )


def stored_network(path: Path, which: str | None) -> StoredNetwork:
    """Return what ``path``, the directory of a run or of a checkpoint in one, holds.

    Raises CheckpointError where there is no checkpoint, ConfigError where there is no configuration beside it.
    """
    checkpoint = find(path.absolute(), which)
    run_dir = checkpoint.parent.parent
    if not (run_dir / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{checkpoint}: {run_dir} holds no {CONFIG_FILE}; expected a checkpoint in the directory of its run, "
            "RUN/checkpoints/step-N, because the configuration says which network it is"
        )
    return StoredNetwork(load_stored(run_dir / CONFIG_FILE), run_dir, checkpoint)
