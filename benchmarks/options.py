"""The command line of the benchmarks."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.__main__ import VERBS
from benchmarks.cases import CASES, PRECISIONS
from benchmarks.collectives import COLLECTIVE_CASES
from benchmarks.compare import Settings
from benchmarks.environments import REQUIREMENTS, members
from benchmarks.overlap import OVERLAP_CASES
from benchmarks.protocol import PHASES
from benchmarks.scaling import SCALING_CASES
from benchmarks.strategies import STRATEGY_CASES
from benchmarks.subjects import PEERS, SubjectSpec
from runner.system.machine import usable_cores

NAMES = (*CASES, *SCALING_CASES, *STRATEGY_CASES, *COLLECTIVE_CASES, *OVERLAP_CASES)

HIDDEN = ("smoke", "resnet1001", *COLLECTIVE_CASES, *OVERLAP_CASES)
"""Cases that are measured only if they are named on the command line."""

_DESCRIPTION = """Measure runner and other frameworks (peers), and print the tables. CASE selects all cases whose names
begin with it: {cases}. First run `python -m benchmarks peers [{environments} ...]`, which installs each of the other
frameworks into a separate environment; the tables list missing frameworks as not installed. The cases of `collectives`
are measured only if they are named. Their peers are MPI and Gloo; both are measured unless --subjects is none.
`python -m benchmarks VERB --help` describes another measurement; VERB is one of {verbs}."""


@dataclass(frozen=True)
class Options:
    """The requested measurements. precisions: None for each case's own. output, raw: files for tables and times."""

    cases: tuple[str, ...]
    peers: tuple[SubjectSpec, ...]
    settings: Settings
    precisions: tuple[str, ...] | None
    output: Path | None
    raw: Path | None


def parse(arguments: Sequence[str]) -> Options:
    """Parse the command line. Exits with code 2 and a message if an argument is wrong."""
    description = _DESCRIPTION.format(
        cases=", ".join(NAMES), environments="|".join(REQUIREMENTS), verbs=", ".join(VERBS)
    )
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=description)
    add = parser.add_argument
    add("cases", nargs="*", metavar="CASE", default=[], help="default: all but smoke, resnet1001, collectives, overlap")
    add(
        "--subjects",
        type=_words,
        metavar="PEER,...",
        help=f"none, or prefixes of peer names: {', '.join(_names(PEERS))}",
    )
    add("--rounds", type=_count, default=Settings.rounds, help="turns of each implementation in each phase")
    add("--steps", type=_count, help="runs in a turn; default: the number in the case")
    add(
        "--threads",
        type=_count,
        default=usable_cores(),
        help="threads of each implementation; default: the number of cores",
    )
    add("--precision", type=_words, help=f"some of: {', '.join(PRECISIONS)}; default: those of the case")
    add("--phases", type=_words, default=PHASES, help=f"some of: {', '.join(PHASES)}")
    add("--output", type=Path, metavar="FILE", help="write the tables to this file after every case")
    add("--json", type=Path, metavar="FILE", help="write all times to this file after every case")
    given = parser.parse_args(arguments)
    wanted = _choice(parser, "CASE", given.cases, [name for name in NAMES if name not in HIDDEN], NAMES)
    precisions = given.precision and members(parser, "--precision", given.precision, PRECISIONS)
    return Options(
        wanted,
        _chosen_peers(parser, given.subjects),
        Settings(given.rounds, given.steps, given.threads, members(parser, "--phases", given.phases, PHASES)),
        precisions,
        given.output,
        given.json,
    )


def _chosen_peers(parser: argparse.ArgumentParser, beginnings: Sequence[str] | None) -> tuple[SubjectSpec, ...]:
    if beginnings == ("none",):
        return ()
    names = _choice(parser, "--subjects", beginnings or (), _names(PEERS), _names(PEERS))
    return tuple(peer for peer in PEERS if peer.name in names)


def _choice(
    parser: argparse.ArgumentParser,
    option: str,
    beginnings: Sequence[str],
    default: Sequence[str],
    names: Sequence[str],
) -> tuple[str, ...]:
    """Return the names with a prefix in ``beginnings``, in the order of ``names``; without prefixes, ``default``."""
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in names):
            parser.error(f"{option} {beginning!r}: expected a prefix of one of {', '.join(names)}")
    return tuple(name for name in names if name.startswith(tuple(beginnings))) if beginnings else tuple(default)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: expected 1 or more")
    return number


def _names(subjects: Sequence[SubjectSpec]) -> list[str]:
    return [subject.name for subject in subjects]
