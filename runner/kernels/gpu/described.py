"""A description of a GPU, with which kernels can be arranged for a plan, but not bound."""

from dataclasses import dataclass
from typing import Any, cast

from runner.kernels.gpu.runtime import Runtime


@dataclass(frozen=True)
class _Plan:
    workspace_bytes: int = 0


class _Library:
    """A library that is present. Without a GPU, the workspace of a convolution is unknown and counts as 0 bytes."""

    def plan(self, convolution: object, room: int | None = None) -> _Plan:
        """Return a plan for any convolution."""
        return _Plan()


@dataclass(frozen=True)
class DescribedGpu:
    """The facts of a GPU that ``arrange`` reads; see :class:`~runner.kernels.gpu.runtime.Runtime`."""

    name: str = "described GPU"
    multiprocessors: int = 132

    def library(self, name: str) -> Any:
        """Return a library that plans everything."""
        return _Library()


def described_gpu() -> Runtime:
    """Return a :class:`DescribedGpu` as a runtime."""
    return cast(Runtime, DescribedGpu())
