"""The tensors of a plan that are in memory at the instruction with the most bytes."""

from dataclasses import dataclass

from runner.engine.compile.plan import DevicePlan


@dataclass
class _Block:
    """A tensor in the arena.

    last: position of the last instruction that uses the tensor or another tensor in the same memory.
    """

    name: str
    nbytes: int
    last: int


def peak_tensors(plan: DevicePlan) -> dict[str, int]:
    """Return tensor -> bytes of the arena at the instruction with the most bytes, largest first.

    A tensor has the name of its node, followed by ":1", ":2", ... for further outputs of the node. Variables and sent
    or received tensors are not in the arena.
    """
    last = dict.fromkeys(plan.fetches.values(), len(plan.instructions))
    for position, instruction in enumerate(plan.instructions):
        for slot in (*instruction.inputs, *instruction.outputs):
            last[slot] = max(last.get(slot, -1), position)
    alive: dict[int, _Block] = {}
    peak, found = -1, list[_Block]()

    def add(slot: int, name: str) -> None:
        place, nbytes = plan.places[slot], plan.slots[slot].layout.nbytes
        if place.variable is None and place.wire is None and nbytes:
            shared = alive.get(place.offset)
            until = last.get(slot, -1) if shared is None else max(shared.last, last.get(slot, -1))
            alive[place.offset] = _Block(name, nbytes, until)

    for feed in plan.feeds:
        add(feed.slot, str(feed.tensor))
    for position, instruction in enumerate(plan.instructions):
        for number, slot in enumerate(instruction.outputs):
            add(slot, f"{instruction.node}:{number}" if number else instruction.node)
        total = sum(block.nbytes for block in alive.values())
        if total > peak:
            peak, found = total, list(alive.values())
        alive = {offset: block for offset, block in alive.items() if block.last > position}
    return {block.name: block.nbytes for block in sorted(found, key=lambda block: -block.nbytes)}
