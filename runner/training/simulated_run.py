"""One simulated run: the same directory, summary and tracking record as a training run, with predicted times."""

import dataclasses
import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from runner.config.check import training_facts
from runner.config.configuration import option_of, to_plain
from runner.config.launcher import SweepPlace
from runner.config.monitor import SIMULATED_SPEED
from runner.config.schema import Config, for_one_process
from runner.engine.graph import DeviceName
from runner.engine.run.recording import WAIT
from runner.engine.run.timeline import LinkSpan, Span
from runner.engine.simulate.hardware import Hardware
from runner.engine.simulate.profile import ROOFLINE
from runner.records.provenance import provenance_here
from runner.records.run_directory import RunDirectory
from runner.records.summary import SIMULATED, LinkUse, Simulation, Summary, step_time
from runner.system.console import NOT_ON_TERMINAL, logging_to
from runner.system.files import replace_durably
from runner.system.shutdown import at_the_end
from runner.tasks.base import MAX
from runner.tracing.chrome import chrome_trace
from runner.tracing.parts import PARTS
from runner.tracing.summary import trace_summary
from runner.tracking.diagrams import draw_timeline
from runner.training import recording
from runner.training.display import Display
from runner.training.simulation import Simulated, SimulatedTimeline, hardware_of, simulate

log = logging.getLogger(__name__)


def run_simulated(
    config: Config, run_dir: Path, *, overrides: Sequence[str], sweep: SweepPlace | None, resume: bool
) -> Summary:
    """Simulate ``config.simulate.updates`` updates and return the summary, which is also written as ``summary.json``.

    A resumed simulation starts again. Raises the errors of :func:`~runner.training.simulation.simulate`, after writing
    the summary.
    """
    assert config.simulate.updates is not None, "the configuration of a simulated run"
    with RunDirectory.open(run_dir, resume) as directory, logging_to(directory.log):
        recording.store_plugins(directory)
        recording.store_configuration(directory, config)
        summary, started = recording.draft_summary(config, directory, overrides), time.monotonic()
        summary = dataclasses.replace(summary, provenance=provenance_here()[0])

        def end(error: BaseException | None) -> None:
            if error is not None:
                log.error("%s", error, extra=NOT_ON_TERMINAL)
                recording.with_error(summary, error).write(directory.summary_json)

        with at_the_end("writing the summary", end):
            found = simulate(config, config.simulate.updates, announce=Display().message)
            speedup = speedup_of(config, found)
            summary = with_simulation(summary, config, found, speedup, time.monotonic() - started)
            summary.write(directory.summary_json)
        files = _timeline_files(found.timeline, directory, config) if config.trace else []
        record = recording.open_record(config, directory, sweep, summary)
        with at_the_end("closing the record", lambda error: record.close("failed" if error else SIMULATED)):
            record.configuration(to_plain(config))
            for path in files:
                record.artifact(path)
            record.metrics(summary.steps, summary.headline)
            record.result(summary, recording.names_of(config))
    return summary


def _timeline_files(timeline: SimulatedTimeline, directory: RunDirectory, config: Config) -> list[Path]:
    """Write the timeline, its summary and, with ``tracking.pictures``, its picture; return their paths."""
    index, updates = timeline.index, timeline.updates
    replace_durably(directory.trace_json, chrome_trace(index, updates, timeline.links))
    text = json.dumps(trace_summary(index, updates), indent=1) + "\n"
    replace_durably(directory.trace_summary_json, text.encode())
    files = [directory.trace_json, directory.trace_summary_json]
    if config.tracking.pictures:
        files.append(draw_timeline(picture_rows(timeline), directory.plots / "timeline.png"))
    return files


