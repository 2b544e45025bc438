"""``plugins.json``: the plugins of the newest start of a run, from its beginning on: a kill leaves no summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from runner.errors import DataError
from runner.records.run_directory import SUMMARY_FILE
from runner.records.summary import Summary
from runner.system.files import read_regular, replace_durably

PLUGINS_FILE = "plugins.json"
_MAX_BYTES = 1 << 20


def write_plugins(run_dir: Path, plugins: Mapping[str, str]) -> None:
    """Keep reference -> SHA-256 of its source, also that there are none. Raises OSError where it cannot."""
    replace_durably(run_dir / PLUGINS_FILE, (json.dumps(dict(plugins), indent=1) + "\n").encode())


def read_plugins(run_dir: Path) -> dict[str, str] | None:
    """Return what :func:`write_plugins` kept, or else what the summary says; None where neither is there.

    So an earlier version left a run that was killed, whatever plugins it had.

    Raises DataError for a damaged file.
    """
    path, summary_json = run_dir / PLUGINS_FILE, run_dir / SUMMARY_FILE
    if not path.exists():
        return Summary.read(summary_json).plugins if summary_json.is_file() else None
    try:
        found = json.loads(read_regular(path, _MAX_BYTES))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not all(isinstance(sha256, str) for sha256 in found.values()):
        raise DataError(
            f"{path} is damaged: expected references and the SHA-256 of their sources; without the file changes of "
            "plugins go unnoticed"
        )
    return found
