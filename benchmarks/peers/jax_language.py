"""Time the LSTM language model in JAX; see :mod:`benchmarks.language`.

``python -m benchmarks.peers.jax_language WORDS UNITS ROWS STEPS THREADS``. XLA makes one thread for each core on
which the process may run.
"""

import sys
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from jax import Array, lax

from benchmarks.protocol import Run, serve

Values = dict[str, Any]
State = tuple[Array, Array]


def _layer(weights: Values, inputs: Array, state: State) -> tuple[Array, State]:
    """Return the outputs of all steps and the last state of one layer of long short-term memory."""

    def cell(state: State, projected: Array) -> tuple[State, Array]:
        h, c = state
        i, f, g, o = jnp.split(projected + h @ weights["recurrent"], 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    state, outputs = lax.scan(cell, state, inputs @ weights["input"] + weights["bias"])
    return outputs, state


def _loss(weights: Values, x: Array, y: Array, states: list[State]) -> tuple[Array, list[State]]:
    """Return the mean cross-entropy and the states after the last step. x: (steps, rows), y: (steps * rows,)."""
    h, last = weights["embedding"][x], []
    for each, state in zip(weights["layers"], states, strict=True):
        h, ended = _layer(each, h, state)
        last.append(ended)
    logits = h.reshape(len(y), -1) @ weights["dense"] + weights["bias"]
    chosen = jnp.take_along_axis(logits, y[:, None], axis=-1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen), last


def _step(weights: Values, x: Array, y: Array, states: list[State]) -> tuple[Values, list[State], Array]:
    """Return the weights after SGD with gradients clipped by their global norm, the states and the loss."""
    (loss, states), gradients = jax.value_and_grad(_loss, has_aux=True)(weights, x, y, states)
    norm = jnp.sqrt(sum(jnp.sum(each * each) for each in jax.tree.leaves(gradients)))
    scale = jnp.minimum(1.0, 5.0 / norm)
    return jax.tree.map(lambda each, gradient: each - scale * gradient, weights, gradients), states, loss


class JaxLanguage:
    """The network with random words, as one jitted function; its state is carried from step to step."""

    versions: Mapping[str, str] = {"jax": jax.__version__, "jaxlib": jaxlib.__version__}

    def __init__(self, words: int, units: int, rows: int, steps: int, threads: int) -> None:
        self._sizes = words, units, rows, steps

    def load(self) -> None:
        words, units, rows, steps = self._sizes
        keys = iter(jax.random.split(jax.random.key(0), 8))

        def normal(*shape: int) -> Array:
            return 0.05 * jax.random.normal(next(keys), shape)

        def layer() -> Values:
            return {
                "input": normal(units, 4 * units),
                "recurrent": normal(units, 4 * units),
                "bias": jnp.zeros(4 * units),
            }

        self._weights = {
            "embedding": normal(words, units),
            "layers": [layer(), layer()],
            "dense": normal(units, words),
            "bias": jnp.zeros(words),
        }
        self._states = [(jnp.zeros((rows, units)), jnp.zeros((rows, units))) for _ in range(2)]
        self._x = jax.random.randint(next(keys), (steps, rows), 0, words)
        self._y = jax.random.randint(next(keys), (steps * rows,), 0, words)

    def phase(self, name: str) -> Run:
        """Return the training step, which donates the buffers of weights and states to its results."""
        compiled = jax.jit(_step, donate_argnums=(0, 3))

        def run() -> float:
            self._weights, self._states, loss = compiled(self._weights, self._x, self._y, self._states)
            jax.block_until_ready((self._weights, self._states))
            return float(loss)

        return run


if __name__ == "__main__":
    serve(JaxLanguage(*map(int, sys.argv[1:])))
