"""The results of a GPU as Markdown. A missing result is shown as *not run*, never as an estimate."""

from collections.abc import Mapping, Sequence

from benchmarks.cells import document, listed, markdown, milliseconds, ratio, spread
from benchmarks.gpu.measure import MODES, PHASES
from benchmarks.gpu.networks import GPU_CASES, PRECISIONS
from benchmarks.gpu.store import Key, Measured, Store
from benchmarks.results import CaseResult, SubjectResult, compared_losses, method_of_losses

NOT_RUN = "*not run*"

TITAN_X: Mapping[str, Mapping[str, int]] = {
    "Caffe": {"alexnet": 324, "overfeat": 823, "vgg_a": 1068, "googlenet": 1935},
    "Neon": {"alexnet": 87, "overfeat": 211, "vgg_a": 320, "googlenet": 270},
    "Torch": {"alexnet": 81, "overfeat": 268, "vgg_a": 529, "googlenet": 470},
    "TensorFlow": {"alexnet": 81, "overfeat": 279, "vgg_a": 540, "googlenet": 445},
}
"""Milliseconds of forward and backward pass at the batch sizes of GPU_CASES: float32, NVIDIA Titan X, 25 April 2016.

Source: convnet-benchmarks; also table 1 of "TensorFlow: a system for large-scale machine learning" (2016)."""

Results = Mapping[Key, Measured]


def page(store: Store, command: str) -> str:
    """Return all results as one document; ``smoke``, a network for tests, is omitted unless it has results."""
    names = [name for name in GPU_CASES if name != "smoke" or any(key[0] == name for key in store.results)]
    results = store.results
    parts = [heading(store, command), overview(results, names), forward_and_backward(results, names)]
    parts += [case_section(measured) for measured in results.values()]
    return document(*parts)


def heading(store: Store, command: str) -> str:
    """Describe the GPU and the measurement."""
    versions = {n: v for each in store.results.values() for s in each.result.subjects for n, v in s.versions.items()}
    named = ", ".join(f"{name} {version}" for name, version in sorted(versions.items())) or NOT_RUN
    return "\n".join(
        [
            f"# Measurements on {store.facts['device']}",
            "",
            listed({**store.facts, "versions": named, "command": f"`{command}`, run until all results are measured"}),
            "",
            "Each implementation (runner, and each mode of PyTorch) runs in a separate process with the same initial "
            "values and the same batch, which stays on the GPU. All are warmed up one by one and then take turns. A "
            "run ends when its loss is on the host. Times are medians.",
            "PyTorch: channels-last layout, cuDNN benchmark mode, fused SGD. Modes: eager (channels-last), eager "
            "captured as one CUDA graph (graph), and torch.compile (reduce-overhead, max-autotune).",
            "tf32: float32 whose products use factors with 10-bit mantissas; bfloat16: automatic mixed precision.",
            "Limit: multiply-adds / rate of PyTorch's matrix product of 8192x8192; for the step, plus bytes that the "
            "optimizer moves / bandwidth of a copy. Both rates are from the same run of the command.",
            "Memory: for runner, the memory planned and allocated for a step; for PyTorch, the peak reserved memory.",
            method_of_losses(PRECISIONS),
        ]
    )


def overview(results: Results, names: Sequence[str]) -> str:
    """Return a table of training steps: every network and precision, runner against the best mode of PyTorch."""
    header = ("case, batch", "precision", "runner, ms", "best mode", "best mode, ms", "runner / best mode", "modes run")
    shares = ("limit / runner", "runner, TFLOP/s", "/ matrix product rate", "runner, MiB", "best mode, MiB")
    rows = [_overview_row(results, name, precision) for precision in PRECISIONS for name in names]
    return f"## Training step\n\n{markdown([*header, *shares], rows)}"


