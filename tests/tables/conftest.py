"""Composition of the tables in the folder conf, once for all tests: the whole folder takes many seconds."""

from functools import cache
from pathlib import Path

import pytest

from runner.commands import table
from runner.config.hydra_app import Job, compose


@cache
def composed(overrides: tuple[str, ...]) -> Job:
    return compose(overrides)


@pytest.fixture(autouse=True)
def composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_conf(overrides: list[str], *, config_dir: Path | None) -> Job:
        return composed(tuple(overrides)) if config_dir is None else compose(overrides, config_dir=config_dir)

    monkeypatch.setattr(table, "compose", of_conf)
