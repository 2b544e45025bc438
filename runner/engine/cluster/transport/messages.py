"""The closed set of messages between the processes of a run: each kind is a dataclass that also defines its schema.

:mod:`runner.engine.cluster.transport.encoding` encodes a message as a header and, for some kinds, one document frame.

Peers are named ``<role>-<index>``, such as ``master-0``, ``worker-3`` and ``ps-0``. A process that runs a device is
named after the device's job and task: ``/job:ps/task:0`` runs in ``ps-0``. A spare process, such as ``spare-0``, runs
no device until it takes the name of a lost process. The heartbeat thread of a process is a separate peer, such as
``ps_heartbeat-0``, because the thread has a separate connection.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from runner.errors import RunnerError
from runner.system.schema import Integer, ListOf, MapOf, Number, OneOf, Text
from runner.system.text import ascii_only

MASTER_ROLE = "master"
WORKER_ROLE = "worker"
SERVER_ROLE = "ps"
DEVICE_ROLES = (WORKER_ROLE, SERVER_ROLE)  # roles of the processes that run devices; both run the same program
SPARE_ROLE = "spare"
STARTED_ROLES = (*DEVICE_ROLES, SPARE_ROLE)  # roles of the processes that a launcher starts
_HEARTBEAT = "_heartbeat"
HEARTBEAT_ROLES = tuple(role + _HEARTBEAT for role in STARTED_ROLES)
ROLES = (MASTER_ROLE, *STARTED_ROLES, *HEARTBEAT_ROLES)
MASTER = f"{MASTER_ROLE}-0"
_NAME = re.compile(rf"({'|'.join(ROLES)})-(0|[1-9][0-9]{{0,5}})")


def peer_name(role: str, index: int) -> str:
    """Return the name of peer ``index`` of ``role``; raises ValueError if it is not a valid peer name."""
    name = f"{role}-{index}"
    split_name(name)
    return name


def split_name(name: str) -> tuple[str, int]:
    """Return (role, index) of a peer's name; raises ValueError if it is malformed."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"peer name {name[:80]!a}: expected <role>-<index> with a role of {', '.join(ROLES)}")
    return match[1], int(match[2])


def count_role(names: Iterable[str], role: str) -> int:
    """Return how many of these peers have a role."""
    return sum(split_name(name)[0] == role for name in names)


def process_names(workers: int, servers: int = 0) -> list[str]:
    """Return the names of all processes of a run except the master: workers first, then parameter servers."""
    counts = {WORKER_ROLE: workers, SERVER_ROLE: servers}
    return [peer_name(role, index) for role, count in counts.items() for index in range(count)]


def spare_names(count: int) -> list[str]:
    """Return the names of the spare processes of a run."""
    return [peer_name(SPARE_ROLE, index) for index in range(count)]


def is_spare(name: str) -> bool:
    """Return whether ``name`` is the name of a spare process."""
    return name.startswith(f"{SPARE_ROLE}-")


def heartbeat_role(role: str) -> str:
    """Return the role of the heartbeat thread of a process that has the role ``role``."""
    return role + _HEARTBEAT


def heartbeat_of(process: str) -> str:
    """Return the peer name of the heartbeat thread of a process."""
    role, index = split_name(process)
    return peer_name(heartbeat_role(role), index)


def process_of(name: str) -> str:
    """Return the name of the process in which peer ``name``, possibly a heartbeat thread, runs."""
    role, index = split_name(name)
    return peer_name(role.removesuffix(_HEARTBEAT), index)


MAX_PROCESSES = 2**20
MAX_NAME = 512
MAX_ERROR_TEXT = 4096
MAX_LANES = 16
FRAME_BYTES = 256 * 2**10  # most bytes in one frame, so that a frame is encrypted while others are sent
PART_BYTES = 4 * FRAME_BYTES  # most bytes of tensors in one message
MAX_TENSORS = 1024  # in one message
LONGEST_WAIT_S = 200.0  # longest delay in seconds that a message may request; shorter than the limit for a stuck step
MOST_STEPS = 32  # largest number of steps that the master requests by one message

SETUP, LOAD, STEP, IDLE = SECTIONS = ("setup", "load", "step", "idle")
"""Sections of a worker's main loop, which its heartbeats report."""

MASTERS = (MASTER_ROLE,)

Index = Annotated[int, Integer()]
Step = Annotated[int, Integer()]
PlanId = Annotated[str, Text(64)]
TransferKeys = Annotated[tuple[str, ...], ListOf(Text(MAX_NAME), MAX_TENSORS, 1)]
Section = Annotated[str, OneOf(SECTIONS)]
Facts = Annotated[Mapping[str, str], MapOf(Text(MAX_NAME), Text(MAX_NAME), 300)]
Numbers = Annotated[Mapping[str, float], MapOf(Text(MAX_NAME), Number(), 64)]


