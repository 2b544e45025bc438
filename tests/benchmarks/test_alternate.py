"""Turns: who runs when, what counts, and who is out."""

from typing import Any

from benchmarks.alternate import SETTLING, Contestant, alternate
from benchmarks.process import SubjectError


class Recorder:
    """Answers at once: the first runs of a turn take 100 s, the others 1 s. fails_at: number of the call that fails."""

    def __init__(self, name: str, calls: list[str], fails_at: int = 0) -> None:
        self._name, self._calls, self._fails_at, self._count = name, calls, fails_at, 0

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        self._count += 1
        self._calls.append(self._name)
        if self._count == self._fails_at:
            raise SubjectError("ended with code 137: Killed")
        return {"seconds": [100.0] * SETTLING + [1.0] * (more["times"] - SETTLING)}


def test_every_subject_has_its_turn_in_every_round_and_another_begins() -> None:
    calls: list[str] = []
    contestants = [Contestant(name, Recorder(name, calls)) for name in "abc"]
    alternate(contestants, "step", rounds=3, turn=4)
    assert "".join(calls) == "abcbcacab"
    assert [each.seconds for each in contestants] == [{"step": [1.0] * 12}] * 3


def test_a_failing_subject_is_dropped_and_the_others_continue() -> None:
    calls: list[str] = []
    first = Contestant("a", Recorder("a", calls, fails_at=2))
    second = Contestant("b", Recorder("b", calls))
    alternate([first, second], "step", rounds=3, turn=1)
    assert (first.failure, first.seconds) == ("ended with code 137: Killed", {})
    assert second.seconds == {"step": [1.0] * 3}
    assert "".join(calls) == "abbab"


def test_who_could_not_be_started_is_never_asked() -> None:
    missing = Contestant("peer", None, failure="not installed")
    alternate([missing], "step", rounds=2, turn=1)
    assert (missing.ask("memory"), missing.seconds) == (None, {})


def test_phases_are_kept_apart() -> None:
    contestant = Contestant("a", Recorder("a", []))
    alternate([contestant], "step", rounds=1, turn=2)
    alternate([contestant], "forward", rounds=1, turn=3)
    assert contestant.seconds == {"step": [1.0] * 2, "forward": [1.0] * 3}
