"""Tickets: files of mode 0600 with which processes join, and the keys in them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.engine.cluster.transport.endpoint import Identity
from runner.engine.cluster.transport.ticket import Ticket, new_keys, new_token, read_ticket, write_ticket
from runner.errors import SecurityError

NAMES = ("master-0", "worker-0", "ps-0")
PLAIN = Ticket("run", 3, "worker", 0, "a" * 64, None, {}, peers=1, servers=1, queued_messages=9, lanes=1, threads=2)


def test_ticket_with_keys_and_without_is_read_as_written(tmp_path: Path) -> None:
    keys = new_keys(NAMES)["worker-0"]
    assert list(keys.public) == list(NAMES)
    for number, ticket in enumerate((PLAIN, replace(PLAIN, secret_key=keys.secret, public_keys=keys.public, lanes=4))):
        path = tmp_path / str(number)
        write_ticket(path, ticket)
        assert path.stat().st_mode & 0o777 == 0o600
        assert read_ticket(path) == ticket
        assert ticket.identity == Identity("run", 3, "worker", 0, "a" * 64, keys if number else None)
        limits = ticket.limits(7.0)
        assert (limits.peers, limits.servers, limits.queued_messages, limits.lanes) == (1, 1, 9, ticket.lanes)
        assert limits.connect_timeout_s == 7.0
        assert not [secret for secret in ("a" * 64, keys.secret) if secret in f"{ticket} {ticket.identity}"]


def test_secrets_differ_and_no_file_is_overwritten(tmp_path: Path) -> None:
    assert new_token() != new_token()
    keys = [each for _ in range(2) for each in new_keys(NAMES).values()]
    assert len({key.secret for key in keys}) == len({name for key in keys for name in key.public.values()}) == 6
    write_ticket(tmp_path / "key", PLAIN)
    with pytest.raises(FileExistsError):
        write_ticket(tmp_path / "key", PLAIN)


def test_file_of_another_kind_or_mode_is_refused(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "key", tmp_path / "link", tmp_path / "pipe"
    write_ticket(path, PLAIN)
    path.chmod(0o640)
    link.symlink_to(path)
    os.mkfifo(pipe, 0o600)
    for file, expected in (
        (path, r"mode 0640 of user .*, expected a regular file with mode 0600"),
        (link, "key file"),
        (pipe, "expected a regular file"),
        (tmp_path, "expected a regular file"),
        (tmp_path / "none", "each start of a run writes new key files"),
    ):
        with pytest.raises(SecurityError, match=expected):
            read_ticket(file)


@pytest.mark.parametrize("damage", ["shorter", "longer", "role"])
def test_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "key"
    write_ticket(path, PLAIN)
    content = path.read_bytes()
    changed = {"shorter": content[:-1], "longer": content + b"x", "role": content.replace(b"worker", b"master")}
    path.write_bytes(changed[damage])
    with pytest.raises(SecurityError, match=f"^key file {path}.* refused: "):
        read_ticket(path)
