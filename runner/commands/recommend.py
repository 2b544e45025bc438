"""The verb ``recommend``: simulate every strategy that can train a model on a cluster, and rank them."""

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from runner.commands.plugins import plugin_words
from runner.config.configuration import from_composed
from runner.config.error_text import unknown_command_line_option
from runner.config.groups import GROUPS
from runner.config.hydra_app import RunComposer
from runner.config.schema import Config
from runner.engine.graph import DeviceName
from runner.engine.simulate.hardware import ANY, Hardware, expanded
from runner.errors import ConfigError, ResourceError
from runner.system.console import add_yaml_options, verb_parser
from runner.system.text import number, text_table
from runner.tracing.parts import COMMUNICATION, PARTS
from runner.training.simulation import Simulated, hardware_of, simulate, variants_on

_DESCRIPTION = """\
Simulate every strategy that can train this model on this cluster, with the variants of its settings and with several
numbers of workers. The strategies are ranked by the time per example; the column "updates" has their ranks by the
time per update. Strategies make different updates, so the fastest strategy need not be the first to reach an
accuracy."""

_EXAMPLE = "example: runner recommend model=alexnet data=imagenet train.batch_size=128 cluster=k20x8"

GROUP = "parallelism"
UPDATES = 2
MOST_WORKERS = 8
SHOWN = 3


def main(arguments: Sequence[str]) -> int:
    """Print the ranked strategies and the commands of the best. Raises ConfigError if no strategy can be used."""
    parser = verb_parser("recommend", _DESCRIPTION, _EXAMPLE, advice=unknown_command_line_option)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help=f"overrides, except of {GROUP}")
    numbers = "numbers of workers (default: 2, 4 and 8, or fewer on a smaller cluster)"
    parser.add_argument("--workers", type=_counts, metavar="N,...", help=numbers)
    add_yaml_options(parser)
    options = parser.parse_intermixed_args(arguments)
    chosen = [each for each in options.overrides if re.split(r"[=./]", each.lstrip("+~"))[0] == GROUP]
    if chosen:
        raise ConfigError(
            f"{' '.join(chosen)}: expected no setting of {GROUP}, because all strategies are compared; leave this out"
        )
    composer = RunComposer(options.config_dir)
    config = _config(composer, options.overrides)
    hardware = hardware_of(config)
    workers = options.workers or worker_counts(hardware)
    distinct, tried = list(dict.fromkeys(candidates(hardware, workers))), dict[tuple[str, ...], Simulated | str]()
    for done, candidate in enumerate(distinct, 1):
        print(f"{done} of {len(distinct)}: {' '.join(candidate)}", file=sys.stderr, flush=True)
        tried[candidate] = _tried(composer, options.overrides, candidate)
    print(recommendation_text(tried, options.overrides, options.config_dir), flush=True)
    return 0


def _counts(text: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers from 1, separated by commas, such as 2,4,8")
    return list(map(int, text.split(",")))


def worker_counts(hardware: Hardware) -> list[int]:
    """Return 2, 4 and 8, up to the number of places, and this number itself if it is 2 to 8."""
    at = hardware.workers.at
    places = MOST_WORKERS if ANY in at else min(MOST_WORKERS, len(list(expanded(at))))
    return sorted({count for count in (2, 4, 8, places) if 1 < count <= places})


def candidates(hardware: Hardware, workers: Iterable[int]) -> Iterator[tuple[str, ...]]:
    """Yield the overrides of each variant of each strategy with each number of workers.

    A strategy whose default is one worker is combined with one worker only.
    """
    counts = list(workers)
    strategies: Mapping[str, Any] = GROUPS[GROUP]
    for name, strategy in strategies.items():
        for count in [1] if strategy().workers == 1 else counts:
            for variant in variants_on(hardware, strategy, count):
                settings = [f"{GROUP}.{key}={value}" for key, value in variant.items()]
                yield (f"{GROUP}={name}", f"{GROUP}.workers={count}", *settings)


def _config(composer: RunComposer, overrides: Sequence[str]) -> Config:
    return from_composed(composer.compose(overrides), overrides)


def _tried(composer: RunComposer, overrides: Sequence[str], candidate: Sequence[str]) -> Simulated | str:
    """Simulate a candidate. If a ConfigError or ResourceError is raised, return the first line of its message."""
    try:
        return simulate(_config(composer, [*overrides, *candidate]), UPDATES)
    except (ConfigError, ResourceError) as error:
        return str(error).splitlines()[0]


def _settings(candidate: Sequence[str]) -> str:
    """Return the overrides of a candidate without the name of the group."""
    return " ".join(each.removeprefix(f"{GROUP}.").removeprefix(f"{GROUP}=") for each in candidate)


def limit_of(found: Simulated) -> str:
    """Return the bottleneck of a strategy as text: the longest part of an update, its share, and the busiest link."""
    workers = [parts for device, parts in found.parts.items() if DeviceName.parse(device).job == "worker"]
    share = {part: fmean(parts[part] for parts in workers) / found.step_s for part in PARTS}
    part = max(share, key=share.__getitem__)
    text = f"{part} {share[part]:.0%}"
    if part != COMMUNICATION and share[COMMUNICATION] >= 0.01:
        text += f", exposed {COMMUNICATION} {share[COMMUNICATION]:.0%}"
    if share[COMMUNICATION] >= 0.01 and found.utilization:
        link = max(found.utilization, key=found.utilization.__getitem__)
        text += f" (busiest link {link}, {found.utilization[link]:.0%})"
    return text


def recommendation_text(
    tried: Mapping[tuple[str, ...], Simulated | str], overrides: Sequence[str], config_dir: Path | None
) -> str:
    """Return a text with the ranked candidates, the commands of the best, and the reasons against unusable ones.

    tried: candidate -> its simulation, or the reason why it cannot be used. Raises ConfigError if none can be used.
    """
    usable = [(each, found) for each, found in tried.items() if not isinstance(found, str)]
    refused = [f"{_settings(each)}: {found}" for each, found in tried.items() if isinstance(found, str)]
    if not usable:
        reasons = "\n".join(refused)
        raise ConfigError(
            f"no strategy can be used:\n{reasons}\nchange the overrides so that a reason no longer applies, "
            "or choose other numbers of workers with --workers"
        )
    ranked = sorted(usable, key=lambda pair: 1.0 / pair[1].examples_per_s)
    by_update = sorted((found.step_s for _, found in usable))
    rows = [
        (
            str(rank),
            _settings(each),
            f"{1e6 / found.examples_per_s:,.3f}",
            f"{1e3 * found.step_s:,.3f}",
            str(1 + by_update.index(found.step_s)),
            number(-(-max(found.memory_bytes.values()) // 2**20)),
            limit_of(found),
        )
        for rank, (each, found) in enumerate(ranked, 1)
    ]
    headers = ("rank", "strategy", "us per example", "ms per update", "updates", "memory MiB", "limit")
    own = [] if config_dir is None else ["--config-dir", str(config_dir)]
    best = (["runner", *plugin_words(), "simulate", *own, *overrides, *each] for each, _ in ranked[:SHOWN])
    lines = [text_table(headers, rows), "", *map(shlex.join, best)]
    return "\n".join([*lines, *(["", "cannot be used:", *refused] if refused else [])])
