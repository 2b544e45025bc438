"""Emulated links on a virtual clock."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.links import Link, Links
from runner.errors import ClusterError
from tests.engine.cluster.transport.fake_network import FakeClock


def links_of(link: Link, now: float = 10.0) -> tuple[Links, FakeClock]:
    clock = FakeClock()
    clock.advance_to(now)
    return Links(link, lambda: clock.now), clock


def test_message_takes_bytes_over_bandwidth_plus_latency() -> None:
    links, _ = links_of(Link(0.25, 100.0))
    assert links.due("worker-1", 50) == 10.0 + 0.5 + 0.25


def test_messages_of_one_link_queue_but_latencies_overlap() -> None:
    links, _ = links_of(Link(0.25, 100.0))
    assert [links.due("worker-1", 100) for _ in range(3)] == [11.25, 12.25, 13.25]


def test_idle_link_is_free_at_the_time_of_sending() -> None:
    links, clock = links_of(Link(0.25, 100.0))
    links.due("worker-1", 100)
    clock.advance_to(10.5)
    assert links.due("worker-1", 100) == 12.25
    clock.advance_to(20.0)
    assert links.due("worker-1", 100) == 21.25


def test_links_to_different_processes_are_independent() -> None:
    links, _ = links_of(Link(0.0, 100.0))
    assert [links.due(peer, 100) for peer in ("worker-1", "ps-0", "worker-1")] == [11.0, 11.0, 12.0]


def test_empty_message_takes_the_latency() -> None:
    links, _ = links_of(Link(0.25, 100.0))
    assert [links.due("worker-1", 0) for _ in range(2)] == [10.25, 10.25]


def test_unlimited_link_adds_only_the_latency() -> None:
    links, _ = links_of(Link(0.25))
    assert [links.due("worker-1", 10**9) for _ in range(2)] == [10.25, 10.25]


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 200)), min_size=1, max_size=20))
def test_link_keeps_order_and_bandwidth(sends: list[tuple[float, int]]) -> None:
    links, clock = links_of(Link(0.25, 100.0))
    arrivals = []
    for pause, nbytes in sends:
        clock.advance(pause)
        arrivals.append(links.due("worker-1", nbytes))
        assert arrivals[-1] >= clock.now + nbytes / 100.0 + 0.25
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] >= 10.0 + sum(nbytes for _, nbytes in sends) / 100.0 + 0.25 - 1e-9


def test_too_long_wait_is_refused_and_leaves_the_link_free() -> None:
    links, _ = links_of(Link(0.5, 1e6 / 8))
    expected = (
        r"emulated link to ps-0 \(1 Mbit/s, 500 ms\): a message of 25000000 bytes is due in 200 s, "
        r"expected at most 200 s; raise cluster.bandwidth_mbit or send less"
    )
    with pytest.raises(ClusterError, match=expected):
        links.due("ps-0", 25_000_000)
    assert links.due("ps-0", 125_000) == 11.5


def test_text_uses_the_units_of_the_configuration() -> None:
    assert str(Link(1e-3, 100e6 / 8)) == "100 Mbit/s, 1 ms"
    assert str(Link()) == "bandwidth as it is, 0 ms"


@pytest.mark.parametrize(
    ("latency_s", "bytes_per_s", "text"),
    [
        *((latency, None, f"latency_s {latency}: expected 0 to 200") for latency in (-1.0, math.nan, 201.0)),
        *((0.0, rate, f"bytes_per_s {rate}: expected a finite number above 0, or None") for rate in (0, math.inf)),
        (0.0, math.nan, "bytes_per_s nan: expected a finite number above 0"),
    ],
)
def test_link_out_of_range_is_refused(latency_s: float, bytes_per_s: float | None, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Link(latency_s, bytes_per_s)
