"""Simulations of configurations on described hardware: laws that hold for every strategy, and refusals."""

import copy
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from runner.config.check import check
from runner.config.conf_dir import conf_dir
from runner.config.configuration import option_of, to_plain
from runner.config.schema import Config
from runner.engine.graph import TensorSpec, task_of
from runner.engine.run.recording import SEND
from runner.engine.run.step_driver import bind
from runner.engine.run.timeline import LinkSpan
from runner.engine.simulate.activities import segments
from runner.engine.simulate.costs import instruction_seconds, op_seconds
from runner.engine.simulate.hardware import DeviceKind
from runner.engine.simulate.memory import peak_tensors
from runner.errors import ConfigError, ResourceError
from runner.optimizers.lbfgs import DIRECTION, Dot, pair_names
from runner.strategies import AsyncData
from runner.tracing.parts import PARTS, device_parts
from runner.training import simulation
from runner.training.simulation import Simulated, hardware_of, session_of, simulate
from tests.small_runs import small_config, typed

HARDWARE: dict[str, Any] = {
    "kinds": {"cpu": {"flops_per_s": 1e10, "bytes_per_s": 1e9, "launch_us": 4.0, "copies": True}},
    "workers": {"kind": "cpu", "at": "worker*"},
    "servers": {"kind": "cpu", "at": "server*"},
    "links": {
        "workers": {"between": ["worker*", "switch"], "gbyte_per_s": 0.5, "latency_us": 8.0},
        "servers": {"between": ["server*", "switch"], "gbyte_per_s": 0.25, "latency_us": 16.0},
    },
    "message_us": 2.0,
}

STRATEGIES = (
    "parallelism=single",
    "parallelism=sync_data parallelism.workers=3",
    "parallelism=sync_data parallelism.workers=3 parallelism.combine=ring_all_reduce",
    "parallelism=sync_data parallelism.workers=2 parallelism.combine=parameter_server parallelism.servers=2",
    "parallelism=model parallelism.workers=2 parallelism.concurrent_steps=2",
    "parallelism=hybrid parallelism.workers=2",
    "parallelism=hybrid parallelism.workers=2 parallelism.scheme=c",
    "parallelism=async_data parallelism.workers=2",
    "parallelism=sandblaster parallelism.workers=2 optimizer=lbfgs schedule=constant",
    "parallelism=sync_data parallelism.workers=4 parallelism.combine=hierarchical parallelism.workers_per_host=2",
)


def described(strategy: str, **changes: Any) -> Config:
    """Return a configuration of a small network on the hardware above, with some of its keys replaced."""
    config = small_config(*typed(strategy), "train.batch_size=24")
    hardware = {**copy.deepcopy(HARDWARE), **changes}
    config.cluster = option_of("cluster", {**to_plain(config)["cluster"], "hardware": hardware})
    check(config)
    return config


