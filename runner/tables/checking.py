"""The check of a table: each run is planned and makes two steps on synthetic data; stored results are verified."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from runner.config.configuration import fix_machine_values
from runner.config.schema import Config
from runner.data.settings import DatasetSettings
from runner.data.synthetic import Synthetic, SyntheticText
from runner.data.text import TextSettings
from runner.errors import ConfigError, DataError, ResourceError, RunnerError
from runner.system.machine import usable_cores, usable_memory
from runner.tables.measured import (
    count_sizes,
    data_digest,
    data_digests,
    fingerprint,
    kind_of_machine,
    lacking_data,
    simulated_times,
)
from runner.tables.results import Result, ResultOrigin, RunResults
from runner.tables.table import BENCHMARK, COMPUTED, COUNT, SIMULATED, Table
from runner.training.build import build
from runner.training.experiment import Experiment
from runner.training.first_steps import first_steps
from runner.training.memory import gib, planned_memory

CURRENT, UNCHECKED, STALE, REFUSED = "current", "unchecked", "stale", "refused"
"""States of a run.

current: this program reproduces the stored results. unchecked: no results exist, or this machine cannot verify them.
stale: the configuration, the data or the program changed. refused: the run cannot be composed, planned or started.
"""

_PER_WORKER = 2
_SMALL = 8  # examples of the batch that is timed in place of one that exceeds the memory
_STEPS = 2


def checks(
    table: Table, configs: Mapping[str, Config], results: Mapping[str, RunResults]
) -> Iterator[tuple[str, str, str]]:
    """Yield (run, state, reason) for each run, in the order of the file."""
    for run, config in configs.items():
        try:
            note = "" if table.kind in COMPUTED else _tried(config, table.runs[run].memory_gib)
            yield run, *_compared(table, config, results[run], note)
        except RunnerError as error:
            yield run, REFUSED, str(error)


def _tried(config: Config, memory_gib: float | None) -> str:
    """Plan a run, and make two steps on synthetic data. Return a note on memory or on untried steps, or "".

    Raises the error that refuses the run.
    """
    experiment = build(fix_machine_values(config, usable_cores()))
    note = _require_memory(experiment, memory_gib)
    found = with_synthetic_data(experiment, small_batches(experiment.config))
    if isinstance(found, str):
        return "; ".join(filter(None, (note, f"no steps were tried: {found}")))
    first_steps(found, _STEPS)
    return note


def _require_memory(experiment: Experiment, memory_gib: float | None) -> str:
    """Return a note if the run and its dataset do not fit into the memory of this machine, otherwise "".

    Raises ResourceError if the run without its dataset needs more than ``memory_gib`` or, if that is None, more memory
    than this machine has. A run whose dataset does not fit is not refused, because the check uses synthetic data.
    """
    processes = planned_memory(experiment, experiment.plans())
    data = sum(process.data for process in processes)
    needed = sum(process.total for process in processes) - data
    room = usable_memory() if memory_gib is None else int(memory_gib * 2**30)
    if needed > room:
        of = "this machine has" if memory_gib is None else "the file states"
        advice = "state the needed memory in memory_gib"
        raise ResourceError(f"without its data, the run needs {gib(needed)} of memory, {of} {gib(room)}; {advice}")
    if needed + data <= usable_memory():
        return ""
    rest = f"the rest of the run {gib(needed)}, and this machine has {gib(usable_memory())}"
    return f"the data take {gib(data)} of memory in {len(processes)} process(es), {rest}"


def small_batches(config: Config) -> list[int]:
    """Return the batch sizes to try, smallest first, because a strategy may refuse a size that it cannot divide."""
    least = _PER_WORKER * config.parallelism.workers * config.train.microbatches
    return sorted({least, 8 * least, config.train.batch_size})


def with_synthetic_data(experiment: Experiment, batches: Sequence[int]) -> Experiment | str:
    """Return the experiment with synthetic data and the first batch size that its strategy accepts, or the refusal."""
    config, refusal = experiment.config, "no batch was given"
    for batch in batches:
        data = _synthetic(config.data, 4 * batch)
        if data is None:
            return "there is no synthetic data of this shape"
        train = replace(config.train, batch_size=batch, eval_batch_size=batch)
        train = replace(train, steps=experiment.total_steps, epochs=None)
        try:
            return build(replace(config, data=data, train=train))
        except ConfigError as error:
            refusal = str(error)
    return refusal


def estimated_s(experiment: Experiment, require_fit: Callable[[Experiment], None], *, synthetic: bool) -> float | None:
    """Return the seconds of all updates of a run, estimated by its first updates; None if they cannot be made here.

    If the run does not fit into the memory of this machine, one worker with all cores makes updates of at most eight
    examples, and the estimate is based on the time per example. require_fit: raises ResourceError for an experiment
    that does not fit. synthetic: whether to replace the dataset; None is returned if no data can replace it.
    """
    batch = whole = experiment.config.train.batch_size
    tried: Experiment | str = with_synthetic_data(experiment, [whole]) if synthetic else experiment
    while not isinstance(tried, str):
        try:
            require_fit(tried)
        except ResourceError:
            batch = min(batch // 2, _SMALL)
            tried = with_synthetic_data(_with_one_worker(experiment), [batch]) if batch else "no example fits"
        else:
            return first_steps(tried).step_s * experiment.total_steps * whole / batch
    return None


def _with_one_worker(experiment: Experiment) -> Experiment:
    """Return an experiment, not yet built, with one worker that has all cores."""
    config = experiment.config
    cluster = replace(config.cluster, threads_per_worker=usable_cores())
    parallelism = replace(config.parallelism, workers=1)
    return replace(experiment, config=replace(config, cluster=cluster, parallelism=parallelism))


def _synthetic(data: DatasetSettings, examples: int) -> DatasetSettings | None:
    """Return synthetic text or images like ``data``; otherwise ``data`` itself if it is present, or None."""
    if isinstance(data, TextSettings):
        tokens = examples * data.steps + 1
        return SyntheticText(steps=data.steps, vocabulary=data.vocabulary, tokens=tokens, test_tokens=tokens)
    facts = data.facts()
    if len(facts.shape) == len(Synthetic().shape) and facts.class_names and facts.fields.keys() == {"x", "y"}:
        shape = list(facts.shape)
        synthetic = Synthetic(shape=shape, classes=facts.classes, examples=examples, test_examples=examples)
        return replace(synthetic, augment=data.augment, val_fraction=data.val_fraction)
    try:
        data.require_present()
    except DataError:
        return None
    return data


def _compared(table: Table, config: Config, found: RunResults, note: str) -> tuple[str, str]:
    """Return the state of a run and the reason: whether this program reproduces the results on the present data."""
    if not found.current:
        changed = f"the configuration changed in {found.changed_keys}" if found.earlier else ""
        return STALE if changed else UNCHECKED, changed or note or "it was not run"
    if table.kind == COUNT:
        known = found.current[None].values
        same = count_sizes(config, table.columns, ResultOrigin()).values.items() <= known.items()
        return (CURRENT, "") if same else (STALE, "the counted values changed")
    if table.kind == SIMULATED:
        now, known = simulated_times(config, ResultOrigin()).values, found.current[None].values
        read = {column.size for column in table.columns.values()} & known.keys()
        # Times are sums, whose last bits depend on the order of equal additions.
        same = all(name in now and math.isclose(now[name], known[name], rel_tol=1e-9) for name in read)
        return (CURRENT, "") if same else (STALE, "the simulated times changed")
    if table.kind == BENCHMARK:
        return UNCHECKED, "; ".join(filter(None, ("times are measured, not checked", note)))
    seeds = ((seed, result) for seed, result in found.current.items() if seed is not None)
    each = [_same_program(replace(config, seed=seed), result) for seed, result in seeds]
    # The worst state decides: one stale seed makes the run stale.
    state, reason = max(each, key=lambda pair: (CURRENT, UNCHECKED, STALE).index(pair[0]))
    return state, "; ".join(filter(None, (reason, note)))


def _same_program(config: Config, result: Result) -> tuple[str, str]:
    """Return the state of one result, and the reason. config: the configuration with the seed of the result."""
    if lacking := lacking_data(config):
        return UNCHECKED, lacking
    if (digest := data_digests(config, data_digest)) != result.origin.data:
        return STALE, f"the data changed: their digest is {digest}, in the run it was {result.origin.data}"
    if not result.origin.first_steps:
        return (
            UNCHECKED,
            "the weights after the first updates are not stored, because they depend on the timing of the workers",
        )
    here = kind_of_machine(config)
    if other := [name for name, value in here.items() if result.origin.machine.get(name) != value]:
        return UNCHECKED, f"the results are from another kind of machine: {', '.join(other)} differ"
    if fingerprint(config).weights_sha256 != result.origin.first_steps:
        return STALE, "the weights after the first updates changed; delete result and run directory to run it again"
    return CURRENT, ""
