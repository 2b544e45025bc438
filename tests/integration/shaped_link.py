"""Run ResNet-20 on two hosts with a link of limited bandwidth: ``python -m tests.integration.shaped_link``. Needs root.

Hosts are namespaces of this machine with two workers each. Every way of exchanging gradients runs with links of several
rates, in turns with the others. The page compares the median time of a step with its bound (the computation, or the
bytes that cross the link at its rate) and with the prediction of ``runner simulate`` from a profile of this machine.
"""

import argparse
import shutil
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.cases import CASES
from benchmarks.cells import document, listed, markdown, milliseconds, origin, publish, ratio
from runner.records.summary import Summary
from runner.system.machine import usable_cores
from tests.integration.command import LIMIT_S, QUIET, succeed, summary_of
from tests.integration.hosts import Network, network, train_on

CASE = CASES["resnet20"]
FREE = 0  # in place of a rate in Mbit/s: without a limit
RATES = (FREE, 400, 100)
BLOCKING = "flat, blocking"
HIERARCHICAL = ("parallelism.combine=hierarchical", "parallelism.workers_per_host=2")
WAYS = {
    "flat": (),
    BLOCKING: ("parallelism.overlap=false",),
    "hierarchical": HIERARCHICAL,
    "flat, high16": ("cluster.compression=high16",),
    "hierarchical, high16": (*HIERARCHICAL, "cluster.compression=high16"),
}
"""Way of exchanging gradients -> overrides."""


def overrides(way: str) -> tuple[str, ...]:
    """Return the overrides of a run and of its simulation."""
    parallelism = ("parallelism=sync_data", "parallelism.workers=4", *WAYS[way])
    return CASE.overrides(threads=1, parallelism=parallelism)


def measured(net: Network, way: str, rate: int, steps: int) -> float:
    """Run on two hosts; return the median seconds of a step."""
    for host in net.hosts:
        net.limit(host, rate)
    given = (*overrides(way), f"train.steps={steps}", "train.eval_every=1000000", "train.log_every=1000000")
    run, joined = train_on(net.hosts, [2, 2], *given)
    code = run.finish(LIMIT_S + 5 * steps)
    if code or any(command.finish() for command in joined):
        raise RuntimeError(run.output)
    median = summary_of(net.hosts[0].path("/home/me/run")).step_time_s["median"]
    print(f"{rate} Mbit/s, {way}: {milliseconds(median)} ms", file=sys.stderr, flush=True)
    return median


def simulated(way: str, rate: int, profile: Path) -> Summary:
    """Simulate the run; without a limit, the link has 100 Gbit/s."""
    succeed(
        profile.parent,
        "simulate",
        *QUIET,
        *overrides(way),
        "cluster=two_hosts",
        f"cluster.hardware.kinds.process.profile={profile}",
        f"cluster.hardware.links.network.gbyte_per_s={(rate or 100_000) / 8000}",
        f"hydra.run.dir={profile.parent / 'simulated'}",
    )
    summary = summary_of(profile.parent / "simulated")
    shutil.rmtree(profile.parent / "simulated")
    return summary


def main() -> None:
    """Measure, and print a page."""
    parser = argparse.ArgumentParser(prog="python -m tests.integration.shaped_link", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way and rate")
    parser.add_argument("--steps", type=int, default=30, help="steps of each run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page to FILE")
    options = parser.parse_args()
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    with TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        for way in WAYS:
            succeed(profile.parent, "profile", *overrides(way), f"--output={profile}")
        with network(2) as net:
            for _ in range(options.rounds):
                for rate in RATES:
                    for way in WAYS:
                        seconds[way, rate].append(measured(net, way, rate, options.steps))
        rows = [row(way, rate, seconds, simulated(way, rate, profile)) for rate in RATES for way in WAYS]
    header = ["Mbit/s", "exchange", "step, ms", "range", "bound, ms", "step/bound", "hidden", "simulated, ms", "error"]
    facts = origin(f"{usable_cores()} cores", runs=f"{options.rounds} of {options.steps} steps each, in turns")
    page = document("# A link of limited bandwidth", __doc__ or "", listed(facts), markdown(header, rows))
    publish(page, options.output)


def row(way: str, rate: int, seconds: dict[tuple[str, int], list[float]], simulation: Summary) -> list[str]:
    """Return a row of the table."""
    median = {key: statistics.median(each) for key, each in seconds.items()}
    assert simulation.simulation is not None
    step, compute, predicted = median[way, rate], median[way, FREE], simulation.step_time_s["median"]
    crossing = max(simulation.simulation.links[f"host{a} -> host{1 - a}"].bytes for a in range(2))
    bound = max(compute, crossing * 8 / (rate * 1e6) if rate else 0.0)
    exposed = median[BLOCKING, rate] - median[BLOCKING, FREE]
    hidden = (median[BLOCKING, rate] - step) / exposed if rate and way == "flat" else None
    spread = f"{milliseconds(min(seconds[way, rate]))} to {milliseconds(max(seconds[way, rate]))}"
    error = f"{100 * (predicted - step) / step:+.0f} %"
    timed = [milliseconds(step), spread, milliseconds(bound), ratio(step, bound)]
    return [str(rate or "no limit"), way, *timed, ratio(hidden, 1.0), milliseconds(predicted), error]


if __name__ == "__main__":
    main()
