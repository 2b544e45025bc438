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
LARGE_PRESETS = ("cifar100", "imagenet", "inception", "lm1b")
"""Beginnings of the names of presets in conf/experiment whose networks take seconds to build."""


def small_config(*overrides: str, config_dir: Path | None = None) -> Config:
    """Return the checked configuration of a small run on one core of a machine without GPUs."""
    return copy.deepcopy(_composed(overrides, config_dir))


def train(folder: Path, *overrides: str, resume: bool = False) -> Summary:
    """Train a small configuration in a directory."""
    return run(small_config(*overrides), folder, overrides=list(overrides), resume=resume)


def composed_config(*overrides: str, config_dir: Path | None = None) -> Config:
    """Return the checked configuration that Hydra composes from YAML files and the present options.

    config_dir: a directory of YAML files besides those of the project.
    """
    schemas = tuple(schema for options in GROUPS.values() for schema in options.values())
    return from_composed(_composer(schemas, config_dir).compose(overrides), overrides)


@functools.cache
def _composer(schemas: tuple[type, ...], config_dir: Path | None) -> RunComposer:
    """Return a composer that caches compositions: one composition by Hydra takes a quarter of a second."""
    return RunComposer(config_dir)


@functools.cache
def _composed(overrides: tuple[str, ...], config_dir: Path | None) -> Config:
    model = () if any(override.startswith("model=") for override in overrides) else SMALL_MODEL
    config = composed_config(*SMALL, *model, *overrides, config_dir=config_dir)
    return fix_machine_values(config, cores=1, find=lambda: NO_DRIVER)


def typed(text: str) -> tuple[str, ...]:
    """Split a command line that contains no quotes into its overrides."""
    return tuple(text.split())
