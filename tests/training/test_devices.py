"""The devices of a run: every strategy is planned on GPUs as on CPUs, in one process or with NCCL."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from runner.commands.explain import explain_with_memory
from runner.commands.explanation import device_lines
from runner.config.configuration import fix_machine_values
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.engine.compile.plan import DevicePlan
from runner.engine.compile.program import Client
from runner.engine.graph import Cluster, GpuOptions, Graph, local_cluster, task_of
from runner.engine.graph.device import GPU_LATENCY_S, GPU_LINK_BYTES_PER_S
from runner.errors import ConfigError, ResourceError
from runner.kernels.gpu.discovery import INSTALL, Found, Library
from runner.kernels.registry import Registry
from runner.records.summary import Summary
from runner.training.build import build
from runner.training.comparison import _experiments, predicted_step_s
from runner.training.devices import cluster_of, log_run_devices, require_kernels
from runner.training.experiment import Experiment
from runner.training.run import run
from tests.config.test_collectives import SUMMED, TWO, WITHOUT
from tests.gpus import NO_DRIVER, gpu, gpu_kernels, machine, nccl_kernels
from tests.small_runs import SMALL, SMALL_MODEL, composed_config

__all__ = ["gpu_kernels", "nccl_kernels"]

STRATEGIES = {
    "single": ("parallelism=single",),
    "sync_data": ("parallelism=sync_data", "parallelism.workers=3"),
    "ring": ("parallelism=sync_data", "parallelism.workers=3", "parallelism.combine=ring_all_reduce"),
    "servers": ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.servers=2"),
    "backup": ("parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"),
    "async_data": ("parallelism=async_data",),
    "hybrid": ("parallelism=hybrid",),
    "model": ("parallelism=model", "parallelism.workers=2"),
    "sandblaster": ("parallelism=sandblaster", "optimizer=lbfgs", "schedule=constant"),
}
DRAFT = Summary("0123", "failed", "", "", "single", 1, {"python": "3"}, "", "")
OVERLAPPING = ("backup", "async_data", "sandblaster")


@pytest.fixture(autouse=True)
def emulated_gpus(request: pytest.FixtureRequest) -> None:
    """Replace the kernels of GPUs by those of the emulated GPU in all tests of this file."""
    request.getfixturevalue("gpu_kernels")


def config_on(found: Found, *overrides: str) -> Config:
    """Return a small configuration, completed with the values of a machine that has four cores and these GPUs."""
    return fix_machine_values(composed_config(*SMALL_MODEL, *SMALL, *overrides), 4, lambda: found)


def placed(found: Found, *overrides: str) -> Experiment:
    """Return the experiment of a configuration from :func:`config_on`."""
    return build(config_on(found, *overrides))


def plans(experiment: Experiment) -> dict[str, dict[str, DevicePlan]]:
    """Return the plans as dicts: client -> task of a device -> plan."""
    planned = experiment.plans()
    found = {name: planned.plans(client.signature) for name, client in experiment.program.clients.items()}
    return {name: {task_of(device): plan for device, plan in each.items()} for name, each in found.items()}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_is_planned_on_gpus_without_changes_in_one_process_unless_clients_overlap(strategy: str) -> None:
    experiment, on_cpu = (placed(found, *STRATEGIES[strategy]) for found in (machine(gpu()), NO_DRIVER))
    assert (experiment.program.one_process is None) == (strategy in OVERLAPPING)
    assert (on_cpu.program.one_process is None) == (strategy != "single")
    kinds = {task_of(device.name): device.type for device in experiment.cluster.devices}
    assert set(kinds.values()) == ({"cpu", "gpu"} if experiment.program.servers else {"gpu"})
    assert all((kind == "gpu") == task.startswith("/job:worker") for task, kind in kinds.items())
    if strategy != "model":  # the placement of "model" depends on the rates of the devices
        tasks = ({name: set(each) for name, each in plans(one).items()} for one in (experiment, on_cpu))
        assert next(tasks) == next(tasks)
    for each in plans(experiment).values():
        for task, plan in each.items():
            assert plan.device == f"{task}/device:{kinds[task]}:0"


@pytest.mark.parametrize("strategy", ["servers", "backup", "async_data", "sandblaster"])
def test_servers_are_placed_on_gpus_on_request(strategy: str) -> None:
    experiment = placed(machine(gpu(0), gpu(1)), *STRATEGIES[strategy], "cluster.server_device=gpu")
    devices = experiment.cluster.devices
    assert len(devices) == experiment.program.workers + experiment.program.servers > experiment.program.workers
    assert [(device.type, device.gpu) for device in devices] == [("gpu", k % 2) for k in range(len(devices))]


def test_the_configuration_decides_whether_there_is_one_process() -> None:
    for apart in (("cluster.one_process=false",), ("cluster=slow_network", "cluster.emulate=true")):
        assert placed(machine(gpu()), *STRATEGIES["sync_data"], *apart).program.one_process is None
    assert placed(NO_DRIVER, *STRATEGIES["sync_data"], "cluster.one_process=true").program.one_process is not None
    with pytest.raises(
        ConfigError, match="one_process=true with parallelism=async_data: the workers run independently, and one"
    ):
        placed(NO_DRIVER, "parallelism=async_data", "cluster.one_process=true")
    with pytest.raises(ConfigError, match=r"one_process=false with .*=single, which has one process; expected null"):
        placed(NO_DRIVER, "parallelism=single", "cluster.one_process=false")


def test_links_of_gpus_have_the_rates_within_a_process_unless_configured() -> None:
    def rates(cluster: Cluster) -> tuple[float, float]:
        return cluster.latency_s, cluster.bytes_per_s

    assert rates(placed(machine(gpu()), *STRATEGIES["ring"]).cluster) == (GPU_LATENCY_S, GPU_LINK_BYTES_PER_S)
    assert rates(placed(NO_DRIVER, *STRATEGIES["ring"]).cluster) == (Cluster.latency_s, Cluster.bytes_per_s)
    reported = placed(machine(gpu()), *STRATEGIES["ring"], "cluster.latency_ms=2", "cluster.bandwidth_mbit=8")
    assert rates(reported.cluster) == (2e-3, 1e6)


@pytest.mark.parametrize("option", ["compare_plans", "tf32", ""])
def test_options_reach_the_devices(option: str) -> None:
    given = [f"cluster.{option}=true"] if option else []
    (device,) = placed(machine(gpu()), "parallelism=single", *given).cluster.devices
    assert replace(device.use, code_folder="") == GpuOptions(**({option: True} if option else {}))


def test_an_op_without_a_kernel_for_gpus_and_a_node_on_a_cpu_are_named() -> None:
    program = placed(NO_DRIVER, *STRATEGIES["servers"]).program
    on_gpus = cluster_of(config_on(machine(gpu()), *STRATEGIES["servers"]).cluster, program)
    with pytest.raises(ConfigError, match=r"device=gpu: node 'replica_0/.*' is on a GPU, and its op '\w+' has kernels"):
        require_kernels(program, on_gpus, Registry())
    require_kernels(program, local_cluster(2, servers=2), Registry())
    fixed = Graph({node.name: replace(node, device=f"{task_of(node.device)}/device:cpu:0") for node in program.graph})
    with pytest.raises(
        ConfigError,
        match=r"node '.*' has device '/job:worker/task:\d/device:cpu:0'; expected one of /job:.*\. "
        r"A strategy should use worker_task\(k\) or server_task\(k\), .*; or use cluster\.device=cpu",
    ):
        require_kernels(replace(program, graph=fixed), on_gpus, Registry())


@pytest.mark.parametrize("apart", [False, True])
def test_steps_are_compared_with_the_gpus_and_processes_of_the_run(apart: bool) -> None:
    requested = f"cluster.one_process={'false' if apart else 'null'}"
    experiment = placed(machine(gpu(0), gpu(1)), *STRATEGIES["model"], requested)
    slow = placed(NO_DRIVER, *STRATEGIES["model"])
    assert predicted_step_s(experiment)["single"] < predicted_step_s(slow)["single"]
    found = dict(_experiments(experiment))
    gpus = {name: [device.gpu for device in each.cluster.devices] for name, each in found.items()}
    assert gpus == {"model": [0, 1], "single": [0], "sync_data": [0, 1]}
    together = {name: each.program.one_process is not None for name, each in found.items()}
    assert together == {"model": not apart, "single": True, "sync_data": not apart}


def test_a_compared_strategy_of_one_process_needs_no_launcher() -> None:
    found = dict(_experiments(placed(NO_DRIVER, *STRATEGIES["model"], "cluster/launcher=slurm")))
    apart = {name: each.program.one_process is None for name, each in found.items()}
    assert apart == {"model": True, "single": False, "sync_data": True}


def test_a_placement_stored_on_cpus_is_used_on_gpus(tmp_path: Path) -> None:
    found = placed(NO_DRIVER, *STRATEGIES["model"]).placed
    assert found is not None
    found.placement.write(tmp_path / "placement.json")
    given = f"parallelism.placement={tmp_path / 'placement.json'}"
    again = placed(machine(gpu()), *STRATEGIES["model"], given).placed
    assert again is not None
    tasks = [{layer: task_of(device) for layer, device in each.placement.layers.items()} for each in (found, again)]
    assert tasks[0] == tasks[1]
    assert all(device.endswith("/device:gpu:0") for device in again.placement.layers.values())


def test_log_and_summary_name_the_devices_and_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    here = machine(gpu())
    with caplog.at_level(logging.INFO, "runner"):
        requested = ("parallelism=single", "cluster.tf32=true", "cluster.compare_plans=true")
        reported = log_run_devices(placed(here, *requested), here, DRAFT)
    text = "GPU 0: Big GPU, compute capability 9.0, 80.0 GiB, driver 580.1 for CUDA up to 13.0"
    assert reported.devices == {"/job:worker/task:0/device:gpu:0": text}
    assert reported.device_reason == "cluster.device=auto uses a GPU if there is one, and there is Big GPU"
    assert reported.versions == {"python": "3", "CuPy": "14.2.0 (cupy-cuda13x)"}
    assert "for CUDA up to 13.0, float32 products in TF32, the fastest plan of each convolution\n" in caplog.text
    assert f"devices: {reported.device_reason}" in caplog.text


@pytest.mark.parametrize(("overrides", "level"), [((), logging.WARNING), (("cluster.device=cpu",), logging.INFO)])
def test_an_idle_gpu_causes_a_warning(overrides: tuple[str, ...], level: int, caplog: pytest.LogCaptureFixture) -> None:
    here = machine(gpu(), obstacle="CuPy is not installed")
    experiment = placed(here, "parallelism=single", *overrides)
    with caplog.at_level(logging.INFO, "runner"):
        reported = log_run_devices(experiment, here, DRAFT)
    assert reported.devices == {"/job:worker/task:0/device:cpu:0": "CPU"}
    assert reported.versions == DRAFT.versions
    assert caplog.records[-1].levelno == level


def test_keys_for_gpus_cause_a_warning_without_gpus(caplog: pytest.LogCaptureFixture) -> None:
    def warnings(*overrides: str) -> list[str]:
        caplog.clear()
        log_run_devices(placed(NO_DRIVER, *STRATEGIES["servers"], *overrides), NO_DRIVER, DRAFT)
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    assert warnings() == warnings("cluster.device=cpu") == []
    keys = ("cluster.tf32=true", "cluster.compare_plans=true", "cluster.server_device=gpu")
    assert warnings(*keys) == [f"{key} has no effect: no GPU is used" for key in keys]


def test_a_missing_library_of_fast_gpu_kernels_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    bare = replace(machine(gpu()), libraries=(Library("cuDNN", "", "convolutions crawl", fast=True),))
    reported = log_run_devices(placed(bare, "parallelism=single"), bare, DRAFT)
    missing = f"not installed, convolutions crawl: {INSTALL}"
    assert reported.kernels_missing == {"cuDNN": missing}
    assert f"cuDNN: {missing}" in caplog.text
    assert log_run_devices(placed(NO_DRIVER, "parallelism=single"), bare, DRAFT).kernels_missing == {}


@pytest.mark.parametrize("strategy", ["single", "servers"])
def test_a_gpu_has_nearly_the_results_of_a_cpu(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine(gpu())
    monkeypatch.setattr("runner.training.run.found_gpus", lambda cluster: here)
    on_gpu = run(config_on(here, *STRATEGIES[strategy]), tmp_path / "gpu", overrides=())
    monkeypatch.setattr("runner.training.run.found_gpus", lambda cluster: NO_DRIVER)
    config = config_on(NO_DRIVER, *STRATEGIES["single"])
    on_cpu = run(config, tmp_path / "CPU", overrides=())
    assert on_gpu.status == "finished"
    assert on_gpu.devices["/job:worker/task:0/device:gpu:0"].startswith("GPU 0: Big GPU")
    assert on_gpu.kernels["gpu"] == "cuda"
    assert on_gpu.final["train/loss"] == pytest.approx(on_cpu.final["train/loss"], rel=1e-4)


def test_the_log_names_the_gpus_of_a_sweep_job_and_the_summary_its_devices(tmp_path: Path) -> None:
    config = config_on(NO_DRIVER, "parallelism=single")
    for text in ("this job uses GPU 1 of 2", ""):
        place = SweepPlace(tmp_path, 0, {}, text)
        summary = run(config, tmp_path / (text or "none"), overrides=(), sweep=place)
        assert summary.devices == {"/job:worker/task:0/device:cpu:0": "CPU"}
        assert summary.device_reason.startswith("cluster.device=auto has no usable GPU")
        log = (tmp_path / (text or "none") / "run.log").read_text()
        assert log.count(" devices: ") == 1 + bool(text)
        assert not text or f"devices: {text}\n" in log


def test_a_run_on_a_missing_gpu_creates_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_on(machine(gpu()), "parallelism=single")
    monkeypatch.setattr("runner.training.run.found_gpus", lambda cluster: NO_DRIVER)
    with pytest.raises(ResourceError, match=r"device_taken=gpu, as when the run began: expected a GPU"):
        run(config, tmp_path / "run", overrides=())
    assert not (tmp_path / "run").exists()


def test_explain_shows_devices_and_gpus() -> None:
    here = machine(gpu())
    text, _, on_gpus = explain_with_memory(config_on(here, *STRATEGIES["sync_data"]), here)
    assert (
        "\ndevices                 3 on GPU 0: Big GPU, compute capability 9.0, 80.0 GiB, driver 580.1 for CUDA up "
        "to 13.0; in one process\nchosen because          cluster.device=auto uses a GPU" in text
    )
    assert "\nfloat32 products        float32\nplans of convolutions   the first that cuDNN proposes\n" in text
    assert "\n/job:worker/task:2/device:gpu:0 " in text
    assert "\ngpu  devices  processes  variables  step  fed and sent  contexts  total MiB\n  0        3 " in text
    assert "GiB of GPU 0 (Big GPU, compute capability 9.0, 80.0 GiB)\n" in text
    (on_gpu,) = on_gpus
    assert (on_gpu.gpu, len(on_gpu.devices), on_gpu.processes) == (0, 3, 1)
    text, _, on_gpus = explain_with_memory(config_on(NO_DRIVER, *STRATEGIES["sync_data"]), NO_DRIVER)
    assert "\ndevices                 3 on CPU; one process each\nchosen because" in text
    assert on_gpus == []
    assert "\ngpu " not in text


def summing(found: Found, *overrides: str) -> Experiment:
    """Return the experiment of a configuration from :func:`config_on` whose gradients are summed by all_reduce."""
    return placed(found, *SUMMED, *overrides)


@pytest.mark.usefixtures("nccl_kernels")
def test_a_run_with_nccl_has_a_process_for_each_gpu() -> None:
    experiment = summing(TWO)
    assert experiment.program.one_process is None
    assert experiment.cluster.collectives == "nccl"
    assert [device.gpu for device in experiment.cluster.devices] == [0, 1]


def test_an_nccl_that_cannot_be_loaded_is_reported_before_planning() -> None:
    expected = r"^cluster\.collectives=nccl: the library is not available through CuPy; see `runner doctor`"
    with pytest.raises(ResourceError, match=expected):
        summing(TWO)


@pytest.mark.parametrize(
    "overrides",
    [("cluster.collectives=none",), ("parallelism.combine=ring_all_reduce",), ("cluster.one_process=true",)],
)
def test_without_nccl_copies_are_made_from_gpu_to_gpu(overrides: tuple[str, ...]) -> None:
    experiment = summing(TWO, *overrides)
    assert experiment.program.one_process is not None
    assert experiment.cluster.collectives == "none"


def test_strategies_without_sums_or_with_overlapping_clients_use_no_nccl() -> None:
    experiment = summing(NO_DRIVER)
    taken = replace(experiment.config.cluster, device_taken="gpu", gpus=[0, 1], collectives="nccl")
    other = summing(NO_DRIVER, "parallelism.combine=sharded_reduce").program
    assert [cluster_of(taken, program).collectives for program in (experiment.program, other)] == ["nccl", "none"]
    deferred = {"push": Client("push", deferred=True)}
    program = replace(experiment.program, clients={**experiment.program.clients, **deferred})
    with pytest.raises(ConfigError, match=r"collectives=nccl with workers that run independently: all GPUs must start"):
        cluster_of(taken, program)


@pytest.mark.usefixtures("nccl_kernels")
@pytest.mark.parametrize(
    ("found", "reported"),
    [
        (TWO, "NCCL sums, from GPU to GPU"),
        (WITHOUT, "every worker receives all parts from GPU to GPU and sums them: NCCL is not installed with CuPy"),
        (machine(gpu(0)), "every worker receives all parts from GPU to GPU and sums them: workers share a GPU"),
    ],
)
def test_log_and_text_name_the_library_that_sums(found: Found, reported: str, caplog: pytest.LogCaptureFixture) -> None:
    experiment = summing(found)
    with caplog.at_level(logging.INFO, "runner.training.devices"):
        log_run_devices(experiment, found, DRAFT)
    assert any(each.startswith(f"combine=all_reduce: {reported}") for each in caplog.messages)
    assert any(line.startswith("sums of all_reduce") and reported in line for line in device_lines(experiment, found))


def test_on_the_cpu_collectives_cause_a_warning_only(caplog: pytest.LogCaptureFixture) -> None:
    experiment = summing(NO_DRIVER, "cluster.collectives=nccl")
    with caplog.at_level(logging.INFO, "runner.training.devices"):
        log_run_devices(experiment, NO_DRIVER, DRAFT)
    assert "cluster.collectives=nccl has no effect: no GPU is used" in caplog.messages
    assert not any(each.startswith("combine=all_reduce") for each in caplog.messages)
    assert not any("all_reduce" in line for line in device_lines(experiment, NO_DRIVER))


def test_plans_without_nccl_also_sum_gradients() -> None:
    """The kernels of this test do not include NCCL. A cluster with collectives=none does not need NCCL."""
    experiment = summing(TWO, "cluster.collectives=none")
    plans = experiment.plans().plans(experiment.program.clients["train"].signature)
    assert all("all_reduce" in {each.op for each in plan.instructions} for plan in plans.values())


def test_compared_strategies_use_no_nccl_if_the_run_uses_none() -> None:
    experiment = placed(TWO, *STRATEGIES["model"], "cluster.collectives=nccl")
    assert set(predicted_step_s(experiment)) >= {"single", "sync_data"}
    assert all(each.cluster.collectives == "none" for _, each in _experiments(experiment))
