"""Communicator setup: GPUs of several processes join a communicator; errors and hostile documents are reported."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runner.engine.cluster import worker
from runner.engine.cluster.assignment import Assignment
from runner.engine.cluster.communicator_setup import CommunicatorSetup, new_communicator_setup
from runner.engine.cluster.transport.messages import Bye, Failed, Load, Setup, Shutdown
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph.device import Gpus, local_cluster
from runner.errors import ResourceError
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.registry import Registry
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.remote_programs import remote_plan, there_and_back
from tests.engine.cluster.virtual_cluster import SETUP, VirtualCluster, virtual_cluster
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import with_nccl
from tests.strategies.test_sync_data import task_for

ID = bytes(range(128))
COMMUNICATOR = CommunicatorSetup("nccl", ID, ("worker-0", "worker-1"))
DOCUMENT = {"library": "nccl", "unique_id": ID, "members": list(COMMUNICATOR.members)}


@dataclass
class Library:
    """A fake library that records joins and leaves. refuses: text of its error, if any."""

    refuses: str = ""
    log: list[tuple[Any, ...]] = field(default_factory=list)

    def unique_id(self) -> bytes:
        if self.refuses:
            raise RuntimeError(self.refuses)
        return ID

    def join(self, unique_id: bytes, rank: int, size: int) -> None:
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.log.append((unique_id, rank, size))

    def leave(self) -> None:
        self.log.append(("left",))


def kernels(registry: Registry, library: Library | None) -> Registry:
    copied = registry.copy()
    if library is not None:
        copied.communicators["nccl"] = library
    return copied


def test_members_are_those_of_the_cluster_in_order(registry: Registry) -> None:
    cluster = local_cluster(3, 1, gpus=Gpus((2, 0, 1)), collectives="nccl")
    found = new_communicator_setup(cluster, kernels(registry, Library()))
    assert found == CommunicatorSetup("nccl", ID, ("worker-0", "worker-1", "worker-2"))
    assert new_communicator_setup(local_cluster(3), registry) is None


def test_missing_or_failing_library_is_reported(registry: Registry) -> None:
    cluster = local_cluster(2, gpus=Gpus((0, 1)), collectives="nccl")
    with pytest.raises(
        ResourceError,
        match=r"cluster\.collectives=nccl: the library is not available, .* see `runner doctor`",
    ):
        new_communicator_setup(cluster, kernels(registry, None))
    with pytest.raises(ResourceError, match=r"no network; set cluster\.collectives=none to run without nccl"):
        new_communicator_setup(cluster, kernels(registry, Library("no network")))


def test_non_member_does_not_join(registry: Registry) -> None:
    library = Library()
    assert not COMMUNICATOR.join(kernels(registry, library), "server-0")
    assert library.log == []


@pytest.fixture
def library() -> Library:
    """The library of the workers."""
    return Library()


@pytest.fixture
def cluster(tmp_path: Path, registry: Registry, library: Library) -> Iterator[VirtualCluster]:
    """Two workers that have sent hello."""
    with virtual_cluster(there_and_back(), tmp_path, kernels(registry, library), lambda document: None) as started:  # type: ignore[arg-type,return-value]
        started.greet()
        yield started


def test_workers_join_at_setup_and_leave_at_shutdown(cluster: VirtualCluster, library: Library) -> None:
    cluster.send(Setup(), None, {**SETUP, "source": None, "communicator": DOCUMENT})
    cluster.send(Shutdown())
    cluster.answers(Bye)
    cluster.wait_for_ends(cluster.workers)
    assert {each for each in library.log if each != ("left",)} == {(ID, 0, 2), (ID, 1, 2)}
    assert library.log.count(("left",)) == 2


def test_gpu_is_synchronized_before_a_worker_leaves(
    cluster: VirtualCluster, library: Library, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_there = registry_of(EmulatedRuntime(compiled_sources))
    kernels_there.communicators["nccl"] = library
    monkeypatch.setattr(worker, "load_gpu_kernels", lambda use, home: kernels_there)
    monkeypatch.setattr(GpuPlatform, "synchronize", lambda platform: library.log.append(("settled",)))
    cluster.send(
        Setup(), None, {**SETUP, "source": None, "communicator": DOCUMENT, "gpus": {"worker-0": 0, "worker-1": 0}}
    )
    cluster.send(Shutdown(), ["worker-0"])
    cluster.answers(Bye, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert library.log[-2:] == [("settled",), ("left",)]


def test_gpu_failure_after_the_last_step_is_reported(
    cluster: VirtualCluster, library: Library, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def synchronize(platform: GpuPlatform) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(worker, "load_gpu_kernels", lambda use, home: registry_of(EmulatedRuntime(compiled_sources)))
    monkeypatch.setattr(GpuPlatform, "synchronize", synchronize)
    cluster.send(Setup(), None, {**SETUP, "source": None, "gpus": {"worker-0": 0}})
    cluster.send(Shutdown(), ["worker-0"])
    failed = cluster.answers(Failed, ["worker-0"])["worker-0"]
    assert (failed.error, failed.text) == ("RunnerError", "worker-0: the device failed: an illegal memory access")


def test_each_worker_joins_with_its_own_gpu(
    cluster: VirtualCluster, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = EmulatedRuntime(compiled_sources, gpus=3)
    with_nccl(runtime)
    monkeypatch.setattr(worker, "load_gpu_kernels", lambda use, home: registry_of(runtime))
    cluster.send(
        Setup(), None, {**SETUP, "source": None, "communicator": DOCUMENT, "gpus": {"worker-0": 2, "worker-1": 0}}
    )
    cluster.send(Load("nonsense"), None, {})
    cluster.answers(Failed)
    for gpu, rank in ((2, 0), (0, 1)):
        runtime.use(gpu)
        assert (runtime.library("nccl").communicator().rank, runtime.library("nccl").communicator().size) == (rank, 2)


def test_plans_with_library_sums_are_sent_to_workers(compiled_sources: Path, tmp_path: Path) -> None:
    runtime = EmulatedRuntime(compiled_sources, gpus=2)
    with_nccl(runtime)
    kernels_there = registry_of(runtime)
    program = SyncData(workers=2, combine="all_reduce").build(task_for("dense"))
    planned = ProgramPlans(program, local_cluster(2, gpus=Gpus((0, 1)), collectives="nccl"), kernels_there)
    for assignment in remote_plan(planned, "train", tmp_path).assignments.values():
        arrived = Assignment.from_document(assignment.to_document(), kernels_there)
        assert arrived.plan == assignment.plan
        assert "nccl" in arrived.plan.libraries


def test_workers_do_not_leave_after_an_error(cluster: VirtualCluster, library: Library) -> None:
    cluster.send(Setup(), None, {**SETUP, "source": None, "communicator": DOCUMENT})
    cluster.send(Load("nonsense"), ["worker-0"], {})
    cluster.answers(Failed, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert ("left",) not in library.log


@pytest.mark.parametrize(
    ("communicator", "kind", "text"),
    [
        (DOCUMENT, "ResourceError", "no way; set cluster.collectives=none to run without nccl"),
        (
            {**DOCUMENT, "members": []},
            "SecurityError",
            "setup refused: communicator of []: expected two or more",
        ),
    ],
)
def test_worker_that_cannot_join_reports_the_error(
    cluster: VirtualCluster, library: Library, communicator: object, kind: str, text: str
) -> None:
    library.refuses = "no way"
    cluster.send(Setup(), ["worker-0"], {**SETUP, "source": None, "communicator": communicator})
    failed = cluster.answers(Failed, ["worker-0"])["worker-0"]
    assert failed.error == kind
    assert text in failed.text


def test_worker_without_the_library_reports_the_error(registry: Registry) -> None:
    with pytest.raises(ResourceError, match="nccl is not available here, but at the master; install"):
        COMMUNICATOR.join(registry, "worker-1")
