"""The examples that a step reads."""

from runner.engine.compile.program import InputSlot
from runner.engine.graph.tensor import Tensor


def test_step_reads_the_batch_of_its_number() -> None:
    slot = InputSlot(Tensor("x"), "train", "x", 3, 7)
    assert [slot.share(step) for step in (0, 5)] == [("train", 0, 3, 7), ("train", 5, 3, 7)]


def test_steps_that_share_a_batch_read_one_part_after_the_other() -> None:
    slot = InputSlot(Tensor("x"), "train", "x", 1, 4, parts=3)
    assert [slot.share(step) for step in range(2, 7)] == [
        ("train", 0, 7, 10),
        ("train", 1, 1, 4),
        ("train", 1, 4, 7),
        ("train", 1, 7, 10),
        ("train", 2, 1, 4),
    ]
