"""GPUs dealt out to jobs that run at the same time: each has its own while there are enough."""

from __future__ import annotations

import pytest

from runner.config.devices import ALL_GPUS, GpuShare
from tests.gpus import gpu


@pytest.mark.parametrize(
    ("gpus", "jobs", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, 2, [[0], [1]]),
        (2, 5, [[0], [1], [0], [1], [0]]),
        (0, 2, [[], []]),
    ],
)
def test_every_gpu_is_dealt_once_unless_there_are_fewer_than_jobs(
    gpus: int, jobs: int, expected: list[list[int]]
) -> None:
    there = [gpu(number) for number in range(gpus)]
    dealt = [[each.number for each in GpuShare(place, jobs).of(there)] for place in range(jobs)]
    assert dealt == expected
    assert [each.number for each in GpuShare(jobs, jobs).of(there)] == expected[0], "one more than were expected"


def test_a_run_that_has_the_machine_to_itself_has_all_gpus_by_their_numbers() -> None:
    there = [gpu(3), gpu(5)]
    assert ALL_GPUS.of(there) == there
    assert GpuShare(1, 2).of(there) == [gpu(5)]


def test_a_job_is_told_what_it_has_and_whether_others_have_it_too() -> None:
    there = [gpu(0), gpu(1), gpu(2)]
    assert GpuShare(0, 2).text(there) == "2 jobs of the sweep run at a time: this one has GPU 0, 1 of 3"
    assert (
        GpuShare(3, 4).text(there)
        == "4 jobs of the sweep run at a time: this one has GPU 0 of 3, shared with other jobs"
    )
