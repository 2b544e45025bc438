"""What a run on this machine pretends: slow links between its processes, and slow workers."""

from __future__ import annotations

from dataclasses import dataclass, field

from runner.engine.links import Link
from runner.engine.stragglers import Stragglers
from runner.engine.transport.names import WORKER_ROLE, split_name


@dataclass(frozen=True)
class Emulation:
    """Waits that a session adds to every transfer between processes and to training steps; it changes no value."""

    link: Link = field(default_factory=Link)
    stragglers: Stragglers = field(default_factory=Stragglers)

    def __str__(self) -> str:
        return f"{self.link}, {self.stragglers}"

    def delay_s(self, process: str, step: int) -> float:
        """Seconds that a process waits before a step of a client that slow workers slow; servers do not wait."""
        role, index = split_name(process)
        return self.stragglers.delay_s(index, step) if role == WORKER_ROLE else 0.0
