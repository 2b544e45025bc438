"""One rank of Gloo: ``python -m benchmarks.peers.gloo_rank COLLECTIVE WORKERS FOLDER RANK``."""

import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.exchange_protocol import Exchange, Vector
from benchmarks.peers.rank import run_rank


class Gloo:
    """Gloo through torch.distributed with default settings, over the loopback interface."""

    def __init__(self, exchange: Exchange, folder: str, rank: int) -> None:
        torch.set_num_threads(1)
        store = f"file://{Path(folder) / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=exchange.processes)
        self.rank = rank
        self.versions: Mapping[str, str] = {"torch": torch.__version__}

    def close(self) -> None:
        dist.destroy_process_group()

    def barrier(self) -> None:
        dist.barrier()

    def all_reduce(self, vector: Vector) -> None:
        dist.all_reduce(torch.from_numpy(vector))

    def push_pull(self, vector: Vector) -> None:
        server = dist.get_world_size() - 1
        dist.send(torch.from_numpy(vector), server)
        dist.recv(torch.from_numpy(vector), server)

    def serve(self, received: list[Vector], total: Vector) -> None:
        parts, whole = [torch.from_numpy(each) for each in received], torch.from_numpy(total)
        for request in [dist.irecv(part, k) for k, part in enumerate(parts)]:
            request.wait()
        torch.add(parts[0], parts[1], out=whole)
        for part in parts[2:]:
            whole.add_(part)
        for request in [dist.isend(whole, k) for k in range(len(parts))]:
            request.wait()


if __name__ == "__main__":
    collective, workers, where, number = sys.argv[1:]
    asked = Exchange.of((collective, workers))
    with closing(Gloo(asked, where, int(number))) as gloo:
        run_rank(gloo, asked, where)
