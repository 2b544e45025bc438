"""Profiles of this machine, and simulations with them: cores that processes share, messages, and emulated links."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.commands import profile as command
from runner.config.schema import Config
from runner.engine.run import instruction_times
from runner.engine.run.kernel_table import load_kernels
from runner.engine.run.rendezvous import LocalRendezvous
from runner.engine.simulate.profile import (
    MEASURED,
    InstructionSignature,
    MessageCosts,
    Profile,
    measured_neighbours,
)
from runner.errors import ConfigError, ResourceError
from runner.system.machine import usable_cores
from runner.training import link_test
from runner.training.profiles import profile_here, read_profile, with_instructions, write_profile
from runner.training.simulation import session_of, simulate
from tests.small_runs import small_config, typed

FREE = MessageCosts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1e9)
DEAR = MessageCosts(*[1e6] * 6, 10.0)
MESSAGES = MessageCosts(4.0, 7.0, 8.0, 3.0, 5.0, 9.0, 10.0)
QUEUED = MessageCosts(40.0, 7.0, 80.0, 30.0, 50.0, 90.0, 10.0)
STEP_US = 20.0
WAYS = ("messages", "crowded", "queued")
"""The ways in which messages are exchanged, with costs of their own in a profile."""

STRATEGIES = (
    "parallelism=sync_data parallelism.workers=3",
    "parallelism=sync_data parallelism.workers=2 parallelism.combine=parameter_server",
    "parallelism=hybrid parallelism.workers=2",
    "parallelism=async_data parallelism.workers=2",
    "parallelism=sandblaster parallelism.workers=2 optimizer=lbfgs schedule=constant",
)

TWO_HOSTS = (
    "cluster=two_hosts",
    "cluster.hardware.links.workers.between=[worker0,host0]",
    "cluster.hardware.links.others.between=['worker[1-2]',host1]",
)

INPUTS = (1, 2, 8, 12)
"""Numbers of examples that processes read at a time, besides the whole batch."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a profile with the instructions of a worker of each strategy, and of ``single``.

    They were measured alone, so that processes do not slow one another down.
    """
    path = tmp_path_factory.mktemp("profile") / "profile.json"
    profile, measured = (
        replace(profile_here(path), messages=MESSAGES, crowded=MESSAGES, queued=QUEUED, step_us=STEP_US),
        set[tuple[InstructionSignature, int]](),
    )
    for strategy in ("parallelism=single", *STRATEGIES):
        profile = with_instructions(profile, described(strategy, path), measured)
    for batch in INPUTS:
        profile = with_instructions(profile, described("parallelism=single", path, f"train.batch_size={batch}"))
    write_profile(path, replace(profile, families=tuple(each for each in profile.families if not each.neighbours)))
    return path


def described(strategy: str, path: Path, *overrides: str, host: str | None = "here", **kind: Any) -> Config:
    """Return a configuration of a small network on processes with a profile. kind: keys of the kind of device."""
    config = small_config(*typed(strategy), "train.batch_size=24", "cluster=this_machine", *overrides)
    hardware = config.cluster.hardware
    assert hardware is not None
    hardware.kinds["process"] = replace(hardware.kinds["process"], profile=str(path), **kind)
    for group in (hardware.workers, hardware.servers):
        assert group is not None
        group.host = host
    return config


def with_messages(path: Path, folder: Path, messages: MessageCosts, *, batches: bool = True) -> Path:
    """Return the file of the same profile with other costs of messages. batches: whether making batches takes time."""
    changed, found = folder / "changed.json", read_profile(path)
    families = tuple(family for family in found.families if batches or family.op != "batch")
    write_profile(changed, replace(found, **dict.fromkeys(WAYS, messages), families=families))
    return changed


def test_every_instruction_of_a_recorded_configuration_is_measured(recorded: Path) -> None:
    for strategy in ("parallelism=single", *STRATEGIES):
        assert simulate(described(strategy, recorded), 1).origins == {"process": {MEASURED: pytest.approx(1.0)}}


def test_a_plan_without_a_new_signature_is_not_measured(recorded: Path) -> None:
    profile, measured = read_profile(recorded), set[tuple[InstructionSignature, int]]()
    found = with_instructions(profile, described(STRATEGIES[0], recorded), measured)
    assert found != profile
    assert with_instructions(found, described(STRATEGIES[0], recorded), measured) == found


def test_a_simulated_run_has_the_kernel_threads_of_a_run(recorded: Path) -> None:
    config = described(STRATEGIES[0], recorded, "simulate.updates=1", cores=12)
    assert config.cluster.threads_per_worker is None
    assert session_of(config, 3).costs["process"].threads == 4


def test_the_inputs_of_several_devices_in_one_process_are_measured(tmp_path: Path) -> None:
    keys = ("parallelism=sync_data", "parallelism.workers=2", "cluster.one_process=true", "train.batch_size=24")
    found = with_instructions(profile_here(tmp_path / "none.json"), small_config(*keys))
    for op in ("input", "batch"):
        (inputs,) = (family for family in found.families if family.op == op)
        assert {shape[0] for point in inputs.points for shape in point.shapes} == {12}


def test_received_memory_has_pages_of_its_own_before_it_is_read() -> None:
    wires, nbytes, process = instruction_times._Unconnected(LocalRendezvous()), 1 << 26, psutil.Process()
    before = process.memory_info().rss
    received = wires.incoming("gradient", "/job:worker/task:0/device:cpu:0", nbytes)
    assert process.memory_info().rss - before > 0.9 * received.nbytes


def test_noise_of_a_long_instruction_does_not_reach_a_short_one(
    recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All instructions are one fused call, which takes 2 ms more than the instructions alone."""
    plans = session_of(described("parallelism=single", recorded), 3)
    ((device, plan),) = plans.plans("train").items()
    alone = dict.fromkeys(range(len(plan.instructions)), 1e-6) | {0: 10e-3}
    times = {True: {0: sum(alone.values()) + 2e-3}, False: alone}
    monkeypatch.setattr(instruction_times, "_timed", lambda *given, fused: times[fused])
    seconds = instruction_times.measured_seconds(plan, plans.plans("init")[device], load_kernels(), 1)
    assert sum(seconds) == pytest.approx(times[True][0])
    assert max(seconds[1:]) < 1.3e-6


