"""The progress of a training run: a bar in a notebook or on a terminal, plain lines on standard error elsewhere."""

import html
import sys
import time
from typing import Any

from runner.system.text import rate, significant


def create_display() -> "Display":
    """Return a bar in a notebook or if standard error is a terminal, plain lines otherwise."""
    if _in_notebook():
        return NotebookDisplay()
    return BarDisplay() if sys.stderr.isatty() else Display()


def _in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, without importing IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


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
        self._progress.update(self._task, completed=done, measured=_measured(loss, examples_per_s))

    def message(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._progress.stop()


class NotebookDisplay(Display):
    """A progress bar in the output of a notebook's cell, and the last message under the bar.

    rich is not used, because it needs ipywidgets in a notebook; every notebook can replace the HTML of an output.
    """

    def __init__(self, interval_s: float = 0.2) -> None:
        super().__init__(interval_s)
        from IPython import display

        # Any, because IPython.display has no type hints.
        self._ipython: Any = display
        self._handle: Any = self._ipython.display(self._ipython.HTML(""), display_id=True)
        self._text = self._message = ""
        self._done = self._total = 0

    def start(self, first_step: int, total_steps: int) -> None:
        super().start(first_step, total_steps)
        self._done = first_step
        self._draw()

    def step(self, done: int, loss: float, examples_per_s: float) -> None:
        now = time.monotonic()
        self._done = done
        eta_s = (now - self._started) / max(1, done - self._first) * (self._total - done)
        self._text = f"{_measured(loss, examples_per_s)}  ETA {eta_s:.0f} s"
        if now - self._last >= self._interval_s:
            self._last = now
            self._draw()

    def message(self, text: str) -> None:
        """Show a line under the bar, in place of the previous line."""
        self._message = text
        self._draw()

    def close(self) -> None:
        self._draw()

    def _draw(self) -> None:
        bar = f"<progress value='{self._done}' max='{self._total}'></progress>"
        line = f"{bar} step {self._done}/{self._total} {html.escape(self._text)}"
        self._handle.update(self._ipython.HTML(f"{line}<br>{html.escape(self._message)}"))


def _measured(loss: float, examples_per_s: float) -> str:
    return f"loss {significant(loss)}  {rate(examples_per_s)} examples/s"
