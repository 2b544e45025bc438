"""What a step calls: the work of its instructions, as few calls as can be, or one for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from runner.kernels.platform import Platform, Work


@dataclass(frozen=True)
class Stretch:
    """What one call runs: neighbouring calls that the platform joined, or the function of one instruction.

    call: returns 0, or 1 + the number of the part that failed in the upper bits and its status in the lower 16.
    instructions: to which each part belongs. late: the same for what failed after ``call`` had returned.
    """

    call: Callable[[], int | None]
    instructions: tuple[int, ...]
    reason: Callable[[int, int], str] | None = None
    late: Callable[[], int] | None = None


def joined(platform: Platform, works: Sequence[Work]) -> list[Stretch]:
    """Run neighbouring calls that the platform can put together as one. works: of all instructions, in their order."""
    stretches: list[Stretch] = []
    for is_joinable, group in groupby(enumerate(works), lambda each: platform.joinable(each[1].call)):
        if is_joinable:
            stretches.append(_stretch(platform, list(group)))
        else:
            stretches += [_stretch(platform, [each]) for each in group]
    return stretches


def apart(platform: Platform, works: Sequence[Work]) -> list[Stretch]:
    """Run every instruction by itself, so that each can be looked at."""
    return [_stretch(platform, [each], once=True) for each in enumerate(works)]


def _stretch(platform: Platform, works: Sequence[tuple[int, Work]], *, once: bool = False) -> Stretch:
    """Of one function, or of the calls of some instructions that can be put together."""
    (first, work), *_ = works
    if callable(work.call):
        return Stretch(work.call, (first,))
    together = platform.join([each for _, each in works], once=once)
    positions = tuple(works[owner][0] for owner in together.owners)
    return Stretch(together.call, positions, together.reason, together.late)
