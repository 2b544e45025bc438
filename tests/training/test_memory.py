"""Planned memory of processes and of GPUs, and the refusal of runs that do not fit."""

import errno
from pathlib import Path

import pytest

from runner.cli import main
from runner.errors import ResourceError
from runner.records.summary import Summary
from runner.training import memory
from runner.training.build import build
from runner.training.memory import (
    BOUNDARY_COPIES,
    CHECKPOINT_COPIES,
    CONTEXT_BYTES,
    PROGRAM_BYTES,
    GpuMemory,
    ProcessMemory,
)
from runner.training.run import run
from tests.data.own_data import small_arrays, write_arrays
from tests.gpus import GIB, NO_DRIVER, gpu, gpu_kernels, machine
from tests.refusal import Capture
from tests.small_runs import small_config
from tests.training.test_devices import STRATEGIES, placed

__all__ = ["gpu_kernels"]

SMALL_MACHINE = 100 << 20
"""Less memory than a process needs before it computes anything."""


def planned(*overrides: str) -> dict[str, ProcessMemory]:
    """Return the planned memory of each process of a small run, by its name."""
    experiment = build(small_config(*overrides))
    return {each.process: each for each in memory.planned_memory(experiment, experiment.plans())}


def test_the_only_process_of_a_run_needs_all_its_memory() -> None:
    experiment = build(small_config())
    plans = experiment.plans()
    (found,) = memory.planned_memory(experiment, plans)
    values = 64 * 8 + 8 + 8 * 10 + 10
    every = [plans.plans(client.signature) for client in experiment.program.clients.values()]
    assert found.process == "main"
    assert found.checkpoint == 5 * 2 * 4 * values, "copies of parameters and velocities"
    assert found.variables >= 2 * 4 * values
    assert found.step == max(plan.arena_bytes for each in every for plan in each.values() if plan.arena_bytes)
    assert 1797 * (64 + 8) < found.data < 1797 * (64 + 8) + 2 * 256 * (64 * 4 + 64)
    assert found.sent == 0
    assert found.total == found.variables + found.step + found.data + found.checkpoint + PROGRAM_BYTES


@pytest.mark.parametrize(("dtype", "nbytes"), [("uint8", 1), ("float64", 8)])
def test_inputs_take_the_bytes_of_their_dtype(dtype: str, nbytes: int, tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "my.npz", **small_arrays((6, 5), dtype))
    experiment = build(small_config("data=arrays", f"data.path={path}", "data.train_limit=5"))
    assert memory.dataset_bytes(experiment) == (5 + 4) * (6 * 5 * nbytes + 8)


@pytest.mark.parametrize(("precision", "nbytes"), [("float32", 4), ("float64", 8)])
def test_a_streamed_dataset_takes_the_bytes_of_its_batches(precision: str, nbytes: int, tmp_path: Path) -> None:
    data = ("data=arrays", f"data.path={write_arrays(tmp_path / 'my.npz')}", "data.stream=true")
    found = memory.dataset_bytes(build(small_config(*data, f"precision={precision}", "train.eval_batch_size=50")))
    assert found == 12 * memory.INDEX_BYTES + 2 * 50 * (6 * 5 * nbytes)


def test_every_process_holds_its_variables_and_the_data() -> None:
    servers = ("parallelism.combine=parameter_server", "parallelism.servers=2")
    found = planned("parallelism=sync_data", "parallelism.workers=2", *servers)
    assert list(found) == ["master", "worker-0", "worker-1", "ps-0", "ps-1"]
    assert found["master"] == ProcessMemory("master", checkpoint=found["master"].checkpoint)
    assert all(found[name].data > 1797 * 72 for name in found if name != "master")
    assert found["worker-0"].sent > 0
    servers_hold = found["ps-0"].variables + found["ps-1"].variables
    assert 6 * servers_hold >= found["master"].checkpoint
    assert found["ps-0"].sent + found["ps-1"].sent > 2 * servers_hold, "for checkpoints and in steps"


def test_spare_processes_hold_their_program_and_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    spares = ("parallelism=sync_data", "parallelism.workers=2", "cluster.spares=2")
    found = planned(*spares)
    assert list(found) == ["master", "worker-0", "worker-1", "spare-0", "spare-1"]
    assert found["spare-1"].total == PROGRAM_BYTES + memory.dataset_bytes(build(small_config(*spares)))
    without = planned(*spares, "train.restarts=0")
    assert list(without) == ["master", "worker-0", "worker-1"]
    copies = CHECKPOINT_COPIES + BOUNDARY_COPIES
    assert found["master"].checkpoint * copies == without["master"].checkpoint * (copies + 1)
    limit = 2 * (memory.most_bytes(build(small_config(*spares[:2]))) + PROGRAM_BYTES)
    monkeypatch.setattr(memory, "usable_memory", lambda: limit)
    monkeypatch.setattr(memory, "planned_memory", lambda *_: [ProcessMemory("spare-0", step=limit)])
    memory.require_memory(build(small_config(*spares[:2])))
    with pytest.raises(ResourceError, match="the run needs"):
        memory.require_memory(build(small_config(*spares)))


