"""Submission of a run to Slurm: the batch script executes the same command line inside an allocation."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from runner.config.schema import SLURM, Config, server_processes, spare_processes, worker_processes
from runner.engine.cluster.processes import runner_command
from runner.plugin import pinned_references
from runner.records.run_directory import CONFIG_FILE, RUN_FILE
from runner.system.files import create_directory, writing
from runner.system.slurm import JOB, submit

LOG = "slurm.log"  # file in the run directory with the output of the batch script
_SCRIPT = """\
#!/bin/sh
if [ -e {run_file} ] && [ -e {config_file} ]; then set -- {later}; else set -- {first}; fi
"$@" &
run=$!
trap 'kill -TERM "$run" 2>/dev/null' TERM
wait "$run"
code=$?
# The trap ends the first wait.
while kill -0 "$run" 2>/dev/null; do wait "$run"; code=$?; done
# A job that was cancelled must not return to the queue.
state=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T)
if [ "$code" = {stopped} ] && [ "$state" = RUNNING ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""
_STOPPED_BY_TERM = 143
_NOTICE_S = 60  # seconds before the end of the job's time at which the run is asked to save a checkpoint


def submit_run(config: Config, run_dir: Path, arguments: Sequence[str], later: Sequence[str]) -> str | None:
    """Submit a run to Slurm and return a text about the job; return None if this process must execute the run.

    arguments: arguments of ``runner`` for the first start of the job. later: arguments for a start after a requeue, if
    the run directory holds a run. Raises ResourceError if the directory cannot be created, or if Slurm does not accept
    the job.
    """
    launcher = config.cluster.launcher
    if launcher.kind != SLURM or JOB in os.environ or config.simulate.updates is not None:
        return None
    command = [*runner_command(), *(f"--plugin={reference}" for reference in pinned_references())]
    script = _SCRIPT.format(
        run_file=shlex.quote(str(run_dir / RUN_FILE)),
        config_file=shlex.quote(str(run_dir / CONFIG_FILE)),
        first=shlex.join([*command, *arguments]),
        later=shlex.join([*command, *later]),
        stopped=_STOPPED_BY_TERM,
    )
    with writing(f"in {run_dir}", "choose another directory with hydra.run.dir=DIR"):
        create_directory(run_dir)
    log = run_dir / LOG
    threads = config.cluster.threads_per_worker
    options: dict[str, object] = {
        "job-name": "runner",
        "ntasks": worker_processes(config) + server_processes(config) + spare_processes(config),
        **({"cpus-per-task": threads} if threads else {}),
        "signal": f"B:TERM@{_NOTICE_S}",
        **(launcher.sbatch or {}),
        "output": str(log).replace("%", "%%"),
        "open-mode": "append",
    }
    given = [f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()]
    goes_on = config.cluster.min_workers is not None or spare_processes(config) > 0
    kept = ["--no-kill"] if goes_on else []  # the job survives the loss of a node
    job = submit(script, ["--requeue", *kept, *given])
    return f"submitted as job {job} of Slurm\nrun directory  {run_dir}\noutput         {log}"
