"""Planned memory of processes, and the refusal of runs."""

from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.explanation.devices import plans_of
from runner.errors import ResourceError
from runner.records.summary import Summary
from runner.training import memory
from runner.training.build import build
from runner.training.memory import PROGRAM_BYTES, ProcessMemory, fit_text, planned_memory, require_fit, require_memory
from runner.training.run import run
from tests.small_runs import small_config

GIB = 1 << 30
SMALL_MACHINE = 100 << 20
"""Less than a process takes before it has computed anything."""


def planned(*overrides: str) -> dict[str, ProcessMemory]:
    """What each process of a small run takes, by its name."""
    experiment = build(small_config(*overrides))
    return {each.process: each for each in planned_memory(experiment, plans_of(experiment))}


def test_one_process_has_everything() -> None:
    experiment = build(small_config())
    plans = plans_of(experiment)
    (found,) = planned_memory(experiment, plans)
    values = 64 * 8 + 8 + 8 * 10 + 10
    every = [plans.plans(client.signature) for client in experiment.program.clients.values()]
    assert found.process == "main"
    assert found.checkpoint == 5 * 2 * 4 * values, "copies of parameters and velocities"
    assert found.variables >= 2 * 4 * values
    assert found.step == max(plan.arena_bytes for each in every for plan in each.values() if plan.arena_bytes)
    assert 1797 * (64 + 8) < found.data < 1797 * (64 + 8) + 2 * 256 * (64 * 4 + 64)
    assert found.sent == 0
    assert found.total == found.variables + found.step + found.data + found.checkpoint + PROGRAM_BYTES


def test_every_process_holds_its_variables_and_the_data() -> None:
    servers = ("parallelism.combine=parameter_server", "parallelism.servers=2")
    found = planned("parallelism=sync_data", "parallelism.workers=2", *servers)
    assert list(found) == ["master", "worker-0", "worker-1", "ps-0", "ps-1"]
    assert found["master"] == ProcessMemory("master", checkpoint=found["master"].checkpoint)
    assert all(found[name].data > 1797 * 72 for name in found if name != "master")
    assert found["worker-0"].sent > 0
    servers_hold = found["ps-0"].variables + found["ps-1"].variables
    assert 5 * servers_hold >= found["master"].checkpoint
    assert found["ps-0"].sent + found["ps-1"].sent > 2 * servers_hold, "what is saved, and what is sent in a step"


def test_a_larger_batch_needs_more_in_a_step_and_fewer_examples_less_data() -> None:
    small, large = planned("train.batch_size=32"), planned("train.batch_size=1024")
    assert large["main"].step > small["main"].step
    assert planned("data.train_limit=100")["main"].data < small["main"].data


def test_a_fitting_run_is_reported_and_a_larger_one_refused_with_numbers() -> None:
    two = [ProcessMemory("worker-0", variables=GIB), ProcessMemory("worker-1", variables=GIB, step=4 * GIB, data=GIB)]
    needed = 7 * GIB + 2 * PROGRAM_BYTES
    require_fit(two, needed)
    with pytest.raises(ResourceError) as refusal:
        require_fit(two, needed - 1)
    assert str(refusal.value).startswith(
        "the run needs 7.29 GiB of memory in 2 process(es), and this machine has 7.29 GiB; the largest, worker-1: "
        "4.00 GiB in a step, 1.00 GiB of variables, 1.00 GiB of data, 0.00 GiB to write a checkpoint. Use a "
    )
    assert fit_text(two, 16 * GIB, 8 * GIB).endswith("this machine has 16.00 GiB, 8.00 GiB available now")
    assert fit_text(two, 16 * GIB, 2 * GIB).endswith("2.00 GiB available now, less than it needs")
    assert fit_text(two, 4 * GIB, 2 * GIB).endswith("2.00 GiB available now, it cannot fit")


def test_a_process_that_exceeds_its_resource_limits_is_refused_with_numbers() -> None:
    two = [ProcessMemory("worker-0", variables=GIB), ProcessMemory("worker-1", variables=GIB, checkpoint=5 * GIB)]
    require_fit(two, 16 * GIB, room=6 * GIB)
    with pytest.raises(ResourceError) as refusal:
        require_fit(two, 16 * GIB, room=6 * GIB - 1)
    assert str(refusal.value).startswith(
        "a process of the run needs 6.00 GiB of memory besides its program, and its resource limits (ulimit -v, "
        "ulimit -d) leave 6.00 GiB; the largest, worker-1: 0.00 GiB in a step, 1.00 GiB of variables, 0.00 GiB of data,"
    )
    assert str(refusal.value).endswith("; or raise the limits")


def test_resource_limits_are_compared_with_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "process_room", lambda: 1 << 10)
    with pytest.raises(ResourceError, match=r"resource limits \(ulimit -v, ulimit -d\) leave 0\.00 GiB"):
        require_memory(build(small_config()))


def test_a_small_run_is_not_planned_for_this(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "planned_memory", lambda *_: pytest.fail("it takes time"))
    require_memory(build(small_config()))


def test_a_run_that_cannot_fit_is_refused_before_its_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "usable_memory", lambda: SMALL_MACHINE)
    with pytest.raises(ResourceError, match=r"the run needs 0\.15 GiB of memory in 1 process\(es\)"):
        run(small_config(), tmp_path / "run", overrides=())
    assert not (tmp_path / "run").exists()


def test_a_run_that_runs_out_of_memory_ends_as_one_without_resources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(_: object) -> None:
        raise MemoryError("Unable to allocate 64.0 MiB")

    monkeypatch.setattr("runner.training.run._Run.execute", execute)
    with pytest.raises(ResourceError, match=r"^out of memory: Unable to allocate 64\.0 MiB; use a smaller batch"):
        run(small_config(), tmp_path / "run", overrides=())
    error = Summary.read(tmp_path / "run" / "summary.json").error
    assert error is not None
    assert (error.class_name, error.exit_code) == ("ResourceError", 4)


def test_variables_that_no_machine_holds_are_refused_before_kernel_libraries_see_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "model=lenet", "model.units=1000000000", "parallelism=sync_data"]) == 4
    assert "the variables of the model and the optimizer take " in capsys.readouterr().err
    images = ("data=synthetic", "data.shape=[65536,65536,65536]")
    assert main(["explain", "model=mlp", "model.hidden=[1000000000]", *images]) == 4
    assert "more than any machine has; use a smaller model" in capsys.readouterr().err


def test_a_machine_that_is_full_now_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "usable_memory", lambda: 2 * SMALL_MACHINE)
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 20)
    require_memory(build(small_config()))
    assert "0.00 GiB available now, less than it needs" in caplog.text


def test_explain_prints_the_needed_memory_and_refuses_runs_that_cannot_fit(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["explain", "model=mlp", "parallelism=single"]
    assert main(arguments) == 0
    assert "\nprocess  variables  step  sent  data  checkpoint  program  MiB in all\nmain " in capsys.readouterr().out
    monkeypatch.setattr("runner.system.machine.usable_memory", lambda: SMALL_MACHINE)
    assert main(arguments) == 4
    out, err = capsys.readouterr()
    assert "\nmain " in out
    assert "this machine has 0.10 GiB" in err
