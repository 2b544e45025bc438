"""The closed set of messages between the processes of a run: each kind is one dataclass, and its schema.

One document frame follows the header of some kinds. :mod:`runner.engine.cluster.transport.header` encodes messages.
"""

from __future__ import annotations

import traceback as traceback_module
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from runner.engine.cluster.transport.names import DEVICE_ROLES, HEARTBEAT_ROLES, MASTER_ROLE, ROLES
from runner.engine.cluster.transport.references import ArenaTensor
from runner.system.schema import Integer, MapOf, Number, OneOf, Record, Text
from runner.system.text import ascii_only

MAX_NAME = 512
MAX_ERROR_TEXT = 4096
MAX_TRACEBACK = 16 * 2**10

LONGEST_WAIT_S = 200.0
"""Longest delay that one process may impose on another; shorter than the limit after which a step counts as stuck."""

SETUP, LOAD, STEP, IDLE = SECTIONS = ("setup", "load", "step", "idle")
"""Sections of a worker's main loop, reported by its heartbeats."""

Index = Annotated[int, Integer()]
Step = Annotated[int, Integer()]
PlanId = Annotated[str, Text(64)]
Name = Annotated[str, Text(MAX_NAME)]
Section = Annotated[str, OneOf(SECTIONS)]
Numbers = Annotated[Mapping[str, float], MapOf(Text(MAX_NAME), Number(), 64)]


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all kinds. senders: roles that may send it. has_document: whether one document frame follows."""

    kind: ClassVar[str]
    senders: ClassVar[tuple[str, ...]]
    has_document: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """The first message of every connection: the caller's name, proved by the run's token.

    The token is cleared before the message is delivered, so that it cannot end up in a log.
    """

    kind: ClassVar[str] = "hello"
    senders: ClassVar[tuple[str, ...]] = ROLES
    role: Annotated[str, OneOf(ROLES)]
    index: Index
    pid: Annotated[int, Integer(low=1)]
    token: Annotated[str, Text(128)]


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """The master has accepted this worker."""

    kind: ClassVar[str] = "welcome"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)


@dataclass(frozen=True, slots=True)
class Setup(Message):
    """The setup document of a worker, sent once; see ``worker_setup``."""

    kind: ClassVar[str] = "setup"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)
    has_document: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Load(Message):
    """A plan to store under the name ``plan``; the document is the receiver's assignment."""

    kind: ClassVar[str] = "load"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)
    has_document: ClassVar[bool] = True
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Loaded(Message):
    """The plan is bound and its arenas are open: their files may be unlinked."""

    kind: ClassVar[str] = "loaded"
    senders: ClassVar[tuple[str, ...]] = DEVICE_ROLES
    plan: PlanId


@dataclass(frozen=True, slots=True)
class Run(Message):
    """Execute one step of a plan: the one message from the master to each worker per step.

    delay_s: seconds to wait before the step, to emulate a slow worker.
    """

    kind: ClassVar[str] = "run"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)
    plan: PlanId
    step: Step
    delay_s: Annotated[float, Number(low=0.0, high=LONGEST_WAIT_S)] = 0.0


@dataclass(frozen=True, slots=True)
class Launch(Message):
    """Execute one step of a plan as soon as all tensors that it receives are there; other steps may go first.

    delay_s: see :class:`Run`; the delay begins when the worker reads the message, also during another step, and
    tensors may arrive meanwhile.
    """

    kind: ClassVar[str] = "launch"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)
    plan: PlanId
    step: Step
    delay_s: Annotated[float, Number(low=0.0, high=LONGEST_WAIT_S)] = 0.0


@dataclass(frozen=True, slots=True)
class Done(Message):
    """The worker has finished the step and no longer reads any of its tensors."""

    kind: ClassVar[str] = "done"
    senders: ClassVar[tuple[str, ...]] = DEVICE_ROLES
    plan: PlanId
    step: Step
    stats: Numbers


@dataclass(frozen=True, slots=True)
class StartTrace(Message):
    """Record the plans listed in the document, from their next step on."""

    kind: ClassVar[str] = "start-trace"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)
    has_document: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class StopTrace(Message):
    """Stop recording and send the spans."""

    kind: ClassVar[str] = "stop-trace"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)


@dataclass(frozen=True, slots=True)
class Traced(Message):
    """The recorded spans as a document."""

    kind: ClassVar[str] = "traced"
    senders: ClassVar[tuple[str, ...]] = DEVICE_ROLES
    has_document: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class TensorReady(Message):
    """The value of a Send, for the Recv with the same (plan, step, key).

    due: earliest time of delivery in seconds of CLOCK_MONOTONIC, which all processes of a machine share; 0 for now.
    The receiver refuses a time more than ``LONGEST_WAIT_S`` away.
    """

    kind: ClassVar[str] = "tensor"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE, *DEVICE_ROLES)
    plan: PlanId
    step: Step
    key: Name
    reference: Annotated[ArenaTensor, Record(ArenaTensor)]
    due: Annotated[float, Number(low=0.0)] = 0.0


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The current section and step of a worker's main loop, sent by its heartbeat thread."""

    kind: ClassVar[str] = "heartbeat"
    senders: ClassVar[tuple[str, ...]] = HEARTBEAT_ROLES
    section: Section
    step: Step


@dataclass(frozen=True, slots=True)
class Failed(Message):
    """The worker has failed. node: graph node at fault, "" if none."""

    kind: ClassVar[str] = "failed"
    senders: ClassVar[tuple[str, ...]] = DEVICE_ROLES
    error: Annotated[str, Text(128)]
    text: Annotated[str, Text(MAX_ERROR_TEXT)]
    traceback: Annotated[str, Text(MAX_TRACEBACK)]
    node: Name

    @classmethod
    def of(cls, error: BaseException, node: str = "") -> Failed:
        """Describe an exception, cut so that it always fits into a header."""
        lines = "".join(traceback_module.format_exception(error))
        return cls(
            error=ascii_only(type(error).__name__)[:128],
            text=ascii_only(str(error))[:MAX_ERROR_TEXT],
            traceback=ascii_only(lines)[-MAX_TRACEBACK:],
            node=ascii_only(node)[:MAX_NAME],
        )


@dataclass(frozen=True, slots=True)
class Shutdown(Message):
    """Exit the main loop."""

    kind: ClassVar[str] = "shutdown"
    senders: ClassVar[tuple[str, ...]] = (MASTER_ROLE,)


@dataclass(frozen=True, slots=True)
class Bye(Message):
    """The worker exits after Shutdown; its exit is no failure."""

    kind: ClassVar[str] = "bye"
    senders: ClassVar[tuple[str, ...]] = DEVICE_ROLES


KINDS: Mapping[str, type[Message]] = {
    message_type.kind: message_type
    for message_type in (
        Hello,
        Welcome,
        Setup,
        Load,
        Loaded,
        Run,
        Launch,
        Done,
        StartTrace,
        StopTrace,
        Traced,
        TensorReady,
        Heartbeat,
        Failed,
        Shutdown,
        Bye,
    )
}
