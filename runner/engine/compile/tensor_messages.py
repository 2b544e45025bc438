"""The messages in which a device sends its tensors: small tensors for the same device share a message.

Every message costs the processes at both ends a few hundred microseconds, however few bytes it has.
"""

from collections.abc import Callable, Collection

from runner.engine.compile.plan import DevicePlan

MOST_TENSORS = 64  # in one message
_LARGE_BYTES = 64 * 2**10  # bytes of a tensor or message that does not wait for others; 0.5 ms at 1 Gbit/s


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
        nbytes.pop(destination, None)
        if keys := begun.pop(destination, None):
            found.append(tuple(keys))

    for instruction in plan.instructions:
        if instruction.op == "send":
            key, destination = instruction.attributes["key"], instruction.attributes["destination"]
            if key in without:
                continue
            size = 0 if shares_memory(destination) else plan.slots[instruction.inputs[0]].spec.nbytes
            if size >= _LARGE_BYTES:
                if not deferred:
                    end(destination)  # its tensors must not wait for the bytes of the large one
                found.append((key,))
                continue
            begun.setdefault(destination, []).append(key)
            nbytes[destination] = nbytes.get(destination, 0) + size
            if nbytes[destination] >= _LARGE_BYTES or len(begun[destination]) == MOST_TENSORS:
                end(destination)
        elif not deferred and instruction.op != "convert":
            for destination in [*begun]:
                end(destination)
    for destination in [*begun]:
        end(destination)
    return found
