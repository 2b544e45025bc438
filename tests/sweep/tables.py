"""Functions that read the table of a sweep's jobs in a working directory."""

import csv
from pathlib import Path


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of jobs.csv, each as a dict from column to text."""
    with (folder / "sweep" / "jobs.csv").open() as file:
        return list(csv.DictReader(file))


def statuses(folder: Path) -> list[str]:
    """Return the status of every row, without its error."""
    return [row["status"].split(":")[0] for row in rows(folder)]
