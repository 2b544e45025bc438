"""The graph of a convolution in cuDNN."""

from dataclasses import replace

import pytest

from runner.kernels.gpu.cudnn.graphs import FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, Convolution, Role, build
from tests.kernels.gpu.cudnn.fake_cudnn import FakeCudnn, FakeGraph, FakeTensor

UNEVEN = Convolution(FORWARD, "float32", (2, 3, 7, 6), (4, 3, 3, 2), (2, 4, 3, 8), (2, 1), (1, 0, 2, 3))
SHAPES = {
    Role.X: ([2, 3, 7, 6], [126, 1, 18, 3]),
    Role.W: ([4, 3, 3, 2], [18, 1, 6, 3]),
    Role.Y: ([2, 4, 3, 8], [96, 1, 32, 4]),
    Role.BIAS: ([1, 4, 1, 1], [4, 1, 4, 4]),
    Role.RESIDUAL: ([2, 4, 3, 8], [96, 1, 32, 4]),
}
"""Extents in cuDNN's order, and strides with the channels last."""


def built(convolution: Convolution) -> FakeGraph:
    """The graph of a convolution."""
    graph: FakeGraph = build(FakeCudnn(), convolution, {"handle": "handle"})
    return graph


def roles(tensors: tuple[FakeTensor, ...]) -> list[Role]:
    """Return the roles of tensors."""
    return [Role(tensor.told["uid"]) for tensor in tensors]


@pytest.mark.parametrize(
    ("kind", "op", "inputs"),
    [
        (FORWARD, "conv_fprop", [Role.X, Role.W]),
        (INPUT_GRADIENT, "conv_dgrad", [Role.Y, Role.W]),
        (WEIGHT_GRADIENT, "conv_wgrad", [Role.X, Role.Y]),
    ],
)
def test_each_kind_has_its_inputs_and_geometry(kind: str, op: str, inputs: list[Role]) -> None:
    convolution = replace(UNEVEN, kind=kind)
    graph = built(convolution)
    result = graph.tensors[-1].told
    assert (result["made_by"][0], roles(result["made_by"][1:])) == (op, inputs)
    windows = {"pre_padding": [1, 2], "post_padding": [0, 3], "stride": [2, 1], "dilation": [1, 1]}
    assert result["geometry"] == windows
    assert (result["output"], result["uid"]) == (True, convolution.result)
    assert (graph.target, result["data_type"]) == ({"handle": "handle"}, "FLOAT")


@pytest.mark.parametrize(
    ("dtype", "dtypes"),
    [
        ("float32", ("FLOAT", "FLOAT", "FLOAT")),
        ("float64", ("DOUBLE", "DOUBLE", "DOUBLE")),
        ("bfloat16", ("BFLOAT16", "FLOAT", "FLOAT")),
    ],
)
def test_bfloat16_is_computed_in_float32(dtype: str, dtypes: tuple[str, ...]) -> None:
    graph = built(replace(UNEVEN, dtype=dtype))
    assert graph.dtypes == dtypes
    assert {tensor.told["data_type"] for tensor in graph.tensors} == {dtypes[0]}


def test_every_tensor_has_its_channels_last() -> None:
    graph = built(replace(UNEVEN, bias=True, residual=True))
    found = {
        Role(each.told["uid"]): (each.told["dim"], each.told["stride"]) for each in graph.tensors if "uid" in each.told
    }
    assert found == SHAPES


def test_bias_then_residual_then_relu_follow() -> None:
    relu = built(replace(UNEVEN, bias=True, residual=True, relu=True)).tensors[-1].told
    op, sum_ = relu["made_by"]
    added, y, residual = sum_.told["made_by"]
    inner, convolution, bias = y.told["made_by"]
    assert (op, added, inner, convolution.told["made_by"][0]) == ("relu", "add", "add", "conv_fprop")
    assert roles((residual, bias)) == [Role.RESIDUAL, Role.BIAS]
