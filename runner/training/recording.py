"""What every run stores in its directory and records in its tracker, whether it trains or is simulated."""

from runner.config.configuration import dump, to_plain
from runner.config.launcher import SweepPlace
from runner.config.schema import Config
from runner.plugin import provenance
from runner.plugin.session import session_sources
from runner.records.record import CHANGED_TAG, Record, summary_tags
from runner.records.run_directory import SESSION_FOLDER, RunDirectory
from runner.records.stored_run import write_plugins
from runner.records.summary import Summary
from runner.system.files import replace_durably
from runner.system.redaction import redact
from runner.tracking import RunInfo, job_name, sweep_name
from runner.tracking.base import GROUP_TAG, SEED, group_of


def store_plugins(directory: RunDirectory) -> None:
    """Store the references of the plugins, and the sources of the classes of this Python session."""
    write_plugins(directory.path, provenance())
    for name, source in session_sources().items():
        (directory.path / SESSION_FOLDER).mkdir(exist_ok=True)
        replace_durably(directory.path / SESSION_FOLDER / name, source.encode())


def store_configuration(directory: RunDirectory, config: Config) -> None:
    """Store the configuration, after everything else: a directory with a configuration counts as a run."""
    plain = to_plain(config)
    # private: only the owner may read it.
    directory.store_configuration(dump(config).encode(), private=redact(plain) != plain)


def names_of(config: Config) -> str:
    """Return the names of the model, the dataset and the strategy, as text."""
    return f"{config.model.name} {config.data.name} {config.parallelism.name}"


def open_record(
    config: Config,
    directory: RunDirectory,
    sweep: SweepPlace | None,
    summary: Summary,
    *,
    first_step: int = 0,
    resumed: bool = False,
) -> Record:
    """Begin the tracking record of a run. first_step: number of updates before this start of the run."""
    tags = summary_tags(summary)
    if resumed:
        tags.pop(CHANGED_TAG, None)  # a resumed run keeps the tag of its first start
    if sweep is not None and SEED in sweep.swept:
        tags[GROUP_TAG] = group_of(sweep.swept, sweep.directory)
    info = RunInfo(
        run_id=directory.run_id,
        name=job_name(sweep.swept) if sweep is not None and sweep.swept else names_of(config),
        run_dir=directory.path,
        tags=tags,
        first_step=first_step + 1 if first_step else 0,
        history=directory.metrics_jsonl if resumed else None,
        sweep_dir=None if sweep is None else sweep.directory,
        sweep_name="" if sweep is None else sweep.name or sweep_name(sweep.swept, sweep.directory),
    )
    return Record(directory, config.tracking.create(directory.path), info, config.tracking.pictures)
