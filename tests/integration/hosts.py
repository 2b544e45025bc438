"""Hosts for tests: namespaces with separate networks, file systems and processes, connected by a switch. Needs root."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.command import ENVIRONMENT, LIMIT_S, QUIET, lacking

PREFIX = "10.77.0"
_TOOLS = ("ip", "unshare", "nsenter", "tc")
_PRIVATE = ("/tmp", "/dev/shm", "/home", "/run")
_SETUP = """
hostname "$1"
mount --make-rprivate /
for folder in {private}; do mount -t tmpfs -o mode=1777 none "$folder"; done
mkdir /home/me
ip link set lo up
echo ready
exec sleep infinity
""".format(private=" ".join(_PRIVATE))

NAMESPACES = ("--net", "--mount", "--uts", "--ipc", "--pid")


def require_hosts() -> None:
    """Skip the test, with the reason, if this process may not make hosts."""
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        reason = f"{', '.join(missing)} missing" if missing else "root needed"
        lacking("root", f"hosts are network namespaces: {reason}")
    tried = subprocess.run(["unshare", *NAMESPACES, "--fork", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        lacking("root", f"hosts are network namespaces: {tried.stderr.strip()}")


class Host:
    """One host: its own network, mounts, host name, IPC and processes. ``root``: its file system, seen from outside.

    clock_s: seconds by which the monotonic clock of the host is ahead of that of the machine.
    """

    def __init__(self, name: str, number: int, clock_s: int = 0) -> None:
        self.name = name
        self.address = f"{PREFIX}.{number + 1}"
        self.commands: list[HostCommand] = []
        clock = ["--time", f"--monotonic={clock_s}"] if clock_s else []
        options = [*NAMESPACES, *clock, "--fork", "--kill-child", "--mount-proc"]
        self._holder = subprocess.Popen(
            ["unshare", *options, "sh", "-ec", _SETUP, "host", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        self.pid = int(Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()[0])
        self.root = Path(f"/proc/{self.pid}/root")
        self.in_time = ["--time"] if clock_s else []

    def start(self, *arguments: str) -> "HostCommand":
        """Start ``runner`` with these arguments on the host, in its folder /home/me."""
        return self.execute(sys.executable, "-m", "runner", *arguments)

    def execute(self, *argv: str) -> "HostCommand":
        """Start a command on the host, in its folder /home/me."""
        command = HostCommand(self, list(argv))
        self.commands.append(command)
        return command

    def path(self, inside: str) -> Path:
        """Return the path, from outside, of a file of the host."""
        return self.root / inside.lstrip("/")

    def processes(self) -> list[str]:
        """Return the command lines of the processes of the host except its first process."""
        lines = [path.read_bytes().replace(b"\0", b" ").decode() for path in self.root.glob("proc/[0-9]*/cmdline")]
        return [line for line in lines if line and not line.startswith("sleep infinity")]

    def close(self) -> None:
        """End all processes of the host at the same time, like a power failure, and remove the host."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._holder.wait(LIMIT_S)
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        for command in self.commands:
            command.close()


class HostCommand:
    """A command on a host. The attribute ``output`` has the output so far, also while the command runs."""

    def __init__(self, host: Host, argv: list[str]) -> None:
        self._log = host.path(f"/home/me/output-{len(host.commands)}")
        # Tests that were started in the background ignore Ctrl-C; the command must not inherit this.
        reset = ["env", "--default-signal=INT"]
        enter = [*reset, "nsenter", f"--target={host.pid}", *NAMESPACES, *host.in_time, "--wdns=/home/me"]
        with self._log.open("w") as log:
            project = str(Path(__file__).parents[2])
            environment = {**os.environ, **ENVIRONMENT, "HOME": "/home/me", "PYTHONPATH": project}
            self._process = subprocess.Popen([*enter, *argv], stdout=log, stderr=log, env=environment)
        self._kept = self._log.open()

    @property
    def output(self) -> str:
        """The output of the command so far."""
        self._kept.seek(0)
        return self._kept.read()

    def wait_for(self, pattern: str, limit_s: float = LIMIT_S) -> re.Match[str]:
        """Wait until the output matches ``pattern``; fail the test if the command ends before or the time passes."""
        deadline = time.monotonic() + limit_s
        while (found := re.search(pattern, self.output, re.DOTALL)) is None:
            assert self._process.poll() is None, self.output
            assert time.monotonic() < deadline, f"never printed: {pattern}; printed: {self.output}"
            time.sleep(0.02)
        return found

    def close(self) -> None:
        """Wait for the end of the command, whose host has ended, and close its output."""
        self.finish()
        self._kept.close()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        (child,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGINT)

    def finish(self, limit_s: float = LIMIT_S) -> int:
        """Wait for the end of the command and return its exit code."""
        return self._process.wait(limit_s)


