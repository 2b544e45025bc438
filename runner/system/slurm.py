"""The commands of Slurm that a run uses besides ``srun``: ``sinfo`` and ``sbatch``."""

import subprocess
from collections.abc import Mapping, Sequence

from runner.errors import ResourceError

JOB = "SLURM_JOB_ID"  # environment variable with the number of the job, set in the processes of an allocation
NODES = "SLURM_JOB_NODELIST"
_LIMIT_S = 60.0


def node_addresses(environment: Mapping[str, str]) -> list[str]:
    """Return the addresses of the nodes of the allocation. Raises ResourceError if ``sinfo`` fails."""
    return _output(["sinfo", "--noheader", "--Node", f"--nodes={environment[NODES]}", "--format=%o"]).split()


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
