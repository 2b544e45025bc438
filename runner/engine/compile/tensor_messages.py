"""The messages in which a device sends its tensors: small tensors for the same device share a message.

Every message costs the processes at both ends a few hundred microseconds, however few bytes it has.
"""

from collections.abc import Callable, Collection

from runner.engine.compile.plan import DevicePlan

_FULL_BYTES = 64 * 2**10  # a message of this size is sent at once: its transfer takes as long as its fixed cost
_FULL_TENSORS = 64


def tensor_messages(
    plan: DevicePlan, *, deferred: bool, shares_memory: Callable[[str], bool], without: Collection[str] = ()
) -> list[tuple[str, ...]]:
    """Return the transfer keys of each message of a step; a message leaves when its last tensor is sent.

    Tensors for one device share a message if the device does not compute between their sends, or if the client is
    deferred, because the receiver then starts only when all tensors have arrived. shares_memory: whether a destination
    shares memory with the device, so that tensors need no transfer time. without: keys that need no message.
    """
    found: list[tuple[str, ...]] = []
    begun: dict[str, list[str]] = {}
    nbytes: dict[str, int] = {}

    def end(destination: str) -> None:
        found.append(tuple(begun.pop(destination)))
        nbytes.pop(destination, None)

    for instruction in plan.instructions:
        if instruction.op == "send":
            key, destination = instruction.attributes["key"], instruction.attributes["destination"]
            if key in without:
                continue
            begun.setdefault(destination, []).append(key)
            if not shares_memory(destination):
                nbytes[destination] = nbytes.get(destination, 0) + plan.slots[instruction.inputs[0]].spec.nbytes
            if nbytes.get(destination, 0) >= _FULL_BYTES or len(begun[destination]) == _FULL_TENSORS:
                end(destination)
        elif not deferred and instruction.op != "convert":
            for destination in [*begun]:
                end(destination)
    for destination in [*begun]:
        end(destination)
    return found