def scaled(factor: float) -> dict[str, Any]:
    """Return the hardware with all rates multiplied, and all fixed times divided, by ``factor``."""
    found = copy.deepcopy(HARDWARE)
    for name, power in (("flops_per_s", 1), ("bytes_per_s", 1), ("launch_us", -1)):
        found["kinds"]["cpu"][name] *= factor**power
    for link in found["links"].values():
        link["gbyte_per_s"] *= factor
        link["latency_us"] /= factor
    return {**found, "message_us": found["message_us"] / factor}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_hardware_of_twice_the_speed_halves_every_time(strategy: str) -> None:
    slow, fast = (simulate(described(strategy, **scaled(factor)), 3) for factor in (1.0, 2.0))
    # A factor of 2 changes no rounding, so times of the same events are equal bit for bit.
    assert slow.step_s == 2.0 * fast.step_s
    assert (slow.busy, slow.carried, slow.utilization) == (fast.busy, fast.carried, fast.utilization)


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if "async" not in each and "sandblaster" not in each])
def test_links_carry_the_bytes_that_the_plans_send(strategy: str) -> None:
    config = described(strategy)
    found, session = simulate(config, 2), session_of(config, 3)
    plans = session.plans("train")
    for device, plan in plans.items():
        place = session.network.place[task_of(device)]
        assert found.carried[f"{place} -> switch"] == plan.sent_bytes
        assert found.carried[f"switch -> {place}"] == sum(plan.received_bytes.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_segments_contain_every_instruction_in_the_order_of_execution(strategy: str) -> None:
    session = session_of(described(strategy), 3)
    for client in session.program.training:
        for device, plan in session.plans(client.name).items():
            kind = session.kind(device)
            parts = segments(plan, lambda plan, each, kind=kind: instruction_seconds(plan, each, kind))
            expected = [instruction_seconds(plan, each, kind) for each in plan.instructions]
            assert [seconds for each in parts for seconds in each.seconds] == expected
            waits = [key for each in parts for key in each.waits]
            sends = [sent.key for each in parts for sent in each.sends]
            assert waits == [each.attributes["key"] for each in plan.instructions if each.op == "recv"]
            assert sends == [each.attributes["key"] for each in plan.instructions if each.op == "send"]


def test_a_single_device_takes_the_sum_of_its_instructions() -> None:
    config = described("parallelism=single", step_us=50.0)
    session = session_of(config, 3)
    ((device, plan),) = session.plans("train").items()
    expected = sum(instruction_seconds(plan, each, session.kind(device)) for each in plan.instructions)
    assert simulate(config, 4).step_s == pytest.approx(expected + 50e-6)


@pytest.mark.parametrize(("rows", "waves"), [(1, None), (4, 1), (5, 2), (8, 2), (17, 5)])
def test_products_of_more_than_one_wave_of_tiles_take_whole_waves(rows: int, waves: int | None) -> None:
    """Four units compute a tile of 8 outputs each at a time; products of fewer tiles keep all units busy."""
    specs = [TensorSpec(shape, "float32") for shape in ((rows, 16), (16, 8), (rows, 8))]
    attributes = {"transpose_a": False, "transpose_b": False}

    def seconds(op: str, inputs: list[TensorSpec], **tiles: int) -> float:
        return op_seconds(op, inputs, specs[2:], attributes, DeviceKind(flops_per_s=1e3, bytes_per_s=1e30, **tiles))

    flops = 2 * 16 * (8 * rows if waves is None else 4 * 8 * waves)
    assert seconds("matmul", specs[:2], multiprocessors=4, tile=8) == pytest.approx(flops / 1e3)
    assert seconds("matmul", specs[:2]) == pytest.approx(2 * 16 * 8 * rows / 1e3)
    assert seconds("relu", specs[2:], multiprocessors=4, tile=8) == seconds("relu", specs[2:])


def test_workers_with_fixed_shares_and_free_sums_take_the_time_of_one() -> None:
    def step_s(strategy: str, batch_size: int) -> Simulated:
        # Only the first layer takes time worth mentioning; transfers and sums take almost none.
        kinds = {"cpu": {"flops_per_s": 1e6, "bytes_per_s": 1e30}}
        links = {"all": {"between": ["worker*", "switch"], "gbyte_per_s": 1e28}}
        config = described(strategy, kinds=kinds, links=links, message_us=0.0)
        config.train.batch_size = batch_size
        return simulate(config, 2)

    one = step_s("parallelism=single", 24)
    three = step_s("parallelism=sync_data parallelism.workers=3 parallelism.combine=all_reduce", 72)
    updates = step_s("parallelism=single", 1).step_s
    assert one.step_s <= three.step_s <= one.step_s + updates
    assert three.examples_per_s == pytest.approx(3 * one.examples_per_s, rel=0.1)


def test_infinitely_fast_devices_take_the_time_of_the_busiest_link() -> None:
    kinds = {"cpu": {"flops_per_s": 1e30, "bytes_per_s": 1e30}}
    links = {"all": {"between": ["worker*", "switch"], "gbyte_per_s": 0.001}}
    found = simulate(described(STRATEGIES[1], kinds=kinds, links=links, message_us=0.0), 2)
    bound = max(bytes_ / 1e6 for bytes_ in found.carried.values())
    assert bound <= found.step_s < 2.1 * bound
    assert max(found.utilization.values()) <= 1.0 + 1e-9


def test_replicas_that_overlap_are_measured_once_all_of_their_clients_do() -> None:
    kinds = {"cpu": {"flops_per_s": 1e30, "bytes_per_s": 1e30}}
    found = simulate(
        described("parallelism=async_data parallelism.workers=2 parallelism.loop=overlapped", kinds=kinds), 4
    )
    assert found.update_s == pytest.approx([found.step_s] * 4)


def test_an_update_of_lbfgs_has_a_full_history_and_takes_the_first_step_of_its_search() -> None:
    config = described("parallelism=sandblaster parallelism.workers=2 optimizer=lbfgs schedule=constant")
    session = session_of(config, 3)
    driver = bind(session.program.step_driver, session)
    driver.update(0, np.zeros((), np.float32))
    runs = Counter(run.client for run in session.timeline(0.0, detail=False)[0].runs)
    assert driver.passes == runs["gather"] == 2
    pairs = [name for place in range(config.optimizer.history) for name in pair_names(place)]
    assert [runs[str(Dot(name, DIRECTION))] for name in pairs] == [1] * len(pairs)


@pytest.mark.parametrize(("link", "host"), [(0.002, None), (1e3, 0.001), (0.002, 0.001), (0.001, 0.002)])
def test_hosts_process_a_message_while_it_is_transferred(link: float, host: float | None) -> None:
    kinds = {"cpu": {"flops_per_s": 1e30, "bytes_per_s": 1e30}}
    half = {"between": ["worker0", "switch"], "gbyte_per_s": link, "host_gbyte_per_s": host}
    links = {"measured": half, "free": {"between": ["worker1", "switch"], "gbyte_per_s": 1e3}}
    strategy = "parallelism=model parallelism.workers=2"
    found = simulate(described(strategy, kinds=kinds, links=links, message_us=0.0), 2)
    sent = sum(found.carried[name] for name in ("worker0 -> switch", "switch -> worker0"))
    slower = link if host is None else min(link, host)
    assert found.step_s == pytest.approx(sent / (1e9 * slower), rel=1e-3)


def test_transfers_between_two_devices_follow_one_another_if_the_hardware_says_so() -> None:
    def spans_of(in_order: bool) -> list[LinkSpan]:
        config = described(f"{STRATEGIES[2]} parallelism.bucket_bytes=0", in_order=in_order)
        session = session_of(config, 1)
        session.run("train")
        # In a ring, a worker sends to one other worker.
        return [span for span in session.timeline(0.0, detail=False)[1] if span.link == "worker0 -> switch"]

    def overlap(spans: list[LinkSpan]) -> bool:
        ordered = sorted(spans, key=lambda span: span.begin_ns)
        return any(first.end_ns > second.begin_ns for first, second in pairwise(ordered))

    in_order, shared = spans_of(True), spans_of(False)
    assert overlap(shared)
    assert not overlap(in_order)
    assert [span.key for span in sorted(in_order, key=lambda span: span.begin_ns)] == [span.key for span in in_order]
    assert {(span.key, span.nbytes) for span in in_order} == {(span.key, span.nbytes) for span in shared}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensors_at_the_peak_fill_the_arena_but_for_gaps(strategy: str) -> None:
    session = session_of(described(strategy), 3)
    for client in session.program.training:
        for plan in session.plans(client.name).values():
            sizes = list(peak_tensors(plan).values())
            assert sizes == sorted(sizes, reverse=True)
            assert sum(sizes) <= plan.arena_bytes
            outputs = [slot for each in plan.instructions for slot in each.outputs]
            inside = [s for s in outputs if plan.places[s].variable is None and plan.places[s].wire is None]
            assert sum(sizes) >= max((plan.slots[slot].layout.nbytes for slot in inside), default=0)


def test_a_shared_bus_carries_one_direction_at_a_time() -> None:
    def step_s(shared: bool) -> float:
        kinds = {"cpu": {"flops_per_s": 1e30, "bytes_per_s": 1e30}}
        links = {"bus": {"between": ["worker0", "worker1"], "gbyte_per_s": 0.001, "shared": shared}}
        return simulate(described("parallelism=sync_data parallelism.workers=2", kinds=kinds, links=links), 2).step_s

    assert step_s(shared=True) == pytest.approx(2.0 * step_s(shared=False), rel=0.05)


def linked(*between: str, gbyte_per_s: float = 1.0) -> dict[str, Any]:
    """Return the change of the hardware above to one description of links."""
    return {"links": {"link": {"between": list(between), "gbyte_per_s": gbyte_per_s}}}


@pytest.mark.parametrize(("strategy", "detail"), [*((each, False) for each in STRATEGIES), (STRATEGIES[1], True)])
def test_parts_of_every_device_add_up_to_the_update(strategy: str, detail: bool) -> None:
    config = described(strategy, step_us=20.0)
    config.trace = detail
    found = simulate(config, 3)
    for device, parts in found.parts.items():
        assert sum(parts.values()) == pytest.approx(found.step_s, rel=1e-4)
        assert min(parts.values()) >= 0.0
        # Computations that began before the first update, or end after the last one, count in one of the two only.
        if "async" not in strategy:
            assert parts["compute"] == pytest.approx(found.busy[device] * found.step_s, rel=1e-3)


def test_parts_name_what_a_device_waits_for() -> None:
    def parts(**changes: Any) -> dict[str, float]:
        found = simulate(described(STRATEGIES[1], **changes), 2)
        return {part: sum(own[part] for own in found.parts.values()) for part in PARTS}

    slow = parts(links=linked("worker*", "switch", gbyte_per_s=1e-5)["links"])
    assert max(slow, key=slow.__getitem__) == "communication"
    fast = parts(links=linked("worker*", "switch", gbyte_per_s=1e20)["links"], message_us=0.0)
    assert fast["communication"] == pytest.approx(0.0, abs=1e-8)
    assert fast["waiting"] > 0.0
    read = parts(step_us=1e6)
    assert read["input"] == pytest.approx(3.0, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nodes": 3}, r"cluster.hardware.nodes: no such key; .*\nKeys of cluster.hardware: kinds, work"),
        ({"kinds": {"cpu": {"flops": 1.0}}}, r"cluster.hardware.kinds.cpu.flops: no such key; did you mean 'flops_per"),
        ({"kinds": {"cpu": {"flops_per_s": 1.0}}}, r"cluster.hardware.kinds.cpu.bytes_per_s: missing value"),
        (
            {"kinds": {"cpu": {**HARDWARE["kinds"]["cpu"], "type": "tpu"}}},
            r"cluster.hardware.kinds.cpu.type='tpu': expected one of cpu, gpu",
        ),
        ({"workers": {"kind": "tpu", "at": "worker*"}}, r"cluster.hardware.workers.kind='tpu': expected one of cpu"),
        ({"workers": {"kind": "cpu", "at": "machine[0-1]"}}, r"workers.at=.* has 2 places, expected 3 or more"),
        (
            {
                "kinds": {"cpu": HARDWARE["kinds"]["cpu"], "ps": {**HARDWARE["kinds"]["cpu"], "cores": 4}},
                "workers": {"kind": "cpu", "at": "worker*", "host": "a"},
                "servers": {"kind": "ps", "at": "server*", "host": "a"},
            },
            r"cluster.hardware.servers.host=a: workers are on this host too; expected equal cores, found {",
        ),
        ({"routes": "any"}, r"cluster.hardware.routes='any': expected one of shortest, tree"),
        ({"links": {}}, r"cluster.hardware: no link leads from 'worker0' to 'worker1'; add links between them"),
        (linked("worker*", "a", gbyte_per_s=0.0), r"cluster.hardware.links.link.gbyte_per_s=0.0: expected above 0"),
        (linked("worker*"), r"links.link.between=\['worker\*'\]: expected the names of two places"),
        (linked("worker*", "a[7-0]"), r"links.link.between=.*: a range falls, so it has no place; expected"),
        (linked("a[0-2]", "b[0-1]"), r"links.link.between=.*: 3 and 2 places, expected equally many"),
        (linked("worker*", "worker*"), r"links.link: the link between 'worker0' and 'worker0' closes a cycle"),
        (
            {"links": {**linked("worker*", "a")["links"], "second": linked("worker0", "worker1")["links"]["link"]}},
            r"cluster.hardware: links.second: the link between 'worker0' and 'worker1' closes a cycle, expected one r",
        ),
    ],
)
def test_wrong_hardware_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(described(STRATEGIES[1], **changes), 1)


