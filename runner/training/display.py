"""The progress of a training run on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from typing import Any

from runner.system.text import rate, significant


def create_display() -> "Display":
    """Return a bar if standard error is a terminal, plain lines otherwise."""
    return BarDisplay() if sys.stderr.isatty() else Display()


class Display:
    """Plain lines on standard error: one every few seconds, and one for each message. Calls take microseconds."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self._interval_s = interval_s

    def start(self, first_step: int, total_steps: int) -> None:
        """Begin the display of a run that has already done ``first_step`` steps."""
        self._first, self._total = first_step, total_steps
        self._last = self._started = time.monotonic()

    def step(self, done: int, loss: float, examples_per_s: float) -> None:
        """Show the progress after ``done`` steps, in at most one line per interval."""
        now = time.monotonic()
        if now - self._last < self._interval_s:
            return
        self._last = now
        eta_s = (now - self._started) / max(1, done - self._first) * (self._total - done)
        self.message(f"step {done}/{self._total}  {_measured(loss, examples_per_s)}  ETA {eta_s:.0f} s")

    def message(self, text: str) -> None:
        """Show a permanent line, such as the result of an evaluation."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the display after training has ended, with or without an error."""


class BarDisplay(Display):
    """A rich progress bar with step, loss, rate and remaining time."""

    def __init__(self) -> None:
        # Imported here, because rich takes long to import and is needed only on a terminal.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[measured]}"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: Any = None

    def start(self, first_step: int, total_steps: int) -> None:
        """Show the bar, without a loss and a rate until the first step has ended."""
        self._task = self._progress.add_task("train", total=total_steps, completed=first_step, measured="")
        self._progress.start()

    def step(self, done: int, loss: float, examples_per_s: float) -> None:
        """Advance the bar; rich redraws it at most ten times a second."""
        self._progress.update(self._task, completed=done, measured=_measured(loss, examples_per_s))

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, highlight=False)

    def close(self) -> None:
        """Leave the finished bar on the screen."""
        self._progress.stop()


def _measured(loss: float, examples_per_s: float) -> str:
    return f"loss {significant(loss)}  {rate(examples_per_s)} examples/s"
