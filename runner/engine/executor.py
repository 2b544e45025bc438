"""The static executor: a Plan is bound to kernels once, then the hot loop walks a list of calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runner.engine.device import DeviceName
from runner.engine.plan import DevicePlan, Instruction
from runner.engine.rendezvous import Rendezvous
from runner.engine.tensor import Tensor
from runner.errors import NumericError, RunnerError
from runner.kernels.registry import Kernel, Registry, as_array

Array = NDArray[Any]
Call = Callable[..., Sequence[Array]]


class VariableStore:
    """Values of the variables that live on one device, by node name. They outlast steps and plans."""

    def __init__(self) -> None:
        self._values: dict[str, Array] = {}

    def read(self, name: str) -> Array:
        """The current value; raises RunnerError when it was never assigned."""
        try:
            return self._values[name]
        except KeyError:
            raise RunnerError(
                f"variable {name!r} has no value yet: run the 'init' or the 'restore' client first"
            ) from None

    def commit(self, name: str, value: Array) -> None:
        """Replace a value. Arrays are never written in place, so a value that owns its memory may be kept.

        What is kept is made read-only: it is handed out to whoever reads or fetches the variable.
        """
        kept = value if value.flags.owndata else value.copy()
        kept.flags.writeable = False
        self._values[name] = kept

    @property
    def nbytes(self) -> int:
        """Memory the values take, bytes."""
        return sum(value.nbytes for value in self._values.values())


@dataclass(frozen=True)
class _Bound:
    call: Call
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    release: tuple[int, ...]


class DeviceExecutor:
    """Runs one device's plan, step after step.

    check_finite: stop at the first node whose floating output is not finite and name it. Slow; for debugging.
    """

    def __init__(
        self,
        plan: DevicePlan,
        registry: Registry,
        variables: VariableStore,
        rendezvous: Rendezvous,
        *,
        check_finite: bool = False,
    ) -> None:
        self.plan = plan
        self._variables = variables
        self._rendezvous = rendezvous
        self._registry = registry
        self._step = 0
        self._check_finite = check_finite
        self._calls = [_Bound(self._bind(each), each.inputs, each.outputs, each.release) for each in plan.instructions]
        self._slots: list[Any] = [None] * len(plan.specs)

    def run(self, step: int, feeds: Mapping[Tensor, Array]) -> dict[Tensor, Array]:
        """Execute one step and return the fetched values; they stay valid until the next step.

        Raises RunnerError naming the feed or the node at fault.
        """
        self._step = step
        slots = self._slots
        position = 0
        try:
            self._take_feeds(feeds)
            # Infinities and NaNs are values here, as on every other device; who must refuse them looks at them.
            with np.errstate(all="ignore"):
                for position, bound in enumerate(self._calls):
                    results = bound.call(*[slots[i] for i in bound.inputs])
                    for slot, value in zip(bound.outputs, results, strict=True):
                        slots[slot] = value
                    if self._check_finite:
                        self._refuse_non_finite(position)
                    for slot in bound.release:
                        slots[slot] = None
            return {tensor: slots[slot] for tensor, slot in self.plan.fetches.items()}
        except RunnerError:
            raise
        except Exception as error:
            failed = self.plan.instructions[position]
            raise RunnerError(
                f"node {failed.node!r} (op {failed.op!r}) on {self.plan.device} failed in step {step}: "
                f"{type(error).__name__}: {error}"
            ) from error
        finally:
            slots[:] = [None] * len(slots)

    def _take_feeds(self, feeds: Mapping[Tensor, Array]) -> None:
        for feed in self.plan.feeds:
            if feed.tensor not in feeds:
                raise RunnerError(f"step on {self.plan.device}: no value was fed for {feed.tensor}")
            try:
                # A view: the caller's array must neither be written by a kernel nor kept as a variable's value.
                value = as_array(feeds[feed.tensor], feed.spec).view()
            except ValueError as error:
                raise RunnerError(f"feed {feed.tensor}: {error}") from None
            value.flags.writeable = False
            self._slots[feed.slot] = value

    def _refuse_non_finite(self, position: int) -> None:
        instruction = self.plan.instructions[position]
        for port, slot in enumerate(instruction.outputs):
            value = self._slots[slot]
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                bad = int(value.size - np.isfinite(value).sum())
                raise NumericError(
                    f"node {instruction.node!r} (op {instruction.op!r}), output {port}: {bad} of {value.size} "
                    f"values are not finite in step {self._step}; it is the first node that produced any"
                )

    def _bind(self, instruction: Instruction) -> Call:
        own: Mapping[str, Callable[[Instruction], Call]] = {
            "variable": self._bind_variable,
            "assign": self._bind_assign,
            "send": self._bind_send,
            "recv": self._bind_recv,
        }
        if instruction.op in own:
            return own[instruction.op](instruction)
        kernel = select_kernel(self.plan, instruction, self._registry)
        specs = self.plan.specs
        return kernel.bind(
            instruction.attributes,
            [specs[slot] for slot in instruction.inputs],
            [specs[slot] for slot in instruction.outputs],
        )

    def _bind_variable(self, instruction: Instruction) -> Call:
        return lambda: (self._variables.read(instruction.node),)

    def _bind_assign(self, instruction: Instruction) -> Call:
        variable = instruction.attributes["variable"]

        def assign(value: Array) -> Sequence[Array]:
            self._variables.commit(variable, value)
            return (value,)

        return assign

    def _bind_send(self, instruction: Instruction) -> Call:
        key, destination = instruction.attributes["key"], instruction.attributes["destination"]

        def send(value: Array) -> Sequence[Array]:
            self._rendezvous.send(self._step, key, destination, value)
            return ()

        return send

    def _bind_recv(self, instruction: Instruction) -> Call:
        key, source = instruction.attributes["key"], instruction.attributes["source"]
        spec = self.plan.specs[instruction.outputs[0]]
        return lambda: (as_array(self._rendezvous.receive(self._step, key, source), spec),)


_OWN = frozenset({"variable", "assign", "send", "recv"})


def select_kernel(plan: DevicePlan, instruction: Instruction, registry: Registry) -> Kernel:
    """The kernel an instruction is bound to: the first by priority that takes its dtypes."""
    dtypes = {plan.specs[slot].dtype for slot in (*instruction.inputs, *instruction.outputs)}
    return registry.select(instruction.op, DeviceName.parse(plan.device).type or "", dtypes)


def libraries_of(plan: DevicePlan, registry: Registry) -> set[str]:
    """Names of the libraries whose kernels a plan uses."""
    return {
        select_kernel(plan, instruction, registry).library
        for instruction in plan.instructions
        if instruction.op not in _OWN
    }
