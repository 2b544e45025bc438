"""Run directories of adapted networks: the checkpoint, the configuration and a record of the adaptation.

An adapted network is stored like a run that was trained on the target, so that it can be evaluated, used, exported and
resumed like any other run.
"""

import shutil
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from runner.checkpoint import CheckpointMeta, find, load, save
from runner.config.configuration import target_of, to_plain
from runner.config.schema import Adaptation, Config, LocalCluster
from runner.data.dataset import Normalisation
from runner.data.settings import DatasetSettings
from runner.errors import ConfigError, DataError
from runner.optimizers.averages import with_averages
from runner.records.data_facts import DataRecord, difference, facts_of, read_record, write_record
from runner.records.run_directory import RunDirectory, require_unused
from runner.records.summary import config_hash
from runner.system.files import replace_durably
from runner.system.machine import usable_cores
from runner.system.redaction import redact
from runner.system.text import json_text
from runner.tracking.plots import divergence_plot, target_batches_plot
from runner.training import recording
from runner.training.adaptation.adapting import UNADAPTED, Adapted, adapt, require_adaptable
from runner.training.adaptation.domains import domain_program
from runner.training.build import workload_of
from runner.training.inference import one_device, weights_in, weights_of

FOLDER = "adapted"  # the folder of adapted networks in the directory of a run: one run directory for each method
RECORD = "adaptation.json"


@dataclass(frozen=True)
class Trained:
    """The network to adapt: configuration and directory of its run, a checkpoint, and the normalisation in training."""

    config: Config
    run_dir: Path
    checkpoint: Path
    normalisation: Normalisation


def on_one_device(config: Config) -> Config:
    """Return the configuration with a cluster of one worker, on the first GPU of the given cluster if it has any."""
    cluster = config.cluster
    gpus = None if not cluster.gpus else cluster.gpus[:1]
    threads = cluster.threads_per_worker
    one = LocalCluster(device=cluster.device, gpus=gpus, tf32=cluster.tf32, threads_per_worker=threads)
    return replace(config, cluster=one)


def adapt_and_store(trained: Trained, settings: Adaptation, folder: Path) -> Adapted:
    """Adapt a network by each method, store each result as a run in ``folder``/METHOD, and return the results.

    ``trained.config`` must have one device. Raises DirectoryInUseError if a directory holds a run, and the errors of
    :func:`~runner.training.adaptation.adapting.adapt`.
    """
    for method in settings.methods:
        require_unused(folder / method)
    config = replace(trained.config, adapt=settings)
    target = target_of(config)
    assert target is not None, "an adaptation has a target"
    target.require_present()
    weights = weights_in(trained.checkpoint, config, weights_of(config))
    found = adapt(one_device(config, usable_cores()), weights, trained.normalisation, target, settings)
    for method in settings.methods:
        _store(trained, target, found, method, folder / method)
    replace_durably(folder / RECORD, _record(trained, settings, found))
    if config.tracking.pictures:
        divergence_plot(found.divergence, folder / "divergence.png")
        if found.curve:
            target_batches_plot(found.curve, found.scores[UNADAPTED], folder / "target_batches.png")
    return found


def adapt_run(config: Config, directory: RunDirectory) -> tuple[Adapted, list[Path]]:
    """Adapt the network that a run keeps, with the settings ``config.adapt``; return results and files to record.

    The results of an earlier start of the run are replaced.
    """
    folder, record = directory.path / FOLDER, read_record(directory.path)
    if record is None or record.normalisation is None:
        raise DataError(f"{directory.path}: the normalisation of the data was not stored; start a new run")
    shutil.rmtree(folder, ignore_errors=True)
    trained = Trained(on_one_device(config), directory.path, find(directory.path), record.normalisation)
    found = adapt_and_store(trained, config.adapt, folder)
    return found, [folder / RECORD, *sorted(folder.glob("*.png"))]


def require_adaptation(config: Config) -> None:
    """Check the section ``adapt`` before a run starts.

    Raises ConfigError if the target has other fields than the data, or if a method does not fit the network; DataError
    if the target is missing.
    """
    target = target_of(config)
    if target is None:
        return
    facts, found = config.data.facts(), target.facts()
    if changed := difference(found, facts):
        raise ConfigError(f"adapt.data.name={target.name} does not fit data={config.data.name}: {changed}")
    target.require_present()
    require_adaptable(domain_program(workload_of(config, facts)), config, config.adapt)


def _record(trained: Trained, settings: Adaptation, found: Adapted) -> bytes:
    document: dict[str, Any] = {
        "source_run": str(trained.run_dir),
        "checkpoint": str(trained.checkpoint),
        "source": trained.config.data.name,
        "settings": redact(asdict(settings)),
        "examples": found.examples,
        "batch_size": found.batch_size,
        "scores": found.scores,
        "divergence": found.divergence,
        "curve": {str(batches): scores for batches, scores in found.curve.items()},
    }
    return json_text(document).encode()


def _store(trained: Trained, target: DatasetSettings, found: Adapted, method: str, path: Path) -> None:
    """Store the network of a method as a run on the target, with the inputs normalised as in training."""
    normalisation = replace(trained.normalisation, scale=target.normalisation().scale)
    config = replace(trained.config, data=_normalised(target, normalisation), adapt=Adaptation())
    stored = load(trained.checkpoint)
    variables = {**stored.variables, **with_averages(found.weights[method], stored.variables)}
    with RunDirectory.open(path, resume=False) as directory:
        recording.store_plugins(directory)
        write_record(directory.path, DataRecord(facts_of(target), normalisation))
        examples = stored.manifest.meta.examples
        meta = CheckpointMeta(config_hash(to_plain(config)), directory.run_id, directory.epoch, examples)
        save(directory.checkpoints, step=stored.step, variables=variables, meta=meta)
        recording.store_configuration(directory, config)


def _normalised(target: DatasetSettings, normalisation: Normalisation) -> DatasetSettings:
    """Return the settings with the given mean and std, if the dataset has these keys."""
    if not {"mean", "std"} <= {each.name for each in fields(target)}:
        return target
    keys: dict[str, Any] = {"mean": list(normalisation.mean), "std": list(normalisation.std)}
    return replace(target, **keys)
