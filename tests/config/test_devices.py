"""The devices of a run: requested devices, devices of the machine, and devices in a stored configuration."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from runner.config.configuration import fix_machine_values, from_plain, to_plain
from runner.config.devices import (
    ALL_GPUS,
    GpuShare,
    assign_devices,
    device_texts,
    found_gpus,
    reason,
    reassign_devices,
    require_devices,
    require_precision,
)
from runner.config.outcome import outcome_hash
from runner.config.schema import Config
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import NO_GPUS, Found
from tests.gpus import NO_DRIVER, gpu, machine
from tests.small_runs import composed_config

TWO = ("parallelism=sync_data", "parallelism.workers=2", "tracking=none")
SERVED = (*TWO, "parallelism.combine=parameter_server", "parallelism.servers=2")


@cache
def requested(*overrides: str) -> Config:
    """Return a checked configuration in which no values of the machine are filled in yet."""
    return composed_config(*TWO, *overrides)


def taken(found: Found, *overrides: str) -> Any:
    """Return the cluster section of a run, with the devices of the machine ``found`` filled in."""
    return assign_devices(requested(*overrides), lambda: found)


def test_device_auto_assigns_all_gpus_round_robin_or_the_cpu() -> None:
    here = machine(gpu(0), gpu(1))
    cluster = taken(here, "parallelism.workers=3")
    assert (cluster.device, cluster.device_taken, cluster.gpus) == ("auto", "gpu", [0, 1, 0])
    assert reason(cluster, here) == "cluster.device=auto uses a GPU if there is one, and there is Big GPU, Big GPU"
    cluster = taken(NO_DRIVER)
    assert (cluster.device, cluster.device_taken, cluster.gpus) == ("auto", "cpu", None)
    assert reason(cluster, NO_DRIVER) == "cluster.device=auto has no usable GPU: there is no NVIDIA driver: no libcuda"


def test_an_unusable_gpu_is_not_assigned_and_the_reason_is_reported() -> None:
    here = machine(gpu(), obstacle="Big GPU cannot be used: CuPy is not installed")
    cluster = taken(here)
    assert cluster.device_taken == "cpu"
    assert reason(cluster, here).endswith("Big GPU cannot be used: CuPy is not installed")


def test_a_requested_cpu_is_used_without_looking_for_gpus() -> None:
    cluster = assign_devices(requested("cluster.device=cpu"), lambda: pytest.fail("GPUs are searched"))
    assert cluster.device_taken == "cpu"
    assert found_gpus(cluster, lambda: pytest.fail("GPUs are searched")) is NO_GPUS
    assert reason(cluster, NO_GPUS) == "cluster.device=cpu"


def test_a_requested_gpu_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ResourceError) as refusal:
        taken(NO_DRIVER, "cluster.device=gpu")
    assert str(refusal.value) == (
        "cluster.device=gpu: expected a GPU that can be used, but there is no NVIDIA driver: no libcuda. `runner "
        "doctor` lists the available GPUs; cluster.device=cpu uses no GPU, and its results differ in the last bits"
    )
    assert refusal.value.exit_code == 4


def test_requested_gpus_can_be_shared_and_must_exist() -> None:
    here = machine(gpu(0), gpu(1))
    cluster = taken(here, "cluster.gpus=[1,1]")
    assert (cluster.device, cluster.device_taken, cluster.gpus) == ("gpu", "gpu", [1, 1])
    with pytest.raises(ResourceError, match=r"cluster\.gpus=\[0, 2\]: there is no GPU 2; expected numbers of 0 \(Big"):
        taken(here, "cluster.gpus=[0,2]")
    with pytest.raises(ResourceError) as refusal:
        taken(NO_DRIVER, "cluster.gpus=[1,1]")
    assert str(refusal.value) == (
        "cluster.gpus=[1, 1]: expected a GPU that can be used, but there is no NVIDIA driver: no libcuda. "
        "`runner doctor` lists the available GPUs; cluster.gpus=null leaves the choice to cluster.device=auto"
    )
    stored = taken(NO_DRIVER)
    message = r"gpus=\[0, 0\]: .* on the CPU, .*; use cluster\.device=gpu, or cluster\.gpus=null"
    with pytest.raises(ConfigError, match=message):
        assign_devices(replace(requested(), cluster=replace(stored, gpus=[0, 0])), lambda: machine(gpu()))


def test_servers_are_on_the_cpu_unless_gpus_are_requested() -> None:
    here = machine(gpu(0), gpu(1), gpu(2))
    assert assign_devices(composed_config(*SERVED), lambda: here).gpus == [0, 1]
    served = composed_config(*SERVED, "cluster.server_device=gpu")
    assert assign_devices(served, lambda: here).gpus == [0, 1, 2, 0]


def test_a_gpu_without_bfloat16_is_refused_for_bfloat16() -> None:
    old = machine(gpu(capability=75))
    assert taken(old).device_taken == "gpu"
    with pytest.raises(ResourceError, match=r"precision=bfloat16: Big GPU, compute capability 7\.5, .* needs .* 8"):
        taken(old, "precision=bfloat16")


@pytest.fixture
def cpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.system.machine.cpu_flags", lambda: frozenset({"avx2", "avx512f"}))


@pytest.mark.usefixtures("cpu_without_bfloat16")
def test_a_cpu_without_bfloat16_is_refused_for_bfloat16() -> None:
    expected = (
        "precision=bfloat16: expected a CPU with one of avx512_bf16, amx_bf16; this CPU has none, so bfloat16 "
        "would be slower than float32; use precision=float32, or another machine"
    )
    in_bfloat16 = requested("precision=bfloat16")
    on_cpu = replace(in_bfloat16, cluster=replace(in_bfloat16.cluster, device_taken="cpu"))
    for refuse in (
        lambda: taken(NO_DRIVER, "precision=bfloat16"),
        lambda: taken(machine(gpu()), "precision=bfloat16", "cluster.device=cpu"),
        lambda: require_devices(on_cpu, machine(gpu())),
        lambda: reassign_devices(on_cpu, lambda: machine(gpu())),
        lambda: require_precision(in_bfloat16, lambda: NO_DRIVER),
    ):
        with pytest.raises(ConfigError) as refusal:
            refuse()
        assert str(refusal.value) == expected


@pytest.mark.usefixtures("cpu_without_bfloat16")
def test_the_cpu_is_not_checked_for_a_run_on_a_gpu_or_in_another_precision() -> None:
    here = machine(gpu(0), gpu(1))
    assert taken(here, "precision=bfloat16").device_taken == "gpu"
    for overrides in (["cluster.device=gpu"], ["cluster.gpus=[0,1]"], ["cluster.device=auto"]):
        require_precision(requested("precision=bfloat16", *overrides), lambda: here)
    for precision in ("float32", "float64"):
        require_precision(requested(f"precision={precision}"), lambda: pytest.fail("nothing depends on a GPU"))
        assert taken(NO_DRIVER, f"precision={precision}").device_taken == "cpu"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["cluster.device=cuda"], r"cluster\.device='cuda': expected one of auto, cpu, gpu"),
        (["cluster.server_device=tpu"], r"cluster\.server_device='tpu': expected one of cpu, gpu"),
        (
            ["cluster.device=cpu", "cluster.device_taken=gpu"],
            r"device_taken='gpu': expected cpu with device=cpu, or null",
        ),
        (["cluster.gpus=[]"], r"cluster\.gpus=\[\]: expected one or more GPU numbers from 0, or null"),
        (["cluster.gpus=[0]"], r"cluster\.gpus=\[0\] with parallelism\.workers=2: expected one GPU number .* 2 in all"),
        (
            ["cluster.device=cpu", "cluster.gpus=[0,0]"],
            r"cluster\.gpus=\[0, 0\] with cluster\.device=cpu: the run uses",
        ),
        (["cluster.device=cpu", "cluster.tf32=true"], r"cluster\.tf32=true with cluster\.device=cpu: the run uses"),
        (["cluster.device=cpu", "cluster.server_device=gpu"], r"cluster\.server_device=gpu with cluster\.device=cpu"),
        (["cluster.device=cpu", "cluster.compare_plans=true"], r"cluster\.compare_plans=true with cluster\.device=cpu"),
        (
            [*SERVED, "cluster.server_device=gpu", "cluster.gpus=[0,0,0]"],
            r"\[0, 0, 0\] .*workers=2 and 2 parameter server\(s\) on GPUs: .* 4 in all",
        ),
        (["precision=float64", "cluster.tf32=true"], r"cluster\.tf32=true with precision=float64: only float32"),
    ],
)
def test_impossible_devices_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        requested(*overrides)


def test_the_stored_configuration_has_the_requested_and_the_used_devices() -> None:
    stored = to_plain(fix_machine_values(requested(), 4, lambda: machine(gpu())))
    expected = {"device": "auto", "device_taken": "gpu", "gpus": [0, 0]}
    assert {key: stored["cluster"][key] for key in expected} == expected
    again = fix_machine_values(from_plain(stored), 4, lambda: machine(gpu(0), gpu(1)))
    assert again.cluster.gpus == [0, 0], "stored GPUs are kept"
    message = r"device=auto with cluster\.device_taken=gpu, as when the run began: expect"
    with pytest.raises(ResourceError, match=message):
        fix_machine_values(from_plain(stored), 4, lambda: NO_DRIVER)


def test_a_run_on_the_cpu_stays_on_the_cpu() -> None:
    stored = fix_machine_values(requested(), 4, lambda: NO_DRIVER)
    here = machine(gpu())
    assert fix_machine_values(stored, 4, lambda: here).cluster.device_taken == "cpu"
    assert reason(stored.cluster, here) == "cluster.device=auto found no GPU when the run began; there is Big GPU now"


def test_a_rerun_on_another_machine_uses_and_reports_its_devices() -> None:
    stored = fix_machine_values(requested(), 4, lambda: machine(gpu()))
    here, other = reassign_devices(stored, lambda: machine(gpu()))
    assert (here, other) == (stored, "")
    elsewhere, other = reassign_devices(stored, lambda: NO_DRIVER)
    assert (elsewhere.cluster.device_taken, elsewhere.cluster.gpus) == ("cpu", None)
    assert other == "the run used a GPU, and the repetition uses the CPU: there is no NVIDIA driver: no libcuda"
    wanted = fix_machine_values(requested("cluster.device=gpu"), 4, lambda: machine(gpu()))
    with pytest.raises(ResourceError, match=r"cluster\.device=gpu: expected a GPU"):
        reassign_devices(wanted, lambda: NO_DRIVER)


def test_gpus_that_were_not_requested_are_assigned_again_if_there_are_fewer() -> None:
    two, one = machine(gpu(0), gpu(1)), machine(gpu(0))
    stored = fix_machine_values(requested(), 4, lambda: two)
    here, other = reassign_devices(stored, lambda: one)
    assert (here.cluster.device_taken, here.cluster.gpus, other) == ("gpu", [0, 0], "")
    named = fix_machine_values(requested("cluster.gpus=[0,1]"), 4, lambda: two)
    expected = r"there is no GPU 1; .* Several workers may share a GPU; cluster\.gpus=null uses all GPUs"
    for config, action in ((named, reassign_devices), (stored, assign_devices)):
        with pytest.raises(ResourceError, match=expected):
            action(config, lambda: one)


def test_a_record_of_a_gpu_run_is_not_replayed_on_the_cpu_and_vice_versa() -> None:
    cpu = fix_machine_values(requested(), 4, lambda: NO_DRIVER)
    on_gpu = fix_machine_values(requested(), 4, lambda: machine(gpu()))
    explicit = fix_machine_values(requested("cluster.device=gpu"), 4, lambda: machine(gpu()))
    rounded = fix_machine_values(requested("cluster.tf32=true"), 4, lambda: machine(gpu()))
    compared = fix_machine_values(requested("cluster.compare_plans=true"), 4, lambda: machine(gpu()))
    assert outcome_hash(cpu) != outcome_hash(on_gpu) == outcome_hash(explicit) != outcome_hash(rounded)
    assert outcome_hash(on_gpu) != outcome_hash(compared) != outcome_hash(rounded)
    assert outcome_hash(cpu) == outcome_hash(replace(cpu, cluster=replace(cpu.cluster, device_taken=None)))


def test_devices_are_described() -> None:
    here = machine(gpu())
    devices = {"/job:worker/task:0/device:gpu:0": 0, "/job:ps/task:0/device:cpu:0": None}
    assert device_texts(devices, here) == {
        "/job:worker/task:0/device:gpu:0": "GPU 0: Big GPU, compute capability 9.0, 80.0 GiB, driver 580.1 for CUDA "
        "up to 13.0",
        "/job:ps/task:0/device:cpu:0": "CPU",
    }


def test_a_run_without_assigned_devices_requires_none() -> None:
    require_devices(requested(), NO_DRIVER)


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
def test_every_gpu_is_assigned_once_unless_there_are_more_jobs(gpus: int, jobs: int, expected: list[list[int]]) -> None:
    there = [gpu(number) for number in range(gpus)]
    dealt = [[each.number for each in GpuShare(place, jobs).of(there)] for place in range(jobs)]
    assert dealt == expected
    assert [each.number for each in GpuShare(jobs, jobs).of(there)] == expected[0], "places count modulo jobs"
    assert ALL_GPUS.of([gpu(3), gpu(5)]) == [gpu(3), gpu(5)]
    assert GpuShare(1, 2).of([gpu(3), gpu(5)]) == [gpu(5)], "shares count positions, not GPU numbers"
