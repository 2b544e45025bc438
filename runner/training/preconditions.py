"""What must hold before a run starts or goes on, beyond what its configuration says by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.config.configuration import LIMITS, load_stored
from runner.config.earlier import changes_on_the_way
from runner.config.schema import Config
from runner.errors import ConfigError, DataError
from runner.plugin import changed_plugins, plugin_notes
from runner.records.data_facts import FACTS_FILE, DataRecord, changes, facts_of, read_record, record_of
from runner.records.run_directory import CONFIG_FILE, PLACEMENT_FILE
from runner.records.run_plugins import read_plugins
from runner.records.stored_run import earlier_configurations
from runner.training.experiment import Experiment


def require_resumable(experiment: Experiment, resume: bool) -> None:
    """Raise ConfigError for a run that repeats another and is to go on: its order is known from the beginning alone."""
    wish = experiment.program.one_process
    if resume and wish is not None and wish.replay is not None:
        raise ConfigError(
            f"resume with parallelism.replay={wish.replay}: a run is repeated from its first step on; start it anew"
        )


def require_same_plugins(run_dir: Path) -> list[str]:
    """Raise ConfigError where a plugin is another than at the start before, whose record this one's will replace.

    Returns what is to be told of plugins that are on one side only.
    """
    recorded = read_plugins(run_dir)
    if changed := list(changed_plugins(recorded or {})):
        raise ConfigError(
            f"resume={run_dir}: {'; '.join(map(str, changed))}. Start it anew, or go on with the plugin as it was"
        )
    return list(plugin_notes(recorded))


def require_same_data(config: Config, run_dir: Path) -> list[str]:
    """Raise DataError where the facts of the data are others than those that the run in a directory began with.

    Returns what is to be told of what an earlier version did not keep, so that it is not compared.
    """
    kept = read_record(run_dir)
    if kept is None:
        return [f"the run did not keep what its data were ({FACTS_FILE}): not compared"]
    config.data.require_present()
    _require_none(changes(DataRecord(facts_of(config.data), None), kept), config, run_dir)
    if kept.normalisation is None:
        return [f"the run did not keep the mean and deviation of its data ({FACTS_FILE}): not compared"]
    return []


def require_same_normalisation(config: Config, run_dir: Path) -> None:
    """Raise DataError where mean and deviation of the data are others than those that the run began with.

    Own files may be read whole for it, so it is asked when the memory for them is known to be there; and not where the
    run did not keep them.
    """
    kept = read_record(run_dir)
    if kept is not None and kept.normalisation is not None:
        _require_none(changes(record_of(config.data), kept), config, run_dir)


def _require_none(changed: str, config: Config, run_dir: Path) -> None:
    if changed:
        raise DataError(
            f"resume={run_dir}: data={config.data.name} changed since the run began ({FACTS_FILE}): {changed}. Bring "
            "the data back that it had, or start it anew"
        )


def require_whole_record(experiment: Experiment) -> None:
    """Raise ConfigError where a record that is to be repeated ends before the run does.

    With train.patience a run may end early, and its repetition then does after the same update.
    """
    recorded, total = experiment.program.replayed_steps, experiment.total_steps
    if recorded is not None and recorded < total and experiment.config.train.patience is None:
        config: Any = experiment.config
        raise ConfigError(
            f"parallelism.replay={config.parallelism.replay}: it has {recorded} updates, but {total} are to be made: "
            "that run did not come to its end, and only what is recorded as a whole can be repeated"
        )


def require_record_of_one_configuration(config: Config) -> None:
    """Raise ConfigError where whose shares counted is to be repeated from a run whose starts were not all alike.

    Its record goes on through them, and no configuration makes all of its steps again. That it was made longer counts
    only where the rate goes by the length. Raises ConfigError and SecurityError where a configuration by which it went
    cannot be read.
    """
    parallelism: Any = config.parallelism
    if not getattr(parallelism, "backup_workers", 0) or parallelism.replay is None:
        return
    folder = Path(parallelism.replay).parent
    earlier = earlier_configurations(folder)
    # The last one is what the record says that it is of, but for the order, in which it may be repeated here.
    last = folder / CONFIG_FILE
    but = () if config.schedule.goes_by_length else LIMITS
    changed = list(changes_on_the_way(earlier, load_stored(last), but)) if earlier and last.exists() else []
    if changed:
        raise ConfigError(
            f"parallelism.replay={parallelism.replay}: its run changed on the way: {'; '.join(changed)}. Its record is "
            "of steps that no single configuration makes; repeat a run that was started once, or always alike"
        )


def kept_placement(config: Config, run_dir: Path) -> Path | None:
    """Where the layers of a run that goes on are and stay: nowhere, if another strategy is to go on."""
    path, stored = run_dir / PLACEMENT_FILE, run_dir / CONFIG_FILE
    if not path.exists() or (stored.exists() and load_stored(stored).parallelism != config.parallelism):
        return None
    return path