def test_places_with_several_routes_need_the_shortest() -> None:
    links = {
        **linked("worker*", "switch", gbyte_per_s=0.001)["links"],
        "direct": {"between": ["worker0", "worker1"], "gbyte_per_s": 0.001},
        "unused": {"between": ["worker0", "worker1"], "gbyte_per_s": 1.0},
    }
    found = simulate(described("parallelism=sync_data parallelism.workers=2", links=links, routes="shortest"), 1)
    assert {link for link, nbytes in found.carried.items() if nbytes} == {"worker0 -> worker1", "worker1 -> worker0"}
    assert max(found.utilization.values()) == pytest.approx(max(found.carried.values()) / 1e6 / found.step_s)


def test_missing_parts_of_the_hardware_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster.hardware=null: expected a described cluster"):
        simulate(small_config(), 1)
    with pytest.raises(ConfigError, match=r"servers=null: expected a kind and places for 2 parameter servers"):
        simulate(described(STRATEGIES[3], servers=None), 1)
    kinds = {"cpu": {**HARDWARE["kinds"]["cpu"], "memory_gib": 1e-6}}
    with pytest.raises(
        ResourceError, match=r"worker/task:0/device:cpu:0 needs 0.00 GiB, and the described device has 1e-06 GiB"
    ):
        simulate(described("parallelism=single", kinds=kinds), 1)


