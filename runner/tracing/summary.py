"""Critical paths and waits of the recorded updates, as a document and as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from runner.engine.assignment import peer_of
from runner.engine.recording import COMPUTE, KINDS
from runner.tracing.course import Course, Update
from runner.tracing.critical_path import OTHER, Segment, critical_path
from runner.tracing.waiting import IDLE, Wait, spent, waited, waits_between

_MOST_LAYERS = 8
_NO_LAYER = "-"


def trace_summary(course: Course, updates: Sequence[Update]) -> dict[str, Any]:
    """Say of every recorded update what its critical path consists of, what processes did, and who waited for whom.

    Keys: ``steps``, a list of ``step``, ``ns`` (from where the update was asked for to where it was made),
    ``critical_path_ns``: ``by_kind``, ``by_layer`` and ``by_process``, each of which adds up to ``ns``;
    ``processes_ns``: of every process time by kind, which adds up to ``ns`` too; and ``waited``: a list of ``who``,
    ``for``, ``times`` and ``ns``, longest first. A process is that of the device's job and task, or the session's. And
    ``node_ns``: of every node that computes its median over all that was recorded, which ``parallelism.costs`` reads.
    """
    between = list(waits_between(course))
    return {"steps": [_step(course, between, update) for update in updates], "node_ns": _node_ns(course)}


def _node_ns(course: Course) -> dict[str, int]:
    taken: dict[str, list[int]] = {}
    for span in course.timeline.spans:
        if span.kind == COMPUTE:
            taken.setdefault(span.node, []).append(span.ns)
    return {node: round(median(times)) for node, times in sorted(taken.items())}


def summary_table(summary: Mapping[str, Any]) -> str:
    """The summary as text: shares of all recorded steps' critical paths, what processes did, a line per step.

    Times in ms.
    """
    steps = summary["steps"]
    if not steps:
        return "no step was recorded"
    lines = [f"critical path of {len(steps)} step(s), ms per step, share"]
    for title in ("by_kind", "by_process", "by_layer"):
        lines += _shares(title.removeprefix("by_"), [step["critical_path_ns"][title] for step in steps])
    lines += [_shares_of_process(process, steps) for process in steps[0]["processes_ns"]]
    for step in steps:
        told = [f"{each['who']} for {each['for']} {_ms(each['ns'])} ({each['times']}x)" for each in step["waited"]]
        lines.append(f"step {step['step']}: {_ms(step['ns'])} ms; waited: {', '.join(told) or 'nobody'}")
    return "\n".join(lines)


def _step(course: Course, between: Sequence[Wait], update: Update) -> dict[str, Any]:
    path = critical_path(course, update)
    kinds = {kind: ns for kind in (*KINDS, OTHER) if (ns := _total(path, lambda each: each.kind).get(kind))}
    return {
        "step": update.step,
        "ns": update.end_ns - update.begin_ns,
        "critical_path_ns": {
            "by_kind": kinds,
            "by_layer": _total(path, lambda each: each.layer or _NO_LAYER),
            "by_process": _total(path, lambda each: _process(each.place)),
        },
        "processes_ns": {_process(device): kinds for device, kinds in spent(course, update).items()},
        "waited": [
            {"who": _process(who), "for": _process(whom), "times": found.times, "ns": found.ns}
            for (who, whom), found in waited(course, between, update).items()
        ],
    }


def _process(place: str) -> str:
    """The process of a device, or of the session itself."""
    return peer_of(place) if place.startswith("/") else place


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


def _shares_of_process(process: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """What a process did with the time of all steps."""
    whole = sum(step["ns"] for step in steps) or 1
    totals = {kind: sum(step["processes_ns"][process].get(kind, 0) for step in steps) for kind in (*KINDS, IDLE)}
    shares = ", ".join(f"{kind} {ns / whole:.1%}" for kind, ns in totals.items() if ns)
    return f"  {process:16} {shares}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}"
