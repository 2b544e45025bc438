"""Every gradient rule against central differences in float64, to second order, over the table of cases."""

import numpy as np
import pytest

from tests.op_cases import all_cases
from tests.oracles import assert_gradients
from tests.samples import Case

_DIFFERENTIABLE = [
    pytest.param(op, case, id=label)
    for op, case, label in all_cases()
    if case.orders > 0 and any(array.dtype == np.float64 for array in case.draw(seed=0))
]


@pytest.mark.parametrize(("op", "case"), _DIFFERENTIABLE)
def test_gradient_agrees_with_differences(op: str, case: Case) -> None:
    arrays = case.draw(seed=1)
    for ports in _port_choices(op, case):
        graph, inputs, node = case.build(op)
        floats = [tensor for tensor in inputs if graph.spec(tensor).is_float]
        feeds = dict(zip(inputs, arrays, strict=True))
        ys = [node[port] for port in ports]
        assert_gradients(graph, ys, floats, feeds, np.random.default_rng(2), case.orders)


def _port_choices(op: str, case: Case) -> list[list[int]]:
    """All float outputs together and, if there are several, each alone."""
    _, _, node = case.build(op)
    ports = [port for port, spec in enumerate(node.outputs) if spec.is_float]
    return [ports] if len(ports) == 1 else [ports, *([port] for port in ports)]