def test_a_torus_has_routes_although_its_links_form_a_cycle() -> None:
    ring = {"ring": {"between": ["worker[0-2]", "next[0-2]"], "gbyte_per_s": 1.0}}
    back = {"back": {"between": ["next[0-2]", "worker[1-3]"], "gbyte_per_s": 1.0}}
    closed = {"closed": {"between": ["next2", "worker0"], "gbyte_per_s": 1.0}}
    found = simulate(described(STRATEGIES[1], links={**ring, **back, **closed}, routes="shortest"), 1)
    assert found.carried["worker0 -> next0"] > 0


SHIPPED = [path.stem for path in (conf_dir() / "cluster").glob("*.yaml") if "hardware:" in path.read_text()]


@pytest.mark.parametrize("cluster", SHIPPED)
def test_every_number_of_a_shipped_cluster_has_a_source(cluster: str) -> None:
    config = small_config(f"cluster={cluster}")
    hardware = hardware_of(config)
    assert hardware.about
    assert all(each.source for each in (*hardware.kinds.values(), *hardware.links.values()))
    if all(kind.profile is None for kind in hardware.kinds.values()):  # a profile is recorded on the user's machine
        assert simulate(config, 1).step_s > 0


@pytest.mark.parametrize("batch_size", [25, 23])
@pytest.mark.parametrize("options", ["", "parallelism.loop=sequential parallelism.n_push=2 parallelism.n_fetch=3"])
def test_shared_plans_take_equal_time(batch_size: int, options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = described(f"parallelism=async_data parallelism.workers=5 parallelism.servers=2 {options}".strip())
    config.train.batch_size = batch_size
    shared, few = simulate(config, 4), session_of(config, 5)
    monkeypatch.setattr(AsyncData, "build_for_simulation", AsyncData.build)
    separate, many = simulate(config, 4), session_of(config, 5)
    for name in ("update_s", "carried", "memory_bytes", "sent_bytes", "parts"):
        assert getattr(shared, name) == getattr(separate, name), name
    # Instructions of equal priority may have another order, in which the sum of their seconds is rounded differently.
    assert shared.busy == pytest.approx(separate.busy, rel=1e-14)
    assert set(few.program.clients) == set(many.program.clients)
    assert len(few.program.graph.nodes) < 0.6 * len(many.program.graph.nodes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_repeated_steps_equal_those_that_are_simulated_again(strategy: str) -> None:
    config = described(strategy, step_us=20.0)
    repeated = simulate(config, 4)
    # A delay that never happens makes every step differ in principle, so that every step is simulated.
    disturbances = {"delays": {"never": {"at": "worker*", "median_ms": 1.0, "probability": 1e-9}}}
    again = simulate(described(strategy, step_us=20.0, disturbances=disturbances), 4)
    assert repeated.update_s == again.update_s
    for name in ("busy", "carried", "utilization", "sent_bytes", "parts"):
        assert getattr(repeated, name) == getattr(again, name), name


def test_progress_is_announced_and_an_interruption_keeps_the_updates_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    config, lines = described("parallelism=async_data parallelism.workers=2"), list[str]()

    def announce(text: str) -> None:
        lines.append(text)
        if len(lines) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(simulation, "PROGRESS_S", 0.0)
    found = simulate(config, 6, announce=announce)
    assert [line.partition(",")[0] for line in lines] == [f"simulated {k} of 6 updates" for k in (1, 2, 3)]
    assert found.update_s == simulate(config, 6).update_s[:3]
    assert found.carried == simulate(config, 3).carried


def test_the_timeline_of_a_long_simulation_ends_with_the_recorded_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    config = described("parallelism=async_data parallelism.workers=2")
    config.trace_steps = 6
    whole = simulate(config, 6)
    monkeypatch.setattr(simulation, "RECORDED_RUNS", 20)
    part = simulate(config, 6)
    assert (part.update_s, part.busy, part.carried) == (whole.update_s, whole.busy, whole.carried)
    assert 1 <= len(part.timeline.updates) < len(whole.timeline.updates) == 6
    assert list(part.timeline.updates) == list(whole.timeline.updates)[: len(part.timeline.updates)]
    config.trace_steps = 1
    assert list(simulate(config, 6).timeline.updates) == list(part.timeline.updates)[-1:]


@pytest.mark.parametrize("limit", [20, 20_000])
def test_parts_of_an_update_depend_on_no_later_update(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    pause = {"at": "worker1", "median_ms": 50.0, "probability": 0.3}
    config = described("parallelism=async_data parallelism.workers=3", disturbances={"delays": {"pause": pause}})
    config.trace_steps = 20
    whole = simulate(config, 20)
    monkeypatch.setattr(simulation, "RECORDED_RUNS", limit)
    part = simulate(config, 20 if limit == 20 else 4)
    updates = whole.timeline.updates[: len(part.timeline.updates)]
    assert part.timeline.updates == updates
    assert len(updates) < 20
    assert part.parts == device_parts(whole.timeline.index, updates)
    spans = whole.timeline.index.timeline.spans
    within = [each for each in spans if each.kind == SEND and updates[0].begin_ns < each.end_ns <= updates[-1].end_ns]
    sent = sum(each.nbytes for each in within) / len(updates)
    assert sum(part.sent_bytes.values()) == pytest.approx(sent)
