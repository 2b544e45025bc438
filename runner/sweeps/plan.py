"""The plan of a sweep, ``plan.json`` in its directory: the jobs, their directories, and the launcher that runs them.

The plan is written before the first job starts and replaced atomically, so that a killed sweep can be resumed. The
outcome of a job is not in the plan but in the directory of the job; see :mod:`runner.sweeps.outcome`.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.config import safe_yaml
from runner.config.launcher import BASIC, Launcher
from runner.errors import ConfigError
from runner.system.json_file import JsonFile
from runner.system.redaction import redact, redact_overrides
from runner.system.schema import LenientRecord
from runner.system.text import printable

PLAN_FILE = "plan.json"
HYDRA_FILE = "multirun.yaml"
"""The file in which Hydra stores its settings for the sweep, before it composes the first job."""
_MOST_CHARACTERS = 2000
FROZEN_FILE = "frozen.yaml"
"""The file in a job's directory with a copy of the job's configuration; later edits of YAML files do not affect it."""


@dataclass(frozen=True)
class PlannedJob:
    """One job. Its number and its directory are never reused, even if a later grid does not include the job.

    directory: path relative to the sweep. overrides: the overrides that identify the job. swept: key -> value, as text,
    of the overrides that vary. in_grid: False if a later grid omits the job, which is then neither run nor shown.
    """

    number: int
    directory: str
    overrides: list[str]
    swept: dict[str, str]
    in_grid: bool = True

    @property
    def label(self) -> str:
        """The name of the job in messages: ``job 3 (seed=1)``."""
        return job_label(self.number, self.swept)


@dataclass(frozen=True)
class Plan:
    """The jobs of a sweep and the settings with which they run.

    folder: the working directory of the sweep, to which relative paths in configurations refer.
    arguments: the command line. plugins: references to the plugins, each with the SHA-256 of the plugin's source.
    sweeper: name of Hydra's sweeper; a sweeper other than "basic" adds jobs depending on the results of earlier jobs.
    name: name of the sweep in the tracking store; "" for the default, which names the swept keys.
    again: the command that runs the remaining jobs, if it is not ``runner sweep resume``; otherwise "".
    """

    folder: str
    arguments: list[str]
    launcher: Launcher
    jobs: list[PlannedJob]
    plugins: list[str] = field(default_factory=list)
    sweeper: str = BASIC
    name: str = ""
    again: str = ""

    @property
    def grid(self) -> list[PlannedJob]:
        return [job for job in self.jobs if job.in_grid]

    @property
    def private(self) -> bool:
        """Whether the plan contains a secret; if so, only the owner can read the file."""
        plain = dataclasses.asdict(self)
        arguments = [self.arguments, *(job.overrides for job in self.jobs)]
        return redact(plain) != plain or any(redact_overrides(each) != each for each in arguments)

    def write(self, directory: Path) -> None:
        """Write the plan atomically; raises OSError."""
        _FILE.write(directory / PLAN_FILE, self, mode=0o600 if self.private else 0o666)

    @classmethod
    def read(cls, directory: Path) -> "Plan":
        """Read the plan of the sweep in ``directory``; raises ConfigError if there is none or if it is damaged."""
        path = directory / PLAN_FILE
        if not directory.exists():
            raise ConfigError(f"{directory}: no such directory; expected the directory of a sweep")
        try:
            plan = _FILE.read(path)
        except FileNotFoundError:
            raise ConfigError(
                f"{directory} holds no {PLAN_FILE}: expected the directory of a sweep that began to train. "
                f"If the sweep was stopped before that, start it again{_start_command(directory)}"
            ) from None
        for job in plan.jobs:
            if Path(job.directory).is_absolute() or ".." in Path(job.directory).parts:
                raise ConfigError(f"{path}: directory {job.directory!r} of job {job.number} lies outside {directory}")
        if len({job.number for job in plan.jobs}) != len(plan.jobs):
            raise ConfigError(f"{path} is damaged: two jobs have the same number")
        return plan


# Earlier versions wrote plans without the field plugins.
_ADVICE = "expected a plan that this version of runner wrote"
_FILE: JsonFile[Plan] = JsonFile(LenientRecord(Plan, complete=False), ConfigError, _ADVICE, limit=64 * 2**20)


_ADDED = re.compile(r"\+?hydra(\.job\.name|/job_logging|/hydra_logging|\.output_subdir|\.callbacks\.runner|\.mode)=.*")
"""Overrides that runner adds to each sweep."""


def _start_command(directory: Path) -> str:
    """Return the command line of a sweep without a plan, from Hydra's stored settings; "" if these are missing."""
    try:
        settings: Any = safe_yaml.load(directory / HYDRA_FILE)
        overrides = settings["hydra"]["overrides"]
        given = [str(text) for text in (*overrides["hydra"], *overrides["task"])]
    except (ConfigError, OSError, KeyError, TypeError):
        return ""
    arguments = redact_overrides(text for text in given if not _ADDED.fullmatch(text))
    return f" with: {printable(shlex.join(['runner', '-m', *arguments]), _MOST_CHARACTERS)}"


def job_label(number: int, swept: Mapping[str, str]) -> str:
    text = ", ".join(redact_overrides(f"{key}={value}" for key, value in swept.items()))
    return f"job {number}" + (f" ({text})" if text else "")
