"""The verb ``compare``: print the differences of two runs in configuration, code, versions, machine and results."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from runner.commands.ui import store_uri
from runner.config import safe_yaml
from runner.errors import ResourceError
from runner.records.provenance import CodeState, by_name
from runner.records.stored_run import StoredRun, find_run
from runner.system.console import verb_parser
from runner.system.redaction import redact_overrides
from runner.system.text import text_table
from runner.tracking.mlflow_client import directories_of_runs, leaves
from runner.tracking.writer import StoreUnavailableError

_RESULTS = (
    *("status", "steps", "wall_seconds", "step_time_s", "examples_per_s"),
    *("headline", "final", "weights_sha256", "simulation"),
)
_MACHINE = ("versions", "platform", "cpu_model", "devices", "kernels", "kernels_missing")
ABSENT = "-"
_CHANGES = " changes"  # end of the name of a repository's uncommitted changes

_SPEEDS = ("perf/", "train/seconds")


@dataclass(frozen=True)
class Difference:
    """The differences in a topic. rows: (name, first run's value, second run's value). equal: count of equal values."""

    topic: str
    rows: tuple[tuple[str, str, str], ...]
    equal: int


def differences(first: StoredRun, second: StoredRun) -> list[Difference]:
    """Return the differences between two runs by topic. Raises ConfigError if a stored configuration cannot be read."""
    # The schema is not used: it could refuse runs of older versions, and runs with plugins that are not loaded.
    configured = (_flat(safe_yaml.load(run.config_yaml)) for run in (first, second))
    results = _difference("results", _of_summary(first, _RESULTS), _of_summary(second, _RESULTS))
    results = replace(results, rows=tuple((name, *_shortened(*values)) for name, *values in results.rows))
    return [_difference("configuration", *configured), *differences_of_origin(first, second), results]


def differences_of_origin(first: StoredRun, second: StoredRun) -> list[Difference]:
    """Return the differences in code, versions and machine, which may explain different results."""
    repositories = by_name(_repositories(first), _repositories(second))
    codes = [_code(run, named) for run, named in zip((first, second), repositories, strict=True)]
    return [_difference("code", *codes), _difference("versions and machine", _machine(first), _machine(second))]


def _difference(topic: str, first: Mapping[str, str], second: Mapping[str, str]) -> Difference:
    names = dict.fromkeys([*first, *second])
    rows = [(name, first.get(name, ABSENT), second.get(name, ABSENT)) for name in names]
    differing = tuple(row for row in rows if row[1] != row[2])
    return Difference(topic, differing, len(rows) - len(differing))


def _of_summary(run: StoredRun, names: tuple[str, ...]) -> dict[str, str]:
    if run.summary is None:
        return {"status": "active or killed"} if "status" in names else {}
    plain = asdict(run.summary)
    # Speeds are compared by step_time_s and examples_per_s, not by the last logged values.
    plain["final"] = {name: value for name, value in plain["final"].items() if not name.startswith(_SPEEDS)}
    if plain["simulation"] is not None:
        plain["simulation"] = {"parts_s": plain["simulation"]["parts_s"]}
    return _flat({name: plain[name] for name in names if plain[name] not in (None, {}, [])})


def _machine(run: StoredRun) -> dict[str, str]:
    found = _of_summary(run, _MACHINE)
    if run.summary is not None and run.summary.provenance is not None:
        found["cores"] = str(run.summary.provenance.cores)
        found["memory"] = f"{run.summary.provenance.memory_bytes / 2**30:.1f} GiB"
    return found


def _code(run: StoredRun, repositories: Mapping[str, CodeState]) -> dict[str, str]:
    """Return the commit of runner, the checksums of plugins, and the state of each repository, as name -> text."""
    summary = run.summary
    if summary is None:
        return {}
    found = {"commit of runner": summary.git_commit or ABSENT}
    found |= {f"plugin {reference}": sha256[:12] for reference, sha256 in summary.plugins.items()}
    for name, code in repositories.items():
        found[f"{name} commit"] = code.commit or ABSENT
        found[f"{name}{_CHANGES}"] = (
            f"{code.diff_bytes:,} bytes, {code.diff_sha256[:12]}" if code.diff_bytes else ABSENT
        )
        found[f"{name} untracked"] = ", ".join(code.untracked) or ABSENT
    return found


def _repositories(run: StoredRun) -> Sequence[CodeState]:
    return () if run.summary is None or run.summary.provenance is None else run.summary.provenance.code


def _flat(plain: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted key -> value as text, with all its digits, without secrets."""
    texts = {key: str(each) if isinstance(each, str | float) else json.dumps(each) for key, each in leaves(plain)}
    shown = redact_overrides(f"{key}={text}" for key, text in texts.items())
    return {key: text.partition("=")[2] for key, text in zip(texts, shown, strict=True)}