class Network:
    """Hosts at one switch."""

    def __init__(self, hosts: list[Host]) -> None:
        self.hosts = hosts

    def cut(self, host: Host) -> None:
        """Cut the cable of a host."""
        _at(host, "ip link set net0 down")

    def mend(self, host: Host) -> None:
        """Connect the cable of a host again."""
        _at(host, "ip link set net0 up")

    def limit(self, host: Host, mbit: int) -> None:
        """Limit the bandwidth of the host's outgoing link; 0 removes the limit."""
        limit = f"tbf rate {mbit}mbit burst 256kb latency 50ms" if mbit else "pfifo"
        _at(host, f"tc qdisc replace dev net0 root {limit}")


@contextlib.contextmanager
def network(count: int, clocks_s: tuple[int, ...] = ()) -> Iterator[Network]:
    """Yield ``count`` hosts named host0, host1, ... clocks_s: offset of each host's monotonic clock, by default 0."""
    require_hosts()
    with contextlib.ExitStack() as stack:
        hosts = []
        for number in range(count):
            clock_s = clocks_s[number] if clocks_s else 0
            hosts.append(Host(f"host{number}", number, clock_s))
            stack.callback(hosts[-1].close)
        switch = Host("switch", count)
        stack.callback(switch.close)
        _at(switch, "ip link add br0 type bridge")
        _at(switch, "ip link set br0 up")
        for number, host in enumerate(hosts):
            _at(switch, f"ip link add net0 netns {host.pid} type veth peer name port{number}")
            _at(switch, f"ip link set port{number} master br0 up")
            _at(host, f"ip addr add {host.address}/24 dev net0")
            _at(host, "ip link set net0 up")
        yield Network(hosts)


def _at(host: Host, command: str) -> None:
    subprocess.run(["nsenter", f"--target={host.pid}", "--net", *command.split()], check=True, capture_output=True)


@dataclass(frozen=True)
class JoinCommand:
    """A command that a run has printed. arguments: for ``runner``. key: the key file on the host, from outside."""

    host: Host
    arguments: list[str]
    key: Path


def train_on(hosts: list[Host], per_host: list[int], *overrides: str) -> tuple[HostCommand, list[HostCommand]]:
    """Start a run on the first host and its processes on all hosts; return the commands of the run and processes.

    per_host: number of processes on each host. As a user would, the function copies the key files and types the
    commands that the run prints.
    """
    run, commands = announced(hosts, per_host, *overrides)
    return run, [command.host.start(*command.arguments) for command in commands]


def announced(hosts: list[Host], per_host: list[int], *overrides: str) -> tuple[HostCommand, list[JoinCommand]]:
    """Start a run on the first host and copy the key files; return its command and the commands that it has printed.

    The directories of an earlier run on the hosts are removed.
    """
    master = hosts[0]
    for host in hosts:
        shutil.rmtree(host.path("/home/me/run"), ignore_errors=True)
    counted = ", ".join(f"{host.name}: {count}" for host, count in zip(hosts, per_host, strict=True))
    run = master.start(
        *QUIET,
        "cluster/launcher=hosts",
        f"cluster.launcher.address={master.address}",
        f"cluster.launcher.hosts={{{counted}}}",
        "hydra.run.dir=/home/me/run",
        *overrides,
    )
    return run, [copied_command(run, hosts, number) for number in range(sum(per_host))]


def copied_command(run: HostCommand, hosts: list[Host], number: int, elsewhere: Host | None = None) -> JoinCommand:
    """Wait until a run on the first host has printed a command, and copy its key file.

    number: the command, counted from 0. elsewhere: a host to use in place of the one that the run names.
    """
    command = r"(\S+): copy (\S+) to (\S+) with mode 0600, and run there\n  runner (worker [^\n]*)\n"
    _, key, name, line = run.wait_for(f"(?:.*?{command}){{{number + 1}}}").groups()
    host = elsewhere or next(each for each in hosts if each.name == name)
    there = host.path(key)
    if host is not hosts[0]:
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(hosts[0].path(key), there)
    return JoinCommand(host, line.split(), there)
