"""Summary of the recorded updates: critical paths, waits and node times, as a document and as a table."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from runner.engine.run.recording import COMPUTE, KINDS
from runner.tracing.critical_path import IDLE, OTHER, Wait, critical_path, process_of, spent, waited, waits_between
from runner.tracing.timeline_index import TimelineIndex, Update

_MOST_LAYERS = 8
_NO_LAYER = "-"


def trace_summary(index: TimelineIndex, updates: Sequence[Update]) -> dict[str, Any]:
    """Return the critical path of each recorded update, the time of each process by kind of span, and the waits.

    ``steps``: a list of maps. ``ns``: duration of update ``step``. ``critical_path_ns``: ``by_kind``, ``by_layer`` and
    ``by_process``, each of which adds up to ``ns``. ``processes_ns``: process -> kind -> ns, which adds up to ``ns``
    for each process. ``waited``: a list of maps, longest wait first: ``who`` (the waiting process), ``for`` (the
    awaited process), ``times`` and ``ns`` (number and total duration of the waits). Processes have names such as
    "worker-0". ``node_ns``: node -> median time of the node's kernel in ns, for ``parallelism.costs``.
    """
    between = list(waits_between(index))
    return {"steps": [_step(index, between, update) for update in updates], "node_ns": _node_ns(index)}


def _node_ns(index: TimelineIndex) -> dict[str, int]:
    taken = defaultdict(list)
    for span in index.timeline.spans:
        if span.kind == COMPUTE:
            taken[span.node].append(span.ns)
    return {node: round(median(times)) for node, times in sorted(taken.items())}


def summary_table(summary: Mapping[str, Any]) -> str:
    """Return the summary as text: parts of the critical paths, time of each process by kind, and waits of each step."""
    steps = summary["steps"]
    if not steps:
        return "no step was recorded"
    lines = [f"critical path of {len(steps)} step(s), ms per step, share"]
    for title in ("by_kind", "by_process", "by_layer"):
        lines += _shares(title.removeprefix("by_"), [step["critical_path_ns"][title] for step in steps])
    lines += [_shares_of_process(process, steps) for process in steps[0]["processes_ns"]]
    for step in steps:
        waits = [f"{each['who']} for {each['for']} {_ms(each['ns'])} ({each['times']}x)" for each in step["waited"]]
        lines.append(f"step {step['step']}: {_ms(step['ns'])} ms; waited: {', '.join(waits) or 'no process'}")
    return "\n".join(lines)


def _step(index: TimelineIndex, between: Sequence[Wait], update: Update) -> dict[str, Any]:
    path = critical_path(index, update)
    ns_of = _total((each.kind, each.ns) for each in path)
    return {
        "step": update.step,
        "ns": update.end_ns - update.begin_ns,
        "critical_path_ns": {
            "by_kind": {kind: ns_of[kind] for kind in (*KINDS, OTHER) if kind in ns_of},
            "by_layer": _total((each.layer or _NO_LAYER, each.ns) for each in path),
            "by_process": _total((each.process, each.ns) for each in path),
        },
        "processes_ns": {process_of(device): kinds for device, kinds in spent(index, update).items()},
        "waited": [
            {"who": process_of(device), "for": process_of(peer), "times": found.times, "ns": found.ns}
            for (device, peer), found in waited(index, between, update).items()
        ],
    }


def _total(times: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for name, ns in times:
        totals[name] += ns
    return dict(sorted(totals.items()))


def _shares(title: str, steps: Sequence[Mapping[str, int]]) -> list[str]:
    """Return a line with time and share for each name, largest first; the last line sums all names after the eighth."""
    totals: Counter[str] = Counter()
    for step in steps:
        totals.update(step)
    total = sum(totals.values()) or 1
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    shown = ranked[:_MOST_LAYERS]
    if len(ranked) > len(shown):
        shown.append((f"{len(ranked) - len(shown)} more", sum(ns for _, ns in ranked[_MOST_LAYERS:])))
    return [f"  {title:8} {name:32} {_ms(ns / len(steps)):>10} {ns / total:>6.1%}" for name, ns in shown]


def _shares_of_process(process: str, steps: Sequence[Mapping[str, Any]]) -> str:
    """Return a line with the share of each kind of span in the time of a process."""
    total = sum(step["ns"] for step in steps) or 1
    totals = {kind: sum(step["processes_ns"][process].get(kind, 0) for step in steps) for kind in (*KINDS, IDLE)}
    shares = ", ".join(f"{kind} {ns / total:.1%}" for kind, ns in totals.items() if ns)
    return f"  {process:16} {shares}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:,.3f}"
