"""A fixture that starts commands and, at the end of the test, kills the commands that still run."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.command import Command, Start


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a command. A command that still runs at the end of the test is killed."""
    started: list[Command] = []

    def begin(*arguments: Any, **options: Any) -> Command:
        started.append(Command(*arguments, **options))
        return started[-1]

    yield begin
    for command in started:
        command.kill()
