"""Choice of kernels and physical layouts: from the scheduled graph of a device to instructions and slots (values).

The nodes are visited in order. The kernel of each node requests layouts for its inputs. If an input has another layout,
a conversion is inserted, once per value and layout. A variable has no layout until its first reader requests one. So
the weights of a convolution, and values computed from them element by element, have the layout that the convolution
prefers. The result of a cast between floats also has no layout at first, because one kernel can cast and change the
layout in one pass over memory. Values that enter or leave a device have the plain layout (C order).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from runner.engine.compile.passes.rewriting import ALIASES, viewed
from runner.engine.compile.passes.transfers import sent_tensor
from runner.engine.compile.plan import Feed, Instruction, Slot
from runner.engine.graph import DeviceName, Graph, Node, ShapeError, Tensor, TensorSpec
from runner.kernels.contract import Arrangement, Choice, Layout, plain
from runner.kernels.registry import Registry


@dataclass(frozen=True)
class Arranged:
    """Instructions, and slots that have layouts but no places in memory yet.

    owner: slot -> the slot whose memory it uses; most slots own their memory. residents: variable name -> its slot.
    """

    instructions: tuple[Instruction, ...]
    feeds: tuple[Feed, ...]
    fetches: Mapping[Tensor, int]
    slots: tuple[Slot, ...]
    owner: tuple[int, ...]
    residents: Mapping[str, int]


def arrange(
    device: str,
    part: Graph,
    fetches: Sequence[Tensor],
    feeds: Mapping[Tensor, Tensor],
    registry: Registry,
    decided: Mapping[str, Layout],
) -> Arranged:
    """Choose the kernel and the layouts of every node of ``part``, in graph order.

    feeds: fed tensor -> output of its placeholder. decided: variable -> layout in an earlier plan. Raises
    KernelError if no kernel accepts a node.
    """
    overwritten = {node.inputs[0] for node in part if node.op == "assign"}
    # A fetch of an overwritten variable returns the value at the start of the step.
    kept = overwritten.intersection(viewed(part, tensor) for tensor in fetches)
    work = _Arranging(device, registry, decided, kept)
    carried = {placeholder: fed for fed, placeholder in feeds.items()}
    for node in part:
        if node.op == "placeholder":
            work.feed(node, carried[node[0]])
        else:
            work.add(node)
    return work.finish(fetches)


@dataclass
class _Arranging:
    """The instructions and slots arranged so far.

    layouts: layout of each slot; None while undecided. kept: fetched variables that the step overwrites. casts:
    positions of the casts in ``instructions``; their kernels are chosen last. held: slots with memory outside the
    arena: variables, and values on wires (the memory of transfers). sent: name of a sent tensor -> its slot on a wire.
    """

    device: str
    registry: Registry
    decided: Mapping[str, Layout]
    kept: Collection[Tensor]
    slot_of: dict[Tensor, int] = field(default_factory=dict)
    specs: list[TensorSpec] = field(default_factory=list)
    layouts: list[Layout | None] = field(default_factory=list)
    owner: list[int] = field(default_factory=list)
    residents: dict[str, int] = field(default_factory=dict)
    feeds: list[Feed] = field(default_factory=list)
    instructions: list[Instruction] = field(default_factory=list)
    converted: dict[tuple[int, Layout], int] = field(default_factory=dict)
    assigned: dict[str, str] = field(default_factory=dict)
    casts: list[int] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    sent: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.device_type = DeviceName.parse(self.device).type or ""

    def feed(self, node: Node, fed: Tensor) -> None:
        slot = self.new_slot(node.outputs[0], plain(node.outputs[0]))
        self.slot_of[node[0]] = slot
        self.feeds.append(Feed(fed, slot, node.outputs[0]))

    def add(self, node: Node) -> None:
        match node.op:
            case "variable":
                self.add_variable(node)
            case "assign":
                self.add_assign(node)
            case "send":
                self.add_send(node)
            case "recv":
                self.add_recv(node)
            case "convert":
                # A convert node of the graph is a copy and keeps the layout.
                self.slot_of[node[0]] = self.copy(self.slot_of[node.inputs[0]], node.name)
            case alias if alias in ALIASES:
                self.add_alias(node)
            case "cast" if node.outputs[0].is_float and self.specs[self.slot_of[node.inputs[0]]].is_float:
                self.add_cast(node)
            case _:
                self.add_kernel(node)

    def add_variable(self, node: Node) -> None:
        """Create the slot of a variable; the layout stays undecided until the first read."""
        slot = self.new_slot(node.outputs[0], self.decided.get(node.name))
        self.slot_of[node[0]] = self.residents[node.name] = slot
        self.held.add(slot)
        if node[0] in self.kept:
            self.slot_of[node[0]] = self.copy(slot, node.name)

    def add_alias(self, node: Node) -> None:
        """Make the output a view of the input, which must have the plain layout if the shape changes."""
        source = self.slot_of[node.inputs[0]]
        if node.op == "reshape":
            plain_source = self.in_layout(source, plain(self.specs[source]), node.name)
            source = self.new_slot(node.outputs[0], plain(node.outputs[0]), owner=plain_source)
        self.slot_of[node[0]] = source

    def add_assign(self, node: Node) -> None:
        """Append an assign. The output is the assigned value; raises ShapeError for a second assign to the variable."""
        variable, value = node.inputs
        if variable.node in self.assigned:
            raise ShapeError(
                f"variable {variable.node!r} is assigned by {self.assigned[variable.node]!r} and by {node.name!r} "
                "in one step"
            )
        self.assigned[variable.node] = node.name
        resident, source = self.residents[variable.node], self.slot_of[value]
        wanted = self.layouts[resident]
        if wanted is None:
            wanted = self.layouts[source] or plain(self.specs[source])
            self.layouts[resident] = wanted
        source = self.in_layout(source, wanted, node.name)
        self.emit(node, "", (source,), (), Arrangement((wanted,), ()), {"variable": variable.node})
        self.slot_of[node[0]] = source

    def add_send(self, node: Node) -> None:
        """Append the send of a value in the plain layout; all destinations read the same memory."""
        source = self.slot_of[node.inputs[0]]
        wanted = plain(self.specs[source])
        sent = sent_tensor(node.attributes["key"])
        if sent not in self.sent:
            self.sent[sent] = self.on_a_wire(self.in_layout(source, wanted, node.name), node.name)
        self.emit(node, "", (self.sent[sent],), (), Arrangement((wanted,), ()))

    def on_a_wire(self, slot: int, reader: str) -> int:
        """Return a slot on a wire with the value of ``slot``: a copy if ``slot`` is a variable or on another wire.

        A variable may be written while other devices read it, and each wire has separate memory.
        """
        if self.owner[slot] in self.held:
            slot = self.copy(slot, reader)
        self.held.add(self.owner[slot])
        return slot

    def add_recv(self, node: Node) -> None:
        """Append the receive of a value in plain layout; kernels read floats from the wire, other dtypes from a copy.

        The sender could still change the wire. For floats, any bits are valid. An index, however, must not change after
        a kernel has checked that it is within bounds.
        """
        (spec,) = node.outputs
        slot = self.slot_of[node[0]] = self.new_slot(spec, plain(spec))
        self.held.add(slot)
        self.emit(node, "", (), (slot,), Arrangement((), (plain(spec),)))
        if not spec.is_float:
            self.slot_of[node[0]] = self.copy(slot, node.name)

    def add_cast(self, node: Node) -> None:
        """Create the slot of a cast's result with an undecided layout; the kernel is chosen at the end."""
        slot = self.slot_of[node[0]] = self.new_slot(node.outputs[0], None)
        self.casts.append(len(self.instructions))
        self.emit(node, "", (self.slot_of[node.inputs[0]],), (slot,), Arrangement((), ()))

    def add_kernel(self, node: Node) -> None:
        """Choose a kernel, convert its inputs to the requested layouts, and create the slots of its outputs."""
        sources = [self.slot_of[tensor] for tensor in node.inputs]
        offered = [self.layouts[source] for source in sources]
        specs = [self.specs[source] for source in sources]
        choice = self.registry.choose(node.op, self.device_type, node.attributes, specs, node.outputs, offered)
        arrangement = choice.arrangement
        inputs = tuple(
            self.in_layout(source, wanted, node.name)
            for source, wanted in zip(sources, arrangement.inputs, strict=True)
        )
        outputs = tuple(map(self.new_slot, node.outputs, arrangement.outputs))
        self.slot_of.update(zip(node.tensors, outputs, strict=True))
        self.emit(node, choice.kernel.library, inputs, outputs, arrangement)

    def finish(self, fetches: Sequence[Tensor]) -> Arranged:
        """Convert fetches to the plain layout, choose the kernels of casts, and return the result."""
        fetched = {}
        for tensor in fetches:
            source = self.slot_of[tensor]
            fetched[tensor] = self.in_layout(source, plain(self.specs[source]), f"fetch/{tensor}")
        casts = set(self.casts)
        instructions: list[Instruction] = []
        for position, instruction in enumerate(self.instructions):
            instructions += self.cast(instruction) if position in casts else [instruction]
        layouts = [self.layout_of(slot) for slot in range(len(self.specs))]
        return Arranged(
            tuple(instructions),
            tuple(self.feeds),
            fetched,
            tuple(map(Slot, self.specs, layouts)),
            tuple(self.owner),
            self.residents,
        )

    def cast(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions of a cast between decided layouts: the cast, and conversions if necessary."""
        (source,), (slot,) = instruction.inputs, instruction.outputs
        before, after = self.specs[source], self.specs[slot]
        sides = [self.layout_of(source), self.layout_of(slot)]
        choice = self.registry.choose("cast", self.device_type, instruction.attributes, [before], [after], sides)
        arrangement = choice.arrangement
        cast = replace(instruction, library=choice.kernel.library, arrangement=arrangement)
        (input_layout,), (output_layout,) = arrangement.inputs, arrangement.outputs
        around = []
        if input_layout != sides[0]:
            cast = replace(cast, inputs=(self.new_slot(before, input_layout),))
            around += self.conversions(source, cast.inputs[0], instruction.node)
        around.append(cast)
        if output_layout != sides[1]:
            around[-1] = replace(cast, outputs=(self.new_slot(after, output_layout),))
            around += self.conversions(around[-1].outputs[0], slot, instruction.node)
        return around

    def layout_of(self, slot: int) -> Layout:
        """Return the layout of a slot; the plain layout if no kernel requested a layout."""
        return self.layouts[slot] or plain(self.specs[slot])

    def new_slot(self, spec: TensorSpec, layout: Layout | None, owner: int | None = None) -> int:
        """Return a new slot. ``owner``: the slot whose memory the new slot uses; None for separate memory."""
        slot = len(self.specs)
        self.specs.append(spec)
        self.layouts.append(layout)
        self.owner.append(slot if owner is None else self.owner[owner])
        return slot

    def in_layout(self, slot: int, wanted: Layout, reader: str) -> int:
        """Return a slot with the value of ``slot`` in layout ``wanted``: ``slot`` itself, or a converted copy."""
        if self.layouts[slot] is None:
            self.layouts[slot] = wanted
        if self.layouts[slot] == wanted:
            return slot
        if (slot, wanted) not in self.converted:
            self.converted[slot, wanted] = self.convert(slot, wanted, reader)
        return self.converted[slot, wanted]

    def copy(self, slot: int, reader: str) -> int:
        """Return a slot with a copy of a value, in the same layout."""
        layout = self.layouts[slot] = self.layout_of(slot)
        return self.convert(slot, layout, reader)

    def convert(self, slot: int, wanted: Layout, reader: str) -> int:
        """Append a conversion, in two steps if no kernel accepts both layouts; return the slot of the result."""
        spec = self.specs[slot]
        if not self.is_one_step(spec, self.layout_of(slot), wanted):
            return self.in_layout(self.in_layout(slot, plain(spec), reader), wanted, reader)
        result = self.new_slot(spec, wanted)
        self.instructions.append(self.conversion(slot, result, reader))
        return result

    def conversions(self, slot: int, result: int, reader: str) -> list[Instruction]:
        """Return the instructions that convert one slot to another: one step, or two through the plain layout."""
        spec = self.specs[slot]
        if self.is_one_step(spec, self.layout_of(slot), self.layout_of(result)):
            return [self.conversion(slot, result, reader)]
        middle = self.new_slot(spec, plain(spec))
        return [self.conversion(slot, middle, reader), self.conversion(middle, result, reader)]

    def conversion(self, slot: int, result: int, reader: str) -> Instruction:
        """Return the one-step conversion between two slots; raises ShapeError if no kernel accepts both layouts."""
        spec, source, wanted = self.specs[slot], self.layout_of(slot), self.layout_of(result)
        choice = self.converter(spec, source, wanted)
        if choice is None:
            raise ShapeError(f"node {reader!r}: no kernel converts {spec} from {source} to {wanted}")
        library, arrangement = choice.kernel.library, choice.arrangement
        return Instruction(f"{reader}/convert", "convert", {}, library, (slot,), (result,), arrangement)

    def is_one_step(self, spec: TensorSpec, source: Layout, wanted: Layout) -> bool:
        """Return whether to convert in one step: if a layout is plain, or if one kernel accepts both layouts."""
        return source.is_plain or wanted.is_plain or self.converter(spec, source, wanted) is not None

    def converter(self, spec: TensorSpec, source: Layout, wanted: Layout) -> Choice | None:
        """Return a kernel that converts ``source`` to ``wanted`` in one step; None if there is no such kernel."""
        choice = self.registry.choose("convert", self.device_type, {}, [spec], [spec], [source, wanted])
        sides = (choice.arrangement.inputs, choice.arrangement.outputs)
        return choice if sides == ((source,), (wanted,)) else None

    def emit(
        self,
        node: Node,
        library: str,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        arrangement: Arrangement,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        given = node.attributes if attributes is None else attributes
        self.instructions.append(Instruction(node.name, node.op, given, library, inputs, outputs, arrangement))
