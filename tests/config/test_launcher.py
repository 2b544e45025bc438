"""How many jobs a launcher has running at once, and what its settings may hold."""

from __future__ import annotations

import pytest

from runner.config.launcher import Launcher, jobs_at_once
from runner.errors import SecurityError


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        (Launcher("basic"), 1),
        (Launcher("joblib", {"n_jobs": 2}), 2),
        (Launcher("joblib", {"n_jobs": -1}), 4),
        (Launcher("joblib", {"n_jobs": -2}), 3),
        (Launcher("joblib", {"n_jobs": 50}), 6),
        (Launcher("joblib", {"n_jobs": 50}, batch=5), 5),
        (Launcher("submitit_local"), 6),
        (Launcher("submitit_slurm"), 1),
    ],
)
def test_jobs_at_once_of_six_on_four_cores(launcher: Launcher, expected: int) -> None:
    assert jobs_at_once(launcher, 6, cores=4) == expected


@pytest.mark.parametrize("settings", [{"_target_": "os.system"}, {"a": {"_target_": "x"}}, {"a": [{"_args_": []}]}])
def test_settings_name_no_code(settings: dict[str, object]) -> None:
    with pytest.raises(SecurityError, match="a stored sweep must not name code"):
        Launcher("joblib", settings)