def test_memory_of_other_hosts_is_not_memory_of_this_machine() -> None:
    found = list(planned("parallelism=sync_data", "parallelism.workers=2", "cluster/launcher=slurm").values())
    assert [each.here for each in found] == [True, False, False]
    memory.require_fit(found, found[0].total)
    with pytest.raises(ResourceError, match=r"of memory in 1 process\(es\), .*; the largest process, master: "):
        memory.require_fit(found, found[0].total - 1)
    assert memory.fit_text(found, GIB, GIB).startswith(f"memory needed {memory.gib(found[0].total)}; ")


def test_a_run_that_fits_is_reported_and_a_larger_run_is_refused_with_numbers() -> None:
    two = [ProcessMemory("worker-0", variables=GIB), ProcessMemory("worker-1", variables=GIB, step=4 * GIB, data=GIB)]
    needed = 7 * GIB + 2 * PROGRAM_BYTES
    memory.require_fit(two, needed)
    with pytest.raises(ResourceError) as refusal:
        memory.require_fit(two, needed - 1)
    assert str(refusal.value).startswith(
        "the run needs 7.29 GiB of memory in 2 process(es), and this machine has 7.29 GiB; the largest process, "
        "worker-1: 4.00 GiB in a step, 1.00 GiB of variables, 1.00 GiB of data, 0.00 GiB to write a checkpoint. Use a "
    )
    assert memory.fit_text(two, 16 * GIB, 8 * GIB).endswith("this machine has 16.00 GiB, 8.00 GiB available now")
    assert memory.fit_text(two, 16 * GIB, 2 * GIB).endswith("2.00 GiB available now, too little")
    assert memory.fit_text(two, 4 * GIB, 2 * GIB).endswith("2.00 GiB available now: the run does not fit")


def test_a_process_that_exceeds_its_resource_limits_is_refused_with_numbers() -> None:
    two = [ProcessMemory("worker-0", variables=GIB), ProcessMemory("worker-1", variables=GIB, checkpoint=5 * GIB)]
    memory.require_fit(two, 16 * GIB, room=6 * GIB)
    with pytest.raises(ResourceError) as refusal:
        memory.require_fit(two, 16 * GIB, room=6 * GIB - 1)
    assert str(refusal.value).startswith(
        "a process of the run needs 6.00 GiB of memory besides its program, and its resource limits (ulimit -v, "
        "ulimit -d) leave 6.00 GiB; the largest process, worker-1: 0.00 GiB in a step, 1.00 GiB of variables, 0.00 "
        "GiB of data,"
    )
    assert str(refusal.value).endswith("; or raise the limits")


def test_only_large_runs_are_checked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    experiment = build(small_config())
    with monkeypatch.context() as patch:
        patch.setattr(memory, "planned_memory", lambda *_: pytest.fail("the planner ran"))
        memory.require_memory(experiment)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "process_room", lambda: 1 << 10)
        with pytest.raises(ResourceError, match=r"resource limits \(ulimit -v, ulimit -d\) leave 0\.00 GiB"):
            memory.require_memory(experiment)
    monkeypatch.setattr(memory, "usable_memory", lambda: 2 * SMALL_MACHINE)
    monkeypatch.setattr(memory, "available_memory", lambda: 1 << 20)
    memory.require_memory(experiment)
    assert "0.00 GiB available now, too little" in caplog.text


