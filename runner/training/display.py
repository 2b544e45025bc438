"""The progress of a training run on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

PLAIN_INTERVAL_S = 5.0


class Display(Protocol):
    """Receives the progress of a run. Calls take microseconds."""

    def start(self, first_step: int, total_steps: int) -> None:
        """Training begins; ``first_step`` steps were done before (of a resumed run)."""
        ...

    def step(self, done: int, loss: float, examples_per_s: float) -> None:
        """``done`` steps are done."""
        ...

    def message(self, text: str) -> None:
        """Show a line that stays, such as the result of an evaluation."""
        ...

    def close(self) -> None:
        """Training has ended, with or without an error."""
        ...


def create_display() -> Display:
    """Return a bar if standard error is a terminal, plain lines otherwise."""
    return BarDisplay() if sys.stderr.isatty() else PlainDisplay()


class PlainDisplay:
    """One line every few seconds and one per message, on standard error."""

    def __init__(self, interval_s: float = PLAIN_INTERVAL_S) -> None:
        self._interval_s = interval_s
        self._last = self._started = time.monotonic()
        self._first = self._total = 0

    def start(self, first_step: int, total_steps: int) -> None:
        """Note when and where training begins."""
        self._first, self._total = first_step, total_steps
        self._last = self._started = time.monotonic()

    def step(self, done: int, loss: float, examples_per_s: float) -> None:
        """Print at most one line per interval."""
        now = time.monotonic()
        if now - self._last < self._interval_s:
            return
        self._last = now
        eta_s = (now - self._started) / max(1, done - self._first) * (self._total - done)
        self.message(f"step {done}/{self._total}  loss {loss:.4f}  {examples_per_s:,.0f} examples/s  ETA {eta_s:.0f} s")

    def message(self, text: str) -> None:
        """Print one line."""
        print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing to release."""


class BarDisplay:
    """A rich progress bar with step, loss, rate and remaining time."""

    def __init__(self) -> None:
        # rich takes long to import and is needed on a terminal only.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TextColumn("{task.fields[rate]:,.0f} examples/s"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task: Any = None

    def start(self, first_step: int, total_steps: int) -> None:
        """Show the bar."""
        fields: Mapping[str, Any] = {"loss": float("nan"), "rate": 0.0}
        self._task = self._progress.add_task("train", total=total_steps, completed=first_step, **fields)
        self._progress.start()

    def step(self, done: int, loss: float, examples_per_s: float) -> None:
        """Advance the bar; rich redraws it at most ten times a second."""
        self._progress.update(self._task, completed=done, loss=loss, rate=examples_per_s)

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        self._progress.console.print(text, highlight=False)

    def close(self) -> None:
        """Leave the finished bar on the screen."""
        self._progress.stop()