def test_one_process_takes_the_sum_of_its_instructions(recorded: Path) -> None:
    config = described("parallelism=single", recorded, cores=1)
    session = session_of(config, 3)
    (plan,) = session.plans("train").values()
    costs = session.costs["process"]
    expected = sum(costs.seconds(plan, each) for each in plan.instructions)
    outside_s, batch_s = (each(session.program.clients["train"], plan) for each in (costs.outside_s, costs.batch_s))
    assert simulate(config, 2).step_s == pytest.approx(expected + outside_s + batch_s), (
        "one core also makes the batches"
    )
    assert outside_s > 1e-6 * STEP_US, "inputs are read too"
    assert batch_s > 0.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_enough_cores_for_all_processes_delay_none(strategy: str, recorded: Path, tmp_path: Path) -> None:
    free = with_messages(recorded, tmp_path, FREE, batches=False)
    shared, alone = (simulate(described(strategy, free, cores=64, host=host), 3) for host in ("here", None))
    assert shared.step_s == pytest.approx(alone.step_s)


@pytest.mark.parametrize(("cores", "neighbours"), [(2, 2), (3, 2), (64, 2), (1, 1)])
def test_all_processes_that_compute_at_the_same_time_take_the_time_that_was_measured_so(
    cores: int, neighbours: int, recorded: Path, tmp_path: Path
) -> None:
    alone, slowed = with_messages(recorded, tmp_path, FREE, batches=False), tmp_path / "slowed.json"
    profile = read_profile(alone)
    together = (
        replace(each, neighbours=neighbours, points=tuple(replace(point, us=2.0 * point.us) for point in each.points))
        for each in profile.families
    )
    write_profile(slowed, profile.with_families(together))
    for strategy, factor in (("parallelism=single", 1.0), (STRATEGIES[0], 2.0)):
        threads = "cluster.threads_per_worker=1"
        before, after = (simulate(described(strategy, path, threads, cores=cores), 2) for path in (alone, slowed))
        # The last process to end its part of a step computes alone.
        assert after.step_s == pytest.approx(factor * before.step_s, rel=0.03)


