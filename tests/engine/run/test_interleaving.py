"""The order in which devices run parts of launched clients: set by a virtual clock or recorded in an earlier run."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any

import numpy as np
import pytest

from runner.engine.compile.program import Client, Program
from runner.engine.graph import Graph, local_cluster, ops, worker_device
from runner.engine.run.interleaving import Begin, End, Ending, Interleaving, Launched, Recorded, VirtualTime
from runner.engine.run.local_session import LocalSession
from runner.engine.run.step_driver import Clients, Finished
from runner.errors import RunnerError
from runner.kernels.registry import Registry
from tests.engine.run.launched_programs import SIZE, expect_matching_transfers, expect_misuse_refused, pushed, tally


def launched(text: str, step: int = 0) -> Launched:
    """Parse a step: ``a:x`` is client a on device x; in ``p:w>s=4``, device w sends 4 bytes (default 0) to device s."""
    client, _, parts = text.partition(":")
    source, sends, rest = parts.partition(">")
    destination, _, nbytes = rest.partition("=")
    received = {source: {}, destination: {source: int(nbytes or 0)}} if sends else {source: {}}
    return Launched(client, step, received)


def clock(seconds: Mapping[str, float], byte_s: float = 0.0) -> VirtualTime:
    """Return a virtual clock. seconds: durations of parts such as ``a:x``. byte_s: seconds per byte on a link."""
    return VirtualTime(lambda client, device, step: seconds[f"{client}:{device}"], lambda nbytes: byte_s * nbytes)


def events(interleaving: Interleaving, count: int) -> str:
    """Return the next events: ``a:x`` for the start of a part, ``a.`` for the end of a client."""
    found = [interleaving.next() for _ in range(count)]
    return " ".join(f"{e.client}:{e.device}" if isinstance(e, Begin) else f"{e.client}." for e in found)


@pytest.mark.parametrize(
    ("launches", "seconds", "expected", "now"),
    [
        # Devices work at the same time; the client that ends first is reported first.
        (["a:x", "b:y"], {"a:x": 5.0, "b:y": 2.0}, "a:x b:y b. a.", 5.0),
        # A device runs one part after another, in launch order.
        (["b:x", "a:x"], {"a:x": 1.0, "b:x": 1.0}, "b:x b. a:x a.", 2.0),
        # A part waits for the tensors that it receives; later launches overtake the part.
        (["p:w>s=4", "a:s"], {"p:w": 1.0, "p:s": 1.0, "a:s": 2.0}, "p:w a:s a. p:s p.", 6.0),
        # A busy device continues in launch order with the parts that became ready while it was busy.
        (["a:s", "p:w>s", "b:s"], {"p:w": 1.0, "p:s": 1.0, "a:s": 3.0, "b:s": 1.0}, "a:s p:w a. p:s p. b:s b.", 5.0),
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
    with pytest.raises(RunnerError, match="virtual time cannot advance: p can neither start nor end"):
        time.next()


def ending(text: str, step: int = 0) -> Ending:
    """Parse ``p:w0s1``: the end of client p, whose part was number 0 on device w and number 1 on device s."""
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
        ([], "the record ends after 0 steps of clients, but the run continues"),
        (
            [ending("b:x0")],
            "the next step in the record is step 0 of 'b' on x, but this run has not launched this step",
        ),
        ([ending("a:x0", step=1)], "the next step in the record is step 1 of 'a' on x"),
        ([ending("a:y0")], "the next step in the record is step 0 of 'a' on y"),
        ([ending("a:x2")], "the record is incomplete: step number 0 of x is missing"),
    ],
)
def test_record_of_another_run_is_refused(endings: list[Ending], text: str) -> None:
    record = Recorded(endings)
    record.launched(launched("a:x"))
    with pytest.raises(RunnerError, match=text):
        record.next()


Opened = Callable[..., LocalSession]


@pytest.fixture
def opened(registry: Registry) -> Iterator[Opened]:
    """Yield a function that opens sessions of the ``tally`` program and sets all variables to zero."""
    with ExitStack() as stack:

        def begin(interleaving: Interleaving | None = None, program: Program | None = None) -> LocalSession:
            program = program or tally()
            cluster = local_cluster(program.workers, program.servers)
            session = stack.enter_context(closing(LocalSession(program, cluster, registry, interleaving=interleaving)))
            session.run("init")
            return session

        yield begin


def ends(session: Clients, *clients: str, step: int = 0) -> list[Finished]:
    """Launch clients together and wait for all of them."""
    for client in clients:
        session.launch(client, step=step)
    return [session.finished() for _ in clients]


def value(array: Any) -> float:
    """Return the common value of all elements of a tensor."""
    assert np.unique(array).size == 1
    return float(array[0])


def test_launching_a_client_gives_the_results_of_running_it(opened: Opened) -> None:
    one_by_one, together = opened(), opened()
    assert value(one_by_one.run("work_0")["own"]) == 1.0
    assert value(one_by_one.run("push_0")["total"]) == 1.0
    assert [value(each.fetches["own"]) for each in ends(together, "work_0")] == [1.0]
    assert [value(each.fetches["total"]) for each in ends(together, "push_0")] == [1.0]
    assert one_by_one.sent_bytes() == together.sent_bytes() == [SIZE * 8, 0, 0]


@pytest.mark.parametrize(("seconds", "total"), [((1.0, 9.0), 1.0 / 2 + 2.0), ((9.0, 1.0), 2.0 / 2 + 1.0)])
def test_fastest_worker_is_served_first(opened: Opened, seconds: tuple[float, float], total: float) -> None:
    def part_s(client: str, device: str, step: int) -> float:
        return seconds[int(client[-1])] if client.startswith("work") else 1.0

    session = opened(VirtualTime(part_s, lambda nbytes: 0.0))
    session.launch("work_0")
    session.launch("work_1")
    for _ in range(2):
        worker = session.finished().client[-1]
        session.launch(f"push_{worker}")
        last = session.finished().fetches["total"]
    assert value(last) == total
    assert value(session.run("save")["total"]) == total


def outcome(session: LocalSession) -> list[tuple[str, int, Any, dict[str, float]]]:
    """Run nine rounds; return client, step, number of the part on each device, and fetches of each finished client."""
    finished = pushed(session, rounds=9)
    return [(each.client, each.step, each.turns, {n: value(v) for n, v in each.fetches.items()}) for each in finished]


def test_interleaving_is_a_function_of_the_seed_and_its_record_replays_it(opened: Opened) -> None:
    def drawn(seed: int) -> VirtualTime:
        generator = np.random.default_rng(seed)
        return VirtualTime(lambda client, device, step: float(generator.lognormal()), lambda nbytes: 0.1)

    first, again, other = (outcome(opened(drawn(seed))) for seed in (1, 1, 2))
    assert first == again
    assert first[-1] != other[-1]
    assert outcome(opened(Recorded([Ending(client, step, turns) for client, step, turns, _ in first]))) == first


def test_launch_run_or_wait_at_a_wrong_time_is_refused(opened: Opened) -> None:
    session = opened()
    expect_misuse_refused(session)
    # The session can still be used.
    session.finished()
    session.run("save")


def test_trace_begins_and_ends_while_clients_run(opened: Opened) -> None:
    session = opened()
    ends(session, "work_0", "work_1")
    session.launch("work_0", step=4)
    session.start_trace(["work_0", "push_0"])
    session.finished()
    ends(session, "push_0", step=5)
    session.launch("work_0", step=6)
    timeline = session.stop_trace()
    session.finished()
    runs = [("work_0", 1, 4), ("push_0", 0, 5)]
    assert [(run.client, run.number, run.step) for run in timeline.runs] == runs
    assert all(run.launched for run in timeline.runs)
    assert {(span.client, span.number, span.step) for span in timeline.spans} == set(runs)
    expect_matching_transfers(timeline.spans)


def fed() -> Program:
    """Return a program with a client that can be launched and that doubles its feed."""
    graph = Graph()
    with graph.device(worker_device(0)):
        there = ops.placeholder(graph, (2,), "float64")
        client = Client("double", fetches={"twice": ops.scale(graph, there, 2.0)}, feeds={"x": (there,)}, deferred=True)
    return Program(graph, {"double": client, "init": Client("init")}, {}, workers=1)


def test_feeds_are_checked_and_copied_at_the_launch(opened: Opened) -> None:
    session = opened(program=fed())
    for wrong, got in ((np.ones(3), r"float64\[3\]"), (np.ones(2, "float32"), r"float32\[2\]")):
        with pytest.raises(RunnerError, match=rf"^feed .*: got {got}, expected float64\[2\]$"):
            session.launch("double", feeds={"x": wrong})
    x = np.ones(2)
    session.launch("double", feeds={"x": x})
    x[:] = 5.0
    assert session.finished().fetches["twice"].tolist() == [2.0, 2.0]


def test_deferred_client_whose_parts_wait_for_each_other_is_refused(registry: Registry) -> None:
    graph = Graph()
    with graph.device(worker_device(0)):
        x = there = ops.placeholder(graph, (1,), "float64", name="there")
    for k, op in ((0, ops.identity), (1, ops.exp), (0, ops.neg)):
        with graph.device(worker_device(k)):
            x = op(graph, x)
    client = Client("round", fetches={"back": x}, feeds={"there": (there,)}, deferred=True)
    program = Program(graph, {"round": client}, {}, workers=2)
    expected = "client 'round' is deferred, but .*task:0.* would wait for one another's tensors"
    with (
        closing(LocalSession(program, local_cluster(2), registry)) as session,
        pytest.raises(RunnerError, match=expected),
    ):
        session.launch("round", feeds={"there": np.ones(1)})
