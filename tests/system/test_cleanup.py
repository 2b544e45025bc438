"""What is done at the end of a block: always, and an error before it stays the one that is told."""

import pytest

from runner.system.shutdown import at_the_end


def test_it_is_done_when_the_block_has_ended_well() -> None:
    told: list[BaseException | None] = []
    with at_the_end("noting", told.append):
        assert told == []
    assert told == [None]


def test_the_action_receives_the_error_which_is_raised() -> None:
    told: list[BaseException | None] = []
    error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt), at_the_end("noting", told.append):
        raise error
    assert told == [error]


def failing(error: BaseException | None) -> None:
    raise OSError("no space")


def test_a_failure_of_the_action_is_raised_after_success() -> None:
    with pytest.raises(OSError, match="no space"), at_the_end("noting", failing):
        pass


def test_the_first_error_is_kept_and_the_second_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ZeroDivisionError), at_the_end("noting", failing):
        raise ZeroDivisionError
    assert caplog.messages == ["noting failed too, after ZeroDivisionError: no space"]