def test_several_processes_are_measured_alone_and_together(tmp_path: Path) -> None:
    found = with_instructions(profile_here(tmp_path / "none.json"), described(STRATEGIES[0], tmp_path))
    ops = {each.op: set() for each in found.families}
    for each in found.families:
        ops[each.op].add(each.neighbours)
    expected = {0, measured_neighbours(3, 1, usable_cores())}
    assert all(neighbours in (expected, {0}) for neighbours in ops.values())
    assert ops["matmul"] == expected


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_core_does_all_work_and_waits_for_little_else(strategy: str, recorded: Path, tmp_path: Path) -> None:
    free = with_messages(recorded, tmp_path, FREE, batches=False)
    one, two, many = (simulate(described(strategy, free, cores=cores), 4) for cores in (1, 2, 64))
    work_s = sum(many.busy.values()) * many.step_s
    assert one.step_s * (1 + 1e-9) >= two.step_s >= many.step_s * (1 - 1e-9)
    if "async" not in strategy and "sandblaster" not in strategy:
        # A part of the step runs on one worker alone; no core is idle while any worker has work.
        assert one.step_s == pytest.approx(work_s)


def test_messages_cost_time_of_cores(recorded: Path, tmp_path: Path) -> None:
    strategy, costs = STRATEGIES[0], MESSAGES
    with_free = simulate(described(strategy, with_messages(recorded, tmp_path, FREE), cores=1), 2).step_s
    config = described(strategy, recorded, cores=1)
    plans = session_of(config, 3).plans("train").values()
    sent = sum(each.op == "send" for plan in plans for each in plan.instructions)
    work_us = sent * (costs.send + costs.relay + costs.receive) + len(plans) * (costs.worker + costs.master)
    added_us = 1e6 * (simulate(config, 2).step_s - with_free)
    # Some latencies, and little else, are not hidden by the work of other processes.
    assert work_us <= added_us * (1 + 1e-6)
    assert added_us <= work_us + costs.latency * (2 + sent)


@pytest.mark.parametrize(
    ("strategy", "network", "cores", "way"),
    [
        (STRATEGIES[0], (), 3, "messages"),
        (STRATEGIES[0], (), 2, "crowded"),
        (STRATEGIES[3], (), 8, "queued"),
        (STRATEGIES[0], ("cluster.emulate=true", "cluster.latency_ms=1"), 2, "queued"),
        (STRATEGIES[0], TWO_HOSTS, 2, "queued"),
    ],
)
def test_messages_of_concurrent_clients_between_hosts_and_on_busy_cores_have_their_own_costs(
    strategy: str, network: tuple[str, ...], cores: int, way: str, recorded: Path, tmp_path: Path
) -> None:
    before, found = simulate(described(strategy, recorded, *network, cores=cores), 2).step_s, read_profile(recorded)
    changed = tmp_path / "changed.json"
    for each in WAYS:
        write_profile(changed, replace(found, **{each: DEAR}))
        after = simulate(described(strategy, changed, *network, cores=cores), 2).step_s
        assert (after > before + 1.0) if each == way else (after == pytest.approx(before))


def test_the_tensors_between_two_devices_share_a_message_in_concurrent_clients(recorded: Path, tmp_path: Path) -> None:
    """On one core, each message adds its cost to an update."""
    found, changed, added_us = read_profile(recorded), tmp_path / "changed.json", 1e5
    dearer = {name: getattr(QUEUED, name) + added_us for name in ("send", "relay", "receive")}
    write_profile(changed, replace(found, queued=replace(QUEUED, **dearer)))
    one = "parallelism=async_data parallelism.workers=1 parallelism.loop=sequential"
    before, after = (simulate(described(one, path, cores=1), 5) for path in (recorded, changed))
    session = session_of(described(one, recorded), 3)
    messages = sum(
        client.per_update * len({each.attributes["destination"] for each in plan.instructions if each.op == "send"})
        for client in session.program.training
        for plan in session.plans(client.name).values()
    )
    assert messages > 0
    assert after.step_s - before.step_s == pytest.approx(3e-6 * added_us * messages, rel=0.01)


