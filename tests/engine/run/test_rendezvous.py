"""The rendezvous of one process."""

import threading
from typing import Any

import numpy as np
import pytest

from runner.engine.run import rendezvous as rendezvous_module
from runner.engine.run.rendezvous import LocalRendezvous
from runner.errors import ClusterError
from tests.engine.cluster.transport.fake_network import FakeClock

JOIN_S = 10.0
VALUE = np.arange(3.0)


class Waiter:
    """A thread that receives one value; ``waiting`` is set when it has begun to wait."""

    def __init__(self, rendezvous: LocalRendezvous, key: str) -> None:
        self.result: Any = None
        self.waiting = threading.Event()
        condition = rendezvous._condition
        wait = condition.wait

        def announced(timeout: float | None = None) -> bool:
            self.waiting.set()
            return wait(timeout)

        condition.wait = announced  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._receive, args=(rendezvous, key), daemon=True)
        self._thread.start()
        assert self.waiting.wait(JOIN_S)

    def _receive(self, rendezvous: LocalRendezvous, key: str) -> None:
        try:
            self.result = rendezvous.receive(0, key, "peer")
        except ClusterError as error:
            self.result = error

    def join(self) -> Any:
        self._thread.join(JOIN_S)
        assert not self._thread.is_alive(), "the receiver still waits"
        return self.result


def test_value_is_received_once_by_step_and_key() -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    rendezvous.send(0, "a", "peer", VALUE)
    rendezvous.send(0, "b", "peer", VALUE + 2)
    assert rendezvous.pending == [(0, "a"), (0, "b")]
    assert [rendezvous.receive(0, key, "peer")[0] for key in ("b", "a")] == [2.0, 0.0]
    rendezvous.send(1, "a", "peer", VALUE + 1)
    assert rendezvous.receive(1, "a", "peer")[0] == 1.0
    assert rendezvous.pending == []
    with pytest.raises(ClusterError, match="did not arrive"):
        rendezvous.receive(0, "a", "peer")


def test_sender_may_reuse_its_memory_at_once() -> None:
    rendezvous = LocalRendezvous()
    value = VALUE.copy()
    rendezvous.send(0, "a", "peer", value)
    value[:] = 7.0
    np.testing.assert_array_equal(rendezvous.receive(0, "a", "peer"), VALUE)


def test_value_computed_in_outgoing_memory_is_not_copied() -> None:
    rendezvous = LocalRendezvous()
    memory = rendezvous.outgoing("x:0", VALUE.nbytes)
    value = memory.view(VALUE.dtype)
    value[:] = VALUE
    for destination in ("one", "two"):
        rendezvous.send(0, f"x:0->{destination}", destination, value)
        received = rendezvous.receive(0, f"x:0->{destination}", "sender")
        assert np.shares_memory(received, rendezvous.incoming(f"x:0->{destination}", "sender", VALUE.nbytes))
        assert np.shares_memory(received, memory)


def test_second_value_for_a_key_is_refused() -> None:
    rendezvous = LocalRendezvous()
    rendezvous.send(3, "a", "peer", VALUE)
    with pytest.raises(ClusterError, match="rendezvous: 'a' was sent twice in step 3"):
        rendezvous.send(3, "a", "peer", VALUE)


def test_receiver_waits_for_the_sender() -> None:
    rendezvous = LocalRendezvous()
    waiter = Waiter(rendezvous, "a")
    rendezvous.send(0, "other", "peer", VALUE)
    rendezvous.send(0, "a", "peer", VALUE)
    np.testing.assert_array_equal(waiter.join(), VALUE)


def test_timeout_error_names_key_step_source_and_limit() -> None:
    rendezvous = LocalRendezvous(timeout_s=0.05)
    expected = r"rendezvous: 'a' of step 7 did not arrive from /task:1 within 0\.05 s"
    with pytest.raises(ClusterError, match=expected):
        rendezvous.receive(7, "a", "/task:1")


def test_time_stopped_does_not_count_as_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    rendezvous = LocalRendezvous(timeout_s=60.0)
    clock = FakeClock()
    waits: list[float] = []

    def wait(timeout: float) -> bool:
        """Wait as if the process were stopped for an hour first and the value arrived half a minute later."""
        waits.append(timeout)
        clock.advance(timeout if len(waits) > 1 else 3600.0)
        if clock.now >= 3630.0:
            rendezvous._values[0, "a"] = VALUE
        return False

    monkeypatch.setattr(rendezvous_module.time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(rendezvous._condition, "wait", wait)
    assert rendezvous.receive(0, "a", "peer") is VALUE
    with pytest.raises(ClusterError, match="did not arrive from peer within 60 s"):
        rendezvous.receive(0, "b", "peer")
    assert clock.now == 3690.0


def test_abort_fails_waiting_and_later_receivers() -> None:
    rendezvous = LocalRendezvous()
    waiter = Waiter(rendezvous, "a")
    rendezvous.abort(ValueError("no disk"))
    rendezvous.abort(ValueError("a consequence"))
    expected = "rendezvous: a peer failed while 'a' was awaited: no disk"
    assert str(waiter.join()) == expected
    with pytest.raises(ClusterError, match=expected):
        rendezvous.receive(0, "a", "peer")


def test_arrived_value_is_delivered_after_a_failure() -> None:
    rendezvous = LocalRendezvous()
    rendezvous.send(0, "a", "peer", VALUE)
    rendezvous.abort(ValueError("no disk"))
    np.testing.assert_array_equal(rendezvous.receive(0, "a", "peer"), VALUE)


def test_reset_discards_the_failed_step_and_returns_its_failure() -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    failure = ValueError("no disk")
    rendezvous.send(0, "a", "peer", VALUE)
    rendezvous.abort(failure)
    assert rendezvous.reset() is failure
    assert rendezvous.reset() is None
    assert rendezvous.pending == []
    rendezvous.send(0, "a", "peer", VALUE)
    np.testing.assert_array_equal(rendezvous.receive(0, "a", "peer"), VALUE)
