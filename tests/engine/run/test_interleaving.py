"""Orders of launched parts: on a virtual clock, and as an earlier run recorded them."""

from collections.abc import Mapping, Sequence

import pytest

from runner.engine.run.interleaving import Begin, End, Ending, Interleaving, Launched, Recorded, VirtualTime
from runner.errors import RunnerError


def launched(text: str, step: int = 0) -> Launched:
    """``a:x`` is a step of client a on device x, ``p:w>s`` one in which device w sends to s, ``p:w>s=4`` 4 bytes."""
    client, _, parts = text.partition(":")
    source, sends, rest = parts.partition(">")
    destination, _, nbytes = rest.partition("=")
    received = {source: {}, destination: {source: int(nbytes or 0)}} if sends else {source: {}}
    return Launched(client, step, received)


def clock(seconds: Mapping[str, float], byte_s: float = 0.0) -> VirtualTime:
    """Seconds of each part, such as ``a:x``, and of a byte on a link."""
    return VirtualTime(lambda client, device, step: seconds[f"{client}:{device}"], lambda nbytes: byte_s * nbytes)


def events(interleaving: Interleaving, count: int) -> str:
    """The next events: ``a:x`` for the beginning of a part, ``a.`` for the end of a client."""
    found = [interleaving.next() for _ in range(count)]
    return " ".join(f"{e.client}:{e.device}" if isinstance(e, Begin) else f"{e.client}." for e in found)


@pytest.mark.parametrize(
    ("launches", "seconds", "expected", "now"),
    [
        # Devices work at the same time, and the client that ends first is reported first.
        (["a:x", "b:y"], {"a:x": 5.0, "b:y": 2.0}, "a:x b:y b. a.", 5.0),
        # A device runs one part after the other, in launch order.
        (["b:x", "a:x"], {"a:x": 1.0, "b:x": 1.0}, "b:x b. a:x a.", 2.0),
        # A part waits for the tensors that it receives, and later launches overtake it.
        (["p:w>s=4", "a:s"], {"p:w": 1.0, "p:s": 1.0, "a:s": 2.0}, "p:w a:s a. p:s p.", 6.0),
        # A busy device continues in launch order with the parts that became ready meanwhile.
        (
            ["a:s", "p:w>s", "b:s"],
            {"p:w": 1.0, "p:s": 1.0, "a:s": 3.0, "b:s": 1.0},
            "a:s p:w a. p:s p. b:s b.",
            5.0,
        ),
    ],
)
def test_parts_are_ordered_by_virtual_time(
    launches: Sequence[str], seconds: Mapping[str, float], expected: str, now: float
) -> None:
    time = clock(seconds, byte_s=1.0)
    for each in launches:
        time.launched(launched(each))
    assert events(time, len(expected.split())) == expected
    assert time.now == now


def test_launch_after_an_end_begins_at_the_time_of_that_end() -> None:
    time = clock({"a:x": 3.0, "b:y": 1.0, "c:y": 1.0})
    time.launched(launched("a:x"))
    time.launched(launched("b:y"))
    assert events(time, 3) == "a:x b:y b."
    time.launched(launched("c:y"))
    assert events(time, 3) == "c:y c. a."


def test_time_restarts_when_no_client_runs_so_that_rounding_is_the_same() -> None:
    time = clock({"long:x": 2.0**60, "a:x": 3.0, "b:y": 1.0})
    time.launched(launched("long:x"))
    assert events(time, 2) == "long:x long."
    time.launched(launched("a:x"))
    time.launched(launched("b:y"))
    assert events(time, 4) == "a:x b:y b. a."
    assert time.now == 2.0**60


def test_parts_that_wait_for_each_other_are_refused() -> None:
    time = clock({})
    time.launched(Launched("p", 0, {"w": {"s": 1}, "s": {"w": 1}}))
    with pytest.raises(RunnerError, match="virtual time stands still: p can neither begin nor end"):
        time.next()


def ending(text: str, step: int = 0) -> Ending:
    """``p:w0s1``: client p ended after its parts were number 0 on device w and number 1 on s."""
    client, _, turns = text.partition(":")
    return Ending(client, step, {turns[i]: int(turns[i + 1]) for i in range(0, len(turns), 2)})


@pytest.mark.parametrize(
    ("endings", "launches", "expected"),
    [
        # The server ran b before p, although p was launched first.
        (["b:s0", "p:w0s1", "c:w1"], ["p:w>s", "b:s", "c:w"], "b:s b. p:w p:s p. c:w c."),
        # The server began p before b, although p ended later.
        (["b:s1", "p:w0s0"], ["p:w>s", "b:s"], "p:w p:s b:s b. p."),
    ],
)
def test_record_is_followed_on_every_device(endings: Sequence[str], launches: Sequence[str], expected: str) -> None:
    record = Recorded([ending(each) for each in endings])
    for each in launches:
        record.launched(launched(each))
    assert events(record, len(expected.split())) == expected


def test_client_may_be_launched_again_after_its_end() -> None:
    record = Recorded([ending("a:x0"), ending("a:x1", step=1)])
    for step in range(2):
        record.launched(launched("a:x", step))
        assert [record.next(), record.next()] == [Begin("a", "x"), End("a")]


@pytest.mark.parametrize(
    ("endings", "text"),
    [
        ([], "the record ends after 0 endings, but the run goes on"),
        ([ending("b:x0")], "the record has step 0 of 'b' on x next, but this run has launched no such step"),
        ([ending("a:x0", step=1)], "the record has step 1 of 'a' on x next"),
        ([ending("a:y0")], "the record has step 0 of 'a' on y next"),
        ([ending("a:x2")], "the record lacks what x began as number 0: it was cut off"),
    ],
)
def test_record_of_another_run_is_refused(endings: list[Ending], text: str) -> None:
    record = Recorded(endings)
    record.launched(launched("a:x"))
    with pytest.raises(RunnerError, match=text):
        record.next()
