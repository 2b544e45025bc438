"""Where a run comes from: the command, the machine and the code, beside what its summary says of versions."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.records.code_state import CodeState, by_name, code_of, text_of
from runner.system.machine import usable_cores, usable_memory
from runner.system.redaction import redact_overrides

_PACKAGE_FILE = Path(__file__).resolve().parents[1] / "__init__.py"


@dataclass(frozen=True)
class Provenance:
    """Part of summary.json.

    command_line: the process's own, quoted for a shell, secrets hidden. working_directory: where it was started.
    cores, memory_bytes: what it could use of the machine. code: the repository it was started in and that of the
    package, where there are such; their changes are in ``code.diff``.
    """

    command_line: str
    working_directory: str
    cores: int
    memory_bytes: int
    code: list[CodeState] = field(default_factory=list)


def provenance_here() -> tuple[Provenance, str]:
    """Where a run comes from that is started by this process now, and the changes of its code as text."""
    folder = Path.cwd()
    codes = code_of([folder], [_PACKAGE_FILE])
    found = Provenance(
        command_line(sys.orig_argv), str(folder), usable_cores(), usable_memory(), [code.state for code in codes]
    )
    return found, text_of(codes)


def command_line(arguments: Sequence[str]) -> str:
    """A command as it can be typed into a shell, with values that look like secrets hidden."""
    return shlex.join(redact_overrides(arguments))


def provenance_tags(found: Provenance) -> dict[str, str]:
    """The same as facts for a tracker, by name."""
    tags = {
        "runner.command_line": found.command_line,
        "runner.working_directory": found.working_directory,
        "runner.cores": str(found.cores),
        "runner.memory_bytes": str(found.memory_bytes),
    }
    (named,) = by_name(found.code)
    for name, code in named.items():
        changed = f", changed (SHA-256 {code.diff_sha256})" if code.diff_bytes else ""
        untracked = f", untracked: {', '.join(code.untracked)}" if code.untracked else ""
        tags[f"runner.code.{name}"] = f"{code.commit or 'no commit'}{changed}{untracked}"
    return tags
