"""The verb ``compare``: what is different between two runs, as a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from runner.commands.difference import Difference, changes_differ, differences
from runner.commands.stored import named_run
from runner.records.stored_run import StoredRun
from runner.system.text import text_table

_WIDEST = 64
"""Characters of a value: as many as a SHA-256 has."""

_EXAMPLE = """\
A run is named by its directory, or by its run id (of which the first digits will do).

example:
  runner compare outputs/2026-01-31/12-00-00 4f1c"""


def main(arguments: Sequence[str]) -> int:
    """Print the differences of two runs; return 0 whatever they are."""
    parser = argparse.ArgumentParser(
        prog="runner compare",
        description="Print what is different between two runs: configuration, code, versions and machine, results.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("runs", nargs=2, metavar="RUN", help="directory or run id")
    first, second = (named_run(text) for text in parser.parse_args(arguments).runs)
    print(comparison_text(first, second))
    return 0


def comparison_text(first: StoredRun, second: StoredRun) -> str:
    """A table of everything that differs, and one line of what does not."""
    found = differences(first, second)
    named = [("directory", str(first.path), str(second.path))]
    lines = [text_table(("", first.run_id, second.run_id), [*named, *difference_rows(found)]), ""]
    lines.append("equal: " + ", ".join(f"{each.equal} of {each.topic}" for each in found))
    if changes_differ(first, second):
        kept = [str(run.code_diff) for run in (first, second) if run.code_diff.is_file()]
        lines.append(f"Changes since a commit are in: {', '.join(kept) or 'no file that is there any more'}")
    return "\n".join(lines)


def difference_rows(found: Iterable[Difference]) -> list[tuple[str, str, str]]:
    """Rows of a table, each with its topic before its name."""
    return [(f"{each.topic}: {row[0]}", _short(row[1]), _short(row[2])) for each in found for row in each.rows]


def _short(text: str) -> str:
    """Long values, such as lists of files, by their beginning and their end."""
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 25]} ... {text[-20:]}"
