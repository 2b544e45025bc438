"""Checks of the directory, the data and the replayed record of a run before it starts or resumes."""

from pathlib import Path

from runner.config.configuration import LIMITS, load_stored, with_workers
from runner.config.outcome import configuration_changes
from runner.config.schema import Config
from runner.errors import ClusterError, ConfigError, DataError, NotStartedAgainError
from runner.plugin import changed_plugins, plugin_notes, provenance
from runner.plugin.loading import SESSION
from runner.records.data_facts import FACTS_FILE, DataRecord, changes, facts_of, read_record, record_of
from runner.records.decisions import read_decisions
from runner.records.run_directory import CONFIG_FILE, PLACEMENT_FILE
from runner.records.stored_run import earlier_configurations, read_plugins
from runner.system.machine import usable_cores
from runner.training.experiment import Experiment


def require_resumable(config: Config, resume: bool) -> None:
    """Raise ConfigError if a resumed run replays a recorded order of clients; a replay must begin at the first step."""
    strategy = config.parallelism
    if resume and strategy.replayed is not None and strategy.race.decisions is None:
        raise ConfigError(
            f"resume with parallelism.replay={strategy.replayed}: a recorded order is replayed from the first step on; "
            "start a new run"
        )


def with_remaining_workers(config: Config, lost: NotStartedAgainError) -> Config:
    """Return the configuration that continues a run without its lost workers; raise ``lost`` if there is none."""
    fewest, workers = config.cluster.min_workers, lost.remaining
    if fewest is None or workers < fewest:
        raise lost
    try:
        return with_workers(config, workers, usable_cores())
    except ConfigError as error:
        raise ClusterError(f"{lost}\nThe run cannot continue with {workers} worker(s): {error}") from lost


def require_data_on_workers(experiment: Experiment) -> None:
    """Raise ConfigError if worker processes would have to load a dataset whose class is only in this Python session."""
    data = experiment.config.data
    if experiment.program.one_process is None and f"{SESSION}data/{data.name}" in provenance():
        raise ConfigError(
            f"data={data.name} with parallelism={experiment.config.parallelism.name}: the class {type(data).__name__} "
            "was defined in this Python session, and worker processes cannot import it; use parallelism=single or "
            "cluster.one_process=true, or hand over arrays: data=runner.arrays(...)"
        )


def notes_on_resume(config: Config, run_dir: Path) -> list[str]:
    """Return notes on changes since the last start of a run.

    Raises ConfigError if a plugin changed, and the errors of :func:`require_same_data`.
    """
    recorded = read_plugins(run_dir)
    if changed := list(changed_plugins(recorded or {})):
        raise ConfigError(f"resume={run_dir}: {'; '.join(map(str, changed))}. Start a new run, or restore the plugin")
    notes = [*plugin_notes(recorded), *require_same_data(config, run_dir)]
    return [*notes, *changed_machine_values(config, run_dir)]


def require_same_data(config: Config, run_dir: Path) -> list[str]:
    """Raise DataError if the facts of the data changed since the run in ``run_dir`` began.

    Returns notes on facts that are not compared, because an earlier version did not store them.
    """
    kept = read_record(run_dir)
    if kept is None:
        return [f"the run has no record of its data ({FACTS_FILE}): the data is not compared"]
    config.data.require_present()
    _require_none(changes(DataRecord(facts_of(config.data), None), kept), config, run_dir)
    if kept.normalisation is None:
        return [f"the run has no record of the mean and deviation of its data ({FACTS_FILE}): they are not compared"]
    return []


def require_same_normalisation(config: Config, run_dir: Path) -> None:
    """Raise DataError if the run stored the mean and deviation of its data and one of them has changed.

    Computing both can require reading all of the user's data, so call this function after the memory check.
    """
    kept = read_record(run_dir)
    if kept is not None and kept.normalisation is not None:
        _require_none(changes(record_of(config.data), kept), config, run_dir)


def _require_none(changed: str, config: Config, run_dir: Path) -> None:
    if changed:
        raise DataError(
            f"resume={run_dir}: data={config.data.name} changed since the run began ({FACTS_FILE}): {changed}. Restore "
            "the data, or start a new run"
        )


def require_whole_record(experiment: Experiment) -> None:
    """Raise ConfigError if a record (see ``records.decisions``) has fewer updates than the run that replays it.

    A run with train.patience is not checked, because its record is complete even if the run ended early.
    """
    path, total = replayed_decisions(experiment.config), experiment.total_steps
    if path is None or experiment.config.train.patience is not None:
        return
    recorded = len({line["step"] for line in read_decisions(path)})
    if recorded < total:
        raise ConfigError(
            f"parallelism.replay={path}: the record has {recorded} updates; expected {total}. The recorded run did not "
            "end, and only a complete record can be replayed"
        )


def replayed_decisions(config: Config) -> Path | None:
    """Return the record of decisions that a run replays; None if the run replays no record."""
    strategy = config.parallelism
    return None if strategy.replayed is None or strategy.race.decisions is None else Path(strategy.replayed)


def require_record_of_one_configuration(config: Config) -> None:
    """Raise ConfigError if the configuration of the recorded run changed between its starts.

    The record of decisions spans all starts, so after a change no single configuration can repeat all steps. A changed
    number of steps is accepted unless the learning rate depends on this number. Raises ConfigError or SecurityError if
    one of the stored configurations cannot be read.
    """
    path = replayed_decisions(config)
    if path is None:
        return
    folder = path.parent
    # Compare with the last configuration of the recorded run: in ``config``, keys that order the updates may differ.
    earlier, last = earlier_configurations(folder), folder / CONFIG_FILE
    schedules = (config.schedule, *config.optimizer.schedules)
    but = () if any(each.goes_by_length for each in schedules) else LIMITS
    changed = list(configuration_changes(earlier, load_stored(last), but)) if earlier and last.exists() else []
    if changed:
        raise ConfigError(
            f"parallelism.replay={path}: the configuration of the recorded run changed: {'; '.join(changed)}. No "
            "single configuration repeats the steps; replay a run whose starts all had the same configuration"
        )


def changed_machine_values(config: Config, run_dir: Path) -> list[str]:
    """Return a note for each changed key of ``cluster`` that can change the last bits of a resumed run's weights."""
    if not (run_dir / CONFIG_FILE).exists():
        return []
    before, now = load_stored(run_dir / CONFIG_FILE).cluster, config.cluster
    bits_depend_on = ("workers", "threads_per_worker", "device_taken", "collectives")
    changed = [(key, getattr(before, key), getattr(now, key)) for key in bits_depend_on]
    return [
        f"resume={run_dir}: cluster.{key} was {was} and is {value} from now on, so the weights can differ in their "
        "last bits from those of an uninterrupted run"
        for key, was, value in changed
        if was not in (None, value)
    ]


def kept_placement(config: Config, run_dir: Path) -> Path | None:
    """Return the placement file of a resumed run; None if there is none or the settings of ``parallelism`` changed."""
    path, stored = run_dir / PLACEMENT_FILE, run_dir / CONFIG_FILE
    if not path.exists() or (stored.exists() and load_stored(stored).parallelism != config.parallelism):
        return None
    return path
