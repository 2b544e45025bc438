"""The file of endings: which launched client ended when, and in which turn its parts ran; a run is repeated from it.

One JSON document a line: first what run it is, then ``[client, step, {device: turn}]`` for every ending, devices by
their number in the first line.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from numpy.typing import NDArray

from runner.engine.run.interleaving import Ending
from runner.engine.run.step_driver import Clients, Finished
from runner.errors import ConfigError
from runner.system.files import read_regular
from runner.system.json_file import parse_json, versioned
from runner.system.schema import ListOf, MapOf, OneOf, Plain, Record, Text, Violation

log = logging.getLogger(__name__)

Array = NDArray[Any]

_VERSION = 1
_ENDING = ListOf(Plain(), limit=3, least=3)
_STEP = Plain((int,))

MOST_ENDINGS = 1_000_000
"""Of which a record holds the first ones: some 50 MB."""

LONGEST_BYTES = 1 << 30


@dataclass(frozen=True)
class Origin:
    """What run a record is of. outcome: tells runs apart that come to other values. first_step: its first update."""

    outcome: str
    first_step: int
    devices: tuple[str, ...]


class NotingClients:
    """Clients that are run as they were, with every ending noted in a file, which the first one creates.

    A context manager; leaving closes the file.
    """

    def __init__(self, clients: Clients, path: Path, origin: Origin, *, most: int = MOST_ENDINGS) -> None:
        """most: endings noted; what follows is not."""
        self._clients = clients
        self._path = path
        self._origin = origin
        self._numbers = {device: str(number) for number, device in enumerate(origin.devices)}
        self._most = most
        self._noted = 0
        self._file: TextIO | None = None

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        """As the clients do; see :class:`~runner.engine.run.step_driver.Clients`."""
        return self._clients.run(client, step=step, feeds=feeds)

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        """As the clients do; see :class:`~runner.engine.run.step_driver.Clients`."""
        self._clients.launch(client, step=step, feeds=feeds)

    def finished(self) -> Finished:
        """As the clients do, and note it; see :class:`~runner.engine.run.step_driver.Clients`."""
        ended = self._clients.finished()
        if self._noted < self._most:
            self._write([ended.client, ended.step, {self._numbers[d]: turn for d, turn in ended.turns.items()}])
        elif self._noted == self._most:
            log.warning("%s ends after %d endings: the run cannot be repeated beyond them", self._path, self._most)
        self._noted += 1
        return ended

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, ending: list[Any]) -> None:
        if self._file is None:
            # By the line: what a run is killed with is no use to anybody, what it has noted is.
            self._file = self._path.open("w", buffering=1, encoding="utf-8")
            self._file.write(json.dumps({"version": _VERSION, **asdict(self._origin)}) + "\n")
        self._file.write(json.dumps(ending, separators=(",", ":")) + "\n")


def read_endings(path: Path, outcome: str) -> list[Ending]:
    """Read what :class:`NotingClients` noted; a last line that was cut off is left out, with a warning.

    Raises ConfigError where the file cannot be read, is no such record, or is of a run with another ``outcome``, and
    SecurityError where it is not a regular file.
    """
    try:
        content = read_regular(path, LONGEST_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: the record of a run cannot be read: {error}") from error
    if len(content) > LONGEST_BYTES:
        raise ConfigError(f"{path} is longer than {LONGEST_BYTES} bytes: it is no record of endings")
    *lines, rest = content.split(b"\n")
    if rest:
        log.warning("%s: line %d was cut off as its run was killed, and is left out", path, len(lines) + 1)
    devices = _devices(path, lines[0] if lines else b"", outcome)
    turns = MapOf(OneOf(tuple(devices)), _STEP)
    endings = [_ending(path, number, line, devices, turns) for number, line in enumerate(lines[1:], 2)]
    _require_own_turns(path, endings)
    return endings


def _devices(path: Path, line: bytes, outcome: str) -> dict[str, str]:
    """Return number -> device, as the first line has them, of a run that can be repeated."""
    try:
        first = Record(Origin).read(versioned(parse_json(line, LONGEST_BYTES), _VERSION))
        if len(set(first.devices)) != len(first.devices):
            raise Violation("one device twice")
    except Violation as violation:
        raise ConfigError(
            f"{path}: {violation}; expected a record of endings of version {_VERSION}, as endings-1.jsonl of a run is"
        ) from violation
    if first.outcome != outcome:
        raise ConfigError(
            f"{path} is the record of a run with another configuration: repeat it with that run's config.yaml"
        )
    if first.first_step != 0:
        raise ConfigError(
            f"{path} begins at step {first.first_step} of a run that was resumed: only a record that begins at step 0 "
            "can be repeated"
        )
    return {str(number): device for number, device in enumerate(first.devices)}


def _ending(path: Path, number: int, line: bytes, devices: Mapping[str, str], turns: MapOf) -> Ending:
    try:
        client, step, taken = _ENDING.read(parse_json(line, LONGEST_BYTES), "ending")
        of_devices = {devices[device]: turn for device, turn in turns.read(taken, "turns").items()}
        if not of_devices:
            raise Violation("turns of no device")
        return Ending(Text().read(client, "client"), _STEP.read(step, "step"), of_devices)  # type: ignore[arg-type]
    except Violation as violation:
        raise ConfigError(
            f"{path}, line {number}: {violation}; expected [client, step, {{device: turn}}], so the record is damaged"
        ) from violation


def _require_own_turns(path: Path, endings: Sequence[Ending]) -> None:
    """Raise ConfigError where two endings have one turn of a device."""
    lines: dict[tuple[str, int], int] = {}
    for number, ending in enumerate(endings, 2):
        for taken in ending.turns.items():
            if (other := lines.setdefault(taken, number)) != number:
                device, turn = taken
                raise ConfigError(
                    f"{path}, line {number}: turn {turn} of {device} is that of line {other}; the record is damaged"
                )
