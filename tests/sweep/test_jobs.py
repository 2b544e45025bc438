"""Jobs of a sweep: in this process, on their share of the GPUs, and from a sweeper that needs their results."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from runner.commands.planned_sweep import run_in_turn, task
from runner.config.configuration import dump, fix_machine_values, load_stored
from runner.config.devices import GpuShare
from runner.config.hydra_sweep import JOB
from runner.config.launcher import Launcher
from runner.config.schema import Config
from runner.errors import ClusterError, NumericError
from runner.kernels.gpu.discovery import Found
from runner.records.summary import Failure
from runner.sweeps.frozen_job import Work, gpu_share, run_frozen_job
from runner.sweeps.locks import JOB_LOCK, job_lock, place_lock
from runner.sweeps.outcome import has_ended, last_ended, record_failure, recorded
from runner.sweeps.plan import FROZEN_FILE, Plan, PlannedJob
from runner.system.files import take_lock
from runner.system.machine import usable_cores
from tests.gpus import NO_DRIVER, gpu, machine
from tests.refusal import Capture
from tests.small_runs import SMALL, SMALL_MODEL, composed_config


def test_every_job_runs_and_the_first_failure_is_returned() -> None:
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        if number > 4:
            raise ValueError(number)

    failure = run_in_turn(run, {3: Path(), 5: Path(), 4: Path(), 6: Path()}, Launcher())
    assert ran == [3, 5, 4, 6]
    assert repr(failure) == "ValueError(5)"
    assert run_in_turn(run, {1: Path()}, Launcher()) is None


def test_a_missing_directory_fails_its_job_only(tmp_path: Path) -> None:
    ran: list[int] = []
    failure = run_in_turn(ran.append, {0: tmp_path / "absent", 1: tmp_path}, Launcher(in_job_directory=True))
    assert isinstance(failure, FileNotFoundError)
    assert ran == [1]


def test_an_interruption_ends_all_jobs() -> None:
    ran: list[int] = []

    def run(number: int) -> None:
        ran.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_in_turn(run, {1: Path(), 2: Path()}, Launcher())
    assert ran == [1]


@pytest.mark.parametrize("inside", [False, True])
def test_environment_and_folder_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: bool) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLD", "before")
    monkeypatch.delenv("NEW", raising=False)
    (tmp_path / "job").mkdir()
    seen: list[tuple[str, str, Path]] = []

    def run(number: int) -> None:
        seen.append((os.environ["OLD"], os.environ["NEW"], Path.cwd()))
        raise ValueError(number)

    launcher = Launcher(environment={"OLD": "1", "NEW": "2"}, in_job_directory=inside)
    run_in_turn(run, {0: tmp_path / "job"}, launcher)
    assert seen == [("1", "2", tmp_path / "job" if inside else tmp_path)]
    assert (os.environ["OLD"], "NEW" in os.environ, Path.cwd()) == ("before", False, tmp_path)


def test_a_job_has_ended_when_its_process_no_longer_holds_the_lock(tmp_path: Path) -> None:
    assert not has_ended(tmp_path, None)
    with job_lock(tmp_path, on_wait=lambda: None):
        record_failure(NumericError("the loss is nan"), tmp_path, [])
        assert not has_ended(tmp_path, None), "the tracking record of the run is still open"
    with (tmp_path / JOB_LOCK).open() as test:
        assert take_lock(test, shared=True)
        assert has_ended(tmp_path, None), "another process only tests the lock"
    assert not has_ended(tmp_path, last_ended(tmp_path))


@pytest.mark.parametrize("earlier", [False, True])
def test_a_process_that_ends_before_its_job_is_the_new_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, earlier: bool
) -> None:
    (folder / "0").mkdir()
    Plan(str(folder), [], Launcher("joblib"), [job(0)]).write(folder)
    if earlier:
        record_failure(NumericError("the loss is nan"), folder / "0", [])
    monkeypatch.setattr("runner.commands.planned_sweep.runner_command", lambda: ["false"])
    settings = {"here": False, "joined": False, "debug": False, "plugins": [], "jobs_at_once": 1}
    task({**settings, "sweep_dir": str(folder), JOB: "0"})
    error = f"the process of the job ended with exit code 1; see {folder / '0' / 'job.log'}"
    assert capsys.readouterr().err == f"job 0 (seed=0)\njob 0 (seed=0): error: {error}\n"
    _, summary = recorded(folder / "0")
    assert summary is not None
    assert summary.error == Failure("ClusterError", error, ClusterError.exit_code)


FOUR = machine(*(gpu(number) for number in range(4)))


def test_the_first_free_place_or_the_requested_place_is_assigned(tmp_path: Path) -> None:
    with place_lock(tmp_path) as first, place_lock(tmp_path, wanted=3) as fourth, place_lock(tmp_path) as second:
        assert (first, fourth, second) == (0, 3, 1)
        with place_lock(tmp_path, wanted=3) as other:
            assert other == 2
    with place_lock(tmp_path) as again:
        assert again == 0


def test_a_job_that_runs_alone_is_assigned_no_place(tmp_path: Path) -> None:
    with gpu_share(tmp_path, 1, lambda: pytest.fail("GPUs are searched")) as share:
        assert share == GpuShare(0, 1)
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_takes_the_place_of_its_gpus_if_it_is_free(tmp_path: Path) -> None:
    def places(*had: list[int]) -> list[int]:
        with ExitStack() as stack:
            shares = [stack.enter_context(gpu_share(tmp_path, 2, lambda: FOUR, earlier=gpus)) for gpus in had]
            return [share.place for share in shares]

    assert places([2, 3], []) == [1, 0]
    assert places([], [2, 2]) == [0, 1]
    assert places([], [0]) == [0, 1], "the other job has the place"
    assert places([9]) == [0], "no such GPU any more"


def job(number: int) -> PlannedJob:
    return PlannedJob(number, str(number), [], {"seed": str(number)})


def freeze(folder: Path, number: int, *overrides: str) -> None:
    """Write the files of a job that has not run yet."""
    (folder / str(number)).mkdir()
    config = composed_config(*SMALL, *SMALL_MODEL, *overrides)
    (folder / str(number) / FROZEN_FILE).write_text(dump(config))


def run_nested(folder: Path, numbers: list[int], at_once: int, found: Found) -> list[Work]:
    """Start each job within the previous job, so that all run at the same time, as in separate processes."""
    works: list[Work] = []

    def train(work: Work) -> None:
        works.append(work)
        start(numbers[len(works) :])

    def start(left: list[int]) -> None:
        if left:
            run_frozen_job(job(left[0]), folder, at_once, train, find=lambda: found)

    start(numbers)
    return works


def dealt(works: list[Work]) -> list[list[int] | None]:
    return [work.config.cluster.gpus for work in works]


def test_simultaneous_jobs_have_separate_gpus_and_record_them(folder: Path) -> None:
    for number in range(3):
        freeze(folder, number, "parallelism=sync_data", "parallelism.workers=2")
    works = run_nested(folder, [0, 1], 2, FOUR)
    assert dealt(works) == [[0, 1], [2, 3]]
    assert works[1].gpus == "2 jobs of the sweep run at a time: this job uses GPU 2, 3 of 4"
    assert works[0].config.cluster.cores_per_worker == max(1, usable_cores() // 2) / 2
    (again,) = run_nested(folder, [2], 2, FOUR)
    assert again.config.cluster.gpus == [0, 1], "the places of the others are free"


def test_jobs_share_gpus_and_record_it_if_there_are_fewer_gpus(folder: Path) -> None:
    for number in range(3):
        freeze(folder, number)
    works = run_nested(folder, [0, 1, 2], 3, machine(gpu(0), gpu(1)))
    assert dealt(works) == [[0], [1], [0]]
    assert all(work.gpus.endswith(" of 2, shared with other jobs") for work in works)


@pytest.mark.parametrize(
    ("overrides", "at_once", "found", "expected"),
    [
        (["cluster.gpus=[3]"], 2, FOUR, [3]),
        (["cluster.device=cpu"], 2, FOUR, None),
        ([], 2, NO_DRIVER, None),
        (["parallelism=sync_data", "parallelism.workers=5"], 1, FOUR, [0, 1, 2, 3, 0]),
    ],
)
def test_gpus_are_not_shared_if_they_are_named_or_one_job_runs(
    folder: Path, overrides: list[str], at_once: int, found: Found, expected: list[int] | None
) -> None:
    freeze(folder, 0, *overrides)
    (work,) = run_nested(folder, [0], at_once, found)
    assert work.config.cluster.gpus == expected
    assert work.gpus == ""


def test_a_started_run_keeps_its_gpus_and_no_other_job_is_assigned_to_them(folder: Path) -> None:
    for number in range(2):
        freeze(folder, number)
    begun = begin(folder / "0", GpuShare(1, 2))
    works = run_nested(folder, [0, 1], 2, machine(gpu(0), gpu(1)))
    assert works[0].resume
    assert works[0].config == begun
    assert dealt(works) == [[1], [0]]


def begin(directory: Path, share: GpuShare) -> Config:
    """Write the files of a run that has started, and return its configuration."""
    found = machine(gpu(0), gpu(1))
    config = fix_machine_values(load_stored(directory / FROZEN_FILE), 1, lambda: found, share)
    (directory / "config.yaml").write_text(dump(config))
    (directory / "run.json").write_text("{}")
    return config
