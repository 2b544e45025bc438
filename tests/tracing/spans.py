"""Timelines for tests: letters stand for devices, and times are small numbers of nanoseconds."""

from runner.engine.graph.device import worker_device
from runner.engine.run.timeline import ClientRun, Span, Timeline
from runner.tracing.timeline_index import TimelineIndex, Update

SESSION = "master-0"


def device(letter: str) -> str:
    """Return the device of worker 0 for "a", of worker 1 for "b", and so on."""
    return worker_device("abcdefgh".index(letter))


def span(
    where: str,
    kind: str,
    begin: int,
    end: int,
    key: str = "",
    *,
    peer: str = "",
    step: int = 0,
    client: str = "train",
    number: int = 0,
) -> Span:
    """Return a span of the device with letter ``where``. key, peer: key and other device of a transfer, else ""."""
    return Span(
        process=f"worker-{'abcdefgh'.index(where)}",
        device=device(where),
        client=client,
        number=number,
        step=step,
        kind=kind,
        node=key or f"{begin}-{end}",
        op={"send": "send", "wait": "recv", "receive": "recv", "compute": "matmul"}.get(kind, kind),
        layer="fc" if kind == "compute" else "",
        begin_ns=begin,
        end_ns=end,
        key=key,
        peer=device(peer) if peer else "",
        nbytes=8 if key else 0,
    )


def run(
    begin: int, end: int, *, client: str = "train", number: int = 0, step: int = 0, launched: bool = False
) -> ClientRun:
    """Return the run of a client as the session records it."""
    return ClientRun(SESSION, client, number, step, begin, end, launched=launched)


def one_run(spans: list[Span]) -> tuple[TimelineIndex, Update]:
    """Return an indexed timeline and its update: one run that lasts from the first to the last of these spans."""
    begin, end = min(each.begin_ns for each in spans), max(each.end_ns for each in spans)
    first = spans[0]
    whole = run(begin, end, client=first.client, number=first.number, step=first.step)
    return TimelineIndex(Timeline(tuple(spans), (whole,))), Update(first.step, begin, end)


ALONE = [span("a", "input", 2, 3), span("a", "compute", 3, 7), span("a", "compute", 9, 10)]
B_WAITS_FOR_A = [
    span("a", "compute", 0, 10),
    span("a", "send", 10, 12, "k", peer="b"),
    span("a", "compute", 12, 13),
    span("b", "compute", 0, 3),
    span("b", "wait", 3, 14, "k", peer="a"),
    span("b", "receive", 14, 15, "k", peer="a"),
    span("b", "compute", 15, 20),
]

READ = [
    span("b", "compute", 2, 3, client="read"),
    span("b", "send", 3, 4, "w", peer="a", client="read"),
    span("a", "wait", 6, 6, "w", peer="b", client="read"),
    span("a", "receive", 6, 7, "w", peer="b", client="read"),
    span("a", "compute", 7, 8, client="read"),
]
SHARE = [
    span("a", "input", 11, 12, client="share"),
    span("a", "compute", 12, 20, client="share"),
    span("a", "send", 20, 21, "g", peer="b", client="share"),
    span("b", "wait", 24, 24, "g", peer="a", client="share"),
    span("b", "receive", 24, 25, "g", peer="a", client="share"),
    span("b", "compute", 25, 26, client="share"),
]
LAUNCHED = TimelineIndex(
    Timeline((*READ, *SHARE), (run(0, 9, client="read", launched=True), run(10, 28, client="share", launched=True)))
)
"""Device a reads from device b, computes and sends the result back, in two runs that the session launches."""
