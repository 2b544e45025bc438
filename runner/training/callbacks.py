"""The callbacks of a run as one callback, which also keeps their request to stop the run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from runner.callback import Callback, StopTraining


class Callbacks(Callback):
    """A callback that calls others in order, once for each step, also if a recovery repeats the step.

    stop_step: number of updates after which a callback stopped the run; None if none did. reason: the reason, as text.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.stop_step: int | None = None
        self.reason = ""
        self._callbacks = callbacks
        self._newest: dict[str, int] = {}  # method -> newest step

    def override(self, method: Callable[..., None]) -> bool:
        """Whether any of the callbacks overrides a method of :class:`~runner.callback.Callback`."""
        return any(getattr(type(each), method.__name__) is not method for each in self._callbacks)

    def on_step(self, step: int, loss: float) -> None:
        self._call("on_step", step, lambda each: each.on_step(step, loss))

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self._call("on_evaluation", step, lambda each: each.on_evaluation(step, metrics))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self._call("on_checkpoint", step, lambda each: each.on_checkpoint(step, path))

    def _call(self, method: str, step: int, call: Callable[[Callback], None]) -> None:
        if step <= self._newest.get(method, -1):
            return  # a recovery repeats the step
        self._newest[method] = step
        for each in self._callbacks:
            try:
                call(each)
            except StopTraining as stop:
                if self.stop_step is None:
                    self.stop_step = step
                    self.reason = ": ".join(filter(None, (type(each).__name__, str(stop))))
