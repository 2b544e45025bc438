"""Cards of several processes find each other at set-up, or it is said why they do not; nothing hostile is believed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runner.engine import worker
from runner.engine.assignment import Assignment
from runner.engine.device import Cards, local_cluster
from runner.engine.meeting import Meeting, meeting_of
from runner.engine.program_plans import ProgramPlans
from runner.engine.transport.messages import Bye, Failed, Load, Setup, Shutdown
from runner.errors import ResourceError
from runner.kernels.gpu.platform import CardPlatform
from runner.kernels.registry import Registry
from runner.strategies.sync_data import SyncData
from tests.engine.remote_programs import remote_plan, there_and_back
from tests.engine.virtual_cluster import SETUP, VirtualCluster, virtual_cluster
from tests.gpu.cards import registry_of
from tests.kernels.gpu.emulation import EmulatedRuntime
from tests.kernels.gpu.fake_nccl import with_nccl
from tests.strategies.test_sync_data import task_for

ID = bytes(range(128))
MEETING = Meeting("nccl", ID, ("worker-0", "worker-1"))
DOCUMENT: dict[str, Any] = MEETING.to_document()


@dataclass
class Library:
    """Writes down who joins and leaves. refuses: why nobody can."""

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
        copied.meetings["nccl"] = library
    return copied


def test_it_travels_as_plain_data() -> None:
    assert Meeting.from_document(DOCUMENT) == MEETING
    assert DOCUMENT["unique_id"] == ID.hex()


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (None, "meeting: expected a map of 'library', 'unique_id' and 'members'"),
        ({**DOCUMENT, "more": 1}, "meeting: expected a map of 'library', 'unique_id' and 'members'"),
        ({**DOCUMENT, "library": "none"}, "meeting: expected a library of nccl"),
        ({**DOCUMENT, "library": ["nccl"]}, "meeting: expected a library of nccl"),
        ({**DOCUMENT, "unique_id": ID}, "meeting: expected a unique_id of 256 digits from 0 to f"),
        ({**DOCUMENT, "unique_id": "00" * 127}, "meeting: expected a unique_id of 256 digits from 0 to f"),
        ({**DOCUMENT, "unique_id": "0g" * 128}, "meeting: expected a unique_id of 256 digits from 0 to f"),
        ({**DOCUMENT, "unique_id": "00" * 128 + "\n"}, "meeting: expected a unique_id of 256 digits from 0 to f"),
        ({**DOCUMENT, "members": "worker-0"}, "meeting: expected members, names of workers"),
        ({**DOCUMENT, "members": [0, 1]}, "meeting: expected members, names of workers"),
        ({**DOCUMENT, "members": ["worker-0"]}, "meeting: expected two members or more, none twice; came 1"),
        ({**DOCUMENT, "members": ["worker-0"] * 2}, "meeting: expected two members or more, none twice; came 2"),
    ],
)
def test_what_is_no_meeting_is_refused(document: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Meeting.from_document(document)


def test_the_members_are_those_of_the_cluster_in_their_order(registry: Registry) -> None:
    cluster = local_cluster(3, 1, cards=Cards((2, 0, 1)), collectives="nccl")
    found = meeting_of(cluster, kernels(registry, Library()))
    assert found == Meeting("nccl", ID, ("worker-0", "worker-1", "worker-2"))
    assert meeting_of(local_cluster(3), registry) is None


def test_where_nobody_can_meet_it_is_said_what_does_without(registry: Registry) -> None:
    cluster = local_cluster(2, cards=Cards((0, 1)), collectives="nccl")
    with pytest.raises(
        ResourceError, match=r"cluster\.collectives=nccl: expected it beside CuPy, and it is not there; `runner doctor`"
    ):
        meeting_of(cluster, kernels(registry, None))
    with pytest.raises(ResourceError, match=r"no network; cluster\.collectives=none does without nccl"):
        meeting_of(cluster, kernels(registry, Library("no network")))


def test_who_is_no_member_does_not_join(registry: Registry) -> None:
    library = Library()
    assert not MEETING.join(kernels(registry, library), "server-0")
    assert library.log == []


@pytest.fixture
def library() -> Library:
    """What the workers of a cluster have."""
    return Library()


@pytest.fixture
def cluster(tmp_path: Path, registry: Registry, library: Library) -> Iterator[VirtualCluster]:
    """Two workers that have said hello."""
    with virtual_cluster(there_and_back(), tmp_path, kernels(registry, library), lambda document: None) as started:  # type: ignore[arg-type,return-value]
        started.greet()
        yield started


def test_workers_join_when_they_are_set_up_and_leave_when_all_do(cluster: VirtualCluster, library: Library) -> None:
    cluster.tell(Setup(), None, {**SETUP, "source": None, "meeting": DOCUMENT})
    cluster.tell(Shutdown())
    cluster.answers(Bye)
    cluster.wait_for_ends(cluster.workers)
    assert {each for each in library.log if each != ("left",)} == {(ID, 0, 2), (ID, 1, 2)}
    assert library.log.count(("left",)) == 2


def test_what_is_under_way_on_a_card_comes_to_its_end_before_anybody_leaves(
    cluster: VirtualCluster, library: Library, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_there = registry_of(EmulatedRuntime(compiled_sources))
    kernels_there.meetings["nccl"] = library
    monkeypatch.setattr(worker, "load_card_kernels", lambda use, home: kernels_there)
    monkeypatch.setattr(CardPlatform, "settle", lambda platform: library.log.append(("settled",)))
    cluster.tell(Setup(), None, {**SETUP, "source": None, "meeting": DOCUMENT, "cards": {"worker-0": 0, "worker-1": 0}})
    cluster.tell(Shutdown(), ["worker-0"])
    cluster.answers(Bye, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert library.log[-2:] == [("settled",), ("left",)]


def test_a_card_that_failed_after_its_last_step_is_no_orderly_end(
    cluster: VirtualCluster, library: Library, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settle(platform: CardPlatform) -> None:
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(worker, "load_card_kernels", lambda use, home: registry_of(EmulatedRuntime(compiled_sources)))
    monkeypatch.setattr(CardPlatform, "settle", settle)
    cluster.tell(Setup(), None, {**SETUP, "source": None, "cards": {"worker-0": 0}})
    cluster.tell(Shutdown(), ["worker-0"])
    failed = cluster.answers(Failed, ["worker-0"])["worker-0"]
    assert (failed.error, failed.text) == ("RunnerError", "worker-0: the device failed: an illegal memory access")


def test_each_joins_with_its_own_card(
    cluster: VirtualCluster, compiled_sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = EmulatedRuntime(compiled_sources, cards=3)
    with_nccl(runtime)
    monkeypatch.setattr(worker, "load_card_kernels", lambda use, home: registry_of(runtime))
    cluster.tell(Setup(), None, {**SETUP, "source": None, "meeting": DOCUMENT, "cards": {"worker-0": 2, "worker-1": 0}})
    cluster.tell(Load("nonsense"), None, {})
    cluster.answers(Failed)
    for card, rank in ((2, 0), (0, 1)):
        runtime.use(card)
        assert (runtime.library("nccl").communicator().rank, runtime.library("nccl").communicator().size) == (rank, 2)


def test_plans_with_sums_travel_to_workers(compiled_sources: Path, tmp_path: Path) -> None:
    runtime = EmulatedRuntime(compiled_sources, cards=2)
    with_nccl(runtime)
    kernels_there = registry_of(runtime)
    program = SyncData(workers=2, combine="all_reduce").build(task_for("dense"))
    planned = ProgramPlans(program, local_cluster(2, cards=Cards((0, 1)), collectives="nccl"), kernels_there)
    for assignment in remote_plan(planned, "train", tmp_path).assignments.values():
        arrived = Assignment.from_document(assignment.to_document(), kernels_there)
        assert arrived.plan == assignment.plan
        assert "nccl" in arrived.plan.libraries


def test_after_an_error_nobody_leaves(cluster: VirtualCluster, library: Library) -> None:
    cluster.tell(Setup(), None, {**SETUP, "source": None, "meeting": DOCUMENT})
    cluster.tell(Load("nonsense"), ["worker-0"], {})
    cluster.answers(Failed, ["worker-0"])
    cluster.wait_for_ends(["worker-0"])
    assert ("left",) not in library.log


@pytest.mark.parametrize(
    ("meeting", "kind", "text"),
    [
        (DOCUMENT, "ResourceError", "no way; cluster.collectives=none does without nccl"),
        ({**DOCUMENT, "members": []}, "SecurityError", "setup refused: meeting: expected two members or more"),
    ],
)
def test_a_worker_that_cannot_join_says_so(
    cluster: VirtualCluster, library: Library, meeting: object, kind: str, text: str
) -> None:
    library.refuses = "no way"
    cluster.tell(Setup(), ["worker-0"], {**SETUP, "source": None, "meeting": meeting})
    failed = cluster.answers(Failed, ["worker-0"])["worker-0"]
    assert failed.error == kind
    assert text in failed.text


def test_a_worker_without_the_library_says_so(registry: Registry) -> None:
    with pytest.raises(ResourceError, match="nccl is not here, and the master has it; expected the same libraries"):
        MEETING.join(registry, "worker-1")
