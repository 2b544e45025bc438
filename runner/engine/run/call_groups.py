"""Call groups: the instructions of a step, fused into as few calls as possible or called one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from runner.kernels.platform import Platform, Work


@dataclass(frozen=True)
class CallGroup:
    """One call: neighbouring calls that the platform has fused, or the function of a single instruction.

    call: returns 0 on success; after a failure, 1 + the number of the failed part in the upper bits and its status in
    the lower 16. instructions: position of the instruction of each part. reason: describes a failed part and its
    status. late: returns the same code as ``call`` for a failure that occurred after ``call`` had returned.
    """

    call: Callable[[], int | None]
    instructions: tuple[int, ...]
    reason: Callable[[int, int], str] | None = None
    late: Callable[[], int] | None = None


def join_calls(platform: Platform, works: Sequence[Work]) -> list[CallGroup]:
    """Fuse neighbouring calls that the platform can join. works: one for each instruction, in order."""
    call_groups: list[CallGroup] = []
    for is_joinable, group in groupby(enumerate(works), lambda each: platform.joinable(each[1].call)):
        if is_joinable:
            call_groups.append(_call_group(platform, list(group)))
        else:
            call_groups += [_call_group(platform, [each]) for each in group]
    return call_groups


def separate_calls(platform: Platform, works: Sequence[Work]) -> list[CallGroup]:
    """Make one call for each instruction, so that each can be timed or checked."""
    return [_call_group(platform, [each], once=True) for each in enumerate(works)]


def _call_group(platform: Platform, works: Sequence[tuple[int, Work]], *, once: bool = False) -> CallGroup:
    (first, work), *_ = works
    if callable(work.call):
        return CallGroup(work.call, (first,))
    together = platform.join([each for _, each in works], once=once)
    positions = tuple(works[owner][0] for owner in together.owners)
    return CallGroup(together.call, positions, together.reason, together.late)
