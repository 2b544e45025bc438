"""Time the LSTM language model in TensorFlow; see :mod:`benchmarks.language`.

``python -m benchmarks.peers.tensorflow_language VARIANT WORDS UNITS ROWS STEPS THREADS``. VARIANT is graph or xla.
"""

import sys
from collections.abc import Mapping, Sequence

import tensorflow as tf

from benchmarks.protocol import Run, serve

VARIANTS = {"graph": False, "xla": True}
"""Name -> whether XLA compiles the step (jit_compile)."""

State = tuple[tf.Tensor, tf.Tensor]


def _normal(*shape: int) -> tf.Variable:
    return tf.Variable(tf.random.normal(shape, stddev=0.05))


def _layer(inputs: tf.Tensor, state: State, weights: Sequence[tf.Variable]) -> tuple[tf.Tensor, State]:
    """Return the outputs of all steps and the last state of one layer of long short-term memory."""
    into, recurrent, bias = weights
    (h, c), outputs = state, []
    for projected in tf.unstack(tf.tensordot(inputs, into, 1) + bias):
        i, f, g, o = tf.split(projected + h @ recurrent, 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        outputs.append(h)
    return tf.stack(outputs), (h, c)


class TensorFlowLanguage:
    """The network with random words, as one function; its state is carried from step to step."""

    versions: Mapping[str, str] = {"tensorflow": tf.__version__}

    def __init__(self, variant: str, words: int, units: int, rows: int, steps: int, threads: int) -> None:
        self._sizes = words, units, rows, steps
        self._compiled = VARIANTS[variant]
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)

    def load(self) -> None:
        words, units, rows, steps = self._sizes
        self._embedding, self._dense, self._bias = _normal(words, units), _normal(units, words), _normal(words)
        self._layers = [(_normal(units, 4 * units), _normal(units, 4 * units), _normal(4 * units)) for _ in range(2)]
        self._states = [[tf.Variable(tf.zeros((rows, units))) for _ in range(2)] for _ in self._layers]
        self._x = tf.random.uniform((steps, rows), 0, words, tf.int32)
        self._y = tf.random.uniform((steps * rows,), 0, words, tf.int32)

    def phase(self, name: str) -> Run:
        step = tf.function(self._step, jit_compile=self._compiled)
        return lambda: float(step(self._x, self._y))

    def _step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """Update the weights by SGD, with the gradients clipped by their global norm, and return the loss."""
        weights = [self._embedding, self._dense, self._bias, *(each for layer in self._layers for each in layer)]
        with tf.GradientTape() as tape:
            h, last = tf.gather(self._embedding, x), []
            for (h0, c0), layer in zip(self._states, self._layers, strict=True):
                h, ended = _layer(h, (h0.value(), c0.value()), layer)
                last.append(ended)
            logits = tf.reshape(h, (y.shape[0], -1)) @ self._dense + self._bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 5.0)
        for weight, gradient in zip(weights, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                weight.scatter_sub(gradient)
            else:
                weight.assign_sub(gradient)
        for state, ended in zip(self._states, last, strict=True):
            for variable, value in zip(state, ended, strict=True):
                variable.assign(value)
        return loss


if __name__ == "__main__":
    variant, *sizes = sys.argv[1:]
    serve(TensorFlowLanguage(variant, *map(int, sizes)))