_FRACTION = re.compile(r"-?\d+\.\d+(e[+-]\d+)?")


def _shortened(first: str, second: str) -> tuple[str, str]:
    """Round two different results to four significant digits, or to more digits until the rounded results differ."""
    for digits in range(4, 17):
        one, other = (f"{float(text):.{digits}g}" if _FRACTION.fullmatch(text) else text for text in (first, second))
        if one != other:
            return one, other
    return first, second


_WIDEST = 64  # largest number of characters of a printed value: the length of a SHA-256 in hex
_EXAMPLE = """\
Name a run by its directory, its run id, or the first digits of its run id.

example:
  runner compare outputs/2026-01-31/12-00-00 4f1c"""


def main(arguments: Sequence[str]) -> int:
    """Print the differences between two runs; return 0 even if there are differences."""
    parser = verb_parser(
        "compare", "Print the differences between two runs: configuration, code, versions, machine, results.", _EXAMPLE
    )
    parser.add_argument("runs", nargs=2, metavar="RUN", help="directory or run id")
    first, second = (named_run(text) for text in parser.parse_args(arguments).runs)
    print(comparison_text(first, second))
    return 0


def comparison_text(first: StoredRun, second: StoredRun) -> str:
    """Return a table of the differences, the number of equal values, and the paths of stored uncommitted changes."""
    found = differences(first, second)
    named = [("directory", str(first.path), str(second.path))]
    lines = [text_table(("", first.run_id, second.run_id), [*named, *difference_rows(found)]), ""]
    lines.append("equal entries: " + ", ".join(f"{each.equal} of {each.topic}" for each in found))
    changed = unused_hardware(first, second, found[0])
    if changed:
        lines.append(f"The predicted times do not depend on {', '.join(changed)}.")
    if any(name.endswith(_CHANGES) for name, *_ in found[1].rows):
        kept = [str(run.code_diff) for run in (first, second) if run.code_diff.is_file()]
        lines.append(f"Uncommitted changes are in: {', '.join(kept) or 'files that no longer exist'}")
    return "\n".join(lines)


def unused_hardware(first: StoredRun, second: StoredRun, configuration: Difference) -> list[str]:
    """Return the changed keys of the hardware if two simulations differ in nothing else and their times are equal."""
    one, other = first.summary, second.summary
    if one is None or other is None or one.simulation is None or other.simulation is None:
        return []
    keys = [name for name, *_ in configuration.rows]
    same = one.step_time_s == other.step_time_s and one.simulation.parts_s == other.simulation.parts_s
    return keys if same and all(key.startswith("cluster.hardware.") for key in keys) else []


def difference_rows(found: Iterable[Difference]) -> list[tuple[str, str, str]]:
    """Return table rows ("TOPIC: NAME", value in the first run, value in the second run); long values are shortened."""
    return [(f"{each.topic}: {row[0]}", _short(row[1]), _short(row[2])) for each in found for row in each.rows]


def _short(text: str) -> str:
    """Shorten long values, such as lists of files, to their beginning and their end."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 25]} ... {text[-20:]}"


def named_run(text: str) -> StoredRun:
    """Return the run that ``text`` names: by its directory, its id, or the first digits of its id.

    Raises ConfigError unless exactly one run matches, ResourceError if a required tracking store is not available.
    """
    return find_run(text, Path.cwd(), _in_store)


def _in_store(run_id: str) -> list[Path]:
    try:
        return directories_of_runs(store_uri(), run_id)
    except StoreUnavailableError as error:
        raise ResourceError(f"{error}; name the run by its directory") from error
