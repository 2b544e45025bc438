"""Runs that a command line names by directory or id."""

from __future__ import annotations

from pathlib import Path

from runner.errors import ConfigError, ResourceError
from runner.records.stored_run import StoredRun, find_run
from runner.tracking.mlflow_client import directories_of_runs, resolve_uri
from runner.tracking.writer import StoreUnavailableError


def named_run(text: str) -> StoredRun:
    """The run that ``text`` names: its directory, or its id among the outputs or in the tracking store of this folder.

    Raises ConfigError where there is no such run, ResourceError where the store had to be asked and does not answer.
    """
    return find_run(text, Path.cwd(), _in_store)


def _in_store(run_id: str) -> list[Path]:
    try:
        return directories_of_runs(resolve_uri(None, Path.cwd()), run_id)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except StoreUnavailableError as error:
        raise ResourceError(f"{error}; name the run by its directory") from error
