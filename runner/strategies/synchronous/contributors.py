"""Whose shares counted in the updates of a run, read back from the run's record so that it can be made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.errors import ConfigError
from runner.records.decisions import read_decisions

CONTRIBUTORS = "contributors"
"""Name of the record: a line for each update, {"step", "contributors", "dropped": [{"worker", "examples"}, ...]}.

contributors: the workers whose shares were summed, in that order. dropped: workers that had begun with the step, and
whose share came, or would have come, after it was over; those in neither list were still at an earlier step.
"""

Contributors = tuple[int, ...]


def contributors_of(path: Path, workers: int, backups: int) -> dict[int, Contributors]:
    """Step -> whose shares counted, from ``contributors.jsonl`` of a run with so many workers and backup workers.

    Raises ConfigError where there is no such file, or it is not of such a run.
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
                f"parallelism.replay={path}: there is {str(line)[:80]}; expected a step and {workers} "
                f"different workers of 0 to {workers + backups - 1}, in order, as parallelism.workers={workers} and "
                f"parallelism.backup_workers={backups} leave them"
            )
        found[line["step"]] = tuple(line[CONTRIBUTORS])
    if not found:
        raise ConfigError(f"parallelism.replay={path}: it is empty; expected a line for every update")
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
