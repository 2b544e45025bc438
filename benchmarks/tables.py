"""``python -m benchmarks``: the networks, strategies and collectives on CPUs; see its ``--help``."""

import platform
import sys
from collections.abc import Sequence

from benchmarks.cases import CASES
from benchmarks.cells import origin
from benchmarks.collectives import COLLECTIVE_CASES, measure_collective
from benchmarks.compare import compare
from benchmarks.limit import measure_rates
from benchmarks.options import Options, parse
from benchmarks.overlap import OVERLAP_CASES, measure_overlap
from benchmarks.process import SubjectError
from benchmarks.report import Report
from benchmarks.scaling import SCALING_CASES, measure_scaling
from benchmarks.strategies import STRATEGY_CASES, measure_strategies
from benchmarks.subjects import OURS
from runner.errors import RunnerError
from runner.system.machine import usable_cores


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 1 if runner failed in a case."""
    options = parse(arguments)
    use = f"{usable_cores()} cores, {options.settings.threads} threads used"
    report = Report(origin(use, Python=platform.python_version()))
    for name in options.cases:
        print(f"measuring {name}", file=sys.stderr, flush=True)
        try:
            _measure(name, options, report)
        except (RunnerError, SubjectError) as error:
            report.failed[name] = str(error)
        report.write(options.output, options.raw)
    print(report.markdown())
    return 1 if report.has_failures else 0


def _measure(name: str, options: Options, report: Report) -> None:
    settings = options.settings
    if name in SCALING_CASES:
        with_peer = bool(options.peers)
        report.scaling.append(measure_scaling(name, rounds=settings.rounds, turn=settings.turn, with_peer=with_peer))
    elif name in STRATEGY_CASES:
        table = measure_strategies(name, threads=settings.threads, rounds=settings.rounds, turn=settings.turn)
        report.strategies.append(table)
    elif name in OVERLAP_CASES:
        report.overlaps.append(measure_overlap(name, rounds=settings.rounds, turn=settings.turn))
    elif name in COLLECTIVE_CASES:
        with_peers = bool(options.peers)
        result = measure_collective(name, rounds=settings.rounds, turn=settings.turn, with_peers=with_peers)
        report.collectives.append(result)
    else:
        case = CASES[name]
        for precision in options.precisions or case.precisions:
            if precision not in report.rates:
                report.rates[precision] = measure_rates(settings.threads, precision)
            specs = (OURS, *options.peers)
            report.comparisons.append(compare(case, precision, settings, specs, report.rates[precision]))
