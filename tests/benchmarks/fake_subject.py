"""A benchmark subject that computes nothing: ``python -m tests.benchmarks.fake_subject BEHAVIOUR FOLDER``.

BEHAVIOUR: "falls": losses 3, 2, 1, ...; "flat": losses 3, 3, 3, ...; "chatty": like "falls", and prints text; "breaks":
like "falls", but the second run fails; "sleeps": starts a process that sleeps; a run takes 60 s. FOLDER is ignored.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count

from benchmarks.protocol import Run, serve
from runner.system.machine import usable_cores


class Fake:
    """A subject with prescribed losses."""

    versions: Mapping[str, str] = {"fake": "1.0", "cores": str(usable_cores())}

    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour

    def load(self) -> None:
        if self._behaviour == "chatty":
            print("a library that talks")
        if self._behaviour == "sleeps":
            subprocess.Popen(["sleep", "60"])

    def phase(self, name: str) -> Run:
        runs = count()
        return lambda: self._run(next(runs))

    def _run(self, number: int) -> float:
        if self._behaviour == "breaks" and number == 1:
            raise RuntimeError("out of luck")
        if self._behaviour == "sleeps":
            time.sleep(60.0)
        if self._behaviour == "chatty":
            print("working")
        return 3.0 if self._behaviour == "flat" else float(3 - number)


if __name__ == "__main__":
    serve(Fake(sys.argv[1]))
