"""``runner --supervise ...``: watch a training run in a separate process, and restart its master if it is killed.

The new master continues from the newest checkpoint, as ``runner resume=DIR`` does. The watching process composes the
configuration once, to find the run's directory and ``train.restarts``.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from runner.checkpoint.layout import committed
from runner.commands.plugins import OPTION
from runner.commands.train import RUN_DIR, is_resume, stored_run
from runner.config import hydra_app
from runner.config.command_line import quoted
from runner.engine.cluster.process_exit import Exit, oom_kills
from runner.engine.cluster.processes import runner_command
from runner.errors import ConfigError
from runner.records.recoveries import append_recovery
from runner.records.run_directory import LOG_FILE, METRICS_FILE, RECOVERIES_FILE, RUN_FILE, holds_run, run_and_starts
from runner.system.console import SUPERVISE_OPTION, SUPERVISOR_OPTION, logging_to
from runner.tracking import read_metrics
from runner.training.restart_budget import RestartBudget

log = logging.getLogger(__name__)

_STOPS = (signal.SIGINT, signal.SIGTERM)
_REQUESTS = (-signal.SIGINT, -signal.SIGTERM, -signal.SIGHUP)  # exit codes of a master that was stopped on request
_UNEXPECTED = 1  # Python's exit code after an unhandled exception


def supervise(arguments: Sequence[str], references: Sequence[str], *, options: Sequence[str] = ()) -> int:
    """Train in a separate process, and start that process again after it was killed or crashed; return the exit code.

    references: the values of ``--plugin``. options: further options for the process. Restarts are limited like those
    after lost workers (:class:`RestartBudget`). SIGINT and SIGTERM are passed to the process and end the restarts.
    Raises ConfigError for a sweep; ClusterError if the fault recurs or if no restart is left.
    """
    plugins = [part for reference in references for part in (OPTION, reference)]
    if is_resume(arguments):
        config, run_dir, _ = stored_run(arguments)
        begin = resume = list(arguments)
    else:
        jobs = hydra_app.compose_jobs(arguments, _refuse_batch)
        if not jobs:  # Hydra has printed what --cfg or --info requests
            return 0
        if jobs[0].sweep is not None:
            _refuse_batch(jobs)
        config, run_dir = jobs[0].config(), jobs[0].run_dir
        here = [] if any(each.startswith(RUN_DIR) for each in arguments) else [RUN_DIR + quoted(str(run_dir))]
        begin, resume = [*arguments, *here], [f"resume={run_dir}"]
    own = [f"{SUPERVISOR_OPTION}={os.getpid()}", *options, *plugins]
    first, again = ([*runner_command(), *own, *each] for each in (begin, resume))
    return _Watch(run_dir, first, again, RestartBudget(config.train.restarts, run_dir)).run()


def _refuse_batch(jobs: Sequence[hydra_app.Job]) -> NoReturn:
    raise ConfigError(
        f"{SUPERVISE_OPTION} watches one run; leave it out of a sweep, which `runner sweep resume DIR` continues"
    )


@dataclass
class _Watch:
    """The supervision of one run.

    begin, resume: the commands that start the run and continue it. requested: the signal that asked this process to end
    the run. process: the newest master.
    """

    run_dir: Path
    begin: Sequence[str]
    resume: Sequence[str]
    budget: RestartBudget
    requested: int | None = None
    process: "subprocess.Popen[bytes] | None" = None

    def run(self) -> int:
        """Start the run, and start it again after each loss of its master; return the last master's exit code."""
        with ExitStack() as handlers:
            for signum in _STOPS:
                handlers.callback(signal.signal, signum, signal.signal(signum, self._pass_on))
            while self.requested is None:
                end = self._run_master()
                if end.code in _REQUESTS:
                    return 128 - end.code
                if end.code >= 0 and end.code != _UNEXPECTED:
                    return end.code
                if self.requested is None:
                    self._admit(end)
            return 128 + self.requested

    def _run_master(self) -> Exit:
        """Start the master, in a separate session so that it does not receive Ctrl-C twice; wait until it ends."""
        begun, kills = time.monotonic(), oom_kills()
        # The first start refuses a directory that already holds a run, whose configuration may differ.
        command = self.resume if self.process is not None and holds_run(self.run_dir) else self.begin
        self.process = subprocess.Popen(command, start_new_session=True)
        if self.requested is not None:
            self.process.send_signal(self.requested)
        return Exit.after(self.process.wait(), begun, kills)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        self.requested = signum
        if self.process is not None:
            self.process.send_signal(signum)

    def _admit(self, end: Exit) -> None:
        """Count and record the loss of the master. Raises ClusterError if it may not be started again."""
        metrics, saved = self.run_dir / METRICS_FILE, committed(self.run_dir / "checkpoints")
        step = max((each.step for each in read_metrics(metrics)), default=0) if metrics.exists() else 0
        newest = saved[0][0] if saved else 0
        lost = end.lost("master", f"the master {end}")
        self.budget.admit(lost, step, newest)
        restart = f"restart {self.budget.used} of {self.budget.restarts}"
        text = f"the master {end} after step {step}; it is started again from step {newest} ({restart})"
        if not (self.run_dir / RUN_FILE).exists():
            print(f"runner: warning: {text}", file=sys.stderr, flush=True)
            return
        with logging_to(self.run_dir / LOG_FILE):
            log.warning("%s", text)
        epoch = run_and_starts(self.run_dir)[1] + 1
        path = self.run_dir / RECOVERIES_FILE
        facts = {"epoch": epoch, "worker": lost.worker, "cause": lost.cause, "step": step, "continued_from": newest}
        append_recovery(path, {**facts, "seconds": None})