def _overview_row(results: Results, name: str, precision: str) -> Sequence[str]:
    title = f"{name}, {GPU_CASES[name].batch}"
    measured = results.get((name, precision))
    if measured is None or measured.result.ours.failure:
        return (title, precision, *[NOT_RUN] * 10)
    result = measured.result
    ours, best = result.ours.median("step"), result.best_peer("step")
    theirs = best.median("step") if best else None
    return (
        title,
        precision,
        milliseconds(ours),
        best.name if best else NOT_RUN,
        milliseconds(theirs) if best else NOT_RUN,
        ratio(ours, theirs) if best else NOT_RUN,
        f"{len(result.comparable())} of {len(MODES)}",
        ratio(result.limit_s["step"], ours),
        *_arithmetic(measured, ours),
        f"{result.ours.memory_mib[1]:,.0f}",
        f"{best.memory_mib[1]:,.0f}" if best else NOT_RUN,
    )


def _arithmetic(measured: Measured, seconds: float | None) -> tuple[str, str]:
    """Return the operations per second, and their ratio to the rate of the matrix product."""
    rates = measured.rates.multiply_adds_per_s
    if seconds is None or not rates:
        return NOT_RUN, NOT_RUN
    achieved = measured.result.multiply_adds["step"] / seconds
    return f"{2 * achieved / 1e12:.3g}", f"{achieved / max(rates.values()):.2f}"


def forward_and_backward(results: Results, names: Sequence[str]) -> str:
    """Return a table of forward and backward passes: the results of convnet-benchmarks from 2016, and new results."""
    columns = [name for name in names if name in TITAN_X["Neon"]]
    rows: list[Sequence[str]] = [
        (f"{library}, Titan X, 2016", *(f"{times[name]:,}" for name in columns)) for library, times in TITAN_X.items()
    ]
    rows.append(("runner, this GPU", *(_of_ours(results.get((name, "float32"))) for name in columns)))
    rows.append(("best mode of PyTorch, this GPU", *(_of_best(results.get((name, "float32"))) for name in columns)))
    table = markdown(["ms", *(f"{name}, {GPU_CASES[name].batch}" for name in columns)], rows)
    return f"## Forward and backward without update, float32\n\n{table}"


def _of_ours(measured: Measured | None) -> str:
    if measured is None or measured.result.ours.failure:
        return NOT_RUN
    return milliseconds(measured.result.ours.median("gradients"))


def _of_best(measured: Measured | None) -> str:
    best = measured.result.best_peer("gradients") if measured else None
    return milliseconds(best.median("gradients")) if best else NOT_RUN


def case_section(measured: Measured) -> str:
    """Return a table of one network in one precision, with every mode and phase."""
    result = measured.result
    work = ", ".join(f"{phase} {count / 1e9:,.1f}" for phase, count in result.multiply_adds.items())
    header = ["implementation"]
    for phase in PHASES:
        header += [f"{phase}, ms", "limit / time"]
    rows = [_subject_row(result, subject) for subject in result.subjects]
    there = {subject.name for subject in result.subjects}
    rows += [(f"torch-{mode}", NOT_RUN, *[""] * 5) for mode in MODES if f"torch-{mode}" not in there]
    return "\n".join(
        [
            f"## {result.title}, {result.precision}",
            "",
            f"{result.parameters:,} parameters; billion multiply-adds: {work}. Rates: {_rates(measured)}. "
            f"Commit {measured.commit}, {measured.date}.",
            "",
            markdown([*header, "memory, MiB", "losses"], rows),
        ]
    )


def _rates(measured: Measured) -> str:
    rates = measured.rates
    if not rates.multiply_adds_per_s:
        return NOT_RUN
    best = max(rates.multiply_adds_per_s.values())
    return f"{2 * best / 1e12:,.1f} TFLOP/s, {rates.bytes_per_s / 1e9:,.0f} GB/s read and written"


def _subject_row(result: CaseResult, subject: SubjectResult) -> Sequence[str]:
    if subject.failure:
        why = subject.failure.replace("|", "/")
        return (subject.name, f"{NOT_RUN}: {why}", *[""] * 5)
    cells = [subject.name]
    for phase in PHASES:
        median = subject.median(phase)
        if median is None:
            cells += [NOT_RUN, ""]
            continue
        cells += [spread(subject.seconds[phase]), ratio(result.limit_s[phase], median)]
    return [*cells, f"{subject.memory_mib[1]:,.0f}", compared_losses(result, subject)]