def picture_rows(timeline: SimulatedTimeline) -> dict[str, list[tuple[str, float, float]]]:
    """Return the picture of the last update: row -> (kind, begin ms, duration ms) of spans and transfers; no waits."""
    last, rows = timeline.updates[-1], dict[str, list[tuple[str, float, float]]]()
    timed: list[tuple[str, str, Span | LinkSpan]] = []
    timed += [(process_name(span.device), span.kind, span) for span in timeline.index.timeline.spans]
    timed += [(span.link, "transfer", span) for span in timeline.links]
    for row, kind, span in timed:
        begin, end = max(span.begin_ns, last.begin_ns), min(span.end_ns, last.end_ns)
        if begin < end and kind != WAIT:
            rows.setdefault(row, []).append((kind, 1e-6 * (begin - last.begin_ns), 1e-6 * (end - begin)))
    return rows


def speedup_of(config: Config, found: Simulated) -> float | None:
    """Return the examples per second, relative to one worker of the cluster with the same batch and as many updates.

    The memory of the single worker is not limited. Returns None if parallelism=single cannot train the configuration.
    """
    single = option_of("parallelism", {"name": "single"})
    cluster = dataclasses.replace(for_one_process(config.cluster), workers=None, compression="none")
    alone = dataclasses.replace(config, parallelism=single, cluster=cluster, trace=False)
    if any(single.faults(training_facts(alone))):
        return None
    return found.examples_per_s / simulate(alone, len(found.update_s), fits=False).examples_per_s


def with_simulation(
    summary: Summary, config: Config, found: Simulated, speedup: float | None, seconds: float
) -> Summary:
    """Return the summary with the results of a simulation. seconds: wall time of the simulation."""
    hardware, steps = hardware_of(config), len(found.update_s)
    names = {device: process_name(device) for device in found.memory_bytes}
    workers = [device for device in found.parts if DeviceName.parse(device).job == "worker"]
    shares = {names[device]: {part: own[part] / found.step_s for part in PARTS} for device, own in found.parts.items()}
    links = {name: LinkUse(nbytes, found.utilization[name]) for name, nbytes in found.carried.items() if nbytes}
    metrics = {"examples_per_s": found.examples_per_s, "hours": found.hours, "speedup": speedup}
    return dataclasses.replace(
        summary,
        status=SIMULATED,
        devices={device: kind_of(hardware, device) for device in names},
        device_reason="simulated: cluster.hardware",
        steps=steps,
        examples=steps * found.examples,
        wall_seconds=seconds,
        step_time_s=step_time(found.update_s),
        examples_per_s=found.examples_per_s,
        headline={f"{SIMULATED}/{name}": value for name, value in metrics.items() if value is not None},
        monitor=SIMULATED_SPEED,
        direction=MAX,
        bytes_sent_per_worker=[round(steps * nbytes) for nbytes in found.sent_bytes.values()],
        peak_memory_bytes={names[device]: nbytes for device, nbytes in found.memory_bytes.items()},
        simulation=Simulation(
            hours=found.hours,
            speedup=speedup,
            parts_s={part: fmean(found.parts[device][part] for device in workers) for part in PARTS},
            devices=shares,
            tensors=dict(found.tensors),
            links=links,
            costs=dict(origins(hardware, found.origins)),
        ),
    )


def process_name(device: str) -> str:
    """Return the name of a device's process in a run, such as "worker-0"."""
    name = DeviceName.parse(device)
    return f"{name.job}-{name.task}"


def kind_of(hardware: Hardware, device: str) -> str:
    group = hardware.servers if DeviceName.parse(device).job == "ps" else hardware.workers
    assert group is not None, "a simulated parameter server has a kind"
    return group.kind


def origins(hardware: Hardware, shares: Mapping[str, Mapping[str, float]]) -> Iterator[tuple[str, str]]:
    """Yield (key, text): for a kind, the origins (``shares``) and the source of its costs; for a link, its source."""
    for name, kind in hardware.kinds.items():
        found = ", ".join(f"{origin} {part:.1%}" for origin, part in shares[name].items() if kind.profile is not None)
        yield f"kinds.{name}", f"{found or ROOFLINE}: {kind.source or 'assumed'}"
    for name, link in hardware.links.items():
        yield f"links.{name}", link.source or "assumed"