KINDS: "dict[str, type[Message]]" = {}  # the message class of each kind


class Message:
    """The base of all messages. senders: roles that may send this kind.

    has_document: whether a frame follows the header: a document or, for :class:`TensorsPart`, bytes of tensors.
    """

    kind: ClassVar[str]
    senders: ClassVar[tuple[str, ...]]
    has_document: ClassVar[bool]

    def __init_subclass__(cls, *, kind: str, senders: tuple[str, ...], has_document: bool = False) -> None:
        cls.kind, cls.senders, cls.has_document = kind, senders, has_document
        KINDS[kind] = cls


@dataclass(frozen=True)
class Hello(Message, kind="hello", senders=ROLES):
    """The first message of every connection: the caller's name, authenticated by the run's token.

    The token is cleared before the message is delivered, so that it cannot end up in a log. lane: number of the
    connection, from 0 for each caller. A worker that joins the run also sends ``address``, the address of its
    inbox, and ``facts``, which the master compares with its own: see ``joining``.
    """

    role: Annotated[str, OneOf(ROLES)]
    index: Index
    pid: Annotated[int, Integer(low=1)]
    token: Annotated[str, Text(128)]
    lane: Annotated[int, Integer(high=MAX_LANES)] = 0
    address: Annotated[str, Text(256)] = ""
    facts: Facts = field(default_factory=dict)


@dataclass(frozen=True)
class Refused(Message, kind="refused", senders=MASTERS):
    """The answer to a refused hello, sent back on the connection of the hello."""

    reason: Annotated[str, Text(MAX_ERROR_TEXT)]


@dataclass(frozen=True)
class Welcome(Message, kind="welcome", senders=MASTERS):
    """The notice that the master has accepted this worker."""


@dataclass(frozen=True)
class Replace(Message, kind="replace", senders=MASTERS, has_document=True):
    """The request to a spare process to join the run again in place of a lost process, whose new ticket follows.

    log: path of the log to which the spare process writes from now on; "" if its output is not redirected.
    """

    log: Annotated[str, Text(4096)] = ""


@dataclass(frozen=True)
class Setup(Message, kind="setup", senders=MASTERS, has_document=True):
    """The setup document of a worker, sent once; see ``worker_setup``. A spare process prepares with it."""


@dataclass(frozen=True)
class Load(Message, kind="load", senders=MASTERS, has_document=True):
    """A plan to load under the name ``plan``; the document is the receiver's ``Assignment`` (its part of the plan).

    A spare process prepares with the assignment of another process.
    """

    plan: PlanId


@dataclass(frozen=True)
class Loaded(Message, kind="loaded", senders=DEVICE_ROLES):
    """The notice that the plan is ready to run and that its arenas are open."""

    plan: PlanId


@dataclass(frozen=True)
class Abandon(Message, kind="abandon", senders=MASTERS):
    """The request to end all running steps and drop all tensors, because processes were lost.

    begins: number of the epoch that begins. lost: names of the lost processes; new ones take their places.
    """

    begins: Annotated[int, Integer()]
    lost: Annotated[tuple[str, ...], ListOf(Text(32), MAX_PROCESSES)]


@dataclass(frozen=True)
class Abandoned(Message, kind="abandoned", senders=DEVICE_ROLES):
    """The answer to :class:`Abandon`: the first message of this worker in the new epoch."""


@dataclass(frozen=True)
class Moved(Message, kind="moved", senders=MASTERS):
    """The addresses of the inboxes of new processes that have taken the places of lost ones on other hosts."""

    addresses: Annotated[Mapping[str, str], MapOf(Text(32), Text(256), MAX_PROCESSES)]


@dataclass(frozen=True)
class Run(Message, kind="run", senders=MASTERS):
    """The request to execute consecutive steps of a plan. With shared memory, the master sends nothing else for them.

    step: the first step. delay_s: seconds to wait before this step, to emulate a slow worker. count: number of steps.
    """

    plan: PlanId
    step: Step
    delay_s: Annotated[float, Number(low=0.0, high=LONGEST_WAIT_S)] = 0.0
    count: Annotated[int, Integer(low=1, high=MOST_STEPS)] = 1


@dataclass(frozen=True)
class Launch(Message, kind="launch", senders=MASTERS):
    """The request to execute one step once all tensors that the step receives have arrived; other steps may run first.

    delay_s: see :class:`Run`. The delay begins when the message is read, even during another step.
    """

    plan: PlanId
    step: Step
    delay_s: Annotated[float, Number(low=0.0, high=LONGEST_WAIT_S)] = 0.0


