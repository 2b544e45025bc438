"""The record of the shares that counted in each update, from which a run with backup workers is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.errors import ConfigError
from runner.records.decisions import read_decisions

CONTRIBUTORS = "contributors"
"""Name of the record: a line for each update, {"step", "contributors", "dropped": [{"worker", "examples"}, ...]}.

contributors: the workers whose shares were summed, in that order. dropped: workers that started the step and did not
deliver their share before the update. Workers in neither list were still computing an earlier step.
"""

Contributors = tuple[int, ...]


def contributors_of(path: Path, workers: int, backups: int) -> dict[int, Contributors]:
    """Return step -> workers whose shares counted, from ``contributors.jsonl`` of an earlier run.

    Raises ConfigError if the file cannot be read, or if it is of a run with other numbers of workers.
    """
    try:
        lines = read_decisions(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"parallelism.replay={path}: cannot be read ({error}); expected {CONTRIBUTORS}.jsonl of an earlier run"
        ) from error
    found = {}
    for line in lines:
        if not _is_of(line, workers, backups):
            raise ConfigError(
                f"parallelism.replay={path}: found {str(line)[:80]}; expected a step and {workers} different workers "
                f"of 0 to {workers + backups - 1} in rising order, for parallelism.workers={workers} and "
                f"parallelism.backup_workers={backups}"
            )
        found[line["step"]] = tuple(line[CONTRIBUTORS])
    if not found:
        raise ConfigError(f"parallelism.replay={path}: the file is empty; expected a line for every update")
    return found


def _is_of(line: dict[str, Any], workers: int, backups: int) -> bool:
    chosen = line.get(CONTRIBUTORS)
    return (
        type(line.get("step")) is int
        and isinstance(chosen, list)
        and len(chosen) == workers
        and all(type(k) is int and 0 <= k < workers + backups for k in chosen)
        and chosen == sorted(set(chosen))
    )
