from __future__ import annotations

import numpy as np
import pytest

from runner import nn
from runner.engine.graph import ops
from runner.engine.graph.autodiff import gradients
from runner.engine.graph.op import ShapeError
from tests.nn.support import Bench, bench, images, normal


def kind_of(b: Bench, name: str) -> str:
    stamp = b.net.graph.nodes[b.net.layer_outputs[name].node].layer
    assert stamp is not None
    assert stamp.name == name
    return stamp.kind


class TestAdd:
    def test_is_the_sum(self) -> None:
        x = normal(2, 3, 4, 5)
        b = bench(x)
        y = nn.add(b.net, nn.relu(b.net, b.x, name="r"), b.x, name="a")
        assert (b.value(y) == np.maximum(x, 0) + x).all()
        assert kind_of(b, "a") == "merge"

    def test_operands_of_two_shapes_are_refused(self) -> None:
        b = bench(images(2, 3, 4, 4))
        pooled = nn.max_pool(b.net, b.x, 4, name="p")
        with pytest.raises(ShapeError) as caught:
            nn.add(b.net, b.x, pooled, name="a")
        assert str(caught.value) == (
            "layer 'a' (merge): expected two inputs of one shape, came float64[2,3,4,4] and float64[2,3,1,1]"
        )


class TestConcat:
    def test_joins_channels_in_order(self) -> None:
        x = normal(2, 3, 4, 5)
        b = bench(x)
        y = nn.concat(b.net, [b.x, nn.max_pool(b.net, b.x, 1, name="p"), nn.relu(b.net, b.x, name="r")], name="c")
        assert (b.value(y) == np.concatenate([x, x, np.maximum(x, 0)], axis=1)).all()
        assert kind_of(b, "c") == "merge"

    def test_images_of_different_sizes(self) -> None:
        b = bench(images(2, 3, 4, 4))
        with pytest.raises(ShapeError, match=r"node 'c/concat': op 'concat': expected shapes that agree off axis 1"):
            nn.concat(b.net, [b.x, nn.max_pool(b.net, b.x, 2, name="p")], name="c")


class TestZeroPaddedShortcut:
    @pytest.mark.parametrize(("stride", "size"), [(1, (5, 6)), (2, (3, 3)), (3, (2, 2))])
    def test_takes_every_stride_th_pixel(self, stride: int, size: tuple[int, int]) -> None:
        x = normal(2, 3, 5, 6)
        b = bench(x)
        y = b.value(nn.zero_padded_shortcut(b.net, b.x, 7, stride=stride, name="s"))
        assert y.shape == (2, 7, *size)
        assert (y[:, :3] == x[:, :, ::stride, ::stride]).all()
        assert not y[:, 3:].any()
        assert kind_of(b, "s") == "shape"

    def test_fits_a_convolution_of_the_same_stride(self) -> None:
        for side in range(1, 8):
            b = bench(images(1, 2, side, side + 1))
            branch = nn.conv(b.net, b.x, 4, 3, stride=2, padding=1, name="c")
            assert b.shape(nn.zero_padded_shortcut(b.net, b.x, 4, stride=2, name="s")) == b.shape(branch)

    def test_gradient_goes_back_to_the_pixels_taken(self) -> None:
        x = normal(1, 2, 4, 4)
        b = bench(x)
        graph = b.net.graph
        y = nn.zero_padded_shortcut(b.net, b.x, 5, stride=2, name="s")
        (dx,) = gradients(graph, [ops.reduce_sum(graph, y)], [b.x])
        expected = np.zeros_like(x)
        expected[:, :, ::2, ::2] = 1.0
        assert (b.value(dx) == expected).all()

    def test_shortcut_with_fewer_channels_is_refused(self) -> None:
        b = bench(images(1, 4, 4, 4))
        with pytest.raises(ShapeError, match=r"node 's/pad': .* two non-negative widths"):
            nn.zero_padded_shortcut(b.net, b.x, 3, name="s")
