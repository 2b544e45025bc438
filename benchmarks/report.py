"""The results of one run of the command, written to files after each case, so that no result is lost."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import table
from benchmarks.cells import NOTHING, document, listed
from benchmarks.collectives import ExchangeResult, collectives_section
from benchmarks.limit import Rates
from benchmarks.overlap import OverlapResult, overlap_section
from benchmarks.results import CaseResult
from benchmarks.scaling import ScalingResult, scaling_section
from benchmarks.strategies import StrategyTable, strategies_section


@dataclass
class Report:
    """The results so far. machine: facts by name. rates: rates by precision. failed: case -> reason."""

    machine: Mapping[str, str]
    rates: dict[str, Rates] = field(default_factory=dict)
    comparisons: list[CaseResult] = field(default_factory=list)
    strategies: list[StrategyTable] = field(default_factory=list)
    scaling: list[ScalingResult] = field(default_factory=list)
    overlaps: list[OverlapResult] = field(default_factory=list)
    collectives: list[ExchangeResult] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def has_failures(self) -> bool:
        """Return whether runner failed in a case. Missing or failed peers do not count."""
        ours = [result.ours for result in self.comparisons]
        ours += [strategy for each in self.strategies for strategy in each.strategies]
        ours += [result.subjects[0] for result in self.collectives]
        return bool(self.failed) or any(result.failure for result in ours)

    def markdown(self) -> str:
        """Return all results as one document."""
        subjects = [s for result in self.comparisons for s in result.subjects]
        subjects += [s for result in self.collectives for s in result.subjects]
        subjects += [strategy for each in self.strategies for strategy in each.strategies]
        subjects += [result.peer for result in self.scaling if result.peer is not None]
        subjects += [way for result in self.overlaps for way in result.ways]
        versions = {name: version for subject in subjects for name, version in subject.versions.items()}
        facts = {**self.machine, "versions": ", ".join(f"{n} {v}" for n, v in sorted(versions.items())) or NOTHING}
        facts |= {f"best rates, {precision}": found.sentence() for precision, found in self.rates.items()}
        parts = [f"# Measurements\n\n{listed(facts)}"]
        if self.comparisons or self.scaling or self.strategies:
            parts.append(table.method())
        if self.comparisons:
            parts.append(f"## Training step\n\n{table.overview(self.comparisons)}")
        parts += [table.case_section(result) for result in self.comparisons]
        if self.scaling:
            parts.append(scaling_section(self.scaling))
        if self.strategies:
            parts.append(strategies_section(self.strategies))
        if self.overlaps:
            parts.append(overlap_section(self.overlaps))
        if self.collectives:
            parts.append(collectives_section(self.collectives))
        if self.failed:
            parts.append(f"## Not measured\n\n{listed(self.failed)}")
        return document(*parts)

    def write(self, markdown: Path | None, raw: Path | None) -> None:
        """Write the document, and the raw numbers as JSON, to the given files."""
        if markdown is not None:
            markdown.write_text(self.markdown())
        if raw is not None:
            raw.write_text(json.dumps(asdict(self), indent=1) + "\n")
