"""The kept states of a run: its checkpoints, and copies in the master's memory to which a recovery returns."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from runner.callback import Callback
from runner.checkpoint import CheckpointMeta
from runner.checkpoint.background import BackgroundSaver
from runner.config.outcome import outcome_hash
from runner.engine.compile.program import SAVE
from runner.engine.run.session import Session
from runner.engine.run.step_driver import StepDriver
from runner.records.decisions import Decisions
from runner.records.record import Record
from runner.records.run_directory import RunDirectory
from runner.training.callbacks import Callbacks
from runner.training.experiment import Experiment
from runner.training.saving import Progress, prepared_checkpoint

if TYPE_CHECKING:
    from runner.training.recovery import Recovery


class KeptStates:
    """Saves and copies the state of one run when this is due, together with the decisions that led to it.

    saver: the thread that writes checkpoints.
    """

    def __init__(
        self,
        experiment: Experiment,
        session: Session,
        directory: RunDirectory,
        record: Record,
        meta: CheckpointMeta,
        callbacks: Callbacks,
        recovery: "Recovery | None",
    ) -> None:
        """Prepare for the updates of a run; call :meth:`begin` first.

        meta: the entries common to all checkpoints. recovery: keeps the copies; None for no copies.
        """
        self._experiment = experiment
        self._session = session
        self._directory = directory
        self._record = record
        self._meta = meta
        self._callbacks = callbacks
        self._recovery = recovery
        self.saver = BackgroundSaver(experiment.config.checkpoint.every_s)

    def begin(self, driver: StepDriver, first_step: int) -> None:
        """Prepare for updates from ``first_step`` on by new or restarted workers, which ``driver`` directs."""
        self._driver = driver
        self._decisions = Decisions(self._directory.path, first_step, outcome_hash(self._experiment.config))
        self._meta = replace(self._meta, epoch=self._directory.epoch)

    def after_update(self, progress: Progress, *, ends: bool) -> None:
        """Save or copy the state if this is due. ends: whether the run ends here, so that the state is saved anyway.

        Raises the error of a checkpoint that could not be written.
        """
        every = self._experiment.config.checkpoint.every_steps
        if every is not None and progress.done % every == 0:
            self.save(progress)
        self.saver.check()
        if self.saver.is_due and not ends and self._can_save_by_time:
            self.save(progress, begin_again=False)
        if self._recovery is not None and self._recovery.is_due and self._can_copy:
            self._recovery.copy(progress)

    @property
    def _can_copy(self) -> bool:
        """Whether a run can continue from the present variables, and reading them does not affect this run."""
        return self._driver.is_synchronized or self._driver.keeps_valid_variables

    @property
    def _can_save_by_time(self) -> bool:
        """Whether the state can be saved after an update that depends on the time.

        A checkpoint does not hold the order of overlapping clients. If timing does not affect this order, a resumed run
        must have the weights of this run, so nothing is saved between evaluations.
        """
        race = self._experiment.config.parallelism.race
        is_decided = race is not None and race.decided
        return self._can_copy and not (self._driver.keeps_valid_variables and is_decided)

    def variables(self) -> Mapping[str, NDArray[Any]]:
        """Wait until all clients have ended; return every variable by its unsharded name."""
        self._driver.begin_again()
        return self._session.run(SAVE)

    def final_variables(self, progress: Progress) -> Mapping[str, NDArray[Any]]:
        """Return every variable by its unsharded name after the end of the run."""
        saved = None if self._recovery is None else self._recovery.boundary.saved(progress.done)
        return self.variables() if saved is None else saved

    def save(self, progress: Progress, *, begin_again: bool = True) -> None:
        """Write a checkpoint in the background, unless this step has one.

        begin_again: whether the state that no checkpoint holds is dropped first; see
        :meth:`~runner.engine.run.step_driver.StepDriver.begin_again`.
        """
        if progress.saved_step == progress.done:
            return
        self.saver.finish()  # before the variables are copied again
        begun, variables = time.monotonic(), self.variables() if begin_again else self._session.run(SAVE)
        # Decisions and metrics are written first, so that they are complete up to every checkpoint on the disk.
        self.write_decisions()
        self._start(progress, variables, begun)
        progress.saved_step = progress.done
        if self._recovery is not None:
            self._recovery.keep(progress, variables)
        # Wait, because a callback may stop the run, and the duration of the save must not change the step of the stop.
        if self._callbacks.override(Callback.on_checkpoint):
            path = self.saver.finish()
            assert path is not None
            self._callbacks.on_checkpoint(progress.done, path)

    def save_boundary(self) -> None:
        """Save the newest copy in memory, so that a later start of the run continues from it.

        In virtual time, nothing is saved, because an additional checkpoint changes the order of events.
        """
        assert self._recovery is not None
        boundary = self._recovery.boundary
        is_saved = boundary.progress.done == boundary.progress.saved_step
        if boundary.variables is None or is_saved or self._experiment.runs_in_virtual_time:
            return
        self._start(boundary.progress, boundary.variables, time.monotonic())
        self.saver.finish()

    def _start(self, progress: Progress, variables: Mapping[str, NDArray[Any]], begun: float) -> None:
        of_the_run = (self._experiment, self._directory, self._record)
        self.saver.start(prepared_checkpoint(*of_the_run, progress, variables, self._meta), begun)

    def write_decisions(self) -> list[Path]:
        """Write the decisions of the step driver so far; return the paths of the files."""
        return self._decisions.write(self._driver.decisions())
