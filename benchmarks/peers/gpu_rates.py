"""Measure the peak rates of a GPU: ``python -m benchmarks.peers.gpu_rates DEVICE``.

The phases are matrix products by PyTorch in each precision, and "copy", a copy within the GPU's memory.
"""

import sys
from collections.abc import Callable, Mapping

import torch

from benchmarks.peers.gpu_sizes import COPY, REPEATS, copied, side
from benchmarks.peers.torch_gpu_peer import set_precision
from benchmarks.protocol import Run, serve


class GpuRates:
    """Kernels that run close to the peak rates of the GPU."""

    versions: Mapping[str, str] = {"torch": torch.__version__}

    def __init__(self, device: str) -> None:
        self._device = device

    def load(self) -> None:
        """Do nothing: every phase creates its operands."""

    def phase(self, name: str) -> Run:
        """Return a function that runs a phase once and returns 0 as its loss."""
        work = self._copy() if name == COPY else self._product(name)

        def run() -> float:
            for _ in range(REPEATS):
                work()
            if self._device != "cpu":
                torch.cuda.synchronize()
            return 0.0

        return run

    def _product(self, precision: str) -> Callable[[], object]:
        dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        n = side(self._device)
        # Random matrices: at its power limit, a GPU multiplies constant matrices faster, because fewer bits change.
        a, b = (torch.randn(n, n, device=self._device).to(dtype) for _ in range(2))
        c = torch.empty_like(a)

        def work() -> None:
            set_precision(precision)
            torch.mm(a, b, out=c)

        return work

    def _copy(self) -> Callable[[], object]:
        source = torch.zeros(copied(self._device), dtype=torch.uint8, device=self._device)
        target = torch.empty_like(source)
        return lambda: target.copy_(source)


if __name__ == "__main__":
    serve(GpuRates(sys.argv[1]))
