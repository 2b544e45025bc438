"""Activities of a client on other devices against activities that are made separately for these devices."""

from typing import Any

import numpy as np
import pytest

from runner.engine.events.loop import EventLoop
from runner.engine.graph.device import server_device, worker_device
from runner.engine.simulate import activities
from runner.engine.simulate.activities import ClientActivities, Segment, Transfer
from runner.engine.simulate.network import Network, network_of
from runner.training.simulation import hardware_of
from tests.training.test_simulation import HARDWARE, described

WORKERS = [worker_device(k, "cpu") for k in range(4)]
SERVERS = [server_device(k, "cpu") for k in range(2)]
UNITS = {device: number for number, device in enumerate([*WORKERS, *SERVERS])}

STAR = HARDWARE["links"]
LINKS: dict[str, dict[str, Any]] = {
    "star": STAR,
    "another latency": {**STAR, "workers": {**STAR["workers"], "between": ["worker[0-1]", "switch"]}}
    | {"slow": {"between": ["worker[2-3]", "switch"], "gbyte_per_s": 0.5, "latency_us": 99.0}},
    "more links": {**STAR, "workers": {**STAR["workers"], "between": ["worker[0-1]", "switch"]}}
    | {"near": {"between": ["worker[2-3]", "rack"], "gbyte_per_s": 0.5}}
    | {"uplink": {"between": ["rack", "switch"], "gbyte_per_s": 0.5, "latency_us": 8.0}},
    "serial": {**STAR, "workers": {**STAR["workers"], "serial": True}},
    "shared": {**STAR, "workers": {**STAR["workers"], "shared": True}},
    "busy hosts": {**STAR, "workers": {**STAR["workers"], "host_gbyte_per_s": 0.3}},
    "another host": {**STAR, "workers": {**STAR["workers"], "between": ["worker[0-1]", "switch"]}}
    | {"busy": {**STAR["workers"], "between": ["worker[2-3]", "switch"], "host_gbyte_per_s": 0.3}},
}
SHARED_ROWS = ("star", "serial", "shared", "busy hosts")


def moved(device: str) -> str:
    """Return the device that takes the place of a device: the third worker takes the place of the first."""
    return WORKERS[2] if device == WORKERS[0] else device


def parts_on(worker: str) -> dict[str, list[Segment]]:
    """Return a client: a worker sends tensors to two servers, which answer."""
    first, second = SERVERS
    sends = [(Transfer("a", worker, first, 4_000),), (Transfer("b", worker, second, 6_000),)]
    answers = [(Transfer(key, second, worker, 7_000),) for key in ("d", "e")]
    return {
        worker: [Segment(0, [], [0.5e-3], sends, True), Segment(3, ["c", "d", "e"], [0.25e-3], [], True)],
        first: [Segment(0, ["a"], [0.125e-3], [(Transfer("c", first, worker, 5_000),)], True)],
        second: [Segment(0, ["b"], [0.1e-3, 0.2e-3], answers, True)],
    }


def network_with(links: str) -> Network:
    """Return a network of four workers and two servers."""
    hardware = hardware_of(described("parallelism=single", links=LINKS[links]))
    return network_of(hardware, len(WORKERS), len(SERVERS))


def client_on(worker: str, network: Network, **options: Any) -> ClientActivities:
    """Return the activities of the client above."""
    serial = [number for number, link in enumerate(network.links) if link.serial]
    units = {number: 3 * len(UNITS) + unit for unit, number in enumerate(serial)}
    return ClientActivities(parts_on(worker), network, UNITS, serial=units, **options)


def results_of(client: ClientActivities, network: Network) -> tuple[object, ...]:
    """Return all times and totals of two concurrent runs, one of them late on the worker."""
    loop = EventLoop([link.bytes_per_s for link in network.links], 3 * len(UNITS) + len(network.links))
    for rank, late in enumerate(({}, {WORKERS[2]: 0.1e-3})):
        loop.add(1e-6)
        client.add_to(loop, rank=float(rank), delays_s=late)
    before = [loop.add(2e-6), loop.add(3e-6)]
    client.add_to(loop, rank=2.0, delays_s={}, after=before)
    ended = [*iter(loop.run, [])]
    loop.require_ended()
    times = np.concatenate(loop.times(0, len(loop))).tolist()
    return ended, times, loop.carried.tolist(), loop.busy_s.tolist(), client.parts, client.transfers, client.arrivals


@pytest.mark.parametrize("links", LINKS)
@pytest.mark.parametrize("options", [{}, {"message_s": 2e-6}, {"in_order": True}])
def test_a_client_on_other_devices_takes_the_time_of_one_made_for_them(links: str, options: dict[str, Any]) -> None:
    network = network_with(links)
    original = client_on(WORKERS[0], network, **options)
    before = results_of(original, network)
    expected = results_of(client_on(WORKERS[2], network, **options), network)
    assert results_of(original.on(moved), network) == expected
    assert results_of(original, network) == before != expected


@pytest.mark.parametrize("links", LINKS)
def test_rows_are_made_again_only_if_routes_have_other_latencies_or_lengths(
    links: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, made = client_on(WORKERS[0], network_with(links)), list[object]()
    make = activities.block_of

    def counted(*columns: Any) -> Any:
        made.append(columns)
        return make(*columns)

    monkeypatch.setattr(activities, "block_of", counted)
    original.on(moved)
    assert (made == []) == (links in SHARED_ROWS)
