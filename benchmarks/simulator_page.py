"""The page about simulated against real step times, and its plot."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

from benchmarks.cells import document, listed, markdown, milliseconds, origin
from benchmarks.simulator_configurations import Configuration, Setting
from runner.engine.simulate.profile import MEASURED
from runner.system.machine import usable_cores
from runner.tracking.plots import new_figure, save_figure

MOST_SPREAD = 0.06
"""Configurations whose runs spread more are listed apart."""

ORDERED = 0.05
"""Strategies are ordered if their real times differ by more than this fraction."""

_METHOD = """\
Each configuration is run {rounds} times, in turns with the others, each time in new processes. A run counts with its
median step, and with its mean step if clients overlap; the real time is the median of the runs. Times are those of one
evaluation of the batch. The spread of runs is (longest - shortest) / median. The error is simulated / real - 1. The
simulation has a profile of instructions, measured in one process, and of messages between idle processes; no
configuration of this page was run for it."""


@dataclass
class Compared:
    """One configuration and its times. seconds: of one evaluation of the batch, one number for each run. simulated_s:
    the same, simulated. origins: see ``Simulated``. failure: why a time is missing, or "".
    """

    configuration: Configuration
    seconds: list[float] = field(default_factory=list)
    simulated_s: float = 0.0
    origins: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    failure: str = ""

    @property
    def real_s(self) -> float:
        """The median of the runs."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the runs relative to their median."""
        return (max(self.seconds) - min(self.seconds)) / self.real_s

    @property
    def error(self) -> float:
        """The relative error of the simulated time."""
        return self.simulated_s / self.real_s - 1.0


@dataclass(frozen=True)
class Order:
    """Pairs of strategies in one setting whose real times differ by more than ``ORDERED``. wrong: as text."""

    pairs: int
    wrong: tuple[str, ...]


def order_of(compared: Sequence[Compared]) -> Order:
    """Compare the order of the strategies in each setting."""
    by_setting: dict[Setting, list[Compared]] = {}
    for each in compared:
        by_setting.setdefault(each.configuration.setting, []).append(each)
    pairs, wrong = 0, []
    for setting, members in by_setting.items():
        for one, other in combinations(sorted(members, key=lambda each: each.real_s), 2):
            if other.real_s > one.real_s * (1.0 + ORDERED):
                pairs += 1
                if other.simulated_s <= one.simulated_s:
                    wrong.append(f"{setting.name}: {one.configuration.name} before {other.configuration.name}")
    return Order(pairs, tuple(wrong))


def page(compared: Sequence[Compared], command: str, picture: Path | None = None) -> str:
    """Return the page. picture: file of the plot, which is in the folder of the page."""
    measured = [each for each in compared if not each.failure and each.seconds]
    steady = [each for each in measured if each.spread <= MOST_SPREAD]
    apart = [each for each in measured if each.spread > MOST_SPREAD]
    order = order_of(steady)
    rounds = max((len(each.seconds) for each in measured), default=0)
    parts = [
        "# Simulated against real steps",
        listed(origin(f"{usable_cores()} cores", command=command)),
        _METHOD.format(rounds=rounds),
        _summary(steady, order),
        *([] if picture is None else [f"![Simulated against real step times]({picture.name})"]),
        *([_table(steady)] if steady else []),
    ]
    if order.wrong:
        parts += ["## Wrong order\n\n" + "\n".join(f"- {each}" for each in order.wrong)]
    if apart:
        parts += [f"## Runs that spread by more than {MOST_SPREAD:.0%}", _summary(apart, None), _table(apart)]
    if failed := [each for each in compared if each.failure]:
        names = [f"{each.configuration.setting.name}, {each.configuration.name}" for each in failed]
        parts += ["## Failed", listed(dict(zip(names, (each.failure for each in failed), strict=True)))]
    return document(*parts)


def plot(compared: Sequence[Compared], path: Path) -> None:
    """Draw simulated over real times on logarithmic axes, with the line of equal times and of 12 % error."""
    figure = new_figure(6.0, 6.0)
    axes = figure.add_subplot()
    strategies: dict[str, list[Compared]] = {}
    for each in compared:
        if each.seconds and not each.failure:
            strategies.setdefault(each.configuration.strategy, []).append(each)
    for name, members in strategies.items():
        axes.scatter([1e3 * e.real_s for e in members], [1e3 * e.simulated_s for e in members], s=18, label=name)
    times = [1e3 * value for members in strategies.values() for e in members for value in (e.real_s, e.simulated_s)]
    if times:
        ends = [0.8 * min(times), 1.25 * max(times)]
        for factor, style in ((1.0, "-"), (1.12, ":"), (0.88, ":")):
            axes.plot(ends, [factor * end for end in ends], style, color="grey", linewidth=0.8)
        axes.legend()
    axes.set(xscale="log", yscale="log", xlabel="real step, ms", ylabel="simulated step, ms")
    save_figure(figure, path)


def _summary(compared: Sequence[Compared], order: Order | None) -> str:
    if not compared:
        return "No configuration has steady runs."
    errors = [abs(each.error) for each in compared]
    text = f"{len(compared)} configurations: mean error {statistics.mean(errors):.1%}, worst {max(errors):.1%}."
    if order is not None:
        text += f" Of {order.pairs} pairs of strategies that differ by more than {ORDERED:.0%}, {len(order.wrong)} are"
        text += " in the wrong order."
    return text


def _table(compared: Sequence[Compared]) -> str:
    header = ("configuration", "strategy", "real, ms", "spread", "simulated, ms", "error", "measured")
    rows = [
        (
            each.configuration.setting.name,
            each.configuration.name,
            milliseconds(each.real_s),
            f"{each.spread:.1%}",
            milliseconds(each.simulated_s),
            f"{each.error:+.1%}",
            f"{min((origin.get(MEASURED, 0.0) for origin in each.origins.values()), default=0.0):.0%}",
        )
        for each in compared
    ]
    return markdown(header, rows)
