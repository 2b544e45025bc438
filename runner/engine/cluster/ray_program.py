"""A program that starts the processes of a run as actors of Ray, and replacements of lost ones.

The program has one placement group with a bundle for each process, including spare processes. A line ``NUMBER BUNDLE``
on standard input requests a process in a bundle: the program kills the actor there, if any, and starts an actor,
whose ticket is in the file NUMBER.key. If the node of the bundle is lost, Ray first moves the bundle to another node.

The program is a script in a separate process. It imports nothing of runner, because Ray sends the class of the actors
to its nodes by value. Ray places and watches the processes; their messages and tensors do not go through Ray.
"""

import argparse
import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import Any

LOCAL_CLUSTER = "local"
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 2000


class Starter:
    """An actor that runs one process on its node. If the actor ends, the kernel kills the process."""

    def run(self, ticket: bytes, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, str]:
        """Run ``runner``; return the name of the node, how ``runner`` ended ("" for exit code 0), and its last output.

        ticket: content of the file for --key. arguments: arguments of ``runner``. environment: variables to add to the
        environment of the node.
        """
        import platform

        with tempfile.TemporaryDirectory(prefix="runner-") as folder, tempfile.TemporaryFile() as output:
            key = os.path.join(folder, "key")
            with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(ticket)
            command = [sys.executable, "-P", "-m", "runner", *arguments]
            inherited = {name: value for name, value in os.environ.items() if name != "RAY_RAYLET_PID"}
            code = subprocess.Popen(
                [*command, "--key", key, "--parent", str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**inherited, **environment},
            ).wait()
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            end = output.read().decode("utf-8", "replace")
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with exit code {code}"
        return platform.node(), how if code else "", end


class Actors:
    """The actors of a run. group: placement group, with a bundle for each process. options: options of the program."""

    def __init__(self, group: Any, options: argparse.Namespace) -> None:
        import ray

        self._group = group
        self._options = options
        self._environment = {name: os.environ[name] for name in options.variables.split(",") if name in os.environ}
        self._starter: Any = ray.remote(Starter)
        self._actors: dict[int, Any] = {}  # by bundle; an actor ends when its last handle is deleted
        self._futures: dict[int, Future[Any]] = {}

    def start(self, number: int, bundle: int) -> None:
        """Start process ``number`` in a bundle; kill the earlier process of the bundle, which may be frozen."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if bundle in self._actors:
            del self._futures[bundle]
            ray.kill(self._actors.pop(bundle))
        strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        settings = {"num_cpus": self._options.threads, "scheduling_strategy": strategy, "max_restarts": -1}
        actor = self._starter.options(**settings).remote()
        ticket = (self._options.keys / f"{number}.key").read_bytes()
        future = actor.run.remote(ticket, self._options.arguments, self._environment).future()
        self._actors[bundle], self._futures[bundle] = actor, future
        future.add_done_callback(partial(report, number))

    def wait(self) -> None:
        """Wait until all processes that were not replaced have ended."""
        wait(self._futures.values())


def report(number: int, ended: "Future[Any]") -> None:
    """If process ``number`` has failed, print its node, and how it ended."""
    import ray

    try:
        node, how, output = ended.result()
    except ray.exceptions.RayError as error:
        node, how, output = "its node", "lost by Ray", str(error)
    if how:
        print(f"ray: error: {node}: task {number}: {how}\n{output}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str]) -> int:
    """Start the processes and requested replacements; when standard input ends, wait for the processes and return 0.

    Returns 1 if Ray cannot be reached or has no room for the processes.
    """
    options = _options(arguments)
    # The process of the run ends this program with SIGTERM, also after Ctrl-C. If it dies, the kernel sends SIGTERM.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    own = options.address == LOCAL_CLUSTER
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    import ray

    described: dict[str, Any] = {"num_cpus": (options.count + options.spares) * options.threads} if own else {}
    try:
        ray.init(address=options.address, include_dashboard=False if own else None, log_to_driver=False, **described)
    except ConnectionError as error:
        print(
            f"ray: {error}: expected the address of a running cluster (cluster.launcher.ray); if the cluster requires "
            "a token, set RAY_AUTH_MODE=token here too",
            file=sys.stderr,
        )
        return 1
    try:
        return _run(options)
    finally:
        ray.shutdown()


def _run(options: argparse.Namespace) -> int:
    from ray.util.placement_group import placement_group

    count = options.count + options.spares
    bundles = [{"CPU": options.threads}] * count
    group = placement_group(bundles, strategy=options.placement)
    if not group.wait(options.join_s):
        print(
            f"ray: no free CPUs for {count} processes with {options.threads} CPUs each "
            f"(cluster.launcher.placement={options.placement.lower()}) within {options.join_s:g} s; add nodes to the "
            "Ray cluster, or use fewer workers, spares or threads",
            file=sys.stderr,
        )
        return 1
    actors = Actors(group, options)
    for number in range(options.count):
        actors.start(number, number)
    for line in sys.stdin:
        number, bundle = map(int, line.split())
        actors.start(number, bundle)
    actors.wait()
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray")
    parser.add_argument("--address", required=True, help=f"HOST:PORT of a running cluster, or {LOCAL_CLUSTER}")
    parser.add_argument("--placement", required=True, help="strategy of the placement group")
    parser.add_argument("--threads", required=True, type=int, help="CPUs of each process")
    parser.add_argument(
        "--join-s", required=True, type=float, help="time limit in seconds for the reservation of the CPUs"
    )
    parser.add_argument("--count", required=True, type=int, help="number of processes to start at once")
    parser.add_argument("--spares", required=True, type=int, help="number of bundles for spare processes")
    parser.add_argument("--keys", required=True, type=Path, help="folder with the files NUMBER.key")
    parser.add_argument("--variables", required=True, help="names of the environment variables of each process")
    parser.add_argument("arguments", nargs="*", help="arguments of runner")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