@dataclass(frozen=True)
class Done(Message, kind="done", senders=DEVICE_ROLES):
    """The notice that the worker no longer reads tensors of a step, or of a series up to it. stats: name -> number."""

    plan: PlanId
    step: Step
    stats: Numbers


@dataclass(frozen=True)
class StartTrace(Message, kind="start-trace", senders=MASTERS, has_document=True):
    """The request to record spans of the plans listed in the document, from their next step on."""


@dataclass(frozen=True)
class StopTrace(Message, kind="stop-trace", senders=MASTERS):
    """The request to stop recording and send the spans."""


@dataclass(frozen=True)
class Traced(Message, kind="traced", senders=DEVICE_ROLES, has_document=True):
    """The recorded spans as a document."""


@dataclass(frozen=True)
class AskTime(Message, kind="ask-time", senders=MASTERS):
    """The request for the time of this worker's clock. asked_ns: the master's monotonic time."""

    asked_ns: Annotated[int, Integer()]


@dataclass(frozen=True)
class Time(Message, kind="time", senders=DEVICE_ROLES):
    """The answer to :class:`AskTime`. now_ns: the worker's monotonic time."""

    asked_ns: Annotated[int, Integer()]
    now_ns: Annotated[int, Integer()]


@dataclass(frozen=True)
class TensorsReady(Message, kind="tensors", senders=(MASTER_ROLE, *DEVICE_ROLES)):
    """The notice that tensors are in the sender's arena, in the slots that the plan gives to their keys.

    keys: the tensors, for the recv nodes with the same plan, step and key. due: earliest time of delivery in seconds of
    CLOCK_MONOTONIC, which all processes of a machine share; 0 for no delay. The receiver rejects a time more than
    ``LONGEST_WAIT_S`` in the future.
    """

    plan: PlanId
    step: Step
    keys: TransferKeys
    due: Annotated[float, Number(low=0.0)] = 0.0


@dataclass(frozen=True)
class TensorsPart(Message, kind="part", senders=(MASTER_ROLE, *DEVICE_ROLES), has_document=True):
    """A part of the bytes of tensors for a process that does not share memory with the sender, in the frames.

    The bytes of all tensors follow one another in the order of ``keys``. start: position of the part in these bytes, a
    multiple of ``PART_BYTES``. The parts may arrive in any order. The other fields: see :class:`TensorsReady`.
    """

    plan: PlanId
    step: Step
    keys: TransferKeys
    start: Annotated[int, Integer()]
    due: Annotated[float, Number(low=0.0)] = 0.0


@dataclass(frozen=True)
class Heartbeat(Message, kind="heartbeat", senders=HEARTBEAT_ROLES):
    """The current section and step of a worker's main loop, sent by its heartbeat thread."""

    section: Section
    step: Step


@dataclass(frozen=True)
class Log(Message, kind="log", senders=HEARTBEAT_ROLES):
    """Log lines of a worker over TCP, sent by its heartbeat thread."""

    lines: Annotated[str, Text(MAX_ERROR_TEXT)]


@dataclass(frozen=True)
class Failed(Message, kind="failed", senders=DEVICE_ROLES):
    """The notice that the worker has failed. The worker's log has the traceback.

    error: name of the error's class or, if it derives from a direct subclass of RunnerError, name of that subclass.
    """

    error: Annotated[str, Text(128)]
    text: Annotated[str, Text(MAX_ERROR_TEXT)]

    @classmethod
    def of(cls, error: BaseException) -> "Failed":
        """Return the message for an exception. Its texts are shortened to fit into a header."""
        kind = next((each for each in type(error).__mro__ if RunnerError in each.__bases__), type(error))
        return cls(ascii_only(kind.__name__)[:128], ascii_only(str(error))[:MAX_ERROR_TEXT])


@dataclass(frozen=True)
class Shutdown(Message, kind="shutdown", senders=MASTERS):
    """The request to exit the main loop. code: exit code of the run. reason: why the run did not finish, or ""."""

    code: Annotated[int, Integer(high=255)] = 0
    reason: Annotated[str, Text(MAX_ERROR_TEXT)] = ""

    @classmethod
    def of(cls, error: BaseException) -> "Shutdown":
        """Return the message for the exception that ended the run."""
        code = 130 if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", RunnerError.exit_code)
        return cls(code, ascii_only(str(error) or type(error).__name__)[:MAX_ERROR_TEXT])


@dataclass(frozen=True)
class Bye(Message, kind="bye", senders=(*DEVICE_ROLES, *HEARTBEAT_ROLES)):
    """The last message of a worker or heartbeat thread after Shutdown; the exit of the process is then no failure."""
