"""Time data-parallel training in PyTorch: ``python -m benchmarks.peers.torch_ddp_peer WORKERS FOLDER``.

Every worker has the batch of the problem. The process that answers requests is rank 0; it starts the other ranks, which
take a step whenever rank 0 does, because the sum of the gradients waits for all.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from benchmarks.peers.torch_peer import Torch
from benchmarks.problem import Problem, load_problem
from benchmarks.protocol import serve


class Rank(Torch):
    """One rank of DistributedDataParallel over Gloo, with default settings."""

    def __init__(self, problem: Problem, store: str, rank: int, workers: int) -> None:
        super().__init__("eager", problem)
        self._group = {"init_method": f"file://{store}", "rank": rank, "world_size": workers}

    def load(self) -> None:
        """Join the other ranks; create network, batch and optimizer."""
        dist.init_process_group("gloo", **self._group)
        super().load()
        self._network = DistributedDataParallel(self._network)


def follow(rank: Rank) -> None:
    """Take steps until rank 0 ends."""
    rank.load()
    step = rank.phase("step")
    try:
        while True:
            step()
    except RuntimeError as error:
        print(f"rank 0 has ended: {error}", file=sys.stderr)


if __name__ == "__main__":
    count, folder, *given = sys.argv[1:]
    asked = load_problem(Path(folder))
    if given:
        follow(Rank(asked, given[0], int(given[1]), int(count)))
    else:
        with tempfile.TemporaryDirectory(prefix="benchmark-ddp-") as shared:
            command = [sys.executable, "-m", "benchmarks.peers.torch_ddp_peer", count, folder, f"{shared}/store"]
            others = [subprocess.Popen([*command, str(rank)]) for rank in range(1, int(count))]
            try:
                serve(Rank(asked, f"{shared}/store", 0, int(count)))
            finally:
                for other in others:
                    other.kill()
                    other.wait()
