"""Small configurations and runs: the digits dataset, one process, and few steps."""

import copy
import functools
from pathlib import Path

from runner.config.configuration import fix_machine_values
from runner.config.hydra_app import compose
from runner.config.schema import Config
from runner.records.summary import Summary
from runner.training.run import run
from tests.gpus import NO_DRIVER

SMALL = ("tracking=none", "tracking.pictures=false", "parallelism=single", "train.steps=3")
SMALL_MODEL = ("model=mlp", "model.hidden=[8]")


def small_config(*overrides: str) -> Config:
    """Return the checked configuration of a small run on one core of a machine without GPUs."""
    return copy.deepcopy(_composed(overrides))


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    """Train a small configuration in a directory."""
    return run(small_config(*overrides), folder, overrides=list(overrides), resume=resume)


@functools.cache
def _composed(overrides: tuple[str, ...]) -> Config:
    """Compose a configuration. Results are cached, because composing takes a quarter of a second."""
    model = () if any(override.startswith("model=") for override in overrides) else SMALL_MODEL
    return fix_machine_values(compose([*SMALL, *model, *overrides]).config(), cores=1, look=lambda: NO_DRIVER)


def typed(text: str) -> tuple[str, ...]:
    """Split a command line that contains no quotes into its overrides."""
    return tuple(text.split())
