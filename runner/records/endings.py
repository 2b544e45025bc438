"""The file of endings, from which a run is repeated: the order in which steps ended, and began on each device.

Line 1 is an :class:`Origin` in JSON. Each later line, ``[client, step, {device: turn}]``, is one ended step of a client
started with ``launch`` (see ``step_driver``). ``turn``: number of such steps that began earlier on ``devices[device]``.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

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

MOST_ENDINGS = 1_000_000  # largest number of endings in a record (about 50 MB). Further endings are not recorded.
LONGEST_BYTES = 1 << 30


@dataclass(frozen=True)
class Origin:
    """The recorded run. outcome: ``outcome_hash`` of its configuration. first_step: 0 unless the run was resumed."""

    outcome: str
    first_step: int
    devices: tuple[str, ...]


class RecordingClients(Clients):
    """Clients whose endings are written to a file. The first ending creates the file."""

    def __init__(self, clients: Clients, path: Path, origin: Origin, *, most: int = MOST_ENDINGS) -> None:
        """Wrap ``clients``. most: the largest number of endings to write."""
        self._clients = clients
        self._path = path
        self._origin = origin
        self._numbers = {device: str(number) for number, device in enumerate(origin.devices)}
        self._most = most
        self._count = 0
        self._file: TextIO | None = None

    def run(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> dict[str, Array]:
        return self._clients.run(client, step=step, feeds=feeds)

    def is_available(self, client: str) -> bool:
        return self._clients.is_available(client)

    def launch(self, client: str, *, step: int = 0, feeds: Mapping[str, Any] | None = None) -> None:
        self._clients.launch(client, step=step, feeds=feeds)

    def finished(self) -> Finished:
        """Return the next ending and write it; see :class:`~runner.engine.run.step_driver.Clients`."""
        ended = self._clients.finished()
        if self._count < self._most:
            self._write([ended.client, ended.step, {self._numbers[d]: turn for d, turn in ended.turns.items()}])
        elif self._count == self._most:
            log.warning("%s is full after %d steps: later steps of this run cannot be replayed", self._path, self._most)
        self._count += 1
        return ended

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _write(self, ending: list[Any]) -> None:
        if self._file is None:
            # Buffered by line, so that all endings are in the file if the process is killed.
            self._file = self._path.open("w", buffering=1, encoding="utf-8")
            self._file.write(json.dumps({"version": _VERSION, **asdict(self._origin)}) + "\n")
        self._file.write(json.dumps(ending, separators=(",", ":")) + "\n")


def read_endings(path: Path, outcome: str) -> list[Ending]:
    """Read a file that :class:`RecordingClients` wrote; a last line that was cut off is ignored with a warning.

    Raises ConfigError if the file cannot be read, is not a record of endings, or belongs to a resumed run or to a run
    with another ``outcome``, and SecurityError if it is not a regular file.
    """
    try:
        content = read_regular(path, LONGEST_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: the record of a run cannot be read: {error}") from error
    if len(content) > LONGEST_BYTES:
        raise ConfigError(
            f"{path} is longer than {LONGEST_BYTES} bytes; expected the record of a run, such as endings-1.jsonl"
        )
    *lines, rest = content.split(b"\n")
    if rest:
        log.warning("%s: line %d is ignored, because it was cut off when the run was killed", path, len(lines) + 1)
    devices = _devices(path, lines[0] if lines else b"", outcome)
    turns = MapOf(OneOf(tuple(devices)), _STEP)
    endings = [_ending(path, number, line, devices, turns) for number, line in enumerate(lines[1:], 2)]
    _require_own_turns(path, endings)
    return endings


def _devices(path: Path, line: bytes, outcome: str) -> dict[str, str]:
    """Return the devices in the first line, by their index as text; raise ConfigError if the run cannot be repeated."""
    try:
        first = Record(Origin).read(versioned(parse_json(line, LONGEST_BYTES), _VERSION))
        if len(set(first.devices)) != len(first.devices):
            raise Violation("a device appears twice")
    except Violation as violation:
        expected = f"a record of version {_VERSION}, such as endings-1.jsonl of a run"
        raise ConfigError(f"{path}: {violation}; expected {expected}") from violation
    if first.outcome != outcome:
        advice = "use the config.yaml of that run"
        raise ConfigError(f"{path} is the record of a run with another configuration: {advice}")
    if first.first_step != 0:
        advice = "only a record that begins at step 0 can be replayed"
        raise ConfigError(f"{path} begins at step {first.first_step} of a run that was resumed: {advice}")
    return {str(number): device for number, device in enumerate(first.devices)}


def _ending(path: Path, number: int, line: bytes, devices: Mapping[str, str], turns: MapOf) -> Ending:
    try:
        client, step, taken = _ENDING.read(parse_json(line, LONGEST_BYTES), "ending")
        of_devices = {devices[device]: turn for device, turn in turns.read(taken, "turns").items()}
        if not of_devices:
            raise Violation("turns: expected at least one device")
        return Ending(Text().read(client, "client"), _STEP.read(step, "step"), of_devices)  # type: ignore[arg-type]
    except Violation as violation:
        expected = "[client, step, {device: turn}], so the record is damaged"
        raise ConfigError(f"{path}, line {number}: {violation}; expected {expected}") from violation


def _require_own_turns(path: Path, endings: Sequence[Ending]) -> None:
    """Raise ConfigError if two endings have the same turn on a device."""
    lines: dict[tuple[str, int], int] = {}
    for number, ending in enumerate(endings, 2):
        for taken in ending.turns.items():
            if (other := lines.setdefault(taken, number)) != number:
                device, turn = taken
                fault = "the record is damaged"
                raise ConfigError(
                    f"{path}, line {number}: step number {turn} of {device} is also in line {other}; {fault}"
                )
