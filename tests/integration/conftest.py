"""A fixture that starts commands and kills those that still run at the end of the test."""

from collections.abc import Callable, Iterator

import pytest

from tests.integration.command import Command


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    """Return a function that starts a command. A command that still runs at the end of the test is killed."""
    started: list[Command] = []

    def begin(*arguments: object) -> Command:
        started.append(Command(*arguments))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for command in started:
        command.kill()
