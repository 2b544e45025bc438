"""The static executor: a Plan is bound to kernels and memory once, then a step walks a list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from runner.engine.binding import Binding
from runner.engine.finite import FiniteCheck
from runner.engine.plan import DevicePlan, Feed
from runner.engine.recording import Recorder, RunOf
from runner.engine.storage import Arena, VariableStore
from runner.engine.stretches import Stretch, apart, joined
from runner.engine.tensor import Tensor
from runner.engine.timed_calls import TimedCalls
from runner.engine.wires import Wires
from runner.errors import ResourceError, RunnerError
from runner.kernels.contract import as_array
from runner.kernels.platform import PartError, Platform, Writer
from runner.kernels.registry import Registry

Array = NDArray[Any]
T = TypeVar("T")


class DeviceExecutor:
    """Runs one device's plan, step after step.

    check_finite: stop at the first node whose floating output is not finite and name it. Slow; for debugging.
    """

    def __init__(
        self,
        plan: DevicePlan,
        registry: Registry,
        variables: VariableStore,
        arena: Arena,
        wires: Wires,
        *,
        check_finite: bool = False,
    ) -> None:
        self.plan = plan
        self._registry = registry
        self._variables = variables
        self._platform: Platform = variables.platform
        self._arena = arena
        self._wires = wires
        self._check_finite = check_finite
        self._step = 0
        self._runs = 0
        self._generation = -1
        self._has_run = False
        self._recorder: Recorder | None = None
        self._recorded_as = 0
        self._run = self._next(0)
        # Others read and write memory of this device in the step: it ends when all of it is done.
        self._meets_others = any(instruction.op in ("send", "recv") for instruction in plan.instructions)
        self._bind()

    def run(
        self, step: int, feeds: Mapping[Tensor, Array], meanwhile: Callable[[], None] | None = None
    ) -> dict[Tensor, Array]:
        """Execute one step and return copies of the fetched values.

        meanwhile: called when the device has been given its work, before it is waited for. Raises RunnerError naming
        the feed, the variable or the node at fault. A device that works by itself tells of its own faults where it is
        next asked for something, or waited for.
        """
        self._step = step
        self._run = self._next(step)
        self._runs += 1
        try:
            return self._run_step(feeds, meanwhile)
        except BaseException as error:
            self._come_to_rest()
            if self.is_asynchronous and isinstance(error, MemoryError):
                raise ResourceError(f"step {step} on {self.plan.device}: no memory left: {error}") from error
            if self.is_asynchronous and isinstance(error, RuntimeError):
                raise RunnerError(f"step {step} on {self.plan.device}: the device failed: {error}") from error
            raise

    def _come_to_rest(self) -> None:
        """After a failure: nothing of the step goes on in other devices' memory, or is told of in a later one."""
        with suppress(RuntimeError):  # The failure that is on its way says it.
            self._platform.settle()
        for stretch in self._told_late:
            if stretch.late is not None:
                stretch.late()

    def _run_step(self, feeds: Mapping[Tensor, Array], meanwhile: Callable[[], None] | None) -> dict[Tensor, Array]:
        self._platform.enter()
        if self._generation != self._arena.generation:
            self._bind()
        self._take_feeds(feeds)
        if not self._has_run:
            self._variables.require(self.plan.read)
        self._call_all()
        if not self._has_run:
            # Variables do not lose their values: what one step has found and left holds for all that follow.
            self._variables.mark_assigned(self.plan.written)
            self._has_run = True
        if meanwhile is not None:
            meanwhile()
        return self._fetch()

    def ahead(self, feeds: Mapping[Tensor, Array]) -> None:
        """Begin to bring over what the next step is fed; its arrays must not change until then."""
        for feed, write in self._feeds:
            if feed.tensor in feeds:
                write.ahead(as_array(feeds[feed.tensor], feed.spec))

    @property
    def is_asynchronous(self) -> bool:
        """Whether the device works by itself, so that there is time while it does."""
        return self._platform.is_asynchronous

    def record(self, recorder: Recorder | None, plan: int = 0) -> None:
        """Have every instruction timed from the next step on, or none any more. plan: what the plan is noted as.

        What is recorded is bound for it: each instruction is a call of its own, so that steps take longer by what
        joining calls of machine code saves, and by two looks at the clock for each.
        """
        self._recorder = recorder
        self._recorded_as = plan
        self._bind()

    def before_run(self, step: int, kind: str, call: Callable[[], T]) -> T:
        """Do something for the step that is run next, timed where something records. kind: what it is noted as."""
        return call() if self._recorder is None else self._recorder.timed(self._next(step), 0, kind, call)

    def _next(self, step: int) -> RunOf:
        return RunOf(self._recorded_as, self._runs, step)

    def let_go(self) -> None:
        """Drop all memory of the arena; the next step binds anew."""
        self._feeds: list[tuple[Feed, Writer]] = []
        self._read: Callable[[], list[Array]] = list
        self._stretches: list[Stretch] = []
        self._told_late: list[Stretch] = []

    def _call_all(self) -> None:
        """Run what was bound; raises RunnerError naming the node that fails."""
        # Infinities and NaNs are values here, as on every other device; who must refuse them looks at them.
        with np.errstate(all="ignore"):
            for stretch in self._stretches:
                try:
                    failed = stretch.call()
                except RunnerError:
                    raise
                except PartError as error:
                    raise self._failure(stretch.instructions[error.part], _named(error.__cause__)) from error.__cause__
                except Exception as error:
                    raise self._failure_of(stretch, error) from error
                if failed:
                    raise self._failed(stretch, failed)

    def _fetch(self) -> dict[Tensor, Array]:
        """Wait for the device where something of it is wanted, and return what is."""
        if not (self.plan.fetches or self._meets_others or self._told_late):
            return {}
        values = self._read()
        for stretch in self._told_late:
            if stretch.late is not None and (failed := stretch.late()):
                raise self._failed(stretch, failed)
        return dict(zip(self.plan.fetches, values, strict=True))

    def _failure_of(self, stretch: Stretch, error: Exception) -> RunnerError:
        """Of one instruction, or of several that are one for their device."""
        if len(stretch.instructions) == 1:
            return self._failure(stretch.instructions[0], _named(error))
        return RunnerError(
            f"{len(stretch.instructions)} nodes that are one call on {self.plan.device} failed in step {self._step}: "
            f"{_named(error)}"
        )

    def _failed(self, stretch: Stretch, code: int) -> RunnerError:
        number, status = divmod(code, 1 << 16)
        reason = stretch.reason(number - 1, status) if stretch.reason else f"status {status}"
        return self._failure(stretch.instructions[number - 1], reason)

    def _bind(self) -> None:
        """Fix the memory of every slot and the arguments of every call."""
        plan = self.plan
        self._platform.enter()
        self._platform.settle()
        data = self._arena.at_least(plan.arena_bytes, self)
        self._generation = self._arena.generation
        bound = Binding(plan, self._registry, self._variables, self._wires, data, lambda: self._step)
        self._feeds = [(feed, self._platform.writer(bound.operands[feed.slot])) for feed in plan.feeds]
        self._read = self._platform.reader([bound.operands[slot] for slot in plan.fetches.values()])
        self._stretches = self._stretches_of(bound)
        self._told_late = [stretch for stretch in self._stretches if stretch.late is not None]

    def _stretches_of(self, bound: Binding) -> list[Stretch]:
        """As few calls as can be, unless every instruction is looked at."""
        works = [bound.work(instruction) for instruction in self.plan.instructions]
        if not self._check_finite and self._recorder is None:
            return joined(self._platform, works)
        stretches = apart(self._platform, works)
        if self._recorder is not None:
            timing = TimedCalls(self.plan, bound, self._platform, self._recorder, lambda: self._run)
            stretches = [replace(each, call=timing.timed(each.instructions[0], each.call)) for each in stretches]
        if self._check_finite:
            check = FiniteCheck(self.plan, bound, self._platform, lambda: self._step)
            stretches = [replace(each, call=check.checked(each.instructions[0], each.call)) for each in stretches]
        return stretches

    def _take_feeds(self, feeds: Mapping[Tensor, Array]) -> None:
        for feed, write in self._feeds:
            if feed.tensor not in feeds:
                raise RunnerError(f"step on {self.plan.device}: no value was fed for {feed.tensor}")
            try:
                write(as_array(feeds[feed.tensor], feed.spec))
            except ValueError as error:
                raise RunnerError(f"feed {feed.tensor}: {error}") from None

    def _failure(self, position: int, reason: str) -> RunnerError:
        failed = self.plan.instructions[position]
        return RunnerError(
            f"node {failed.node!r} (op {failed.op!r}) on {self.plan.device} failed in step {self._step}: {reason}"
        )


def _named(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}"
