"""Run the jobs of a sweep one after the other in this process, each in the environment that its launcher sets."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from runner.config.launcher import Launcher


def run_in_turn(run: Callable[[int], None], jobs: Mapping[int, Path], launcher: Launcher) -> Exception | None:
    """Call ``run`` with the number of every job; return the first exception, which ends its job only.

    jobs: number -> its directory. A BaseException such as KeyboardInterrupt ends all jobs.
    """
    first: Exception | None = None
    for number, directory in jobs.items():
        try:
            with _surroundings(launcher, directory):
                run(number)
        except Exception as error:  # noqa: BLE001 - a job may fail in any way, and has noted how
            first = first or error
    return first


@contextlib.contextmanager
def _surroundings(launcher: Launcher, directory: Path) -> Iterator[None]:
    """Set the environment variables and the working directory of a job."""
    before = dict(os.environ)
    os.environ.update(launcher.environment)
    try:
        with contextlib.chdir(directory) if launcher.in_job_directory else contextlib.nullcontext():
            yield
    finally:
        for name in launcher.environment:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)
