"""Long short-term memory: in each step, one loop computes the product with the recurrent weights and all gates.

The loop runs over blocks of units. Before the first step, the columns of the weights that belong to a block, those of
all four gates, are packed into panels without gaps. The sums of a block and the current part of a panel stay in the
first-level cache until the gates are computed. In the backward pass, step t first computes dinputs[t + 1] W', the part
of the gradient of h[t] that comes from step t + 1 (W' is W transposed), and then the gradients of the gates.
"""

from collections.abc import Sequence
from functools import cache, partial

from runner.kernels.contract import Arrangement, Attributes, Buffers, Kernel, NativeCall, Offers, Operand, Specs, plain
from runner.kernels.cpu.machine_code import threads
from runner.kernels.cpu.machine_code.compiler import MachineCode, host
from runner.kernels.cpu.machine_code.elementwise import LIBRARY, PRIORITY
from runner.kernels.cpu.machine_code.instructions import Lanes
from runner.kernels.cpu.machine_code.recurrent_loops import DTYPE, vectors_of, write_module
from runner.kernels.memory import address_of
from runner.kernels.registry import Registry


def register(registry: Registry) -> None:
    """Add the kernels of lstm and its gradient if the CPU has a fused multiply-add instruction."""
    if not host().multiplies_and_adds:
        return
    for op, inputs, weights, bind in (("lstm", 4, 1, _bind), ("lstm_gradient", 6, 2, _bind_gradient)):
        arrange = partial(_arrange, inputs, weights)
        registry.add(Kernel(op, "cpu", LIBRARY, PRIORITY, frozenset({DTYPE}), arrange, bind))


def _arrange(
    count: int, position: int, attributes: Attributes, inputs: Specs, outputs: Specs, offered: Offers
) -> Arrangement | None:
    """Arrange ``count`` inputs in C order if the units fill whole vectors. position: index of the weights."""
    weights = inputs[position]
    if len(inputs) != count or weights.shape[0] % _lanes() or 0 in inputs[0].shape:
        return None
    return Arrangement(tuple(map(plain, inputs)), tuple(map(plain, outputs)), weights.nbytes)


def _lanes() -> int:
    return Lanes.filling(DTYPE, host().vector_bytes).count


def _bind(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> list[NativeCall]:
    (inputs, weights, h0, c0), (h, c, gates) = buffers.inputs, buffers.outputs
    (rows, units), panels = h0.spec.shape, address_of(buffers.scratch)
    calls = [_packed(buffers, weights, panels, transposed=False)]
    for step in range(h.spec.shape[0]):
        before = [h0.address, c0.address] if step == 0 else [each.entry(step - 1) for each in (h, c)]
        after = [each.entry(step) for each in (h, c, gates)]
        places = [before[0], panels, inputs.entry(step), before[1], *after]
        calls.append(_call(_compiled("forward", rows, units), places, units // _lanes(), buffers))
    return calls


def _bind_gradient(attributes: Attributes, arrangement: Arrangement, buffers: Buffers) -> list[NativeCall]:
    (dh, dc, weights, c0, c, gates), (dinputs, dh0, dc0) = buffers.inputs, buffers.outputs
    (rows, units), panels = c0.spec.shape, address_of(buffers.scratch)
    steps, blocks = dh.spec.shape[0], units // (_lanes() * vectors_of(units, _lanes()))
    calls = [_packed(buffers, weights, panels, transposed=True)]
    for step in reversed(range(steps)):
        # The last step has no next step; the code for it does not read this address.
        later = dinputs.address if step == steps - 1 else dinputs.entry(step + 1)
        before = c0.address if step == 0 else c.entry(step - 1)
        places = [later, panels, *(each.entry(step) for each in (dh, dc, c, gates, dinputs)), before, dc0.address]
        kind = "last" if step == steps - 1 else "backward"
        calls.append(_call(_compiled(kind, rows, units), places, blocks, buffers))
    calls.append(_call(_compiled("product", rows, units), [dinputs.address, panels, dh0.address], blocks, buffers))
    return calls


def _packed(buffers: Buffers, weights: Operand, panels: int, *, transposed: bool) -> NativeCall:
    units = weights.spec.shape[0]
    code = _compiled("transposed panels" if transposed else "panels", 0, units)
    blocks = units // (_lanes() * (vectors_of(units, _lanes()) if transposed else 1))
    return _call(code, [weights.address, panels], blocks, buffers)


def _call(code: MachineCode, places: Sequence[int], blocks: int, buffers: Buffers) -> NativeCall:
    return threads.call(code, places, blocks, 1, buffers, parallel=True)


@cache
def _compiled(kind: str, rows: int, units: int) -> MachineCode:
    return MachineCode(write_module(kind, rows, units, host().vector_bytes))
