"""``python -m benchmarks tcp``: the rate of 16 MiB tensors over TCP with CURVE, next to that of libzmq alone.

libzmq sends the bytes of a tensor as one message, or in frames of several sizes, from one socket to another, as its own
benchmark (``remote_thr`` and ``local_thr``). runner sends a tensor as in a training step: in parts over several
connections, and the receiver copies the parts into its memory. All subjects take turns.
"""

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack

import numpy as np
import zmq

from benchmarks.alternate import rotated
from benchmarks.cells import markdown
from runner.engine.cluster.arrivals import Arrivals, send_parts
from runner.engine.cluster.launchers import HostsLauncher
from runner.engine.cluster.transport.endpoint import Identity, Keys, Limits
from runner.engine.cluster.transport.messages import FRAME_BYTES, TensorsPart, TensorsReady, split_name
from runner.engine.cluster.transport.shared_memory import ArenaReader, ArenaSpec, ArenaWriter
from runner.engine.cluster.transport.ticket import new_keys
from runner.engine.cluster.transport.zmq_endpoint import ZmqEndpoint
from runner.engine.cluster.transport.zmq_sockets import open_context

NBYTES = 16 << 20
SENDER, RECEIVER = "worker-0", "worker-1"
OURS = "runner, CURVE"
FRAMES = (NBYTES, 1 << 20, FRAME_BYTES, 64 << 10)
LIBRARY = {f"libzmq, CURVE, frames of {size >> 10} KiB": (size, True) for size in FRAMES}
PLAIN = {f"libzmq, plain, frames of {size >> 10} KiB": (size, False) for size in FRAMES}
SUBJECTS = (OURS, *LIBRARY, *PLAIN)
TIMEOUT_MS = 60_000
LANES = HostsLauncher.lanes
"""Number of connections between two workers in a run over several hosts."""


def receive(subject: str, host: str, count: int, keys: Mapping[str, Keys]) -> None:
    """Receive ``count`` tensors; print the address, and then the seconds from the end of the first to the last."""
    with ExitStack() as stack:
        take = _our_receiver(host, keys, stack) if subject == OURS else _socket_receiver(subject, host, keys, stack)
        take()
        begin = time.perf_counter()
        for _ in range(count - 1):
            take()
        print(time.perf_counter() - begin, flush=True)


def send(subject: str, address: str, count: int, keys: Mapping[str, Keys], done: Callable[[], float]) -> float:
    """Send ``count`` tensors and return ``done()``, the receiver's seconds."""
    with ExitStack() as stack:
        if subject == OURS:
            endpoint = _endpoint(SENDER, "127.0.0.1", keys, stack)
            endpoint.connect(RECEIVER, address)
            writer = ArenaWriter(_arena())
            writer.put("x", np.zeros(NBYTES, np.uint8))
            for step in range(count):
                send_parts(endpoint, RECEIVER, TensorsReady("p", step, ("x",)), lambda key: writer.memory(key).data)
        else:
            size, encrypted = {**LIBRARY, **PLAIN}[subject]
            socket = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.PUSH))
            if encrypted:
                _secure(socket, keys[SENDER], SENDER)
                socket.curve_serverkey = keys[SENDER].public[RECEIVER].encode()
            socket.linger, socket.sndtimeo = 0, TIMEOUT_MS
            socket.connect(address)
            frame = bytes(size)
            for _ in range(count * NBYTES // size):
                socket.send(frame, copy=False)
        return done()


def _arena() -> ArenaSpec:
    return ArenaSpec("p worker-0", SENDER, "", {"x": NBYTES})


def _endpoint(name: str, host: str, keys: Mapping[str, Keys], stack: ExitStack) -> ZmqEndpoint:
    role, index = split_name(name)
    identity = Identity("benchmark", 1, role, index, "a" * 64, keys[name])
    context = stack.enter_context(open_context(8, keys[name], LANES))
    limits = Limits(peers=2, lanes=LANES, send_timeout_s=TIMEOUT_MS / 1000)
    return stack.enter_context(ZmqEndpoint(context, identity, f"tcp://{host}:*", limits))


def _secure(socket: "zmq.Socket[bytes]", keys: Keys, name: str) -> None:
    socket.curve_secretkey, socket.curve_publickey = keys.secret.encode(), keys.public[name].encode()


def _our_receiver(host: str, keys: Mapping[str, Keys], stack: ExitStack) -> Callable[[], object]:
    """Listen; return a function that receives one tensor."""
    endpoint, arrivals = _endpoint(RECEIVER, host, keys, stack), Arrivals()
    arrivals.expect("p", {"x": ArenaReader(_arena())})
    print(endpoint.address, flush=True)

    def take() -> None:
        while True:
            received = endpoint.receive(TIMEOUT_MS / 1000)
            if received is None:
                raise TimeoutError(f"no part arrived within {TIMEOUT_MS} ms")
            if isinstance(received.message, TensorsPart) and arrivals.add(received) is not None:
                return

    return take


def _socket_receiver(subject: str, host: str, keys: Mapping[str, Keys], stack: ExitStack) -> Callable[[], object]:
    """Listen; return a function that receives the frames of one tensor."""
    size, encrypted = {**LIBRARY, **PLAIN}[subject]
    socket = stack.enter_context(stack.enter_context(zmq.Context()).socket(zmq.PULL))
    if encrypted:
        _secure(socket, keys[RECEIVER], RECEIVER)
        socket.curve_server = True
    socket.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    print(socket.bind_to_random_port(f"tcp://{host}") and socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    return lambda: [socket.recv(copy=False) for _ in range(NBYTES // size)]


def measure(subject: str, host: str, inside: Sequence[str], count: int) -> float:
    """Return MiB/s of a subject. inside: a command that runs another one, such as one in a network namespace."""
    keys = new_keys((SENDER, RECEIVER))
    own = json.dumps({name: [each.secret, each.public] for name, each in keys.items()})
    command = [*inside, sys.executable, "-m", "benchmarks.tcp", subject, host, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdin is not None
        assert receiver.stdout is not None
        receiver.stdin.write(own)
        receiver.stdin.close()
        output = receiver.stdout
        seconds = send(subject, output.readline().strip(), count, keys, lambda: float(output.readline()))
    return (count - 1) * NBYTES / 2**20 / seconds


def main(arguments: Sequence[str]) -> int:
    """Run ``python -m benchmarks tcp``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tcp", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensors", type=int, default=16, help="number of tensors of each subject in a round")
    parser.add_argument("--host", default="127.0.0.1", help="address of the receiver")
    parser.add_argument(
        "--inside", default="", help="command that runs the receiver on another host, such as 'ip netns exec b'"
    )
    options = parser.parse_args(arguments)
    rates: dict[str, list[float]] = {subject: [] for subject in SUBJECTS}
    for number in range(options.rounds):
        for subject in rotated(SUBJECTS, number):
            rates[subject].append(measure(subject, options.host, shlex.split(options.inside), options.tensors))
    medians = {subject: statistics.median(each) for subject, each in rates.items()}
    best = max(medians[subject] for subject in LIBRARY)
    rows = [
        (subject, f"{medians[subject]:.0f}", f"{min(each):.0f} to {max(each):.0f}", f"{medians[subject] / best:.2f}")
        for subject, each in rates.items()
    ]
    print(markdown(("subject", "MiB/s", "range", "to the best of libzmq with CURVE"), rows))
    return 0


if __name__ == "__main__":
    subject_name, address_to_bind, tensors = sys.argv[1:]
    found = {name: Keys(*own) for name, own in json.load(sys.stdin).items()}
    receive(subject_name, address_to_bind, int(tensors), found)
