"""Emulated links on a virtual clock, and emulated slow workers with reproducible random delays."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.emulation import EmulatedLink, Emulation, Links, Stragglers
from runner.engine.graph.device import LONGEST_DELAY_S
from runner.errors import ClusterError
from tests.engine.cluster.transport.fake_network import FakeClock


def links_of(link: EmulatedLink) -> tuple[Links, FakeClock]:
    clock = FakeClock()
    clock.advance_to(10.0)
    return Links(link, lambda: clock.now), clock


PEER = "worker-1"


@pytest.mark.parametrize(
    ("link", "sends", "due"),
    [
        (EmulatedLink(0.25, 100.0), [(10.0, PEER, 50)], [10.0 + 0.5 + 0.25]),
        (EmulatedLink(0.25, 100.0), [(10.0, PEER, 100)] * 3, [11.25, 12.25, 13.25]),
        (EmulatedLink(0.25, 100.0), [(10.0, PEER, 100), (10.5, PEER, 100), (20.0, PEER, 100)], [11.25, 12.25, 21.25]),
        (EmulatedLink(0.0, 100.0), [(10.0, peer, 100) for peer in (PEER, "ps-0", PEER)], [11.0, 11.0, 12.0]),
        (EmulatedLink(0.25, 100.0), [(10.0, PEER, 0)] * 2, [10.25, 10.25]),
        (EmulatedLink(0.25), [(10.0, PEER, 10**9)] * 2, [10.25, 10.25]),
    ],
    ids=["bandwidth and latency", "queue", "idle", "independent links", "empty message", "no limit"],
)
def test_message_is_delayed_by_its_link(
    link: EmulatedLink, sends: list[tuple[float, str, int]], due: list[float]
) -> None:
    links, clock = links_of(link)
    found = []
    for now, peer, nbytes in sends:
        clock.advance_to(now)
        found.append(links.due(peer, nbytes))
    assert found == due


@given(st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 200)), min_size=1, max_size=20))
def test_link_keeps_order_and_bandwidth(sends: list[tuple[float, int]]) -> None:
    links, clock = links_of(EmulatedLink(0.25, 100.0))
    arrivals = []
    for pause, nbytes in sends:
        clock.advance(pause)
        arrivals.append(links.due("worker-1", nbytes))
        assert arrivals[-1] >= clock.now + nbytes / 100.0 + 0.25
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] >= 10.0 + sum(nbytes for _, nbytes in sends) / 100.0 + 0.25 - 1e-9


def test_too_long_wait_is_refused_and_leaves_the_link_free() -> None:
    links, _ = links_of(EmulatedLink(0.5, 1e6 / 8))
    expected = (
        r"emulated link to ps-0 \(1 Mbit/s, 500 ms\): a message of 25000000 bytes would arrive in 200 s, "
        r"expected at most 200 s; raise cluster.bandwidth_mbit"
    )
    with pytest.raises(ClusterError, match=expected):
        links.due("ps-0", 25_000_000)
    assert links.due("ps-0", 125_000) == 11.5


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
        EmulatedLink(latency_s, bytes_per_s)


LOGNORMAL = Stragglers("lognormal", median_s=0.02, sigma=0.5, seed=3)


def delays(stragglers: Stragglers, worker: int = 0, steps: int = 2000) -> list[float]:
    return [stragglers.delay_s(worker, step) for step in range(steps)]


def test_lognormal_delays_have_the_given_median_and_sigma() -> None:
    logarithms = np.log(delays(LOGNORMAL))
    assert np.exp(np.median(logarithms)) == pytest.approx(0.02, rel=0.05)
    assert np.std(logarithms) == pytest.approx(0.5, rel=0.05)
    centered = (logarithms - np.mean(logarithms)) / np.std(logarithms)
    assert abs(np.mean(centered**3)) < 0.2
    assert np.mean(np.abs(centered) < 1.96) == pytest.approx(0.95, abs=0.02)


def test_delays_are_a_function_of_seed_worker_and_step() -> None:
    again = Stragglers("lognormal", median_s=0.02, sigma=0.5, seed=3)
    forwards = delays(LOGNORMAL, steps=20)
    assert [again.delay_s(0, step) for step in reversed(range(20))] == forwards[::-1]
    assert len(set(forwards)) == 20
    first, second = (np.log(delays(LOGNORMAL, worker)) for worker in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.1
    assert delays(Stragglers("lognormal", 0.02, 0.5, seed=4), steps=20) != forwards


def test_only_listed_workers_are_slow() -> None:
    stragglers = Stragglers("constant", 0.5, workers=(1, 2))
    for step in (0, 9):
        assert [stragglers.delay_s(worker, step) for worker in range(4)] == [0.0, 0.5, 0.5, 0.0]
    assert Stragglers().delay_s(0, 0) == 0.0


def test_delay_is_limited() -> None:
    assert max(delays(Stragglers("lognormal", median_s=50.0, sigma=5.0), steps=50)) == LONGEST_DELAY_S


def test_servers_are_not_delayed() -> None:
    emulation = Emulation(stragglers=Stragglers("constant", 0.5))
    assert emulation.delay_s("worker-3", 7) == 0.5
    assert emulation.delay_s("ps-0", 7) == 0.0


@pytest.mark.parametrize(
    ("described", "text"),
    [
        (Emulation(), "unlimited bandwidth, 0 ms, no stragglers"),
        (EmulatedLink(0.5e-3, 12.5e6), "100 Mbit/s, 0.5 ms"),
        (Stragglers("constant", 0.02, workers=(0, 2)), "constant delay of worker 0, 2 with median 20 ms"),
        (LOGNORMAL, "lognormal delay of all workers with median 20 ms, sigma 0.5"),
    ],
)
def test_text_uses_the_units_of_the_configuration(described: object, text: str) -> None:
    assert str(described) == text
