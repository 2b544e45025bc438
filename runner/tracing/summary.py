"""Critical paths and waits of the recorded steps, as a document and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from runner.engine.assignment import peer_of
from runner.engine.recording import COMPUTE, KINDS
from runner.engine.timeline import Timeline
from runner.tracing.critical_path import OTHER, Segment, by_step, critical_path, waits

_MOST_LAYERS = 8
_NO_LAYER = "-"


def trace_summary(timeline: Timeline) -> dict[str, Any]:
    """Say of every recorded step what its critical path consists of, and who waited for whom.

    Keys: ``steps``, a list of ``step``, ``ns`` (from the first span to the end of the last), ``critical_path_ns``:
    ``by_kind``, ``by_layer`` and ``by_process``, each of which adds up to ``ns``; and ``waited``: a list of ``who``,
    ``for``, ``times`` and ``ns``, longest first. A process is that of the device's job and task. And ``node_ns``: of
    every node that computes its median over the steps, which ``parallelism.costs`` reads.
    """
    steps = [_step(step, spans) for step, spans in by_step(timeline.spans).items()]
    return {"steps": steps, "node_ns": _node_ns(timeline)}


def _node_ns(timeline: Timeline) -> dict[str, int]:
    taken: dict[str, list[int]] = {}
    for span in timeline.spans:
        if span.kind == COMPUTE:
            taken.setdefault(span.node, []).append(span.ns)
    return {node: round(median(times)) for node, times in sorted(taken.items())}


def summary_table(summary: Mapping[str, Any]) -> str:
    """The summary as text: shares of all recorded steps' critical paths, then a line per step. Times in ms."""
    steps = summary["steps"]
    if not steps:
        return "no step was recorded"
    lines = [f"critical path of {len(steps)} step(s), ms per step, share"]
    for title in ("by_kind", "by_process", "by_layer"):
        lines += _shares(title.removeprefix("by_"), [step["critical_path_ns"][title] for step in steps])
    for step in steps:
        waited = [f"{each['who']} for {each['for']} {_ms(each['ns'])} ({each['times']}x)" for each in step["waited"]]
        lines.append(f"step {step['step']}: {_ms(step['ns'])} ms; waited: {', '.join(waited) or 'nobody'}")
    return "\n".join(lines)


def _step(step: int, spans: Sequence[Any]) -> dict[str, Any]:
    path = critical_path(spans)
    kinds = {kind: ns for kind in (*KINDS, OTHER) if (ns := _total(path, lambda each: each.kind).get(kind))}
    return {
        "step": step,
        "ns": sum(segment.ns for segment in path),
        "critical_path_ns": {
            "by_kind": kinds,
            "by_layer": _total(path, lambda each: each.layer or _NO_LAYER),
            "by_process": _total(path, lambda each: peer_of(each.device)),
        },
        "waited": [
            {"who": peer_of(who), "for": peer_of(whom), "times": waited.times, "ns": waited.ns}
            for (who, whom), waited in waits(spans).items()
        ],
    }


def _total(path: Iterable[Segment], name: Callable[[Segment], str]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for segment in path:
        totals[name(segment)] = totals.get(name(segment), 0) + segment.ns
    return dict(sorted(totals.items()))


def _shares(title: str, steps: Sequence[Mapping[str, int]]) -> list[str]:
    """Lines of one kind of sums over all steps, the largest first; what is left over of many is one line."""
    totals: dict[str, int] = {}
    for step in steps:
        for name, ns in step.items():
            totals[name] = totals.get(name, 0) + ns
    whole = sum(totals.values()) or 1
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked[:_MOST_LAYERS]
    if len(ranked) > len(shown):
        shown.append((f"{len(ranked) - len(shown)} more", sum(ns for _, ns in ranked[_MOST_LAYERS:])))
    return [f"  {title:8} {name:32} {_ms(ns / len(steps)):>10} {ns / whole:>6.1%}" for name, ns in shown]


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}"
