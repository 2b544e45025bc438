"""Seconds of an instruction: from a profile, or on described hardware by the roofline model (Williams et al. 2009).

In the roofline model, an instruction takes the time of a launch plus the time of its arithmetic or of its memory
traffic, whichever is longer.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from runner.engine.compile.cost import NOT_EXECUTED, Seconds
from runner.engine.compile.passes.transfers import TRANSFERS
from runner.engine.compile.plan import DevicePlan, Instruction
from runner.engine.compile.program import Client
from runner.engine.compile.tensor_messages import tensor_messages
from runner.engine.graph import op as op_table
from runner.engine.graph.device import GPU, Device
from runner.engine.graph.graph import Graph
from runner.engine.graph.node import Node
from runner.engine.graph.op import Attributes, Specs
from runner.engine.graph.ops.elementwise import program_inputs
from runner.engine.simulate.hardware import DeviceKind
from runner.engine.simulate.profile import (
    INPUT_THREADS,
    MEASURED,
    ROOFLINE,
    Estimate,
    MessageCosts,
    Profile,
    batch_signature,
    input_signature,
    measured_neighbours,
    signature_of,
)


def op_seconds(op: str, inputs: Specs, outputs: Specs, attributes: Attributes, kind: DeviceKind) -> float:
    """Return the seconds that a device of this kind spends on an op, by the roofline model."""
    if op in TRANSFERS and not kind.copies:
        return 0.0
    if op == "matmul_elementwise" and kind.type == GPU:
        # The kernels of a GPU store the product in memory, and a second kernel reads it.
        read = program_inputs(inputs, attributes)
        product = op_seconds("matmul", inputs[:2], [read[attributes["product"]]], attributes, kind)
        return product + op_seconds("elementwise", read, outputs, attributes, kind)
    cost = op_table.lookup(op).cost(inputs, outputs, attributes)
    convolves, multiplies = op.startswith("conv2d"), op.startswith("matmul")
    reached = kind.convolutions if convolves else kind.products if multiplies else 1.0
    arithmetic = cost.flops / (kind.flops_per_s * reached)
    if kind.multiprocessors is not None and (convolves or multiplies):
        waves = max(1.0, outputs[0].size / (kind.tile * kind.multiprocessors))
        arithmetic *= math.ceil(waves) / waves
    return 1e-6 * kind.launch_us + max(arithmetic, cost.nbytes / (kind.bytes_per_s * kind.traffic))


def instruction_seconds(plan: DevicePlan, instruction: Instruction, kind: DeviceKind) -> float:
    """Return the seconds that a device of this kind spends on an instruction of a plan, by the roofline model."""
    inputs, outputs = ([plan.slots[slot].spec for slot in each] for each in (instruction.inputs, instruction.outputs))
    return op_seconds(instruction.op, inputs, outputs, instruction.attributes, kind)


def node_seconds_of(kind_of: Callable[[str], DeviceKind]) -> Seconds:
    """Return a function for the seconds of a node, for placement and scheduling. kind_of: device name -> its kind."""

    def seconds(graph: Graph, node: Node, device: Device) -> float:
        if node.op in NOT_EXECUTED:
            return 0.0
        return op_seconds(node.op, graph.input_specs(node), node.outputs, node.attributes, kind_of(device.name))

    return seconds


@dataclass
class Costs:
    """The costs of the instructions of one kind of device, and the sums of their seconds by origin.

    profile: None for the roofline model alone. threads: kernel threads of the process. data: name of the dataset, as
    in the profile. remote: whether the devices are separate processes, so that sends and receives are messages.
    queued: whether all messages are messages of ZeroMQ. crowded: whether the kernel threads of all processes exceed the
    cores. groups: device -> keys of the transfers in each message (see ``tensor_messages``); None if each transfer is
    one message, as with doorbells and on described hardware. origins: origin (see ``profile.ORIGINS``) -> seconds of
    all estimates so far.
    """

    kind: DeviceKind
    profile: Profile | None = None
    threads: int = 1
    data: str = ""
    remote: bool = True
    queued: bool = False
    crowded: bool = False
    groups: Mapping[str, Sequence[tuple[str, ...]]] | None = None
    origins: dict[str, float] = field(default_factory=dict)

    @property
    def messages(self) -> MessageCosts | None:
        """The costs of messages between processes; None if they are not measured or if there is only one process."""
        if self.profile is None or not self.remote:
            return None
        if self.queued:
            return self.profile.queued
        return self.profile.crowded if self.crowded else self.profile.messages

    def of(self, client: Client, plans: Mapping[str, DevicePlan]) -> "Costs":
        """Return the costs of a client, with the same ``origins``; a deferred client uses messages of ZeroMQ.

        plans: device -> the client's plan.
        """
        if self.messages is None or not (self.queued or client.deferred):
            return self
        groups = {
            device: tensor_messages(plan, deferred=client.deferred, shares_memory=lambda _: not self.queued)
            for device, plan in plans.items()
        }
        return replace(self, queued=True, groups=groups)

    @cached_property
    def _earlier(self) -> Collection[str]:
        """Keys of all transfers but the last of each message, at which the message is sent and received."""
        return {key for groups in (self.groups or {}).values() for keys in groups for key in keys[:-1]}

    def seconds(self, plan: DevicePlan, instruction: Instruction) -> float:
        """Return the seconds of an instruction, and add them to the seconds of their origin."""
        return self._counted(self._instruction(plan, instruction))

    def outside_s(self, client: Client, plan: DevicePlan) -> float:
        """Return the seconds of a run of a plan outside of its instructions; 0 without a profile."""
        if self.profile is None:
            return 0.0
        signature = input_signature(self.data, client, plan)
        found = None if signature is None else self.profile.estimate(signature, INPUT_THREADS)
        seconds = 0.0 if found is None else self._counted(found)
        if self.messages is not None:
            return seconds + 1e-6 * self.messages.worker
        return seconds + 1e-6 * (self.profile.step_us or 0.0)

    def slowdown(self, plans: Iterable[DevicePlan], processes: int) -> float:
        """Return the factor by which instructions take longer while all ``processes`` of their host compute.

        Processes compete for caches and memory. The factor is 1 if it was not measured.
        """
        alone_s = together_s = 0.0
        if self.profile is not None:
            neighbours = measured_neighbours(processes, self.threads, self.kind.cores or self.profile.machine.cores)
            for signature in (signature_of(plan, each) for plan in plans for each in plan.instructions):
                alone, together = (self.profile.estimate(signature, self.threads, each) for each in (0, neighbours))
                if alone is not None and together is not None:
                    alone_s, together_s = alone_s + alone.seconds, together_s + together.seconds
        return max(1.0, together_s / alone_s) if alone_s else 1.0

    def batch_s(self, client: Client, plan: DevicePlan) -> float:
        """Return the seconds in which a thread makes the next batch of a plan; 0 if they are not measured."""
        signature = None if self.profile is None else input_signature(self.data, client, plan)
        if self.profile is None or signature is None:
            return 0.0
        found = self.profile.estimate(batch_signature(signature), INPUT_THREADS)
        return 0.0 if found is None else found.seconds

    def _instruction(self, plan: DevicePlan, instruction: Instruction) -> Estimate:
        messages = self.messages
        if messages is not None and instruction.op in TRANSFERS:
            return Estimate(self._message_s(plan, instruction, messages), MEASURED)
        found = None if self.profile is None else self.profile.estimate(signature_of(plan, instruction), self.threads)
        return found or Estimate(instruction_seconds(plan, instruction, self.kind), ROOFLINE)

    def _message_s(self, plan: DevicePlan, instruction: Instruction, messages: MessageCosts) -> float:
        """Return the seconds that a thread spends on a message; a sent tensor outside a wire is copied into one."""
        is_last = instruction.attributes["key"] not in self._earlier
        if instruction.op == "recv":
            return 1e-6 * messages.receive if is_last else 0.0
        (slot,) = instruction.inputs
        copied = 0 if plan.places[slot].wire is not None else plan.slots[slot].spec.nbytes
        return (1e-6 * messages.send if is_last else 0.0) + 1e-9 * copied / messages.copy_gbyte_per_s

    def _counted(self, found: Estimate) -> float:
        self.origins[found.origin] = self.origins.get(found.origin, 0.0) + found.seconds
        return found.seconds
