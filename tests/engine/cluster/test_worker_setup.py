"""The setup of workers: round trips and refusals of its document, and communicators that workers join at setup."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster import worker
from runner.engine.cluster.assignment import Assignment
from runner.engine.cluster.emulation import EmulatedLink
from runner.engine.cluster.transport.encoding import decode_document, encode_document
from runner.engine.cluster.transport.messages import Bye, Failed, Load, Setup, Shutdown
from runner.engine.cluster.worker_setup import CommunicatorSetup, WorkerSetup, new_communicator_setup
from runner.engine.compile.program_plans import ProgramPlans
from runner.engine.graph.device import GpuOptions, Gpus, local_cluster
from runner.errors import ResourceError, SecurityError
from runner.kernels.gpu.platform import GpuPlatform
from runner.kernels.registry import Registry
from runner.strategies.sync_data import SyncData
from tests.engine.cluster.virtual_cluster import SETUP as PLAIN_SETUP
from tests.engine.cluster.virtual_cluster import VirtualCluster, remote_plan, there_and_back, virtual_cluster
from tests.engine.compile.plain_data import mutated, put
from tests.gpu.gpus import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import with_nccl
from tests.strategies.networks import workload_of

ID = bytes(range(128))
COMMUNICATOR = CommunicatorSetup("nccl", ID, ("worker-0", "worker-1"))
OPTIONS = GpuOptions(tf32=True, compare_plans=True, code_folder="/kept")
SETUP = WorkerSetup({"a": [1]}, True, EmulatedLink(1, 3), {"worker-0": 2, "worker-1": 0}, OPTIONS, COMMUNICATOR)
DOCUMENT: Any = decode_document(memoryview(encode_document(SETUP.to_document())))
COMMUNICATOR_ID = "setup.communicator.unique_id: .*, expected 128 bytes"


@pytest.mark.parametrize(
    "setup", [SETUP, WorkerSetup(None, False, None), WorkerSetup({}, False, EmulatedLink(0.5, None))]
)
def test_setup_round_trip(setup: WorkerSetup) -> None:
    assert WorkerSetup.from_document(decode_document(memoryview(encode_document(setup.to_document())))) == setup


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ((), None, "setup: None, expected a map"),
        ((), {"source": {}}, r"setup: missing \['check_finite', 'link', .*, expected the fields source, check_finite"),
        (("more",), 1, r"unknown \['more'\]"),
        (("check_finite",), 1, "setup.check_finite: 1, expected true or false"),
        (("source",), "digits", "setup.source: 'digits', expected a map with text keys"),
        (("source",), {1: 2}, "setup.source: .* expected a map with text keys"),
        (("gpus",), [0], r"setup.gpus: \[0\], expected a map"),
        *((("gpus", "worker-0"), gpu, r"setup.gpus\[worker-0\]: .* 0 to 2147483647") for gpu in (-1, True, 2**62)),
        (("use", "tf32"), None, "setup.use.tf32: None, expected true or false"),
        (("use", "compare_plans"), 1, "setup.use.compare_plans: 1, expected true or false"),
        (("use", "code_folder"), b"/kept", "setup.use.code_folder: .*, expected text"),
        (("use", "more"), 1, r"setup.use: unknown \['more'\]"),
        (("link",), {"latency_s": 1.0}, r"setup.link: missing \['bytes_per_s'\]"),
        (("link", "latency_s"), -1.0, "latency_s -1.0: expected 0 to 200"),
        (("link", "latency_s"), True, "setup.link.latency_s: True, expected a finite number"),
        (("link", "bytes_per_s"), 0, "bytes_per_s 0: expected a finite number above 0, or None"),
        (("link", "bytes_per_s"), [1], r"setup.link.bytes_per_s: \[1\], expected a finite number"),
        (("communicator", "library"), "none", "setup.communicator.library: 'none', expected one of nccl"),
        (("communicator", "library"), ["nccl"], "expected one of nccl"),
        (("communicator", "unique_id"), "00" * 128, COMMUNICATOR_ID),
        (("communicator", "unique_id"), bytes(127), COMMUNICATOR_ID),
        (("communicator", "members"), "worker-0", "setup.communicator.members: 'worker-0', expected a list"),
        (("communicator", "members"), [0, 1], r"setup.communicator.members\[0\]: 0, expected text"),
        *(
            (("communicator", "members"), members, "communicator of .*: expected two or more different members")
            for members in ([], ["worker-0"], ["worker-0"] * 2)
        ),
    ],
)
def test_malformed_setup_is_refused(path: tuple[Any, ...], value: object, text: str) -> None:
    with pytest.raises(SecurityError, match=f"^setup refused: .*{text}"):
        WorkerSetup.from_document(put(DOCUMENT, path, value) if path else value)


@given(data=st.data())
def test_mutated_setup_is_refused_or_round_trips(data: st.DataObject) -> None:
    document = data.draw(mutated(DOCUMENT))
    with suppress(SecurityError):
        assert WorkerSetup.from_document(document).to_document() == document


@dataclass
class Library:
    """A fake collective library that records its calls. refuses: text of the error that it raises; "" for none."""

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


def test_members_of_the_communicator_are_the_workers_in_order(registry: Registry) -> None:
    cluster = local_cluster(3, 1, gpus=Gpus((2, 0, 1)), collectives="nccl")
    found = new_communicator_setup(cluster, kernels(registry, Library()))
    assert found == CommunicatorSetup("nccl", ID, ("worker-0", "worker-1", "worker-2"))
    assert new_communicator_setup(local_cluster(3), registry) is None


def test_missing_or_failing_library_is_reported(registry: Registry) -> None:
    cluster = local_cluster(2, gpus=Gpus((0, 1)), collectives="nccl")
    missing = r"cluster\.collectives=nccl: the library is not available through CuPy; see `runner doctor`"
    with pytest.raises(ResourceError, match=missing):
        new_communicator_setup(cluster, kernels(registry, None))
    with pytest.raises(ResourceError, match=r"no network; set cluster\.collectives=none to run without nccl"):
        new_communicator_setup(cluster, kernels(registry, Library("no network")))


def test_non_member_does_not_join(registry: Registry) -> None:
    library = Library()
    assert not COMMUNICATOR.join(kernels(registry, library), "server-0")
    assert library.log == []


@pytest.fixture
def library() -> Library:
    """Return the fake library with which all workers join the communicator."""
    return Library()


@pytest.fixture
def cluster(tmp_path: Path, registry: Registry, library: Library) -> Iterator[VirtualCluster]:
    """Yield two workers that have exchanged hello and welcome with the master, but are not set up."""
    with virtual_cluster(there_and_back(), tmp_path, kernels(registry, library), lambda document: None) as started:  # type: ignore[arg-type,return-value]
        started.greet()
        yield started


def set_up(cluster: VirtualCluster, workers: list[str] | None = None, *gpus: int, communicator: bool = True) -> None:
    """Send the setup to some or all workers. gpus: the GPU of worker 0, then that of worker 1."""
    joined = DOCUMENT["communicator"] if communicator else None
    own = {"source": None, "communicator": joined, "gpus": {f"worker-{k}": gpu for k, gpu in enumerate(gpus)}}
    cluster.send(Setup(), workers, {**PLAIN_SETUP, **own})


def test_workers_join_at_setup_and_leave_at_shutdown(cluster: VirtualCluster, library: Library) -> None:
    set_up(cluster)
    cluster.shut_down()
    assert {each for each in library.log if each != ("left",)} == {(ID, 0, 2), (ID, 1, 2)}
    assert library.log.count(("left",)) == 2


@pytest.fixture
def gpus(library: Library, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch) -> EmulatedRuntime:
    """Return the emulated GPUs of the workers, with a fake NCCL."""
    runtime = EmulatedRuntime(compiled_sources, gpus=3)
    with_nccl(runtime)
    kernels_there = registry_of(runtime)
    monkeypatch.setattr(worker, "load_gpu_kernels", lambda use, home: kernels_there)
    return runtime


def test_gpu_is_synchronized_before_a_worker_leaves(
    cluster: VirtualCluster, library: Library, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_there = registry_of(EmulatedRuntime(compiled_sources))
    kernels_there.communicators["nccl"] = library
    monkeypatch.setattr(worker, "load_gpu_kernels", lambda use, home: kernels_there)
    monkeypatch.setattr(GpuPlatform, "synchronize", lambda platform: library.log.append(("synchronized",)))
    set_up(cluster, None, 0, 0)
    cluster.send(Shutdown(), ["worker-0"])
    cluster.answers(Bye, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert library.log[-2:] == [("synchronized",), ("left",)]


@pytest.mark.usefixtures("gpus")
def test_gpu_failure_after_the_last_step_is_reported(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(platform: GpuPlatform) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(GpuPlatform, "synchronize", synchronize)
    set_up(cluster, None, 0, communicator=False)
    cluster.send(Shutdown(), ["worker-0"])
    failed = cluster.answers(Failed, ["worker-0"])["worker-0"]
    assert (failed.error, failed.text) == ("RunnerError", "worker-0: the device failed: an illegal memory access")


def test_each_worker_joins_with_its_own_gpu(cluster: VirtualCluster, gpus: EmulatedRuntime) -> None:
    set_up(cluster, None, 2, 0)
    cluster.send(Load("nonsense"), None, {})
    cluster.answers(Failed)
    for gpu, rank in ((2, 0), (0, 1)):
        gpus.use(gpu)
        assert (gpus.library("nccl").communicator().rank, gpus.library("nccl").communicator().size) == (rank, 2)


def test_round_trip_of_plans_with_sums_by_the_library(compiled_sources: Path, tmp_path: Path) -> None:
    runtime = EmulatedRuntime(compiled_sources, gpus=2)
    with_nccl(runtime)
    kernels_there = registry_of(runtime)
    program = SyncData(workers=2, combine="all_reduce").build(workload_of("dense"))
    planned = ProgramPlans(program, local_cluster(2, gpus=Gpus((0, 1)), collectives="nccl"), kernels_there)
    for assignment in remote_plan(planned, "train", tmp_path).assignments.values():
        arrived = Assignment.from_document(assignment.to_document(), kernels_there)
        assert arrived.plan == assignment.plan
        assert "nccl" in arrived.plan.libraries


def test_workers_do_not_leave_after_an_error(cluster: VirtualCluster, library: Library) -> None:
    set_up(cluster)
    cluster.send(Load("nonsense"), ["worker-0"], {})
    cluster.answers(Failed, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert ("left",) not in library.log


def test_worker_that_cannot_join_reports_the_error(cluster: VirtualCluster, library: Library) -> None:
    library.refuses = "no way"
    set_up(cluster, ["worker-0"])
    failed = cluster.answers(Failed, ["worker-0"])["worker-0"]
    assert failed == Failed("ResourceError", "no way; set cluster.collectives=none to run without nccl")


def test_worker_without_the_library_reports_the_error(registry: Registry) -> None:
    with pytest.raises(ResourceError, match="nccl is available to the master but not to worker-1; install"):
        COMMUNICATOR.join(registry, "worker-1")
