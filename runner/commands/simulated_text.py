"""The results of a simulated run as text."""

from collections.abc import Iterator

from runner.records.summary import Simulation, Summary
from runner.system.text import aligned, number, rate, text_table


def simulated_text(summary: Summary, simulation: Simulation) -> str:
    """Return the predicted times, the devices and the links of a simulated run. Links that carry nothing are left out.

    simulation: ``summary.simulation``, which is not None for a simulated run.
    """
    links = [(link, number(round(use.bytes)), f"{use.utilization:.1%}") for link, use in simulation.links.items()]
    tensors = [(name, number(nbytes)) for name, nbytes in simulation.tensors.items()]
    return "\n".join(
        [
            aligned(_facts(summary, simulation)),
            "",
            text_table(("device", "kind", *simulation.parts_s, "memory MiB"), list(_devices(summary, simulation))),
            "",
            text_table(("largest tensors", "bytes"), tensors),
            "",
            text_table(("link", "bytes per update", "used"), links) if links else "Nothing is sent between devices.",
        ]
    )


def _facts(summary: Summary, simulation: Simulation) -> Iterator[tuple[str, str]]:
    yield "status", f"{summary.status}: nothing was trained, and all times are predicted"
    yield "strategy", f"{summary.strategy}, {summary.workers} worker(s)"
    step_s = summary.step_time_s["median"]
    yield "update", f"{1e3 * step_s:,.3f} ms for {number(summary.examples // summary.steps)} examples"
    yield "", ", ".join(f"{part} {1e3 * seconds:,.3f} ms" for part, seconds in simulation.parts_s.items())
    if summary.examples_per_s is not None:
        times = "" if simulation.speedup is None else f", {simulation.speedup:.2f} times those of one worker"
        yield "examples/s", f"{rate(summary.examples_per_s)}{times}"
    yield "training", f"{simulation.hours:,.2f} hours, without evaluations"
    for name, origin in simulation.costs.items():
        yield f"cost of {name}", origin
    yield "run directory", summary.output_dir


def _devices(summary: Summary, simulation: Simulation) -> Iterator[tuple[str, ...]]:
    for (process, nbytes), kind in zip(summary.peak_memory_bytes.items(), summary.devices.values(), strict=True):
        if parts := simulation.devices.get(process):
            yield process, kind, *(f"{parts[part]:.1%}" for part in simulation.parts_s), number(-(-nbytes // 2**20))
