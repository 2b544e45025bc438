"""Time PyTorch on a GPU: ``python -m benchmarks.peers.torch_gpu_peer DEVICE PRECISION MODE FOLDER``.

DEVICE is "cuda", or "cpu" to try the benchmark; PRECISION "float32", "tf32" or "bfloat16"; MODE one of :data:`MODES`.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the framework's own idiom

from benchmarks.peers.torch_peer import Network
from benchmarks.problem import Problem, load_problem
from benchmarks.protocol import Run, peak_memory_mib, serve

MODES = ("channels-last", "graph", "reduce-overhead", "max-autotune")
"""Eager; eager, with a whole phase captured as one CUDA graph; and the two modes of torch.compile with CUDA graphs."""

GRAPH_WARM_UP = 3
"""Number of warm-up runs before a capture, which PyTorch requires. Libraries choose their algorithms in these runs."""


def set_precision(precision: str) -> None:
    """Allow or forbid tf32 (products of factors with 10-bit mantissas) in matrix products and in convolutions."""
    allowed = precision == "tf32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


class TorchGpu:
    """One mode of PyTorch on one problem, with channels last. The batch stays on the GPU."""

    versions: Mapping[str, str] = {"torch": torch.__version__}

    def __init__(self, device: str, precision: str, mode: str, problem: Problem) -> None:
        if mode not in MODES:
            raise ValueError(f"mode {mode!r}: expected one of {', '.join(MODES)}")
        self._device, self._precision, self._mode, self._problem = device, precision, mode, problem

    def load(self) -> None:
        set_precision(self._precision)
        torch.backends.cudnn.benchmark = True
        problem, kind = self._problem, torch.channels_last
        self._network = Network(problem).to(self._device).to(memory_format=kind).train()
        self._x = torch.from_numpy(problem.x).to(self._device).contiguous(memory_format=kind)
        self._y = torch.from_numpy(problem.y).to(self._device)
        self._optimizer = torch.optim.SGD(
            self._network.parameters(), lr=problem.learning_rate, momentum=problem.momentum, fused=True
        )
        for parameter in self._network.parameters():
            # :meth:`_captured` saves and restores this state, so it must exist before the first step.
            self._optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        compiled = self._mode in ("reduce-overhead", "max-autotune")
        self._loss = torch.compile(self._eager_loss, mode=self._mode) if compiled else self._eager_loss

    def phase(self, name: str) -> Run:
        """Return a function that runs the phase on the batch and waits for the loss."""
        work = {"forward": self._forward, "gradients": self._gradients, "step": self._step}[name]
        if self._mode == "graph":
            return self._captured(work)

        def run() -> float:
            if self._mode != "channels-last":
                torch.compiler.cudagraph_mark_step_begin()
            loss = work()
            self._optimizer.zero_grad()
            return float(loss.item())

        return run

    def memory_mib(self) -> float:
        """Return PyTorch's peak GPU memory or, without a GPU, the peak memory of the process."""
        if self._device == "cpu":
            return peak_memory_mib()
        reserved: int = torch.cuda.max_memory_reserved()
        return reserved / 2**20

    def _eager_loss(self, x: Tensor, y: Tensor) -> Tensor:
        narrow = self._precision == "bfloat16"
        with torch.autocast(self._device, torch.bfloat16) if narrow else contextlib.nullcontext():
            logits = self._network(x)
        return F.cross_entropy(logits.float(), y)

    def _forward(self) -> Tensor:
        with torch.no_grad():
            return self._loss(self._x, self._y)

    def _gradients(self) -> Tensor:
        loss = self._loss(self._x, self._y)
        loss.backward()
        return loss.detach()

    def _step(self) -> Tensor:
        loss = self._gradients()
        self._optimizer.step()
        return loss

    def _captured(self, work: Callable[[], Tensor]) -> Run:
        """Capture a phase for replay, then restore the state that the warm-up runs changed."""
        state = self._state()
        before = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(GRAPH_WARM_UP):
                work()
                self._optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = work()
        with torch.no_grad():
            for tensor, value in zip(state, before, strict=True):
                tensor.copy_(value)

        def run() -> float:
            graph.replay()
            return float(loss.item())

        return run

    def _state(self) -> list[Tensor]:
        """Return the tensors that a step changes: parameters, moving averages and velocities."""
        velocities = [state["momentum_buffer"] for state in self._optimizer.state.values()]
        return [*self._network.parameters(), *self._network.buffers(), *velocities]


if __name__ == "__main__":
    device, precision, mode, folder = sys.argv[1:]
    subject = TorchGpu(device, precision, mode, load_problem(Path(folder)))
    serve(subject, subject.memory_mib)
