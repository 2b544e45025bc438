"""A Slurm for tests: a controller and several node daemons on this machine, as of Debian's slurm-wlm and munge."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.integration.command import LIMIT_S, lacking, running

_TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "salloc", "scancel", "scontrol")
_CPUS = 4
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port={node_ports} CPUs={cpus} RealMemory=1000 State=UNKNOWN
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""


class Slurm:
    """A running Slurm. environment: variables with which its commands find it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def call(self, *command: str) -> str:
        """Return the output of a command of Slurm."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    def wait_for(self, state: str, job: str) -> None:
        """Wait until a job has a state such as RUNNING."""
        deadline = time.monotonic() + LIMIT_S
        while (found := self.call("squeue", "--noheader", "--states=all", f"--job={job}", "--format=%T")) != state:
            assert time.monotonic() < deadline, f"job {job} is {found}, not {state}"
            time.sleep(0.1)


@contextlib.contextmanager
def slurm(folder: Path, nodes: int) -> Iterator[Slurm]:
    """Start Slurm with its files in ``folder`` and nodes n1, n2, ...; on exit, cancel all jobs and end its daemons."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        lacking("slurm", f"{', '.join(missing)} missing: apt-get install slurm-wlm munge" if missing else "root needed")
    folder.chmod(0o755)  # munged refuses a folder that only its owner can search
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    names = [f"n{number}" for number in range(1, nodes + 1)]
    for name in names:
        (folder / f"spool-{name}").mkdir()
    port, *ports = (str(port) for port in free_ports(1 + nodes))
    host = socket.gethostname().partition(".")[0]
    text = _CONFIGURATION.format(
        folder=folder, host=host, port=port, node_ports=",".join(ports), nodes=",".join(names), cpus=_CPUS
    )
    (folder / "slurm.conf").write_text(text)
    environment = {"SLURM_CONF": str(folder / "slurm.conf")}
    files = {"socket": "munge.sock", "key-file": key.name, "pid-file": "munged.pid", "seed-file": "munge.seed"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    with contextlib.ExitStack() as stack:
        for argv in (
            ["munged", "--foreground", "--force", *options, f"--log-file={folder / 'munged.log'}"],
            ["slurmctld", "-D"],
            *(["slurmd", "-D", "-N", name] for name in names),
        ):
            stack.enter_context(running(argv, folder / f"{argv[0]}-{argv[-1]}.out".replace("/", ""), environment))
        cluster = Slurm(environment)
        _wait_until_idle(cluster, nodes, folder)
        try:
            yield cluster
        finally:
            cluster.call("scancel", "--user=root")
            deadline = time.monotonic() + LIMIT_S
            while cluster.call("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.1)


def _wait_until_idle(cluster: Slurm, nodes: int, folder: Path) -> None:
    deadline = time.monotonic() + LIMIT_S
    while True:
        with contextlib.suppress(subprocess.CalledProcessError):
            states = cluster.call("sinfo", "--noheader", "--Node", "--format=%T").split()
            if states == ["idle"] * nodes:
                return
        logs = {path.name: path.read_text()[-500:] for path in folder.glob("*.out")}
        assert time.monotonic() < deadline, logs
        time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface on which no process listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
