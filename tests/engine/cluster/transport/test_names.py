import re

import pytest

from runner.engine.cluster.transport.names import (
    HEARTBEAT_ROLES,
    heartbeat_role,
    peer_name,
    process_names,
    process_of_heartbeat,
    split_name,
)


def test_name_round_trip() -> None:
    assert peer_name("worker", 12) == "worker-12"
    assert split_name("ps-0") == ("ps", 0)
    assert split_name("worker_heartbeat-0") == ("worker_heartbeat", 0)


def test_processes_are_workers_and_then_parameter_servers() -> None:
    assert process_names(2) == ["worker-0", "worker-1"]
    assert process_names(1, 2) == ["worker-0", "ps-0", "ps-1"]


@pytest.mark.parametrize("process", ["worker-3", "ps-3"])
def test_every_process_has_a_heartbeat_peer(process: str) -> None:
    role, index = split_name(process)
    assert heartbeat_role(role) in HEARTBEAT_ROLES
    assert process_of_heartbeat(peer_name(heartbeat_role(role), index)) == process


@pytest.mark.parametrize(
    "name", ["worker", "worker-", "worker-01", "worker--1", "slave-0", "heartbeat-0", "ps", "ps-01", "worker-1\n", ""]
)
def test_malformed_name_is_refused(name: str) -> None:
    with pytest.raises(
        ValueError,
        match=re.escape("expected <role>-<index> with a role of master, worker, ps, worker_heartbeat, ps_heartbeat"),
    ):
        split_name(name)


def test_negative_index_is_refused() -> None:
    with pytest.raises(ValueError, match="peer name 'worker--1'"):
        peer_name("worker", -1)
