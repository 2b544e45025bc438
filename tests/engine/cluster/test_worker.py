"""Workers on a virtual network: whole steps, delays, traces and shutdown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engine.cluster.emulation import Link
from runner.engine.cluster.transport.documents import decode_document
from runner.engine.cluster.transport.heartbeat_monitor import DEFAULT_LIMITS_S
from runner.engine.cluster.transport.messages import (
    IDLE,
    STEP,
    Bye,
    Done,
    Heartbeat,
    Run,
    Shutdown,
    StartTrace,
    StopTrace,
    Traced,
)
from runner.engine.cluster.worker_group import _JOIN_S
from runner.engine.cluster.worker_process import WorkerOptions
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import Recorder, from_document
from runner.errors import ConfigError
from tests.engine.cluster.conftest import Source, Start
from tests.engine.cluster.remote_programs import EXAMPLES
from tests.engine.cluster.virtual_cluster import VirtualCluster

RESULT_OF_STEP_2 = [-np.exp(1.0)] * EXAMPLES


def test_step_uses_feeds_inputs_and_variables(cluster: VirtualCluster) -> None:
    cluster.run("init")
    old = np.zeros(EXAMPLES)
    kept = []
    for step in range(3):
        fetched = cluster.run("run", step, {"rate": 0.5})
        new = -np.exp(np.full(EXAMPLES, 0.5 * step))
        for name, value in {"old": old, "new": new, "away": -new}.items():
            np.testing.assert_array_equal(fetched[name], value)
        old = new
        kept.append(fetched["new"])
    assert kept[0].tolist() == [-1.0] * EXAMPLES, "fetched values are copies"


def test_tensor_may_overtake_the_run_message(fed: VirtualCluster) -> None:
    fed.send(Run("run", 2), ["worker-0"])
    assert fed.endpoint.receive(5.0) is None
    assert [len(fed.mailboxes[worker].pending) for worker in fed.workers] == [0, 1]
    assert fed.progress["worker-0"].now == Heartbeat(STEP, 2)
    assert fed.progress["worker-1"].now == Heartbeat(IDLE, 0)
    fed.send(Run("run", 2), ["worker-1"])
    assert fed.finish("run", 2)["new"].tolist() == RESULT_OF_STEP_2
    assert fed.progress["worker-0"].now == Heartbeat(IDLE, 2)


def test_emulated_link_delays_but_does_not_change_values(start: Start) -> None:
    with start() as cluster:
        cluster.set_up(link=Link(latency_s=2.0))
        cluster.run("init")
        begun = cluster.network.clock.now
        fetched = cluster.run("run", 2, {"rate": 0.5})
        assert cluster.network.clock.now - begun == pytest.approx(4.0)
    assert fetched["new"].tolist() == RESULT_OF_STEP_2


def test_slow_worker_begins_late_and_reports_the_step(fed: VirtualCluster) -> None:
    begun = fed.network.clock.now
    fed.send(Run("run", 2, delay_s=3.0), ["worker-1"])
    fed.send(Run("run", 2), ["worker-0"])
    assert fed.endpoint.receive(2.0) is None
    assert fed.progress["worker-1"].now == Heartbeat(STEP, 2)
    assert fed.finish("run", 2)["new"].tolist() == RESULT_OF_STEP_2
    assert fed.network.clock.now - begun == pytest.approx(3.0)


@pytest.mark.parametrize("delay_s", [0.0, 100.0])
def test_shutdown_ends_a_delay_and_a_wait_for_a_tensor(fed: VirtualCluster, delay_s: float) -> None:
    fed.send(Run("run", 2, delay_s=delay_s), ["worker-0"])
    fed.send(Shutdown())
    fed.answers(Bye)
    fed.wait_for_ends()
    assert fed.network.clock.now < 90.0
    assert fed.ended == {"worker-0": 0, "worker-1": 0}


def test_finished_step_reports_peak_memory(cluster: VirtualCluster) -> None:
    cluster.load("init")
    cluster.send(Run("init", 0), ["worker-0"])
    assert cluster.answers(Done, ["worker-0"])["worker-0"].stats["peak_memory_bytes"] > 10_000_000


def test_worker_sends_its_spans_and_stops_recording(cluster: VirtualCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[object] = []
    record = DeviceExecutor.record

    def noted(executor: DeviceExecutor, recorder: Recorder | None, plan: int = 0) -> None:
        chosen.append(recorder)
        record(executor, recorder, plan)

    monkeypatch.setattr(DeviceExecutor, "record", noted)
    cluster.run("init")
    cluster.load("run")
    cluster.send(StartTrace(), ["worker-1"], ["run"])
    for step in range(2):
        cluster.run("run", step, {"rate": 0.5})
    cluster.send(StopTrace(), ["worker-1"])
    received = cluster.receive()
    assert (received.source, received.message) == ("worker-1", Traced())
    spans = from_document(decode_document(received.frames[0]), "worker-1")
    assert [span.kind for span in spans] == ["input", "wait", "receive", "compute", "send"] * 2
    assert [(span.plan, span.number, span.step) for span in spans] == [(0, 0, 0)] * 5 + [(0, 1, 1)] * 5
    assert [type(each) for each in chosen] == [Recorder, type(None)]
    assert cluster.progress["worker-1"].now == Heartbeat(IDLE, 0)


def test_shutdown_ends_workers_and_closes_their_sources(start: Start) -> None:
    sources: list[Source] = []

    def make_source(description: Mapping[str, Any]) -> Source:
        sources.append(Source())
        return sources[-1]

    with start(make_source) as cluster:
        cluster.set_up()
        cluster.shut_down()
        assert cluster.ended == {"worker-0": 0, "worker-1": 0}
    assert [source.closed for source in sources] == [True, True]


def test_non_finite_value_is_allowed_without_the_check(start: Start) -> None:
    with start(lambda description: Source(x=1e6)) as cluster:
        cluster.set_up()
        cluster.run("init")
        assert cluster.run("run", 0, {"rate": 1.0})["new"].tolist() == [-np.inf] * EXAMPLES


def options(role: str) -> WorkerOptions:
    return WorkerOptions("ipc:///nowhere", role, 0, Path("token"), "run", 1, 2, 1, 16)


@pytest.mark.parametrize("role", ["master", "worker_heartbeat", "chief"])
def test_role_without_a_device_is_refused(role: str) -> None:
    with pytest.raises(ConfigError, match=f"^--role '{role}': expected one of worker, ps$"):
        options(role)


def test_worker_connects_longer_than_its_master_waits() -> None:
    """A stopped master restarts its time limits; its workers must wait longer."""
    limits = options("worker").limits
    assert (limits.peers, limits.servers, limits.queued_messages) == (2, 1, 16)
    assert limits.connect_timeout_s > max(_JOIN_S, DEFAULT_LIMITS_S["setup"])
