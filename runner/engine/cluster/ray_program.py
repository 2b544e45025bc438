"""A program that starts the processes of a run as actors of Ray, as ``srun`` does for Slurm.

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
from pathlib import Path
from typing import Any

LOCAL_CLUSTER = "local"
_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 2000


class Starter:
    """An actor that runs one process on its node. If the actor ends, the kernel kills the process."""

    def run(self, ticket: bytes, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str, str]:
        """Run ``runner`` until it ends; return the name of the node, how ``runner`` ended, and the end of its output.

        If the exit code is 0, the text on how it ended is empty. ticket: content of the file for --key. arguments:
        arguments of ``runner``. environment: variables to add to the environment of the node.
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


def main(arguments: Sequence[str]) -> int:
    """Start the processes, wait until all have ended or one has failed, and return 0 or 1."""
    options = _options(arguments)
    # The process of the run ends this program with SIGTERM, also after Ctrl-C. If it dies, the kernel sends SIGTERM.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    own = options.address == LOCAL_CLUSTER
    if own:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when Ray is imported
    import ray

    described: dict[str, Any] = {"num_cpus": options.count * options.threads} if own else {}
    ray.init(address=options.address, include_dashboard=False if own else None, log_to_driver=False, **described)
    try:
        return _run(options)
    finally:
        ray.shutdown()


def _run(options: argparse.Namespace) -> int:
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    bundles = [{"CPU": options.threads}] * options.count
    group = placement_group(bundles, strategy=options.placement)
    if not group.wait(options.join_s):
        print(
            f"ray: no free CPUs for {options.count} processes with {options.threads} CPUs each "
            f"(cluster.launcher.placement={options.placement.lower()}) within {options.join_s:g} s; add nodes to the "
            "Ray cluster, or use fewer workers or threads",
            file=sys.stderr,
        )
        return 1
    environment = {name: os.environ[name] for name in options.variables.split(",") if name in os.environ}
    numbers, actors = {}, []
    starter: Any = ray.remote(Starter)
    for number in range(options.count):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        actor = starter.options(num_cpus=options.threads, scheduling_strategy=place).remote()
        actors.append(actor)  # an actor ends when its last handle is deleted
        ticket = (options.keys / f"{number}.key").read_bytes()
        numbers[actor.run.remote(ticket, options.arguments, environment)] = number
    while numbers:
        (ended,), _ = ray.wait(list(numbers), num_returns=1)
        number = numbers.pop(ended)
        try:
            node, how, output = ray.get(ended)
        except ray.exceptions.RayError as error:
            node, how, output = "its node", "lost by Ray", str(error)
        if how:
            print(f"ray: error: {node}: task {number}: {how}\n{output}", file=sys.stderr)
            return 1
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="ray")
    parser.add_argument("--address", required=True, help=f"HOST:PORT of a running cluster, or {LOCAL_CLUSTER}")
    parser.add_argument("--placement", required=True, help="strategy of the placement group")
    parser.add_argument("--threads", required=True, type=int, help="CPUs of each process")
    parser.add_argument(
        "--join-s", required=True, type=float, help="time limit in seconds for the reservation of the CPUs"
    )
    parser.add_argument("--count", required=True, type=int, help="number of processes")
    parser.add_argument("--keys", required=True, type=Path, help="folder with the files NUMBER.key")
    parser.add_argument("--variables", required=True, help="names of the environment variables of each process")
    parser.add_argument("arguments", nargs="*", help="arguments of runner")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
