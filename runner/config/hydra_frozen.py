"""The Hydra application over a planned sweep: the user's launcher runs it, and its only axis is the job's number.

Nothing of any YAML file is read: the primary configuration is made here and travels with the launcher. So what the
files say by then, or whether they can still be read, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore

from runner.config.hydra_command_line import (
    HYDRA_SETTINGS,
    VERSION_BASE,
    application_arguments,
    errors_raised,
    safe_path,
)
from runner.config.launcher import Launcher

_PRIMARY = "planned_sweep"
JOB = "job"
"""Key of the job's number, as text."""


def launch_planned(
    task: Callable[[Mapping[str, Any]], None],
    settings: Mapping[str, Any],
    jobs: Mapping[int, Path],
    launcher: Launcher,
    sweep_dir: Path,
) -> None:
    """Have ``launcher`` call ``task`` once for every job, in whatever process it likes.

    task: a function of a module, found by its name in another process; gets ``settings`` and, as ``job``, a number.
    jobs: number -> its directory, absolute. What the launcher or a task raises is raised.
    """
    # Hydra keeps its record of this application, and what launchers are told, apart from that of the sweep.
    record = sweep_dir / ".launch"
    record.mkdir(mode=0o700, exist_ok=True)
    primary = {
        "defaults": ["_self_", {"override hydra/launcher": launcher.name}],
        **settings,
        JOB: "",
        "directories": {str(number): str(directory) for number, directory in jobs.items()},
        "hydra": {
            "launcher": dict(launcher.settings),
            "sweeper": {"max_batch_size": launcher.batch},
            "job": {"env_set": dict(launcher.environment), "chdir": launcher.in_job_directory},
            "sweep": {"dir": str(record), "subdir": f"${{directories.${{{JOB}}}}}"},
        },
    }
    store = ConfigStore.instance()
    # Launchers pickle the store for their processes, which cannot import the module of a plugin's dataclass.
    store.repo.pop("schema", None)
    store.store(name=_PRIMARY, node=primary)
    application = hydra.main(version_base=VERSION_BASE, config_path=None, config_name=_PRIMARY)(task)
    axis = f"{JOB}=" + ",".join(f"'{number}'" for number in jobs)
    with application_arguments(["--multirun", axis, *HYDRA_SETTINGS]), errors_raised(), safe_path():
        application()
