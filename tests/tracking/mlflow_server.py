"""A real MLflow server in a separate process, and a proxy that drops or delays requests and requires a password."""

import base64
import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from runner.commands.ui import HOST, SERVER_ENVIRONMENT

START_LIMIT_S = 90.0


@contextmanager
def mlflow_server(folder: Path) -> Iterator[int]:
    """Serve the store ``mlflow.db`` in ``folder``; yield the port."""
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    store = {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{folder}/mlflow.db"}
    # As a check, the server's working directory has files that it must not import.
    for library in ("mlflow", "random"):
        (folder / f"{library}.py").write_text("raise SystemExit(f'{__file__} was imported in place of a library')\n")
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(
        command, cwd=folder, env=os.environ | SERVER_ENVIRONMENT | store, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        wait_for_server(port, process)
        yield port
    finally:
        process.terminate()
        process.wait()
        log.close()


def wait_for_server(port: int, process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """Poll until a server answers at the port; fail after a time limit or if the server's process has ended."""
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/health")
            connection.getresponse().read()
            connection.close()
            return
        assert process.poll() is None, f"the server ended with {process.returncode}"
        assert time.monotonic() < deadline, "the server never answered"
        time.sleep(0.05)


def free_port() -> int:
    """Return the number of a TCP port that is free on this machine."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


class Gate:
    """A proxy that forwards requests to a server.

    user, password: credentials that requests must have. is_open: if False, every request is dropped. loses_answers: if
    True, every answer is dropped. delay_s: delay of each request. passed, dropped, refused: counts of requests.
    """

    def __init__(self, target: int, user: str = "", password: str = "") -> None:
        self.is_open = True
        self.delay_s = 0.0
        self.loses_answers = False
        self.passed = 0
        self.dropped = 0
        self.refused = 0
        self.target = target
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        self.expected = f"Basic {pair}" if user else None
        self._server = ThreadingHTTPServer((HOST, 0), _handler(self))
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> "Gate":
        self._thread.start()
        return self

    def __exit__(self, *args: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(gate: Gate) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if not gate.is_open:
                gate.dropped += 1
                self.close_connection = True
                return
            if gate.expected is not None and self.headers.get("Authorization") != gate.expected:
                gate.refused += 1
                self.send_error(401)
                return
            threading.Event().wait(gate.delay_s)
            connection = http.client.HTTPConnection(HOST, gate.target, timeout=60)
            headers = {**self.headers, "Host": f"{HOST}:{gate.target}", "Connection": "close"}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            gate.passed += 1
            if gate.loses_answers:
                self.close_connection = True
                return
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers.get("Content-Type", "application/json"))
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
