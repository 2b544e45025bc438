"""The static executor, which binds a plan to kernels and memory once; each step then makes a fixed list of calls."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.compile.plan import DevicePlan, Feed
from runner.engine.graph import Tensor, TensorSpec
from runner.engine.run.binding import Binding
from runner.engine.run.calls import CallGroup, FiniteCheck, TimedCalls, join_calls, separate_calls
from runner.engine.run.recording import PlanRun, Recorder
from runner.engine.run.storage import Arena, VariableStore
from runner.engine.run.wires import Wires
from runner.errors import ResourceError, RunnerError
from runner.kernels.contract import Array, as_array
from runner.kernels.platform import PartError, Platform, Writer
from runner.kernels.registry import Registry

T = TypeVar("T")
Values = Mapping[Tensor, Array]


def fed_array(tensor: Tensor, value: Any, spec: TensorSpec) -> Array:
    """Return a fed value by :func:`as_array`; raises RunnerError unless shape and dtype match ``spec``."""
    try:
        return as_array(value, spec)
    except ValueError as error:
        raise RunnerError(f"feed {tensor}: {error}") from None


@dataclass(eq=False)
class DeviceExecutor:
    """An executor that runs one device's plan, step after step.

    check_finite: raise NumericError naming the first node with a floating-point output that is not finite (slow).
    """

    plan: DevicePlan
    registry: Registry
    variables: VariableStore
    arena: Arena
    wires: Wires
    _: KW_ONLY
    check_finite: bool = False

    def __post_init__(self) -> None:
        self._platform: Platform = self.variables.platform
        self._runs = 0
        self._generation = -1
        self._has_run = False
        self._recorder: Recorder | None = None
        self._recorded_as = 0
        self._fused = False
        self._run = self._next(0)
        # In a step with transfers, other devices access this device's memory, so the step must wait for the device.
        self._has_transfers = any(instruction.op in TRANSFERS for instruction in self.plan.instructions)
        self._bind()

    def run(self, step: int, feeds: Values, meanwhile: Callable[[], None] | None = None) -> dict[Tensor, Array]:
        """Execute one step and return copies of the fetched values.

        meanwhile: called after all work has been queued on the device, before the step waits for the device. A failed
        step raises RunnerError naming the feed, variable or node. An asynchronous device reports a failure at the next
        call or synchronization.
        """
        self._run = self._next(step)
        self._runs += 1
        try:
            return self._run_step(feeds, meanwhile)
        except BaseException as error:
            # Wait until the step no longer uses memory, and discard failures that its calls have not reported yet.
            with suppress(RuntimeError):  # The step's own failure is being raised already.
                self._platform.synchronize()
            for late, _ in self._deferred:
                late()
            if self.is_asynchronous and isinstance(error, MemoryError):
                raise ResourceError(f"step {step} on {self.plan.device}: no memory left: {error}") from error
            if self.is_asynchronous and isinstance(error, RuntimeError):
                raise RunnerError(f"step {step} on {self.plan.device}: the device failed: {error}") from error
            raise

    def _run_step(self, feeds: Values, meanwhile: Callable[[], None] | None) -> dict[Tensor, Array]:
        self._platform.enter()
        if self._generation != self.arena.generation:
            self._bind()
        self._take_feeds(feeds)
        if not self._has_run:
            self.variables.require(self.plan.read)
        self._call_all()
        if not self._has_run:
            # Variables stay assigned, so the check in the first step is sufficient for all later steps.
            self.variables.mark_assigned(self.plan.written)
            self._has_run = True
        if meanwhile is not None:
            meanwhile()
        return self._fetch()

    def ahead(self, feeds: Values) -> None:
        """Begin to copy the feeds of the next step to the device; the arrays must not change until that step."""
        for feed, write in self._feeds:
            if feed.tensor in feeds:
                write.ahead(as_array(feeds[feed.tensor], feed.spec))

    @property
    def is_asynchronous(self) -> bool:
        """Whether calls return before the device has finished their work."""
        return self._platform.is_asynchronous

    def record(self, recorder: Recorder | None, plan: int = 0, *, fused: bool = False) -> None:
        """Time all instructions from the next step on; None stops the timing. plan: number of the plan in the trace.

        Recorded steps take longer: the clock is read twice for each instruction and, by default, calls are not fused.
        fused: keep calls fused and time each group; the span has the position of the group's first instruction.
        """
        self._recorder = recorder
        self._recorded_as = plan
        self._fused = fused
        self._bind()

    def count_again(self) -> None:
        """Number the next run 0, like the other devices of the plan after a recovery."""
        self._runs = 0

    def before_run(self, step: int, kind: str, call: Callable[[], T]) -> T:
        """Call a function for the next step; while a trace is active, record its time as a span of ``kind``."""
        return call() if self._recorder is None else self._recorder.timed(self._next(step), 0, kind, call)

    def _next(self, step: int) -> PlanRun:
        return PlanRun(self._recorded_as, self._runs, step)

    def release_memory(self) -> None:
        """Drop all references to the arena; the next step binds the plan again."""
        self._feeds: list[tuple[Feed, Writer]] = []
        self._read: Callable[[], list[Array]] = list
        self._call_groups: list[CallGroup] = []
        self._deferred: list[tuple[Callable[[], int], CallGroup]] = []

    def _call_all(self) -> None:
        """Call every call group; raises RunnerError naming the node that fails."""
        # Infinities and NaNs are valid values on every type of device; only FiniteCheck rejects them.
        with np.errstate(all="ignore"):
            for call_group in self._call_groups:
                try:
                    failed = call_group.call()
                except RunnerError:
                    raise
                except PartError as error:
                    raise self._failure([call_group.instructions[error.part]], error.__cause__) from error.__cause__
                except Exception as error:
                    raise self._failure(call_group.instructions, error) from error
                if failed:
                    raise self._status_failure(call_group, failed)

    def _fetch(self) -> dict[Tensor, Array]:
        """Return the fetched values; wait for the device only if there are fetches, transfers or deferred checks."""
        if not (self.plan.fetches or self._has_transfers or self._deferred):
            return {}
        values = self._read()
        for late, call_group in self._deferred:
            if failed := late():
                raise self._status_failure(call_group, failed)
        return dict(zip(self.plan.fetches, values, strict=True))

    def _status_failure(self, call_group: CallGroup, code: int) -> RunnerError:
        number, status = divmod(code, 1 << 16)
        reason = call_group.reason(number - 1, status) if call_group.reason else f"status {status}"
        return self._failure([call_group.instructions[number - 1]], reason)

    def _bind(self) -> None:
        plan = self.plan
        self._platform.enter()
        self._platform.synchronize()
        data = self.arena.at_least(plan.arena_bytes, self)
        self._generation = self.arena.generation
        bound = Binding(plan, self.registry, self.variables, self.wires, data, lambda: self._run.step)
        self._feeds = [(feed, self._platform.writer(bound.operands[feed.slot])) for feed in plan.feeds]
        self._read = self._platform.reader([bound.operands[slot] for slot in plan.fetches.values()])
        self._call_groups = self._group_calls(bound)
        self._deferred = [(each.late, each) for each in self._call_groups if each.late is not None]

    def _group_calls(self, bound: Binding) -> list[CallGroup]:
        """Return the calls, fused unless every instruction is timed or checked."""
        works = [bound.work(instruction) for instruction in self.plan.instructions]
        together = not self.check_finite and (self._recorder is None or self._fused)
        call_groups = (join_calls if together else separate_calls)(self._platform, works)
        if self._recorder is not None:
            timing = TimedCalls(bound, self._recorder, lambda: self._run)
            call_groups = [replace(each, call=timing.wrap(each.instructions[0], each.call)) for each in call_groups]
        if self.check_finite:
            check = FiniteCheck(bound)
            call_groups = [replace(each, call=check.wrap(each.instructions[0], each.call)) for each in call_groups]
        return call_groups

    def _take_feeds(self, feeds: Values) -> None:
        for feed, write in self._feeds:
            if feed.tensor not in feeds:
                raise RunnerError(f"step on {self.plan.device}: no value was fed for {feed.tensor}")
            write(fed_array(feed.tensor, feeds[feed.tensor], feed.spec))

    def _failure(self, positions: Sequence[int], reason: str | BaseException | None) -> RunnerError:
        failed = self.plan.instructions[positions[0]]
        fused = f"{len(positions)} nodes fused into one call"
        what = f"node {failed.node!r} (op {failed.op!r})" if len(positions) == 1 else fused
        text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        error = ResourceError if isinstance(reason, MemoryError) else RunnerError
        return error(f"{what} on {self.plan.device} failed in step {self._run.step}: {text}")
