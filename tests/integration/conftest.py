"""A fixture that starts commands, which end with the test."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.command import Command


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    """Return a function that starts a command; the command is ended with the test at the latest."""
    started: list[Command] = []

    def begin(*arguments: object) -> Command:
        started.append(Command(*arguments))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for command in started:
        command.kill()
