"""A short chaos campaign, and the goals of a long one."""

from pathlib import Path

import pytest

from tests.chaos.__main__ import misses_a_goal
from tests.chaos.faults import CASES, run_with_fault, undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sync_data, ring_all_reduce", "model"])
def test_a_run_that_loses_a_process_ends_with_the_same_weights(case: str, tmp_path: Path) -> None:
    assert case in CASES
    expected, seconds = undisturbed(CASES[case], tmp_path)
    trial = run_with_fault(case, 0, 20_261_124, seconds / 2, tmp_path)
    assert (trial.code, trial.weights_sha256) == (0, expected), trial
    assert trial.process


@pytest.mark.parametrize(
    ("equal", "seconds", "left", "missed"),
    [
        (True, [1.9, 1.9], 0, False),
        (True, [1.0, 2.5], 0, True),
        (True, [2.5], 0, False),  # one recovery has no quantile
        (False, [], 0, True),
        (True, [], 1, True),
    ],
)
def test_a_missed_goal_is_found(equal: bool, seconds: list[float], left: int, missed: bool) -> None:
    assert misses_a_goal([{"case": "model", "equal": equal, "recovery_s": seconds, "left": left}]) == missed
