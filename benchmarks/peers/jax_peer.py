"""Time JAX on a problem: ``python -m benchmarks.peers.jax_peer VARIANT FOLDER``. VARIANT is nchw or nhwc.

Each phase is one jitted function. A step donates the buffers of variables and velocities to its results.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from jax import Array, lax

from benchmarks.peers.arrays import TO_NHWC, channels_last, places
from benchmarks.problem import Layer, Problem, load_problem, unsupported
from benchmarks.protocol import Run, serve

VARIANTS = {"nchw": ("NCHW", "OIHW", "NCHW"), "nhwc": ("NHWC", "HWIO", "NHWC")}
"""Name -> axes of images, filters and outputs, in the notation of JAX."""

Values = dict[str, Array]
Call = Callable[[Values, Values, list[Array]], Array]
"""Function of trainable variables, moving averages (updated in the mapping) and inputs; returns the output."""


class Network:
    """The problem's layers as one pure function."""

    def __init__(self, problem: Problem, layout: tuple[str, str, str]) -> None:
        self._problem = problem
        self._layout = layout
        self._last = layout[0] == "NHWC"
        self._calls = [(layer, self._call(layer)) for layer in problem.layers]

    def variables(self) -> tuple[Values, Values]:
        """Return the initial values of trainable variables and of moving averages."""
        found: Values = {}
        for layer in self._problem.layers:
            for role, name in layer.variables.items():
                value = self._problem.variable(name)
                found[name] = jnp.array(channels_last(layer, role, value) if self._last else value)
        trainable = {name: found[name] for name in self._problem.trainable}
        return trainable, {name: found[name] for name in self._problem.moving}

    def images(self) -> Array:
        """Return the batch's images in the network's layout."""
        x = self._problem.x
        return jnp.array(x.transpose(TO_NHWC) if self._last else x)

    def loss(self, trainable: Values, moving: Values, x: Array, y: Array) -> tuple[Array, Values]:
        """Return the mean cross-entropy, and the moving averages after this batch."""
        computed = jnp.dtype(self._problem.precision)
        held = {name: value if value.ndim == 1 else value.astype(computed) for name, value in trainable.items()}
        averages = dict(moving)
        values = {"x": x.astype(computed)}
        for layer, call in self._calls:
            values[layer.name] = call(held, averages, [values[name] for name in layer.inputs])
        logits = values[self._calls[-1][0].name].astype(jnp.float32)
        scores = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(scores, y[:, None], axis=1).mean(), averages

    def _call(self, layer: Layer) -> Call:
        makers: Mapping[str, Callable[[Layer], Call]] = {
            "conv": self._conv,
            "dense": _dense,
            "batch_norm": self._batch_norm,
            "relu": lambda layer: lambda held, averages, inputs: jax.nn.relu(inputs[0]),
            "max_pool": self._max_pool,
            "avg_pool": self._avg_pool,
            "global_avg_pool": lambda layer: lambda held, averages, inputs: inputs[0].mean(self._places()),
            "subsample": self._subsample,
            "flatten": lambda layer: lambda held, averages, inputs: inputs[0].reshape(layer.shape),
            "add": lambda layer: lambda held, averages, inputs: sum(inputs[1:], inputs[0]),
            "concat": self._concat,
            "pad": self._pad,
            "slice": self._slice,
        }
        if layer.kind not in makers:
            raise unsupported(layer, "the JAX peer", tuple(makers))
        return makers[layer.kind](layer)

    def _conv(self, layer: Layer) -> Call:
        settings = layer.settings
        top, bottom, left, right = settings["padding"]

        def conv(held: Values, averages: Values, inputs: list[Array]) -> Array:
            y = lax.conv_general_dilated(
                inputs[0],
                held[layer.variables["weights"]],
                settings["strides"],
                [(top, bottom), (left, right)],
                dimension_numbers=self._layout,
                feature_group_count=settings["groups"],
            )
            if "bias" not in layer.variables:
                return y
            return y + self._by_channel(held[layer.variables["bias"]].astype(y.dtype), 4)

        return conv

    def _batch_norm(self, layer: Layer) -> Call:
        names, decay, epsilon = layer.variables, layer.settings["decay"], layer.settings["epsilon"]
        rank = len(layer.shape)
        axes = (0, *self._places()) if rank == 4 else (0,)

        def batch_norm(held: Values, averages: Values, inputs: list[Array]) -> Array:
            x = inputs[0].astype(jnp.float32)
            mean = x.mean(axes)
            variance = jnp.square(x).mean(axes) - jnp.square(mean)
            for role, statistic in (("moving_mean", mean), ("moving_variance", variance)):
                averages[names[role]] = decay * averages[names[role]] + (1.0 - decay) * statistic
            factor = lax.rsqrt(variance + epsilon)
            if "gamma" in names:
                factor = held[names["gamma"]] * factor
            y = (x - self._by_channel(mean, rank)) * self._by_channel(factor, rank)
            return (y + self._by_channel(held[names["beta"]], rank)).astype(inputs[0].dtype)

        return batch_norm

    def _max_pool(self, layer: Layer) -> Call:
        return lambda held, averages, inputs: self._windows(layer, inputs[0], -jnp.inf, lax.max)

    def _avg_pool(self, layer: Layer) -> Call:
        counts = places(layer)
        divisor = counts[None, :, :, None] if self._last else counts[None, None]

        def avg_pool(held: Values, averages: Values, inputs: list[Array]) -> Array:
            return self._windows(layer, inputs[0], 0.0, lax.add) / divisor.astype(inputs[0].dtype)

        return avg_pool

    def _subsample(self, layer: Layer) -> Call:
        steps = self._ordered([1, 1, *layer.settings["strides"]])
        kept = tuple(slice(None, None, step) for step in steps)
        return lambda held, averages, inputs: inputs[0][kept]

    def _windows(self, layer: Layer, x: Array, initial: float, combine: Callable[..., Any]) -> Array:
        settings = layer.settings
        top, bottom, left, right = settings["padding"]
        window, strides, padding = (
            self._ordered([outer, outer, *inner])
            for outer, inner in (
                (1, settings["window"]),
                (1, settings["strides"]),
                ((0, 0), [(top, bottom), (left, right)]),
            )
        )
        # If the initial value is a plain number, JAX recognises the reduction and can differentiate it.
        return lax.reduce_window(x, initial, combine, window, strides, padding)

    def _concat(self, layer: Layer) -> Call:
        axis = self._ordered(range(len(layer.shape))).index(layer.settings["axis"])
        return lambda held, averages, inputs: jnp.concatenate(inputs, axis)

    def _pad(self, layer: Layer) -> Call:
        widths = self._ordered(list(zip(layer.settings["low"], layer.settings["high"], strict=True)))
        return lambda held, averages, inputs: jnp.pad(inputs[0], widths)

    def _slice(self, layer: Layer) -> Call:
        begin, size = (self._ordered(layer.settings[name]) for name in ("begin", "size"))
        return lambda held, averages, inputs: lax.dynamic_slice(inputs[0], begin, size)

    def _ordered(self, by_axis: Any) -> list[Any]:
        """Return values given by axis of (N, C, H, W) in the order of the network's layout."""
        entries = list(by_axis)
        return [entries[axis] for axis in TO_NHWC] if self._last and len(entries) == 4 else entries

    def _places(self) -> tuple[int, int]:
        return (1, 2) if self._last else (2, 3)

    def _by_channel(self, values: Array, rank: int) -> Array:
        """Return one value per channel in a shape that broadcasts to images or rows."""
        return values if rank == 2 or self._last else values[:, None, None]


