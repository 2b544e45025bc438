"""Parse untrusted JSON of limited size; read and write JSON files, each with one value that a schema describes."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from runner.system.files import read_regular, replace_durably
from runner.system.schema import FieldType, Violation, refuse
from runner.system.text import printable

T = TypeVar("T")


def parse_json(raw: bytes, limit: int) -> Any:
    """Return the value in untrusted JSON. Raises Violation if ``raw`` is not JSON or has more than ``limit`` bytes."""
    if len(raw) > limit:
        raise Violation(f"exceeds the limit of {limit} bytes")
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Violation(f"not JSON: {printable(str(error))}") from None


def versioned(document: Any, version: int) -> dict[str, Any]:
    """Return the map ``document`` without its entry "version". Raises Violation if the entry is not ``version``."""
    found = document.get("version") if isinstance(document, dict) else None
    if type(found) is not int or found != version:
        refuse("version", found, version)
    return {key: value for key, value in document.items() if key != "version"}


@dataclass(frozen=True)
class JsonFile(Generic[T]):
    """A kind of JSON file that holds one value.

    kind: schema of the value. error: class of the error for a damaged file. advice: the remedy, at the end of the error
    message. version: number in the field "version"; None for a file without that field. limit: largest size in bytes.
    indent: indentation of nested values in a written file; None to write the whole file in one line.
    """

    kind: FieldType
    error: type[Exception]
    advice: str
    version: int | None = 1
    limit: int = 1 << 26
    indent: int | None = 1

    def read(self, path: Path, called: str = "") -> T:
        """Read a file.

        Raises ``error`` for a file that is damaged or cannot be read, FileNotFoundError if there is none, and
        SecurityError for a non-regular file.

        called: name of the file in the error message, such as ``key=path``; "" to use the path.
        """
        try:
            raw = read_regular(path, self.limit)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise self.error(f"{called or path} cannot be read: {error.strerror}; {self.advice}") from error
        try:
            document = parse_json(raw, self.limit)
            if self.version is not None:
                document = versioned(document, self.version)
            value: T = self.kind.read(document, "")
            return value
        except ValueError as violation:
            raise self.error(f"{called or path} is damaged: {violation}; {self.advice}") from violation

    def write(self, path: Path, value: T, mode: int = 0o666) -> None:
        """Replace the file atomically and durably. Raises OSError."""
        document = self.kind.write(value, "")
        if self.version is not None:
            document = {"version": self.version, **document}
        replace_durably(path, (json.dumps(document, indent=self.indent) + "\n").encode(), mode)
