"""The tensors of a message: a table of small plans."""

import pytest

from runner.engine.compile.plan import DevicePlan, Instruction, Slot
from runner.engine.compile.tensor_messages import MOST_TENSORS, tensor_messages
from runner.engine.graph.tensor import TensorSpec
from runner.kernels.contract import Arrangement, Layout

KIB = 2**10


def plan_of(*steps: str) -> DevicePlan:
    """Return a plan. steps: ops, or "key destination KiB" for sends, with keys of one letter."""
    instructions, slots = [], []
    for step in steps:
        key, destination, kib = step.split() if " " in step else ("", "", "1")
        op = "send" if key else step
        slots.append(Slot(TensorSpec((int(kib) * KIB,), "uint8"), Layout("", int(kib) * KIB)))
        attributes = {"key": key, "destination": destination} if key else {}
        instructions.append(Instruction(step, op, attributes, "", (len(slots) - 1,), (), Arrangement((), ())))
    return DevicePlan("device", tuple(instructions), (), {}, tuple(slots), (), {}, frozenset(), 0)


MANY = tuple(f"{chr(0x100 + number)} x 0" for number in range(130))


@pytest.mark.parametrize(
    ("steps", "together", "deferred"),
    [
        ((), "", ""),
        (("a x 1", "b x 1", "c x 1"), "abc", "abc"),
        (("a x 1", "relu", "b x 1"), "a b", "ab"),
        (("a x 1", "recv", "b x 1"), "a b", "ab"),
        (("a x 1", "convert", "b x 1"), "ab", "ab"),
        (("a x 1", "b y 1", "c x 1", "d y 1"), "ac bd", "ac bd"),
        (("a x 1", "b y 1", "relu", "c x 1"), "a b c", "ac b"),
        (("a x 63", "b x 1", "c x 1"), "ab c", "ab c"),
        (("a x 64", "b x 1", "relu", "c x 1"), "a b c", "a bc"),
        (("a x 1", "b x 64", "c x 1"), "a b c", "ac b"),
        (("a x 1", "b y 1", "c x 64", "d y 1"), "a bd c", "a bd c"),
    ],
)
def test_small_tensors_share_a_message(steps: tuple[str, ...], together: str, deferred: str) -> None:
    """together, deferred: the keys of each message of the plan, by itself and in a deferred client."""
    for is_deferred, expected in ((False, together), (True, deferred)):
        found = tensor_messages(plan_of(*steps), deferred=is_deferred, shares_memory=lambda _: False)
        assert sorted("".join(keys) for keys in found) == sorted(expected.split())


def test_a_message_has_any_number_of_bytes_in_shared_memory_and_at_most_64_tensors() -> None:
    plan = plan_of("a x 9999", "b x 9999", "c y 64", "d y 64", *MANY)
    found = tensor_messages(plan, deferred=False, shares_memory=lambda destination: destination == "x")
    assert [len(keys) for keys in found] == [1, 1, MOST_TENSORS, MOST_TENSORS, 4]
    assert found[2][:3] == ("a", "b", MANY[0][0])


def test_tensors_that_a_doorbell_announces_are_in_no_message() -> None:
    plan = plan_of("a x 1", "b x 1", "c x 1")
    assert tensor_messages(plan, deferred=False, shares_memory=lambda _: True, without=["b"]) == [("a", "c")]