def _dense(layer: Layer) -> Call:
    def dense(held: Values, averages: Values, inputs: list[Array]) -> Array:
        y = inputs[0] @ held[layer.variables["weights"]]
        return y + held[layer.variables["bias"]].astype(y.dtype) if "bias" in layer.variables else y

    return dense


class Jax:
    """JAX with one layout, on one problem."""

    versions: Mapping[str, str] = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def __init__(self, variant: str, problem: Problem) -> None:
        self._problem = problem
        self._network = Network(problem, VARIANTS[variant])

    def load(self) -> None:
        loss = self._network.loss
        self._trainable, self._moving = self._network.variables()
        self._velocity = jax.tree.map(jnp.zeros_like, self._trainable)
        self._batch = self._network.images(), jnp.array(self._problem.y.astype("int32"))
        self._forward = jax.jit(lambda *arguments: loss(*arguments)[0])
        self._gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))
        self._step = jax.jit(self._updated, donate_argnums=(0, 1, 2))

    def phase(self, name: str) -> Run:
        return {"forward": self._run_forward, "gradients": self._run_gradients, "step": self._run_step}[name]

    def _updated(
        self, trainable: Values, velocity: Values, moving: Values, x: Array, y: Array
    ) -> tuple[Array, Values, Values, Values]:
        (loss, averages), gradients = jax.value_and_grad(self._network.loss, has_aux=True)(trainable, moving, x, y)
        momentum, rate = self._problem.momentum, self._problem.learning_rate
        moved = jax.tree.map(lambda v, g: momentum * v - rate * g, velocity, gradients)
        return loss, jax.tree.map(jnp.add, trainable, moved), moved, averages

    def _run_forward(self) -> float:
        return float(self._forward(self._trainable, self._moving, *self._batch))

    def _run_gradients(self) -> float:
        (loss, _), gradients = self._gradients(self._trainable, self._moving, *self._batch)
        jax.block_until_ready(gradients)
        return float(loss)

    def _run_step(self) -> float:
        results = self._step(self._trainable, self._velocity, self._moving, *self._batch)
        loss, self._trainable, self._velocity, self._moving = jax.block_until_ready(results)
        return float(loss)


if __name__ == "__main__":
    serve(Jax(sys.argv[1], load_problem(Path(sys.argv[2]))))
