"""The launcher of a run: the configured way to start its processes."""

import importlib.util
from collections.abc import Mapping
from functools import partial
from typing import Any

from runner.config.schema import HOSTS, LOCAL, RAY, LauncherConfig
from runner.engine.cluster.command_launcher import RayLauncher, SlurmLauncher
from runner.engine.cluster.launchers import HostsLauncher, Launcher, LocalLauncher
from runner.engine.cluster.transport.messages import process_names, spare_names
from runner.engine.cluster.transport.private_directory import interface_towards
from runner.errors import ConfigError
from runner.plugin import pinned_references
from runner.records.run_directory import RunDirectory
from runner.system.machine import usable_cores
from runner.system.slurm import JOB, living_nodes, node_addresses
from runner.training.experiment import Experiment


def launcher_of(experiment: Experiment, directory: RunDirectory, environment: Mapping[str, str]) -> Launcher:
    """Return the launcher of a run with worker processes. environment: the environment variables of the run.

    Raises ConfigError if the launcher cannot be used here.
    """
    chosen: LauncherConfig = experiment.config.cluster.launcher
    options = [f"--plugin={reference}" for reference in pinned_references()]
    lanes, threads, spares = 1 + chosen.connections, experiment.threads_per_worker, experiment.spares
    processes = experiment.program.workers + experiment.program.servers
    if chosen.kind == LOCAL:
        return LocalLauncher(
            directory.workers,
            threads,
            options,
            chosen.over_tcp,
            shares_cores=processes * threads > usable_cores(),
            lanes=lanes if chosen.over_tcp else 1,
            spares=spares,
        )
    keys = directory.path / "keys"
    common: dict[str, Any] = {"options": options, "join_s": chosen.join_s, "lanes": lanes, "spares": spares}
    if chosen.kind == HOSTS:
        names = [*process_names(experiment.program.workers, experiment.program.servers), *spare_names(spares)]
        places = [host for host, count in (chosen.hosts or {}).items() for _ in range(count)]
        return HostsLauncher(
            address=_bind_address(chosen.address or ""),
            hosts=dict(zip(names, places, strict=True)),
            keys=keys,
            announce=partial(print, flush=True),
            **common,
        )
    common |= {"logs": directory.workers, "threads": threads}
    own = _bind_address(chosen.address) if chosen.address else None
    if chosen.kind == RAY:
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("cluster/launcher=ray: Ray is not installed; pip install 'runner-dataflow[ray]'")
        cluster = chosen.ray or ""
        towards = ["127.0.0.1" if cluster == "local" else cluster.rpartition(":")[0]]
        address, placement = own or interface_towards(towards), chosen.placement.upper()
        return RayLauncher(address=address, cluster=cluster, placement=placement, **common)
    if JOB not in environment:
        raise ConfigError(
            f"cluster/launcher=slurm: {JOB} is not set: expected an allocation of Slurm (salloc or sbatch). Only "
            "`runner KEY=VALUE ...` and `runner resume=DIR` submit themselves"
        )
    address = own or interface_towards(node_addresses(environment))
    return SlurmLauncher(address=address, keys=keys, nodes=partial(living_nodes, environment), **common)


def _bind_address(text: str) -> str:
    """Return the ``tcp://`` address for HOST or HOST:PORT, with any free port if no port is given."""
    host, _, port = text.rpartition(":")
    return f"tcp://{host}:{port}" if host and port.isdigit() else f"tcp://{text}:*"
