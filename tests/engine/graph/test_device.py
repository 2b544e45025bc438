"""Device names, constraints and clusters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.graph import (
    Cluster,
    Device,
    DeviceName,
    GpuOptions,
    Gpus,
    local_cluster,
    server_task,
    task_of,
    worker_device,
    worker_task,
)
from runner.engine.graph.device import GPU_BYTES_PER_S, GPU_FLOPS_PER_S

parts = st.tuples(
    st.none() | st.sampled_from(["worker", "parameter_server"]),
    st.none() | st.integers(0, 99),
    st.none() | st.sampled_from(["cpu", "gpu"]),
    st.none() | st.integers(0, 9),
)
# A name with an index but without a type has no text form.
names = parts.map(lambda p: DeviceName(p[0], p[1], p[2], p[3] if p[2] else None))


@given(names)
def test_name_is_parsed_from_its_text(name: DeviceName) -> None:
    assert DeviceName.parse(str(name)) == name


@given(names, names)
def test_name_is_full_or_matches_if_it_has_every_part(name: DeviceName, constraint: DeviceName) -> None:
    own, wanted = ((n.job, n.task, n.type, n.index) for n in (name, constraint))
    assert name.is_full == (None not in own)
    assert name.matches(constraint) == all(w is None or w == o for o, w in zip(own, wanted, strict=True))


@pytest.mark.parametrize(
    "text", ["cpu:0", "/device", "/task:x", "/task:٣", "/device:cpu/task:1", "/job:worker/", "/device:cpu:0 ", "/gpu:0"]
)
def test_malformed_name_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected '/job:NAME/task:N/device:TYPE:N' or some of these parts"):
        DeviceName.parse(text)


def test_workers_share_the_rates_of_a_gpu_and_servers_may_be_on_the_cpu() -> None:
    cluster = local_cluster(3, servers=1, gpus=Gpus((0, 0, 1), use=GpuOptions(tf32=True)))
    assert [(device.name, device.gpu, device.use.tf32) for device in cluster.devices] == [
        ("/job:worker/task:0/device:gpu:0", 0, True),
        ("/job:worker/task:1/device:gpu:0", 0, True),
        ("/job:worker/task:2/device:gpu:0", 1, True),
        ("/job:ps/task:0/device:cpu:0", None, False),
    ]
    rates = [(device.flops_per_s, device.bytes_per_s) for device in cluster.devices]
    half, whole = ((GPU_FLOPS_PER_S / n, GPU_BYTES_PER_S / n) for n in (2, 1))
    assert rates == [half, half, whole, (Device.flops_per_s, Device.bytes_per_s)]
    on_gpus = local_cluster(1, servers=1, gpus=Gpus((0,), (1,)))
    assert [device.gpu for device in on_gpus.devices] == [0, 1]


@pytest.mark.parametrize("gpus", [Gpus((0,)), Gpus((0, 0), (1, 1))])
def test_wrong_number_of_gpus_is_refused(gpus: Gpus) -> None:
    with pytest.raises(ValueError, match="expected one for each of 2 workers, and one for each of 1 servers or none"):
        local_cluster(2, servers=1, gpus=gpus)


@pytest.mark.parametrize(
    ("kind", "gpu", "tf32"), [("cpu", 0, False), ("gpu", None, False), ("gpu", -1, False), ("cpu", None, True)]
)
def test_gpu_index_is_refused_for_other_types_and_required_for_gpus(kind: str, gpu: int | None, tf32: bool) -> None:
    with pytest.raises(ValueError, match="expected the index of a GPU, from 0, for type gpu, and no index and no"):
        Device(worker_device(0, kind), gpu=gpu, use=GpuOptions(tf32))


def test_devices_of_all_types_belong_to_their_task() -> None:
    for kind in ("cpu", "gpu"):
        assert DeviceName.parse(worker_device(3, kind)).matches(DeviceName.parse(worker_task(3)))
        assert task_of(worker_device(3, kind)) == worker_task(3)
    assert task_of(server_task(1)) == server_task(1) == "/job:ps/task:1"


def test_cluster_finds_its_devices_by_name() -> None:
    cluster = local_cluster(2)
    assert cluster.device(worker_device(1)) is cluster.devices[1]
    with pytest.raises(ValueError, match=r"device '/task:7' is not in the cluster: /job:worker/task:0/device"):
        cluster.device("/task:7")


def test_cluster_requires_devices_with_full_and_different_names() -> None:
    device = Device(worker_device(0))
    with pytest.raises(ValueError, match=r"cluster devices \[\]: expected at least one"):
        Cluster(())
    with pytest.raises(ValueError, match="expected at least one and no name twice"):
        Cluster((device, device))
    with pytest.raises(ValueError, match="cluster device '/job:worker': expected a full name"):
        Cluster((Device("/job:worker"),))


def test_unknown_compression_is_refused() -> None:
    assert [local_cluster(1).compression, local_cluster(1, compression="high16").compression] == ["none", "high16"]
    with pytest.raises(ValueError, match="cluster compression 'zip': expected one of none, high16"):
        local_cluster(1, compression="zip")
