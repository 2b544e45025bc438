"""The process of a worker: signals that end it."""

import os
import signal
import sys
from typing import Any

import pytest

from runner.engine.cluster.worker_process import Interrupts


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


def test_ctrl_c_stays_ignored_in_a_process_that_ignores_it() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        os.kill(os.getpid(), signal.SIGINT)
        interrupts.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)
