"""Training steps of the LSTM language model in TensorFlow; prints the seconds of each (see benchmarks.language)."""

import sys
import time

import tensorflow as tf

variant, threads, clock, words, units, rows, steps, updates = (*sys.argv[1:4], *map(int, sys.argv[4:]))
now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
tf.config.threading.set_intra_op_parallelism_threads(int(threads))
tf.config.threading.set_inter_op_parallelism_threads(1)


def normal(*shape):
    return tf.Variable(tf.random.normal(shape, stddev=0.05))


embedding, dense, bias = normal(words, units), normal(units, words), tf.Variable(tf.zeros(words))
layers = [(normal(units, 4 * units), normal(units, 4 * units), tf.Variable(tf.zeros(4 * units))) for _ in range(2)]
weights = [embedding, dense, bias, *(each for layer in layers for each in layer)]
states = [[tf.Variable(tf.zeros((rows, units))) for _ in range(2)] for _ in layers]


def layer(inputs, state, weights):
    """Return the outputs of all steps and the last state of one layer of long short-term memory."""
    into, recurrent, bias = weights
    projected = tf.unstack(tf.reshape(tf.reshape(inputs, (-1, units)) @ into + bias, (steps, rows, 4 * units)))
    (h, c), outputs = state, []
    for each in projected:
        i, f, g, o = tf.split(each + h @ recurrent, 4, axis=-1)
        c = tf.sigmoid(f) * c + tf.sigmoid(i) * tf.tanh(g)
        h = tf.sigmoid(o) * tf.tanh(c)
        outputs.append(h)
    return tf.stack(outputs), (h, c)


@tf.function(jit_compile=variant == "xla")
def step(x, y):
    """Update the weights by SGD, with the gradients clipped by their global norm, and return the loss."""
    with tf.GradientTape() as tape:
        h, last = tf.gather(embedding, x), []
        for state, of_layer in zip(states, layers, strict=True):
            h, ended = layer(h, tuple(map(tf.convert_to_tensor, state)), of_layer)
            last.append(ended)
        logits = tf.reshape(h, (-1, units)) @ dense + bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, weights), 5.0)
    for weight, gradient in zip(weights, gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            weight.scatter_sub(gradient)
        else:
            weight.assign_sub(gradient)
    for state, ended in zip(states, last, strict=True):
        for variable, value in zip(state, ended, strict=True):
            variable.assign(value)
    return loss


x = tf.random.uniform((steps, rows), 0, words, tf.int32)
y = tf.random.uniform((steps * rows,), 0, words, tf.int32)
for _ in range(updates):
    begun = now()
    step(x, y).numpy()
    print(now() - begun)
