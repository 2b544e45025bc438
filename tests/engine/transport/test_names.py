from __future__ import annotations

import re

import pytest

from runner.engine.transport.names import peer_name, split_name


def test_names_go_both_ways() -> None:
    assert peer_name("worker", 12) == "worker-12"
    assert split_name("heartbeat-0") == ("heartbeat", 0)


@pytest.mark.parametrize("name", ["worker", "worker-", "worker-01", "worker--1", "slave-0", "worker-1\n", ""])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape("expected <role>-<index> with a role of master, worker")):
        split_name(name)


def test_an_index_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="peer name 'worker--1'"):
        peer_name("worker", -1)