def test_bytes_of_a_link_cost_time_of_cores_at_both_ends(recorded: Path, tmp_path: Path) -> None:
    config = described(STRATEGIES[0], with_messages(recorded, tmp_path, FREE), cores=1)
    free, hardware = simulate(config, 2), config.cluster.hardware
    assert hardware is not None
    hardware.links["workers"] = replace(hardware.links["workers"], host_gbyte_per_s=0.01)
    found = simulate(config, 2)
    # A message crosses two of these links; each byte costs time at both ends of the route.
    crossed = sum(nbytes for link, nbytes in found.carried.items() if link.endswith(" -> memory"))
    assert found.step_s - free.step_s == pytest.approx(2 * 2 * crossed / 1e7, rel=0.01)


def test_one_process_needs_no_links(recorded: Path) -> None:
    config = described("parallelism=single", recorded)
    assert config.cluster.hardware is not None
    config.cluster.hardware.links.clear()
    assert simulate(config, 1).carried == {}


def test_kinds_on_one_host_have_their_own_costs_of_messages(recorded: Path) -> None:
    config = described(STRATEGIES[1], recorded)
    hardware = config.cluster.hardware
    assert hardware is not None
    hardware.kinds["described"] = replace(hardware.kinds["process"], profile=None)
    hardware.workers.kind = "described"
    messages = {device: share.messages for device, share in session_of(config, 3)._shares.items()}
    assert {device.split("/")[1]: each for device, each in messages.items()} == {"job:worker": None, "job:ps": MESSAGES}


def test_an_emulated_network_replaces_the_links(recorded: Path) -> None:
    network = ("cluster.emulate=true", "cluster.bandwidth_mbit=0.1", "cluster.latency_ms=3")
    config = described(STRATEGIES[0], recorded, *network)
    found, session = simulate(config, 2), session_of(config, 3)
    assert all(link.serial for link in session.network.links)
    bound = 3e-3 + max(found.carried.values()) / (0.1e6 / 8)
    assert bound <= found.step_s < 2.1 * bound
    assert sum(found.carried.values()) == sum(plan.sent_bytes for plan in session.plans("train").values())


def test_what_does_not_fit_is_refused(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.json: no such file; record one with `runner profile`"):
        simulate(described("parallelism=single", tmp_path / "missing.json"), 1)
    stragglers = ("cluster.emulate=true", "cluster.stragglers.distribution=constant", "cluster.stragglers.median_ms=1")
    with pytest.raises(ConfigError, match=r"cluster.stragglers.distribution=constant: .* use none"):
        simulate(described(STRATEGIES[0], recorded, *stragglers), 1)
    other, found = tmp_path / "other.json", read_profile(recorded)
    write_profile(other, replace(found, machine=replace(found.machine, cpu="another CPU")))
    with pytest.raises(ConfigError, match=r"other.json: recorded on .*another CPU.* use another file"):
        profile_here(other)
    other.write_text(recorded.read_text().replace('"version": 1', '"version": 0').replace('"version":1', '"version":0'))
    with pytest.raises(ConfigError, match=r"version: 0, expected 1; record the profile again"):
        read_profile(other)


def test_the_verb_creates_and_extends_a_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "with_messages", lambda profile, folder: replace(profile, messages=MESSAGES))
    monkeypatch.setattr(instruction_times, "SHORTEST_S", 0.0)
    path = tmp_path / "own.json"
    given = ["model=mlp", "model.hidden=[8]", "parallelism=single", "--output", str(path)]
    assert command.main(given) == 0
    assert command.main([*given, "--threads", "1", "3"]) == 0
    found: Profile = read_profile(path)
    assert found.messages == MESSAGES
    assert {family.threads for family in found.families} == {1, 3, usable_cores()}
    with pytest.raises(ConfigError, match=r"--threads 0: expected 1 or more"):
        command.main([*given, "--threads", "0"])
    with pytest.raises(ResourceError, match=r"cannot write .*; choose another file with --output"):
        command.main([*given[:-1], str(tmp_path / "absent" / "own.json")])


@pytest.mark.slow
def test_messages_are_measured_between_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_test, "REPEATS", 3)
    monkeypatch.setattr(link_test, "HOPS", 8)
    found = link_test.with_messages(profile_here(tmp_path / "none.json"), tmp_path)
    costs = [getattr(found, way) for way in WAYS]
    for each in costs:
        assert each.send > 0.0
        assert each.worker > 0.0
        assert math.isfinite(each.copy_gbyte_per_s)
    assert found.step_us is not None
    assert found.step_us > 0.0
