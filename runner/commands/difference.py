"""What is different between two runs: configuration, code, versions and machine, results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runner.config import safe_yaml
from runner.records.provenance import CodeState, by_name
from runner.records.stored_run import StoredRun
from runner.system.redaction import redact_overrides

_RESULTS = ("status", "steps", "wall_seconds", "step_time_s", "examples_per_s", "final", "best", "weights_sha256")
_MACHINE = ("versions", "platform", "cpu_model", "devices", "kernels", "kernels_missing")
ABSENT = "-"


@dataclass(frozen=True)
class Difference:
    """One topic. rows: name and value in either run, where they differ. equal: number of other names."""

    topic: str
    rows: tuple[tuple[str, str, str], ...]
    equal: int


def differences(first: StoredRun, second: StoredRun) -> list[Difference]:
    """All topics in which runs are compared. Raises ConfigError where a stored configuration cannot be read."""
    return [
        _difference("configuration", _configuration(first), _configuration(second)),
        *differences_of_origin(first, second),
        _difference("results", _of_summary(first, _RESULTS), _of_summary(second, _RESULTS)),
    ]


def differences_of_origin(first: StoredRun, second: StoredRun) -> list[Difference]:
    """The topics that may explain why equal configurations came to different results."""
    repositories = by_name(_repositories(first), _repositories(second))
    codes = [_code(run, named) for run, named in zip((first, second), repositories, strict=True)]
    return [
        _difference("code", *codes),
        _difference("versions and machine", _machine(first), _machine(second)),
    ]


def changes_differ(first: StoredRun, second: StoredRun) -> bool:
    """Whether the code of the runs was changed since its commits, in other ways."""
    one, other = by_name(_repositories(first), _repositories(second))
    return _changes(one) != _changes(other)


def _changes(named: Mapping[str, CodeState]) -> dict[str, str]:
    return {name: code.diff_sha256 for name, code in named.items() if code.diff_bytes}


def _difference(topic: str, first: Mapping[str, str], second: Mapping[str, str]) -> Difference:
    names = dict.fromkeys([*first, *second])
    rows = [(name, first.get(name, ABSENT), second.get(name, ABSENT)) for name in names]
    differing = tuple(row for row in rows if row[1] != row[2])
    return Difference(topic, differing, len(rows) - len(differing))


def _configuration(run: StoredRun) -> dict[str, str]:
    # As it is stored: a run of an older version, or with a plug-in that is not loaded, can be compared too.
    return dict(_flat(safe_yaml.load(run.config_yaml)))


def _of_summary(run: StoredRun, names: tuple[str, ...]) -> dict[str, str]:
    if run.summary is None:
        return {"status": "killed"} if "status" in names else {}
    plain = asdict(run.summary)
    # Of speed the median says more than the last value.
    plain["final"] = {name: value for name, value in plain["final"].items() if not name.startswith("perf/")}
    return dict(_flat({name: plain[name] for name in names if plain[name] not in (None, {}, [])}))


def _machine(run: StoredRun) -> dict[str, str]:
    found = _of_summary(run, _MACHINE)
    if run.summary is not None and run.summary.provenance is not None:
        found["cores"] = str(run.summary.provenance.cores)
        found["memory"] = f"{run.summary.provenance.memory_bytes / 2**30:.1f} GiB"
    return found


def _code(run: StoredRun, repositories: Mapping[str, CodeState]) -> dict[str, str]:
    """Commit, changes and untracked files by repository; of older summaries the commit alone."""
    summary = run.summary
    if summary is None:
        return {}
    found = {"commit of runner": summary.git_commit or ABSENT}
    found |= {f"plugin {reference}": sha256[:12] for reference, sha256 in summary.plugins.items()}
    for name, code in repositories.items():
        found[f"{name} commit"] = code.commit or ABSENT
        found[f"{name} changes"] = f"{code.diff_bytes:,} bytes, {code.diff_sha256[:12]}" if code.diff_bytes else ABSENT
        found[f"{name} untracked"] = ", ".join(code.untracked) or ABSENT
    return found


def _repositories(run: StoredRun) -> Sequence[CodeState]:
    return () if run.summary is None or run.summary.provenance is None else run.summary.provenance.code


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names and values as text, those that look secret hidden."""
    for key, value in plain.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        else:
            (shown,) = redact_overrides([f"{name}={_text(value)}"])
            yield name, shown.partition("=")[2]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)
