import contextlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.admission import Drop
from runner.engine.cluster.transport.messages import Hello, Load, Loaded, Shutdown
from runner.errors import ClusterError
from tests.engine.cluster.transport.conftest import identity
from tests.engine.cluster.transport.fake_network import FakeEndpoint, FakeNetwork, Faults


def join(network: FakeNetwork, name: str, epoch: int = 1) -> FakeEndpoint:
    return network.endpoint(identity(name, epoch=epoch), peers=4)


def receive_each(endpoint: FakeEndpoint) -> Iterator[str]:
    """The plans of all messages until ten seconds pass without one."""
    while (received := endpoint.receive(10.0)) is not None:
        if not isinstance(received.message, Hello):
            assert isinstance(received.message, Loaded)
            yield received.message.plan


def receive_all(endpoint: FakeEndpoint) -> list[str]:
    return list(receive_each(endpoint))


def test_messages_and_frames_arrive_in_order() -> None:
    network = FakeNetwork()
    master, worker = join(network, "master-0"), join(network, "worker-0")
    master.connect("worker-0")
    frame = bytearray(b"document")
    master.send("worker-0", Load("p"), [memoryview(frame)])
    frame[:] = b"reused!!"
    master.send("worker-0", Shutdown())
    received = [worker.receive(1.0) for _ in range(3)]
    assert [type(r.message) for r in received if r] == [Hello, Load, Shutdown]
    assert received[1] is not None
    assert received[1].source == "master-0"
    assert bytes(received[1].frames[0]) == b"document"


def test_only_waiting_advances_the_clock() -> None:
    network = FakeNetwork(faults=Faults(delay_s=(2.0, 2.0)))
    master, worker = join(network, "master-0"), join(network, "worker-0")
    worker.connect("master-0")
    assert master.receive(1.5) is None
    assert network.clock.now == 1.5
    assert master.receive(1.5) is not None
    assert network.clock.now == 2.0


SEEDS = st.integers(0, 2**32)
DELAYS = st.tuples(st.floats(0, 1), st.floats(1, 5))


@given(SEEDS, DELAYS, st.floats(0, 1))
def test_delays_and_duplicates_do_not_change_the_messages(seed: int, delays: tuple[float, float], twice: float) -> None:
    network = FakeNetwork(seed, Faults(delays, duplicate=twice))
    master, worker = join(network, "master-0"), join(network, "worker-0")
    worker.connect("master-0")
    sent = [str(i) for i in range(10)]
    for plan in sent:
        worker.send("master-0", Loaded(plan))
    assert receive_all(master) == sent


@given(SEEDS, st.floats(0.05, 0.5))
def test_lossy_network_delivers_a_prefix(seed: int, drop: float) -> None:
    network = FakeNetwork(seed)
    master, worker = join(network, "master-0"), join(network, "worker-0")
    worker.connect("master-0")
    network.faults = Faults(drop=drop)
    sent = [str(i) for i in range(10)]
    for plan in sent:
        worker.send("master-0", Loaded(plan))
    delivered: list[str] = []
    with contextlib.suppress(ClusterError):
        for plan in receive_each(master):
            delivered += [plan]
    assert delivered == sent[: len(delivered)]


def test_loss_is_detected_with_the_next_message() -> None:
    network = FakeNetwork()
    master, worker = join(network, "master-0"), join(network, "worker-0")
    worker.connect("master-0")
    network.faults = Faults(drop=1.0)
    worker.send("master-0", Loaded("lost"))
    assert receive_all(master) == []
    network.faults = Faults()
    worker.send("master-0", Loaded("found"))
    with pytest.raises(ClusterError, match="1 messages from worker-0 to master-0 were lost"):
        master.receive(0.0)


def test_schedule_is_a_function_of_the_seed() -> None:
    def history(seed: int) -> list[float]:
        network = FakeNetwork(seed, Faults(delay_s=(0.0, 1.0)))
        master, worker = join(network, "master-0"), join(network, "worker-0")
        worker.connect("master-0")
        times = []
        for _ in range(5):
            worker.send("master-0", Loaded("p"))
            master.receive(1.0)
            times.append(network.clock.now)
        return times

    assert history(7) == history(7)
    assert history(7) != history(8)


def test_messages_are_delivered_after_a_partition() -> None:
    network = FakeNetwork()
    master, worker = join(network, "master-0"), join(network, "worker-0")
    worker.connect("master-0")
    network.partition({"master-0"}, {"worker-0"})
    worker.send("master-0", Loaded("p"))
    assert receive_all(master) == []
    network.heal()
    assert receive_all(master) == ["p"]


def test_messages_of_an_old_epoch_are_dropped() -> None:
    network = FakeNetwork()
    join(network, "master-0")
    zombie = join(network, "worker-0")
    zombie.connect("master-0")
    network.partition({"master-0"}, {"worker-0"})
    zombie.send("master-0", Loaded("of the first life"))
    network.kill("worker-0")
    network.heal()
    master, worker = join(network, "master-0", epoch=2), join(network, "worker-0", epoch=2)
    worker.connect("master-0")
    worker.send("master-0", Loaded("of the second life"))
    assert receive_all(master) == ["of the second life"]
    assert master.drops == {Drop.STALE: 2}


def test_killed_peer_cannot_send_or_receive() -> None:
    network = FakeNetwork()
    master, worker = join(network, "master-0"), join(network, "worker-0")
    worker.connect("master-0")
    master.connect("worker-0")
    worker.send("master-0", Loaded("last words"))
    network.kill("worker-0")
    assert receive_all(master) == ["last words"]
    with pytest.raises(ClusterError, match="master-0 could not send 'shutdown' to worker-0: it is gone"):
        master.send("worker-0", Shutdown())
    with pytest.raises(ClusterError, match="worker-0 could not send"):
        worker.send("master-0", Loaded("p"))
    with pytest.raises(ClusterError, match="master-0 cannot reach worker-0: no process listens"):
        master.connect("worker-0")
