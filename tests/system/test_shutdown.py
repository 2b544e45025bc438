"""Stop requests by signals, and actions at the end of a block that do not hide the error that ended it."""

import os
import signal

import pytest

from runner.errors import Interrupted
from runner.system.shutdown import StopRequest, at_the_end


def test_the_action_receives_the_error_of_the_block_which_is_raised() -> None:
    received: list[BaseException | None] = []
    with at_the_end("noting", received.append):
        assert received == []
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), at_the_end("noting", received.append):
        raise error
    assert received == [None, error]


def failing(error: BaseException | None) -> None:
    raise OSError("no space")


def test_a_failure_of_the_action_is_raised_after_success_and_a_warning_after_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(OSError, match="no space"), at_the_end("noting", failing):
        pass
    assert caplog.messages == []
    with pytest.raises(ZeroDivisionError), at_the_end("noting", failing):
        raise ZeroDivisionError
    assert caplog.messages == ["noting failed too, after ZeroDivisionError: no space"]


def test_the_first_signal_is_noted_and_the_second_one_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        with pytest.raises(Interrupted, match="second signal") as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before
