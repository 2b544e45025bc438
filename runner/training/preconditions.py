"""What must hold before a run starts or goes on, beyond what its configuration says by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runner.config.configuration import LIMITS, load_stored
from runner.config.outcome import changes_on_the_way
from runner.config.schema import Config
from runner.errors import ConfigError, DataError
from runner.plugin import changed_plugins, plugin_notes
from runner.records.data_facts import FACTS_FILE, DataRecord, changes, facts_of, read_record, record_of
from runner.records.decisions import read_decisions
from runner.records.run_directory import CONFIG_FILE, PLACEMENT_FILE
from runner.records.stored_run import earlier_configurations, read_plugins
from runner.training.experiment import Experiment


def require_resumable(config: Config, resume: bool) -> None:
    """Raise ConfigError for a resumed run that repeats an order of endings, which is known from the first step only."""
    strategy: Any = config.parallelism
    if resume and strategy.replayed is not None and strategy.race.decisions is None:
        raise ConfigError(
            f"resume with parallelism.replay={strategy.replayed}: a run is repeated from its first step on; start it "
            "again"
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
    """Raise ConfigError if a record of decisions ends before the run that is to repeat it.

    With train.patience a run may end early, and its repetition then ends after the same update.
    """
    path, total = replayed_decisions(experiment.config), experiment.total_steps
    if path is None or experiment.config.train.patience is not None:
        return
    recorded = len({line["step"] for line in read_decisions(path)})
    if recorded < total:
        raise ConfigError(
            f"parallelism.replay={path}: it has {recorded} updates, but {total} are to be made: that run did not end, "
            "and only a whole record can be repeated"
        )


def replayed_decisions(config: Config) -> Path | None:
    """Return the record of decisions that a run repeats, None if it repeats no such record."""
    strategy: Any = config.parallelism
    if strategy.replayed is None or strategy.race.decisions is None:
        return None
    return Path(strategy.replayed)


def require_record_of_one_configuration(config: Config) -> None:
    """Raise ConfigError where whose shares counted is to be repeated from a run whose starts were not all alike.

    Its record goes on through them, and no configuration makes all of its steps again. That it was made longer counts
    only where the rate goes by the length. Raises ConfigError and SecurityError where a configuration by which it went
    cannot be read.
    """
    path = replayed_decisions(config)
    if path is None:
        return
    folder = path.parent
    earlier = earlier_configurations(folder)
    # The last one is what the record says that it is of, but for the order, in which it may be repeated here.
    last = folder / CONFIG_FILE
    but = () if config.schedule.goes_by_length else LIMITS
    changed = list(changes_on_the_way(earlier, load_stored(last), but)) if earlier and last.exists() else []
    if changed:
        raise ConfigError(
            f"parallelism.replay={path}: its run changed on the way: {'; '.join(changed)}. Its record is "
            "of steps that no single configuration makes; repeat a run that was started once, or always alike"
        )


_BITS = ("threads_per_worker", "device_taken", "collectives")
"""Keys of the cluster for one value of which bits are promised."""


def changed_machine_values(config: Config, run_dir: Path) -> list[str]:
    """Return a note for each key of the cluster by whose change a resumed run can end with other bits."""
    if not (run_dir / CONFIG_FILE).exists():
        return []
    before, now = load_stored(run_dir / CONFIG_FILE).cluster, config.cluster
    changed = [(key, getattr(before, key), getattr(now, key)) for key in _BITS]
    return [
        f"resume={run_dir}: cluster.{key} was {was} and is {value} from now on, so the weights can differ in their "
        "last bits from those of an undisturbed run"
        for key, was, value in changed
        if was not in (None, value)
    ]


def kept_placement(config: Config, run_dir: Path) -> Path | None:
    """Where the layers of a run that goes on are and stay: nowhere, if another strategy is to go on."""
    path, stored = run_dir / PLACEMENT_FILE, run_dir / CONFIG_FILE
    if not path.exists() or (stored.exists() and load_stored(stored).parallelism != config.parallelism):
        return None
    return path
