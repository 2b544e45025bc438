"""Instructions of the executor, without kernels: what enters a step, what outlives it, and what crosses devices."""

from collections.abc import Sequence

from runner.engine.graph.op import Attributes, Builder, NotDifferentiable, OpDef, expect, no_flops, register
from runner.engine.graph.ops.common import NO_INPUTS, declared
from runner.engine.graph.tensor import Tensor, TensorSpec


def placeholder(graph: Builder, shape: Sequence[int], dtype: str, *, name: str | None = None) -> Tensor:
    """Add a tensor whose value is fed in each step."""
    return graph.add("placeholder", (), {"shape": tuple(shape), "dtype": dtype}, name=name)[0]


def variable(graph: Builder, shape: Sequence[int], dtype: str, *, name: str | None = None) -> Tensor:
    """Add a tensor that lives on its device across steps; its value at the start of the step."""
    return graph.add("variable", (), {"shape": tuple(shape), "dtype": dtype}, name=name)[0]


def assign(graph: Builder, variable: Tensor, value: Tensor, *, name: str | None = None) -> Tensor:
    """Commit ``value`` (shape and dtype of the variable) as the variable's value after the step; outputs it.

    Runs on the variable's device, after every reader of the variable.
    """
    return graph.add("assign", [variable, value], name=name, colocate_with=[variable.node])[0]


def send(graph: Builder, x: Tensor, *, key: str, destination: str, name: str | None = None) -> str:
    """Send ``x`` to the recv of the same key on device ``destination``; returns the name of the node."""
    return graph.add("send", [x], {"key": key, "destination": destination}, name=name).name


def recv(graph: Builder, *, key: str, source: str, shape: Sequence[int], dtype: str, name: str | None = None) -> Tensor:
    """Add the tensor that device ``source`` sends under ``key`` in this step."""
    attributes = {"key": key, "source": source, "shape": tuple(shape), "dtype": dtype}
    return graph.add("recv", (), attributes, name=name)[0]


def _infer_assign(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    variable, value = specs
    expect(value == variable, f"a value like the variable, {variable}", value)
    return [value]


def _no_outputs(specs: Sequence[TensorSpec], attributes: Attributes) -> Sequence[TensorSpec]:
    return []


_SPEC = {"shape": "ints", "dtype": "dtype"}
_SENT = {"key": "str", "destination": "str"}
_RECEIVED = {"key": "str", "source": "str", **_SPEC}
_COMMITS = NotDifferentiable("it commits a value for the next step; differentiate the value instead")
_IS_CUT = NotDifferentiable("gradients are taken before a graph is cut into devices")

register(OpDef("placeholder", declared, NO_INPUTS, 0, _SPEC, no_flops, executed_by="executor"))
register(OpDef("variable", declared, NO_INPUTS, 0, _SPEC, no_flops, stateful=True, executed_by="executor"))
register(OpDef("assign", _infer_assign, _COMMITS, 2, {}, no_flops, stateful=True, executed_by="executor"))
register(OpDef("send", _no_outputs, _IS_CUT, 1, _SENT, no_flops, stateful=True, executed_by="executor"))
register(OpDef("recv", declared, _IS_CUT, 0, _RECEIVED, no_flops, stateful=True, executed_by="executor"))
