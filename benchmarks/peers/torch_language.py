"""Training steps of the LSTM language model in PyTorch; prints the seconds of each step (see benchmarks.language)."""

import sys
import time

import torch

threads, clock, words, units, rows, steps, updates = (sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]


class Network(torch.nn.Module):
    """An embedding, two layers of long short-term memory, and a dense layer."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(words, units)
        self.lstm = torch.nn.LSTM(units, units, 2)
        self.dense = torch.nn.Linear(units, words)

    def forward(self, x, state):
        h, state = self.lstm(self.embedding(x), state)
        return self.dense(h.view(-1, units)), state


torch.set_num_threads(int(threads))
network = Network()
optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
x, y = torch.randint(0, words, (steps, rows)), torch.randint(0, words, (steps * rows,))
state = (torch.zeros(2, rows, units), torch.zeros(2, rows, units))
for _ in range(updates):
    begun = now()
    optimizer.zero_grad()
    logits, state = network(x, tuple(each.detach() for each in state))
    loss = torch.nn.functional.cross_entropy(logits, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 5.0)
    optimizer.step()
    loss.item()
    print(now() - begun)
