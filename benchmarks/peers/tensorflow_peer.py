"""Time TensorFlow on a problem: ``python -m benchmarks.peers.tensorflow_peer VARIANT FOLDER``.

VARIANT is graph or xla. Images are (N, H, W, C): on CPUs, TensorFlow has no gradients of (N, C, H, W) convolutions.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from benchmarks.peers.arrays import TO_NHWC, channels_last, places
from benchmarks.problem import Layer, Problem, load_problem, unsupported
from benchmarks.protocol import Run, serve

VARIANTS = {"graph": False, "xla": True}
"""Name -> whether XLA compiles the phases (jit_compile)."""

Call = Callable[[Mapping[str, tf.Tensor], Sequence[tf.Tensor]], tf.Tensor]
"""A function (trainable variables, inputs) -> output. Variables that are vectors stay float32."""


class Network:
    """The problem's layers and variables."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        found = {}
        for layer in problem.layers:
            for role, name in layer.variables.items():
                found[name] = tf.Variable(channels_last(layer, role, problem.variable(name)))
        self.trainable = {name: found[name] for name in problem.trainable}
        self._moving = {name: found[name] for name in problem.moving}
        self._updates: list[tuple[tf.Variable, tf.Tensor, float]] = []
        self._calls = [(layer, self._call(layer)) for layer in problem.layers]

    def loss(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Return the mean cross-entropy of a batch."""
        computed = tf.as_dtype(self._problem.precision)
        held = {
            name: tf.cast(variable, computed) if variable.shape.rank > 1 else variable
            for name, variable in self.trainable.items()
        }
        self._updates.clear()
        values = {"x": tf.cast(x, computed)}
        for layer, call in self._calls:
            values[layer.name] = call(held, [values[name] for name in layer.inputs])
        logits = tf.cast(values[self._calls[-1][0].name], tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))

    def advance(self) -> None:
        """Update the moving averages with the batch statistics of the latest call of :meth:`loss`."""
        for average, statistic, decay in self._updates:
            average.assign(decay * average + (1.0 - decay) * statistic)

    def _call(self, layer: Layer) -> Call:
        if layer.kind == "batch_norm":
            return self._batch_norm(layer)
        if layer.kind not in _CALLS:
            raise unsupported(layer, "the TensorFlow peer", ("batch_norm", *_CALLS))
        return _CALLS[layer.kind](layer)

    def _batch_norm(self, layer: Layer) -> Call:
        names, settings = layer.variables, layer.settings
        is_row = len(layer.shape) == 2

        def batch_norm(held: Mapping[str, tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
            x = inputs[0][:, None, None, :] if is_row else inputs[0]
            # The returned variance is unbiased. Only moving averages use it, so that the loss is not affected.
            y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
                x=x,
                scale=held[names["gamma"]] if "gamma" in names else tf.ones(layer.shape[1]),
                offset=held[names["beta"]],
                mean=[],
                variance=[],
                epsilon=settings["epsilon"],
                is_training=True,
            )
            self._updates.append((self._moving[names["moving_mean"]], mean, settings["decay"]))
            self._updates.append((self._moving[names["moving_variance"]], variance, settings["decay"]))
            return tf.reshape(y, layer.shape) if is_row else y

        return batch_norm


def _conv(layer: Layer) -> Call:
    settings, image = layer.settings, layer.settings["image"]
    padding = _padding(settings["padding"], image, settings["kernel"], settings["strides"])

    def conv(held: Mapping[str, tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        y = tf.nn.conv2d(inputs[0], held[layer.variables["weights"]], settings["strides"], padding)
        return _biased(layer, held, y)

    return conv


def _dense(layer: Layer) -> Call:
    return lambda held, inputs: _biased(layer, held, inputs[0] @ held[layer.variables["weights"]])


def _biased(layer: Layer, held: Mapping[str, tf.Tensor], y: tf.Tensor) -> tf.Tensor:
    if "bias" not in layer.variables:
        return y
    return tf.nn.bias_add(y, tf.cast(held[layer.variables["bias"]], y.dtype))


def _max_pool(layer: Layer) -> Call:
    settings = layer.settings
    window, strides = settings["window"], settings["strides"]
    padding = _padding(settings["padding"], settings["image"], window, strides)

    def max_pool(held: Mapping[str, tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        if isinstance(padding, str):
            return tf.nn.max_pool2d(inputs[0], window, strides, padding)
        padded = tf.pad(inputs[0], padding, constant_values=inputs[0].dtype.min)
        return tf.nn.max_pool2d(padded, window, strides, "VALID")

    return max_pool


def _avg_pool(layer: Layer) -> Call:
    settings = layer.settings
    window, strides = settings["window"], settings["strides"]
    padding = _padding(settings["padding"], settings["image"], window, strides)
    if padding == "VALID" or (padding == "SAME" and not settings["count_padding"]):
        return lambda held, inputs: tf.nn.avg_pool2d(inputs[0], window, strides, padding)
    widths = _widths(settings["padding"])
    share = window[0] * window[1] / places(layer)[None, :, :, None]

    def avg_pool(held: Mapping[str, tf.Tensor], inputs: Sequence[tf.Tensor]) -> tf.Tensor:
        means = tf.nn.avg_pool2d(tf.pad(inputs[0], widths), window, strides, "VALID")
        return means * tf.cast(share, means.dtype)

    return avg_pool


def _subsample(layer: Layer) -> Call:
    rows, columns = layer.settings["strides"]
    return lambda held, inputs: inputs[0][:, ::rows, ::columns]


def _padding(padding: Sequence[int], image: Sequence[int], window: Sequence[int], strides: Sequence[int]) -> Any:
    """Return padding in TensorFlow's notation: "VALID", "SAME", or widths by axis of (N, H, W, C)."""
    if not any(padding):
        return "VALID"
    totals = [
        max(0, (-(-size // stride) - 1) * stride + side - size)
        for size, side, stride in zip(image, window, strides, strict=True)
    ]
    same = [width for total in totals for width in (total // 2, total - total // 2)]
    return "SAME" if same == list(padding) else _widths(padding)


def _widths(padding: Sequence[int]) -> list[list[int]]:
    top, bottom, left, right = padding
    return [[0, 0], [top, bottom], [left, right], [0, 0]]


def _axes_last(by_axis: Sequence[Any]) -> list[Any]:
    """Reorder values for the axes of (N, C, H, W) to the axes of (N, H, W, C)."""
    return [by_axis[axis] for axis in TO_NHWC] if len(by_axis) == 4 else list(by_axis)


def _concat(layer: Layer) -> Call:
    axis = _axes_last(range(len(layer.shape))).index(layer.settings["axis"])
    return lambda held, inputs: tf.concat(inputs, axis)


def _pad(layer: Layer) -> Call:
    widths = _axes_last(list(zip(layer.settings["low"], layer.settings["high"], strict=True)))
    return lambda held, inputs: tf.pad(inputs[0], widths)


def _slice(layer: Layer) -> Call:
    begin, size = (_axes_last(layer.settings[name]) for name in ("begin", "size"))
    return lambda held, inputs: tf.slice(inputs[0], begin, size)


_CALLS: Mapping[str, Callable[[Layer], Call]] = {
    "conv": _conv,
    "dense": _dense,
    "relu": lambda layer: lambda held, inputs: tf.nn.relu(inputs[0]),
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "global_avg_pool": lambda layer: lambda held, inputs: tf.reduce_mean(inputs[0], (1, 2)),
    "subsample": _subsample,
    "flatten": lambda layer: lambda held, inputs: tf.reshape(inputs[0], layer.shape),
    "add": lambda layer: lambda held, inputs: tf.add_n(inputs) if len(inputs) > 2 else inputs[0] + inputs[1],
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
}


class TensorFlow:
    """One variant of TensorFlow, on one problem."""

    versions: Mapping[str, str] = {"tensorflow": tf.__version__}

    def __init__(self, variant: str, problem: Problem) -> None:
        self._jit = VARIANTS[variant]
        self._problem = problem

    def load(self) -> None:
        problem = self._problem
        tf.config.threading.set_intra_op_parallelism_threads(problem.threads)
        tf.config.threading.set_inter_op_parallelism_threads(problem.threads)
        self._network = Network(problem)
        self._velocity = {name: tf.Variable(tf.zeros_like(value)) for name, value in self._network.trainable.items()}
        self._batch = tf.constant(problem.x.transpose(TO_NHWC)), tf.constant(problem.y)

    def phase(self, name: str) -> Run:
        """Return a function that runs the phase on the batch as one tf.function."""
        phases = {"forward": self._network.loss, "gradients": self._gradients, "step": self._step}
        function = tf.function(phases[name], jit_compile=self._jit)

        def run() -> float:
            results = function(*self._batch)
            # The phase "gradients" also returns the gradients, so that TensorFlow does not prune their computation.
            return float(results[0] if isinstance(results, tuple) else results)

        return run

    def _gradients(self, x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            loss = self._network.loss(x, y)
        return loss, tape.gradient(loss, list(self._network.trainable.values()))

    def _step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss, gradients = self._gradients(x, y)
        for (name, variable), gradient in zip(self._network.trainable.items(), gradients, strict=True):
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=variable.handle,
                accum=self._velocity[name].handle,
                lr=self._problem.learning_rate,
                grad=gradient,
                momentum=self._problem.momentum,
            )
        self._network.advance()
        return loss


if __name__ == "__main__":
    serve(TensorFlow(sys.argv[1], load_problem(Path(sys.argv[2]))))
