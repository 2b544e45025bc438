"""The static executor: a Plan is bound to kernels and memory once, then a step walks a list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from runner.engine.device import DeviceName
from runner.engine.plan import DevicePlan, Feed, Instruction, Place, Slot, Wire
from runner.engine.recording import COMPUTE, RECEIVE, SEND, WAIT, Recorder, RunOf
from runner.engine.rendezvous import Rendezvous
from runner.engine.storage import Arena, VariableStore
from runner.engine.tensor import Tensor
from runner.errors import NumericError, RunnerError
from runner.kernels.registry import Bound, Buffers, NativeCall, Operand, Registry, as_array, native_calls

Array = NDArray[Any]
T = TypeVar("T")


@dataclass(frozen=True)
class _Stretch:
    """What one call runs: neighbouring calls of machine code, or the function of one instruction.

    call: returns 0, or 1 + the number of the call that failed in the upper bits and its status in the lower 16.
    instructions: to which each call belongs. native: the calls of machine code; none for a function.
    """

    call: Callable[[], int | None]
    instructions: tuple[int, ...]
    native: tuple[NativeCall, ...] = ()

    def reason(self, position: int, status: int) -> str:
        """Why the call at a position of the stretch failed."""
        explain = self.native[position].explain
        return explain(status) if explain else f"its library returned status {status}"


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
        rendezvous: Rendezvous,
        *,
        check_finite: bool = False,
    ) -> None:
        self.plan = plan
        self._registry = registry
        self._variables = variables
        self._arena = arena
        self._rendezvous = rendezvous
        self._check_finite = check_finite
        self._step = 0
        self._runs = 0
        self._generation = -1
        self._has_run = False
        self._recorder: Recorder | None = None
        self._recorded_as = 0
        self._run = self._next(0)
        self._bind()

    def run(self, step: int, feeds: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
        """Execute one step and return copies of the fetched values.

        Raises RunnerError naming the feed, the variable or the node at fault.
        """
        self._step = step
        self._run = self._next(step)
        self._runs += 1
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
        return {tensor: array.copy() for tensor, array in self._fetched.items()}

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
        self._operands: list[Operand] = []
        self._feeds: list[tuple[Feed, Array]] = []
        self._fetched: dict[Tensor, Array] = {}
        self._stretches: list[_Stretch] = []

    def _call_all(self) -> None:
        """Run what was bound; raises RunnerError naming the node that fails."""
        # Infinities and NaNs are values here, as on every other device; who must refuse them looks at them.
        with np.errstate(all="ignore"):
            for stretch in self._stretches:
                try:
                    failed = stretch.call()
                except RunnerError:
                    raise
                except Exception as error:
                    raise self._failure(stretch.instructions[0], f"{type(error).__name__}: {error}") from error
                if failed:
                    number, status = divmod(failed, 1 << 16)
                    raise self._failure(stretch.instructions[number - 1], stretch.reason(number - 1, status))

    def _bind(self) -> None:
        """Fix the memory of every slot and the arguments of every call."""
        plan = self.plan
        data = self._arena.at_least(plan.arena_bytes, self)
        self._generation = self._arena.generation
        self._operands = [self._operand(data, slot, place) for slot, place in zip(plan.slots, plan.places, strict=True)]
        self._feeds = [(feed, self._operands[feed.slot].array) for feed in plan.feeds]
        self._fetched = {tensor: self._operands[slot].array for tensor, slot in plan.fetches.items()}
        bound = [self._bind_one(data, instruction) for instruction in plan.instructions]
        self._stretches = self._stretches_of(bound)

    def _operand(self, data: NDArray[np.uint8], slot: Slot, place: Place) -> Operand:
        if place.variable is not None:
            memory = self._variables.memory(place.variable, self.plan.variables[place.variable])
            return Operand(slot.spec, slot.layout, memory)
        if place.wire is not None:
            return Operand(slot.spec, slot.layout, self._on_wire(place.wire, slot.layout.nbytes))
        return Operand(slot.spec, slot.layout, data[place.offset : place.offset + slot.layout.nbytes])

    def _on_wire(self, wire: Wire, nbytes: int) -> NDArray[np.uint8]:
        if wire.source is None:
            return self._rendezvous.outgoing(wire.key, nbytes)
        return self._rendezvous.incoming(wire.key, wire.source, nbytes)

    def _bind_one(self, data: NDArray[np.uint8], instruction: Instruction) -> Bound:
        own: Mapping[str, Callable[[Instruction], Bound]] = {
            "assign": self._bind_assign,
            "send": self._bind_send,
            "recv": self._bind_recv,
        }
        if instruction.op in own:
            return own[instruction.op](instruction)
        device_type = DeviceName.parse(self.plan.device).type or ""
        kernel = self._registry.find(instruction.op, device_type, instruction.library)
        scratch = data[instruction.scratch : instruction.scratch + instruction.arrangement.scratch_bytes]
        buffers = Buffers(self._at(instruction.inputs), self._at(instruction.outputs), scratch)
        return kernel.bind(instruction.attributes, instruction.arrangement, buffers)

    def _at(self, slots: Sequence[int]) -> tuple[Operand, ...]:
        return tuple(self._operands[slot] for slot in slots)

    def _stretches_of(self, bound: Sequence[Bound]) -> list[_Stretch]:
        """As few calls as can be, unless every instruction is looked at."""
        if not self._check_finite and self._recorder is None:
            return self._joined(bound)
        stretches = [self._stretch([each]) for each in enumerate(bound)]
        if self._recorder is not None:
            stretches = [self._timed(stretch, self._recorder) for stretch in stretches]
        return [self._checked(stretch) for stretch in stretches] if self._check_finite else stretches

    def _joined(self, bound: Sequence[Bound]) -> list[_Stretch]:
        """Run neighbouring calls of machine code as one."""
        stretches: list[_Stretch] = []
        for is_function, group in groupby(enumerate(bound), lambda each: callable(each[1])):
            if is_function:
                stretches += [self._stretch([each]) for each in group]
            else:
                stretches.append(self._stretch(list(group)))
        return stretches

    def _stretch(self, bound: Sequence[tuple[int, Bound]]) -> _Stretch:
        """Of one function, or of the calls of machine code of some instructions."""
        (first, call), *_ = bound
        if callable(call):
            return _Stretch(call, (first,))
        native = [(position, each) for position, calls in bound for each in native_calls(calls)]
        positions, calls = zip(*native, strict=True)
        return _Stretch(self._registry.join(calls), positions, calls)

    def _checked(self, stretch: _Stretch) -> _Stretch:
        """Look at what the call of one instruction left."""

        def run() -> int | None:
            status = stretch.call()
            if not status:
                self._refuse_non_finite(stretch.instructions[0])
            return status

        return replace(stretch, call=run)

    def _timed(self, stretch: _Stretch, recorder: Recorder) -> _Stretch:
        """Note how long the call of one instruction takes; a receive itself tells waiting from the rest."""
        position = stretch.instructions[0]
        op = self.plan.instructions[position].op
        if op == "recv":
            return replace(stretch, call=self._recorded_receive(position, recorder))
        kind = SEND if op == "send" else COMPUTE
        return replace(stretch, call=lambda: recorder.timed(self._run, position, kind, stretch.call))

    def _take_feeds(self, feeds: Mapping[Tensor, Array]) -> None:
        for feed, memory in self._feeds:
            if feed.tensor not in feeds:
                raise RunnerError(f"step on {self.plan.device}: no value was fed for {feed.tensor}")
            try:
                np.copyto(memory, as_array(feeds[feed.tensor], feed.spec))
            except ValueError as error:
                raise RunnerError(f"feed {feed.tensor}: {error}") from None

    def _refuse_non_finite(self, position: int) -> None:
        instruction = self.plan.instructions[position]
        for port, slot in enumerate(instruction.outputs):
            spec, data = self.plan.slots[slot].spec, self._operands[slot].host
            if not spec.is_float or data.nbytes % np.dtype(spec.dtype).itemsize:
                continue
            value = data.view(spec.dtype)
            if not np.isfinite(value).all():
                bad = int(value.size - np.isfinite(value).sum())
                raise NumericError(
                    f"node {instruction.node!r} (op {instruction.op!r}), output {port}: {bad} of "
                    f"{spec.size} values are not finite in step {self._step}; it is the first node that "
                    "produced any"
                )

    def _failure(self, position: int, reason: str) -> RunnerError:
        failed = self.plan.instructions[position]
        return RunnerError(
            f"node {failed.node!r} (op {failed.op!r}) on {self.plan.device} failed in step {self._step}: {reason}"
        )

    def _bind_assign(self, instruction: Instruction) -> Bound:
        name = instruction.attributes["variable"]
        target = self._variables.memory(name, self.plan.variables[name])
        (value,) = self._at(instruction.inputs)

        def assign() -> None:
            np.copyto(target, value.host)

        return assign

    def _bind_send(self, instruction: Instruction) -> Bound:
        key, destination = instruction.attributes["key"], instruction.attributes["destination"]
        value = self._operands[instruction.inputs[0]].array

        def send() -> None:
            self._rendezvous.send(self._step, key, destination, value)

        return send

    def _bind_recv(self, instruction: Instruction) -> Bound:
        key, source = instruction.attributes["key"], instruction.attributes["source"]
        spec = self._operands[instruction.outputs[0]].spec

        def receive() -> None:
            # It is read where it lies, which is the memory of the slot.
            as_array(self._rendezvous.receive(self._step, key, source), spec)

        return receive

    def _recorded_receive(self, position: int, recorder: Recorder) -> Callable[[], None]:
        """A receive in its two parts: until the tensor is there, and looking at what it is."""
        instruction = self.plan.instructions[position]
        key, source = instruction.attributes["key"], instruction.attributes["source"]
        spec = self._operands[instruction.outputs[0]].spec

        def receive() -> None:
            run = self._run
            value = recorder.timed(run, position, WAIT, lambda: self._rendezvous.receive(run.step, key, source))
            recorder.timed(run, position, RECEIVE, lambda: as_array(value, spec))

        return receive
