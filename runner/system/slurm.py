"""The commands of Slurm that a run uses besides ``srun``: ``sinfo``, ``squeue``, ``scontrol`` and ``sbatch``."""

import re
import subprocess
from collections.abc import Mapping, Sequence

from runner.errors import ResourceError

JOB = "SLURM_JOB_ID"  # environment variable with the number of the job, set in the processes of an allocation
NODES = "SLURM_JOB_NODELIST"
CPUS = "SLURM_JOB_CPUS_PER_NODE"  # such as 4(x2),1
_LIMIT_S = 60.0


def node_addresses(environment: Mapping[str, str]) -> list[str]:
    """Return the addresses of the nodes of the allocation. Raises ResourceError if ``sinfo`` fails."""
    return _output(["sinfo", "--noheader", "--Node", f"--nodes={environment[NODES]}", "--format=%o"]).split()


def living_nodes(environment: Mapping[str, str]) -> dict[str, int]:
    """Return node -> CPUs of the job on it, for the nodes of the allocation that have not failed.

    environment: variables of a process of the job, which describe the whole allocation. Slurm removes a failed node
    from a job that continues without it. Raises ResourceError if a command of Slurm fails.
    """
    now = _output(["squeue", "--noheader", f"--job={environment[JOB]}", "--format=%N"]).strip()
    living = set(_hostnames(now))
    groups = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment[CPUS])
    cpus = [int(count) for count, times in groups for _ in range(int(times or 1))]
    nodes = zip(_hostnames(environment[NODES]), cpus, strict=True)
    return {node: count for node, count in nodes if node in living}


def _hostnames(listed: str) -> list[str]:
    """Return the names of the nodes in a list such as ``n[1-3]``."""
    return _output(["scontrol", "show", "hostnames", listed]).split()


def submit(script: str, options: Sequence[str]) -> str:
    """Submit a batch script and return the number of its job. Raises ResourceError if ``sbatch`` fails."""
    return _output(["sbatch", "--parsable", *options], script).strip().partition(";")[0]


def _output(command: Sequence[str], text: str | None = None) -> str:
    """Return the output of a command. text: its input."""
    try:
        ended = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    except FileNotFoundError as error:
        raise ResourceError(f"{command[0]} is not installed here; expected the commands of Slurm") from error
    except subprocess.TimeoutExpired as error:
        raise ResourceError(
            f"{command[0]} did not answer within {_LIMIT_S:g} s; check that the Slurm controller is running"
        ) from error
    except subprocess.CalledProcessError as error:
        raise ResourceError(f"{' '.join(command)}: {error.stderr.strip()}") from error
    return ended.stdout
