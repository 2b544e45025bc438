"""Wires between devices with memory of their own, and between them and the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from runner.engine.rendezvous import LocalRendezvous
from runner.engine.tensor import TensorSpec
from runner.engine.wires import CardWires, HostWires
from runner.kernels.contract import Operand, plain
from runner.kernels.gpu.platform import CardPlatform
from runner.kernels.platform import Writer
from tests.kernels.gpu.emulation import EmulatedRuntime

SPEC = TensorSpec((3, 5), "float32")
CARDS = frozenset({"card 0", "card 1"})


@pytest.fixture
def runtime(tmp_path: Path) -> EmulatedRuntime:
    """It compiles nothing here."""
    return EmulatedRuntime(tmp_path)


class End:
    """A device on the emulated card, and its wires in one rendezvous."""

    def __init__(self, runtime: EmulatedRuntime, rendezvous: LocalRendezvous, *, alone: bool = False) -> None:
        self.platform = CardPlatform(runtime, 0)
        self.wires = CardWires(self.platform, rendezvous, None if alone else rendezvous, CARDS)
        self._writers: list[Writer] = []

    def outgoing(self, sent: str) -> Operand:
        return Operand(SPEC, plain(SPEC), self.wires.outgoing(sent, SPEC.nbytes))

    def incoming(self, key: str, source: str) -> Operand:
        return Operand(SPEC, plain(SPEC), self.wires.incoming(key, source, SPEC.nbytes))

    def write(self, place: Operand, value: np.ndarray) -> None:
        self._writers.append(self.platform.writer(place))
        self._writers[-1](value)


def value(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SPEC.shape, np.float32)


def test_neighbours_copy_from_memory_to_memory_in_the_order_of_their_work(runtime: EmulatedRuntime) -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    first, second = End(runtime, rendezvous), End(runtime, rendezvous)
    out, into = first.outgoing("x"), second.incoming("x->card 1", "card 0")
    send = first.wires.sender("x->card 1", "card 1", out)
    wait, take = second.wires.receiver("x->card 1", "card 0", into)
    for step in range(3):
        first.write(out, value(step))
        send(step)
        take(wait(step))
        # The receiver alone is waited for: what it copied had to be there.
        (found,) = second.platform.reader([into])()
        np.testing.assert_array_equal(found, value(step))
    assert rendezvous.pending == []


def test_a_tensor_for_several_neighbours_lies_in_one_place(runtime: EmulatedRuntime) -> None:
    end = End(runtime, LocalRendezvous())
    assert end.wires.outgoing("x", 60) is end.wires.outgoing("x", 60)
    assert end.wires.incoming("x->card 1", "card 0", 60) is end.wires.incoming("x->card 1", "card 0", 60)


@pytest.mark.parametrize("alone", [False, True])
def test_a_card_and_the_host_exchange_values(runtime: EmulatedRuntime, alone: bool) -> None:
    rendezvous = LocalRendezvous(timeout_s=0.01)
    card, host = End(runtime, rendezvous, alone=alone), HostWires(rendezvous)
    out = card.outgoing("x")
    place = Operand(SPEC, plain(SPEC), host.incoming("x->host", "card 0", SPEC.nbytes))
    card.write(out, value(1))
    card.wires.sender("x->host", "host", out)(7)
    wait, take = host.receiver("x->host", "card 0", place)
    take(wait(7))
    np.testing.assert_array_equal(place.array, value(1))

    back = Operand(SPEC, plain(SPEC), host.outgoing("y", SPEC.nbytes))
    back.array[:] = value(2)
    host.sender("y->card 0", "card 0", back)(7)
    into = card.incoming("y->card 0", "host")
    wait, take = card.wires.receiver("y->card 0", "host", into)
    take(wait(7))
    back.array[:] = -1
    (found,) = card.platform.reader([into])()
    np.testing.assert_array_equal(found, value(2))


def test_what_comes_from_the_host_has_to_be_what_was_expected(runtime: EmulatedRuntime) -> None:
    card = End(runtime, LocalRendezvous())
    _, take = card.wires.receiver("y->card 0", "host", card.incoming("y->card 0", "host"))
    with pytest.raises(ValueError, match=r"came float64\[3, 5\], expected float32\[3, 5\]"):
        take(np.zeros((3, 5)))
