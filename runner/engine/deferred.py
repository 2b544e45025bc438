"""Deferred clients: their parts begin one by one, each when all it receives is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from runner.engine.plan import DevicePlan
from runner.engine.program import Client
from runner.errors import RunnerError


def received_bytes(plan: DevicePlan) -> dict[str, int]:
    """Bytes that a device receives in a step, by the device that sends them."""
    received: dict[str, int] = {}
    for instruction in plan.instructions:
        if instruction.op == "recv":
            source = instruction.attributes["source"]
            nbytes = plan.slots[instruction.outputs[0]].spec.nbytes
            received[source] = received.get(source, 0) + nbytes
    return received


def require_one_way(client: str, plans: Mapping[str, DevicePlan]) -> None:
    """Raise RunnerError where parts of a deferred client would wait for one another for ever.

    A part waits for all that it receives before it sends anything, so no tensor may lead back to a device that one
    has come from.
    """
    waiting = {device: set(received_bytes(plan)) for device, plan in plans.items()}
    while begun := {device for device, sources in waiting.items() if not sources}:
        waiting = {device: sources - begun for device, sources in waiting.items() if device not in begun}
    if waiting:
        raise RunnerError(
            f"client {client!r} is deferred, but {', '.join(sorted(waiting))} would wait for what comes of what they "
            "send themselves: make two clients of it"
        )


def require_launchable(client: Client, under_way: Collection[str]) -> None:
    """Raise RunnerError unless a client can be launched beside those that are under way."""
    if not client.deferred:
        raise RunnerError(f"client {client.name!r} was launched, but is not deferred: run it")
    if client.name in under_way:
        raise RunnerError(f"client {client.name!r} was launched, but is under way: wait until it has finished")


def require_settled(what: str, under_way: Collection[str]) -> None:
    """Raise RunnerError where clients are under way and something happened, ``what``, that goes on alone."""
    if under_way:
        raise RunnerError(f"{what} while {', '.join(sorted(under_way))} are under way: let them end")
