"""The measured implementations (subjects): runner and the libraries that it is compared with (peers)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SubjectSpec:
    """The command of a benchmark process: ``python -m module *arguments`` in an environment.

    environment: a key of :data:`benchmarks.environments.REQUIREMENTS`, or "" for runner's environment.
    """

    name: str
    environment: str
    module: str
    arguments: tuple[str, ...] = ()

    def on(self, problem: str) -> "SubjectSpec":
        """Return the command with the folder of a problem as its last argument."""
        return SubjectSpec(self.name, self.environment, self.module, (*self.arguments, problem))


OURS = SubjectSpec("runner", "", "benchmarks.ours")


_VARIANTS = {
    "torch": ("eager", "channels-last", "compile", "compile-channels-last"),
    "jax": ("nchw", "nhwc"),
    "tensorflow": ("graph", "xla"),
}
PEERS = tuple(
    SubjectSpec(f"{framework}-{variant}", framework, f"benchmarks.peers.{framework}_peer", (variant,))
    for framework, variants in _VARIANTS.items()
    for variant in variants
)
"""The peers with which runner is compared in the training of networks."""

DDP = SubjectSpec("torch-ddp", "torch", "benchmarks.peers.torch_ddp_peer", ("2",))
"""Data-parallel training in PyTorch with two workers."""

EXCHANGE_OURS = SubjectSpec("runner", "", "benchmarks.exchange")

EXCHANGE_PEERS = (
    SubjectSpec("mpi", "mpi", "benchmarks.peers.exchange_peer", ("mpi",)),
    SubjectSpec("gloo", "torch", "benchmarks.peers.exchange_peer", ("gloo",)),
)
"""The peers with which runner is compared in collectives."""
