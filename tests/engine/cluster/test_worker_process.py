"""The process of a worker: signals that end it, and its log."""

import logging
import os
import signal
import sys
from queue import SimpleQueue
from typing import Any

import pytest

from runner.engine.cluster.worker_process import Interrupts, _lines_to


class Interrupting:
    """An object whose finaliser is interrupted by Ctrl-C."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_during_a_finaliser_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts = Interrupts()
        interrupts.check()
        Interrupting()
        assert [each.exc_type for each in lost] == [KeyboardInterrupt]
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    finally:
        signal.signal(signal.SIGINT, previous)


def test_log_lines_for_the_master_have_no_secrets() -> None:
    lines = SimpleQueue[str]()
    with _lines_to(lines):
        logging.getLogger("runner.tests").warning("cannot open http://me:hunter2@host, token=hunter2")
    assert lines.get_nowait().endswith("runner.tests: cannot open http://[redacted]@host, token=[redacted]")


def test_ctrl_c_stays_ignored_in_a_process_that_ignores_it() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
