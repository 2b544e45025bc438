"""The table of results that a finished run prints."""

from collections.abc import Iterator

from runner.records.summary import Summary

_MIB = 2**20


def results_table(summary: Summary) -> str:
    """Return results, speed and the run directory, one aligned line for each."""
    facts = list(_facts(summary))
    width = max(len(name) for name, _ in facts)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in facts)


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "status", summary.status
    if summary.stopped:
        yield "stopped early", summary.stopped
    yield "strategy", f"{summary.strategy}, {summary.workers} worker(s), kernels {_kernels(summary)}"
    if summary.emulated:
        yield "network", f"emulated: {summary.emulated}"
    for name in ("test/accuracy", "test/loss", "val/accuracy", "val/loss", "train/loss"):
        if name in summary.final:
            best = summary.best.get(name)
            yield name, f"{summary.final[name]:.4f}" + ("" if best is None else f"  (best {best:.4f})")
    if summary.init_from:
        left = f", {len(summary.init_left)} left (see run.log)" if summary.init_left else ""
        yield "weights from", f"{summary.init_from}: {len(summary.init_taken)} taken{left}"
    if summary.best_checkpoint is not None:
        yield "best checkpoint", f"{summary.best_checkpoint}, {summary.monitor} {summary.best_value:.4f}"
    yield "steps", f"{summary.steps:,} ({summary.examples:,} examples) in {summary.wall_seconds:.1f} s"
    if summary.step_time_s:
        p10, median, p90 = (summary.step_time_s[key] * 1000 for key in ("p10", "median", "p90"))
        yield "step time", f"median {median:.2f} ms, p10 {p10:.2f} ms, p90 {p90:.2f} ms"
    if summary.examples_per_s:
        yield "examples/s", f"{summary.examples_per_s:,.0f}"
    if any(summary.bytes_sent_per_worker):
        sent = [f"{count / _MIB:,.1f}" for count in summary.bytes_sent_per_worker]
        yield "MiB sent per worker", ", ".join(sent[: summary.workers])
        if servers := sent[summary.workers :]:
            yield "MiB sent per server", ", ".join(servers)
    peaks = ", ".join(f"{name} {count / _MIB:,.0f}" for name, count in summary.peak_memory_bytes.items())
    if peaks:
        yield "peak memory, MiB", peaks
    if summary.weights_sha256:
        yield "weights_sha256", summary.weights_sha256
    yield "run directory", summary.output_dir


def _kernels(summary: Summary) -> str:
    return ", ".join(f"{device}: {library}" for device, library in summary.kernels.items()) or "none"