def test_a_run_that_does_not_fit_creates_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "usable_memory", lambda: SMALL_MACHINE)
    with pytest.raises(ResourceError, match=r"the run needs 0\.15 GiB of memory in 1 process\(es\)"):
        run(small_config(), tmp_path / "run", overrides=())
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError("Unable to allocate 64.0 MiB"), r"^out of memory: Unable to allocate 64\.0 MiB; use a smaller"),
        (OSError(errno.ENOSPC, "No space"), r"^no space left on a disk: \[Errno 28\] No space; free space, then"),
    ],
    ids=["memory", "disk"],
)
def test_a_run_without_memory_or_space_ends_with_a_resource_error(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_session(*_: object) -> None:
        raise error

    monkeypatch.setattr("runner.training.run.open_session", open_session)
    with pytest.raises(ResourceError, match=message):
        run(small_config(), tmp_path / "run", overrides=())
    failure = Summary.read(tmp_path / "run" / "summary.json").error
    assert failure is not None
    assert (failure.class_name, failure.exit_code) == ("ResourceError", 4)


def test_variables_that_no_machine_holds_are_refused_before_kernels_see_them(folder: Path, capsys: Capture) -> None:
    assert main(["explain", "model=lenet", "model.units=1000000000", "parallelism=sync_data"]) == 4
    assert "the variables of the model and the optimizer take " in capsys.readouterr().err
    images = ("data=synthetic", "data.shape=[65536,65536,65536]")
    assert main(["explain", "model=mlp", "model.hidden=[1000000000]", *images]) == 4
    assert "more than any machine has; use a smaller model" in capsys.readouterr().err


def test_explain_refuses_runs_that_cannot_fit(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["explain", "model=mlp", "parallelism=single"]
    assert main(arguments) == 0
    assert "\nprocess  variables  step  sent  data  checkpoint  program  total MiB\nmain " in capsys.readouterr().out
    monkeypatch.setattr("runner.commands.explain.usable_memory", lambda: SMALL_MACHINE)
    assert main(arguments) == 4
    out, err = capsys.readouterr()
    assert "\nmain " in out
    assert "this machine has 0.10 GiB" in err


@pytest.mark.usefixtures("gpu_kernels")
def test_memory_of_devices_on_one_gpu_adds_up_and_is_not_host_memory() -> None:
    experiment = placed(machine(gpu(0), gpu(1)), *STRATEGIES["sync_data"], "cluster.gpus=[0,0,1]")
    plans = experiment.plans()
    first, second = memory.planned_gpu_memory(experiment, plans)
    assert (first.gpu, second.gpu) == (0, 1)
    assert len(first.devices) == 2
    assert first.variables == 2 * second.variables > 0
    assert 1.5 * second.step < first.step
    assert first.total == first.variables + first.step + first.moved + CONTEXT_BYTES
    (host,) = memory.planned_memory(experiment, plans)
    assert (host.variables, host.step) == (0, 0)
    assert host.checkpoint > 0
    on_cpu = placed(NO_DRIVER, *STRATEGIES["sync_data"])
    assert memory.planned_gpu_memory(on_cpu, on_cpu.plans()) == []


@pytest.mark.usefixtures("gpu_kernels")
def test_every_process_has_a_context_on_its_gpu() -> None:
    experiment = placed(machine(gpu()), *STRATEGIES["servers"], "cluster.one_process=false")
    (found,) = memory.planned_gpu_memory(experiment, experiment.plans())
    assert found.processes == 3, "two workers, and the master, which plans"
    processes = {each.process: each for each in memory.planned_memory(experiment, experiment.plans())}
    assert processes["worker-0"].variables == 0
    assert processes["ps-0"].variables > 0


def test_a_run_that_exceeds_a_gpu_is_refused_with_numbers() -> None:
    devices = ("/job:worker/task:0/device:gpu:0", "/job:worker/task:1/device:gpu:0")
    needed_memory = GpuMemory(1, devices, variables=GIB, step=4 * GIB, moved=GIB)
    needed = 6 * GIB + CONTEXT_BYTES
    gpus = (gpu(0, memory_bytes=1), gpu(1, memory_bytes=needed))
    memory.require_gpu_fit([needed_memory], gpus)
    text = "memory needed 6.49 GiB of GPU 1 (Big GPU, compute capability 9.0, 6.5 GiB)"
    assert memory.gpu_fit_text(needed_memory, gpus[1]) == text
    small = gpu(1, memory_bytes=needed - 1)
    assert memory.gpu_fit_text(needed_memory, small).endswith(": the run does not fit")
    with pytest.raises(ResourceError) as refusal:
        memory.require_gpu_fit([needed_memory], (gpu(0), small))
    assert str(refusal.value).startswith(
        "the run needs 6.49 GiB of GPU 1 (Big GPU), which has 6.49 GiB: 2 device(s) in 1 process(es), 4.00 GiB in a "
        "step, 1.00 GiB of variables, 1.00 GiB fed and sent. Use a smaller train.batch_size"
    )


def test_memory_used_by_other_processes_is_not_available() -> None:
    needed_memory = GpuMemory(0, ("/job:worker/task:0/device:gpu:0",), variables=GIB)
    needed = GIB + CONTEXT_BYTES
    enough, little = gpu(free_bytes=needed), gpu(free_bytes=needed - 1)
    memory.require_gpu_fit([needed_memory], [enough])
    assert memory.gpu_fit_text(needed_memory, enough).endswith("80.0 GiB, 1.49 GiB free)")
    assert memory.gpu_fit_text(needed_memory, little).endswith("80.0 GiB, 1.49 GiB free): the run does not fit")
    message = r"needs 1\.49 GiB of GPU 0 \(Big GPU\), which has 1\.49 GiB free of 80\.00"
    with pytest.raises(ResourceError, match=message):
        memory.require_gpu_fit([needed_memory], [little])


@pytest.mark.usefixtures("gpu_kernels")
def test_a_run_that_no_gpu_holds_is_refused_and_a_small_one_is_not_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(gpu(0, memory_bytes=CONTEXT_BYTES))
    with pytest.raises(ResourceError, match=r"the run needs 0\.49 GiB of GPU 0 \(Big GPU\), which has 0\.49 GiB"):
        memory.require_gpu_memory(placed(here, "parallelism=single"), here.gpus)
    taken = machine(gpu(0, free_bytes=CONTEXT_BYTES))
    with pytest.raises(ResourceError, match=r"which has 0\.49 GiB free of 80\.00 GiB"):
        memory.require_gpu_memory(placed(taken, "parallelism=single"), taken.gpus)
    monkeypatch.setattr(memory, "planned_gpu_memory", lambda *_: pytest.fail("the planner ran"))
    memory.require_gpu_memory(placed(machine(gpu()), "parallelism=single"), machine(gpu()).gpus)
    memory.require_gpu_memory(placed(NO_DRIVER, "parallelism=single"), here.gpus)
