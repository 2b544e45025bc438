"""Kill a process with SIGKILL while it saves a checkpoint: once just before each file system call of the save.

    python checkpoint_crash.py SEED ROOT [background]

SEED has checkpoints of steps 1, 2 and 3. For k = 0, 1, ..., a forked child saves step 4 in ROOT/k, a copy of SEED, and
is killed before call k of the save; with "background", another thread saves. The script prints the name of call k. It
ends when a child finishes its save.
"""

import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from runner.checkpoint import CheckpointMeta, save
from runner.checkpoint.background import BackgroundSaver

CALLS = ("mkdir", "open", "posix_fallocate", "fsync", "rename", "unlink", "rmdir", "posix_fadvise")


def die_before_call(number: int) -> None:
    """Patch the functions in CALLS so that the process is killed before call ``number``, counted over all of them."""
    counter = itertools.count()

    def deadly(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            if next(counter) == number:
                os.write(1, f"{name}\n".encode())
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, deadly(name, getattr(os, name)))


def main(seed: Path, root: Path, background: bool) -> None:
    """Fork one child for each file system call, until a child finishes its save."""
    for number in itertools.count():
        directory = root / str(number)
        shutil.copytree(seed, directory)
        child = os.fork()
        if child == 0:
            die_before_call(number)
            meta = CheckpointMeta(config_hash="c0ffee", run_id="0123abcd", epoch=1, examples=4)
            write = partial(save, directory, step=4, variables={"w": np.full((64,), 4.0)}, meta=meta)
            if background:
                saver = BackgroundSaver(None)
                saver.start(write, 0.0)
                saver.close()
            else:
                write()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "background" in sys.argv[3:])
