"""The plot of a sweep: the metric by which its jobs are compared, against each swept key."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.config.monitor import Monitor
from runner.sweeps.outcome import Outcome
from runner.sweeps.table import SEED, shown_value, swept_values
from runner.tracking.plots import Series, metric_over_keys


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
