"""Small configurations and runs: the digits dataset, one process, and few steps."""

import copy
import functools
from pathlib import Path

from runner.config.configuration import fix_machine_values, from_composed
from runner.config.groups import GROUPS
from runner.config.hydra_app import RunComposer
from runner.config.schema import Config
from runner.records.summary import Summary
from runner.training.run import run
from tests.gpus import NO_DRIVER

SMALL = ("tracking=none", "tracking.pictures=false", "parallelism=single", "train.steps=3")
SMALL_MODEL = ("model=mlp", "model.hidden=[8]")
LARGE_PRESETS = ("cifar100", "imagenet", "inception")
"""Beginnings of the names of presets in conf/experiment whose networks take seconds to build."""


def small_config(*overrides: str) -> Config:
    """Return the checked configuration of a small run on one core of a machine without GPUs."""
    return copy.deepcopy(_composed(overrides))


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    """Train a small configuration in a directory."""
    return run(small_config(*overrides), folder, overrides=list(overrides), resume=resume)


def composed_config(*overrides: str) -> Config:
    """Return the checked configuration that Hydra composes from the project's YAML files and the present options."""
    schemas = tuple(schema for options in GROUPS.values() for schema in options.values())
    return from_composed(_composer(schemas).compose(overrides), overrides)


@functools.cache
def _composer(schemas: tuple[type, ...]) -> RunComposer:
    """Return a composer that keeps what it read: a composition by Hydra takes a quarter of a second."""
    return RunComposer()


@functools.cache
def _composed(overrides: tuple[str, ...]) -> Config:
    model = () if any(override.startswith("model=") for override in overrides) else SMALL_MODEL
    return fix_machine_values(composed_config(*SMALL, *model, *overrides), cores=1, look=lambda: NO_DRIVER)


def typed(text: str) -> tuple[str, ...]:
    """Split a command line that contains no quotes into its overrides."""
    return tuple(text.split())
