"""Earlier runs, found by directory or run id.

``plugins.json`` holds the plugins of a run's newest start. It is written early, because a killed run has no summary.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.errors import ConfigError, DataError, RunnerError
from runner.records.run_directory import CONFIG_FILE, RUN_FILE, SUMMARY_FILE, code_diff_file, run_and_starts
from runner.records.summary import Summary
from runner.system.json_file import JsonFile
from runner.system.schema import field_type

_PLACES = ("outputs/*/*", "outputs/*", "multirun/*/*/*", "multirun/*/*", "multirun/table/*/*/*")
"""Glob patterns of the default directories of runs below a working directory."""
_EARLIER = re.compile(r"config-([1-9][0-9]{0,9})\.yaml", re.ASCII)
_RUN_ID = re.compile(r"[0-9a-f]{4,32}")


@dataclass(frozen=True)
class StoredRun:
    """A run directory. starts: number of starts, resumes included. summary: None if the run is active or was killed."""

    path: Path
    run_id: str
    starts: int
    summary: Summary | None

    @property
    def config_yaml(self) -> Path:
        return self.path / CONFIG_FILE

    @property
    def code_diff(self) -> Path:
        """The file with the changes of the code since its commit, at the last start; absent if there are none."""
        return self.path / code_diff_file(self.starts)


def earlier_configurations(path: Path) -> list[Path]:
    """Return the configurations of earlier starts of the run in a directory, in the order of the starts.

    ``config-N.yaml`` is the configuration of start N, and possibly of starts before it.
    """
    found = {int(match[1]): file for file in path.iterdir() if (match := _EARLIER.fullmatch(file.name))}
    return [found[start] for start in sorted(found)]


def read_run(path: Path) -> StoredRun:
    """Read a run directory.

    Raises ConfigError if ``path`` is not a run directory, CheckpointError or DataError if a file in it is damaged.
    """
    path = path.absolute()
    for name in (CONFIG_FILE, RUN_FILE):
        if not (path / name).is_file():
            raise ConfigError(f"{path} holds no {name}: not the directory of a run")
    run_id, starts = run_and_starts(path)
    summary_json = path / SUMMARY_FILE
    return StoredRun(path, run_id, starts, Summary.read(summary_json) if summary_json.is_file() else None)


def find_run(text: str, folder: Path, in_store: Callable[[str], list[Path]]) -> StoredRun:
    """Return the run that ``text`` identifies: the run's directory, its run id or the beginning of its run id.

    An id is looked up in the outputs below ``folder`` and then with ``in_store``, which returns the directories of the
    matching runs in the tracking store. Raises ConfigError unless exactly one run matches, or like :func:`read_run`.
    """
    if (folder / text).is_dir():
        return read_run(folder / text)
    if not _RUN_ID.fullmatch(text):
        expected = "the directory of a run, or a run id, of which 4 hex digits are enough"
        raise ConfigError(f"{text}: no such directory; expected {expected}")
    found = [path for path in outputs_below(folder, RUN_FILE) if _is_run(path, text)] or in_store(text)
    if len(found) > 1:
        raise ConfigError(f"{text}: several run ids begin with it: {', '.join(map(str, found))}; give more digits")
    if not found:
        places = f"below {folder}, in outputs or multirun, or in the tracking store"
        raise ConfigError(f"{text}: no run with this id {places}; give its directory")
    if not found[0].is_dir():
        raise ConfigError(f"{text}: the directory of this run no longer exists: {found[0]}")
    return read_run(found[0])


def outputs_below(folder: Path, marker: str) -> list[Path]:
    """Return the directories with a file named ``marker`` in the default places of runs and sweeps below ``folder``."""
    return [file.parent for place in _PLACES for file in sorted(folder.glob(f"{place}/{marker}"))]


def _is_run(path: Path, text: str) -> bool:
    try:
        run_id, _ = run_and_starts(path)
    except (RunnerError, OSError):
        # A damaged run in another directory, or one of links, must not stop the search.
        return False
    return run_id.startswith(text)


PLUGINS_FILE = "plugins.json"
_PLUGINS: JsonFile[dict[str, str]] = JsonFile(
    field_type(dict[str, str]),
    DataError,
    "expected references and the SHA-256 of their sources; restore the file, or delete it to skip the check",
    version=None,
    limit=1 << 20,
)


def write_plugins(run_dir: Path, plugins: Mapping[str, str]) -> None:
    """Store ``plugins``, reference -> SHA-256 of the source, even if there are none. Raises OSError."""
    _PLUGINS.write(run_dir / PLUGINS_FILE, dict(plugins))


def read_plugins(run_dir: Path) -> dict[str, str] | None:
    """Return the plugins of a run from plugins.json or, if there is none, summary.json. Raises DataError if damaged.

    Returns None if neither file exists, because earlier versions stored no plugins for a run that was killed.
    """
    path, summary_json = run_dir / PLUGINS_FILE, run_dir / SUMMARY_FILE
    if not path.exists():
        return Summary.read(summary_json).plugins if summary_json.is_file() else None
    return _PLUGINS.read(path)
