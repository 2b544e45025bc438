"""The plots of a sweep: the metric by which its jobs are compared, against each swept key, and speedups."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.monitor import Monitor
from runner.records.summary import SIMULATED
from runner.sweeps.outcome import Outcome
from runner.sweeps.table import shown_value, swept_values
from runner.tracking.base import SEED
from runner.tracking.plots import Point, Series, metric_over_keys, speedup_lines

SPEEDUP = f"{SIMULATED}/speedup"
WORKERS = "parallelism.workers"

SPEEDUP_PLOT, SPEEDUP_TABLE = "speedup.png", "speedup.csv"


def draw_sweep(outcomes: Sequence[Outcome], monitor: Monitor, path: Path) -> Path | None:
    """Draw a panel for each swept key; return ``path``, or None if no two finished jobs differ."""
    finished = [job for job in outcomes if job.complete and monitor.metric in job.metrics]
    swept = swept_values(finished) if len(finished) > 1 else []
    names = list(dict.fromkeys(key for values in swept for key in values))
    keys = [key for key in names if key != SEED or len(names) == 1]
    if not keys:
        return None
    results = [job.metrics[monitor.metric] for job in finished]
    return metric_over_keys({key: _series(key, swept, results) for key in keys}, monitor.metric, path)


def _series(key: str, swept: Sequence[Mapping[str, str]], results: Sequence[float]) -> Series:
    found: Series = {}
    for values, result in zip(swept, results, strict=True):
        others = ", ".join(f"{name}={shown_value(values, name)}" for name in values if name not in (key, SEED))
        found.setdefault(others, {}).setdefault(shown_value(values, key), []).append(result)
    return found


def speedup_files(outcomes: Sequence[Outcome], directory: Path, *, pictures: bool) -> list[Path]:
    """Write the simulated and the ideal speedup over the number of workers; return the paths of the files.

    Nothing is written unless simulated jobs differ in their number of workers. pictures: whether to draw the plot.
    """
    jobs = [job for job in outcomes if SPEEDUP in job.metrics]
    lines: dict[str, list[Point]] = {}
    for job, values in zip(jobs, swept_values(jobs), strict=True):
        if WORKERS not in values or job.summary is None:
            return []
        others = ", ".join(f"{key}={shown_value(values, key)}" for key in values if key not in (WORKERS, SEED))
        lines.setdefault(others, []).append((job.summary.workers, job.metrics[SPEEDUP]))
    if len({workers for points in lines.values() for workers, _ in points}) < 2:
        return []
    lines = {others: sorted(points) for others, points in lines.items()}
    with (directory / SPEEDUP_TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("settings", "workers", "speedup", "ideal"))
        writer.writerows((others, *point, point[0]) for others, points in lines.items() for point in points)
    drawn = [speedup_lines(lines, directory / SPEEDUP_PLOT)] if pictures else []
    return [directory / SPEEDUP_TABLE, *drawn]
