"""Training steps of the LSTM language model in JAX; prints the seconds of each step (see benchmarks.language)."""

import os
import sys
import time

threads, clock, words, units, rows, steps, updates = (sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
# XLA makes one thread for each core that the process may use when JAX is imported.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402

now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]


def layer(weights, inputs, state):
    """Return the outputs of all steps and the last state of one layer of long short-term memory."""
    projected = inputs @ weights["input"] + weights["bias"]

    def cell(state, projected):
        h, c = state
        i, f, g, o = jnp.split(projected + h @ weights["recurrent"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    state, outputs = lax.scan(cell, state, projected)
    return outputs, state


def loss(weights, x, y, states):
    """Return the mean cross-entropy and the states after the last step."""
    h, last = weights["embedding"][x], []
    for each, state in zip(weights["layers"], states, strict=True):
        h, state = layer(each, h, state)
        last.append(state)
    logits = h.reshape(-1, units) @ weights["dense"] + weights["bias"]
    chosen = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen), last


def step(weights, x, y, states):
    """Return the updated weights, the states and the loss: SGD with the gradients clipped by their global norm."""
    (value, states), gradients = jax.value_and_grad(loss, has_aux=True)(weights, x, y, states)
    norm = jnp.sqrt(sum(jnp.sum(each * each) for each in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1.0, 5.0 / (norm + 1e-6))
    return jax.tree.map(lambda each, gradient: each - scale * gradient, weights, gradients), states, value


keys = iter(jax.random.split(jax.random.key(0), 16))


def normal(*shape):
    return 0.05 * jax.random.normal(next(keys), shape)


weights = {
    "embedding": normal(words, units),
    "layers": [
        {"input": normal(units, 4 * units), "recurrent": normal(units, 4 * units), "bias": jnp.zeros(4 * units)}
        for _ in range(2)
    ],
    "dense": normal(units, words),
    "bias": jnp.zeros(words),
}
states = [(jnp.zeros((rows, units)), jnp.zeros((rows, units))) for _ in range(2)]
x = jax.random.randint(next(keys), (steps, rows), 0, words)
y = jax.random.randint(next(keys), (steps * rows,), 0, words)
compiled = jax.jit(step, donate_argnums=(0, 3))
for _ in range(updates):
    begun = now()
    weights, states, value = compiled(weights, x, y, states)
    jax.block_until_ready((weights, states, value))
    print(now() - begun)
