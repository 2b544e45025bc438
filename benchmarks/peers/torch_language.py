"""Time the LSTM language model in PyTorch; see :mod:`benchmarks.language`.

``python -m benchmarks.peers.torch_language WORDS UNITS ROWS STEPS THREADS``.
"""

import sys
from collections.abc import Mapping

import torch

from benchmarks.protocol import Run, serve

State = tuple[torch.Tensor, torch.Tensor]


class Network(torch.nn.Module):
    """An embedding, two layers of long short-term memory, and a dense layer."""

    def __init__(self, words: int, units: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(words, units)
        self.lstm = torch.nn.LSTM(units, units, 2)
        self.dense = torch.nn.Linear(units, words)

    def forward(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Return the logits (steps * rows, words), and the state after the last step. x: (steps, rows)."""
        h, state = self.lstm(self.embedding(x), state)
        return self.dense(h.flatten(0, 1)), state


class TorchLanguage:
    """The network with random words; its state is carried from step to step."""

    versions: Mapping[str, str] = {"torch": torch.__version__}

    def __init__(self, words: int, units: int, rows: int, steps: int, threads: int) -> None:
        self._sizes = words, units, rows, steps
        torch.set_num_threads(threads)

    def load(self) -> None:
        words, units, rows, steps = self._sizes
        self._network = Network(words, units)
        self._optimizer = torch.optim.SGD(self._network.parameters(), lr=1.0)
        self._x, self._y = torch.randint(0, words, (steps, rows)), torch.randint(0, words, (steps * rows,))
        self._state: State = (torch.zeros(2, rows, units), torch.zeros(2, rows, units))

    def phase(self, name: str) -> Run:
        return self._step

    def _step(self) -> float:
        self._optimizer.zero_grad()
        logits, (h, c) = self._network(self._x, self._state)
        self._state = h.detach(), c.detach()
        loss = torch.nn.functional.cross_entropy(logits, self._y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 5.0)
        self._optimizer.step()
        return float(loss.item())


if __name__ == "__main__":
    serve(TorchLanguage(*map(int, sys.argv[1:])))
