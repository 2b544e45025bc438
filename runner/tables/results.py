"""Results of runs of a table: committed JSON files, ``results/TABLE/RUN.json`` beside the folder of YAML files."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config.configuration import to_plain
from runner.config.outcome import differing_keys, with_defaults
from runner.config.schema import Config
from runner.errors import DataError, ResourceError
from runner.system.files import create_directory
from runner.system.json_file import JsonFile
from runner.system.schema import Record

FOLDER = "results"


@dataclass(frozen=True)
class Result:
    """The values of one run.

    kind: kind of the table. values: column -> value. configuration: the composed configuration of the run as plain
    values, so that a later change of the configuration is found, even if keys are renamed. commit: commit of the code,
    with the suffix "-dirty" if files were changed; "" outside of a repository. versions: versions of Python and of
    libraries.
    """

    kind: str
    values: dict[str, float]
    configuration: dict[str, Any]
    commit: str = ""
    versions: dict[str, str] = field(default_factory=dict)


_FILE: JsonFile[Result] = JsonFile(Record(Result), DataError, "restore the file, or delete it and run the table again")


def folder_of(table: Path) -> Path:
    """Return the folder of a table's results.

    table: its file ``conf/table/NAME.yaml``, or ``DIR/table/NAME.yaml`` in another folder DIR of YAML files.
    """
    return table.parents[2] / FOLDER / table.stem


def read_results(table: Path) -> dict[str, Result]:
    """Return run -> result of the runs that have one. Raises DataError for a damaged file."""
    files = sorted(folder_of(table).glob("*.json"))
    return {file.stem: _FILE.read(file) for file in files}


def write_result(table: Path, run: str, result: Result) -> Path:
    """Write the result of a run; return its path. Raises ResourceError if the file cannot be written."""
    path = folder_of(table) / f"{run}.json"
    try:
        create_directory(path.parent)
        _FILE.write(path, result)
    except OSError as error:
        raise ResourceError(
            f"{path}: cannot be written: {error.strerror}; copy {table} to DIR/table in a folder of yours, and use "
            "--config-dir DIR"
        ) from error
    return path


def changes(result: Result, config: Config) -> list[str]:
    """Return the keys in which the configuration of a result differs from the present configuration of its run."""
    return differing_keys(with_defaults(result.configuration, config), to_plain(config))
