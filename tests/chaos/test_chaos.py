"""A short chaos campaign."""

from pathlib import Path

import pytest

from tests.chaos.faults import CASES, run_with_fault, undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sync_data, ring_all_reduce", "model"])
def test_a_run_that_loses_a_process_ends_with_the_same_weights(case: str, tmp_path: Path) -> None:
    assert case in CASES
    expected, seconds = undisturbed(CASES[case], tmp_path)
    trial = run_with_fault(case, 0, 20_261_124, seconds / 2, tmp_path)
    assert (trial.code, trial.weights_sha256) == (0, expected), trial
    assert trial.process
