"""Timelines for tests: letters stand for devices, and times are small numbers of nanoseconds."""

from typing import Any

from runner.engine.graph import worker_device
from runner.engine.run.timeline import ClientRun, Span, Timeline
from runner.tracing.timeline_index import TimelineIndex, Update

SESSION = "master-0"


def device(letter: str) -> str:
    """Return the device of worker 0 for "a", of worker 1 for "b", and so on."""
    return worker_device("abcdefgh".index(letter))


def span(where: str, kind: str, begin: int, end: int, key: str = "", *, peer: str = "", **of_run: Any) -> Span:
    """Return a span of the device with letter ``where``. key, peer: key and other device of a transfer, else "".

    of_run: client, number and step of the run, by default "train", 0 and 0.
    """
    run_of = {"client": "train", "number": 0, "step": 0} | of_run
    op = {"wait": "recv", "receive": "recv", "compute": "matmul"}.get(kind, kind)
    of_node = (kind, key or f"{begin}-{end}", op, "fc" if kind == "compute" else "")
    place = (f"worker-{'abcdefgh'.index(where)}", device(where))
    transfer = (key, device(peer) if peer else "", 8 if key else 0)
    return Span(*place, run_of["client"], run_of["number"], run_of["step"], *of_node, begin, end, *transfer)


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


def tracks(*texts: str, client: str = "train") -> list[Span]:
    """Parse the spans of devices, each as ``a 0 compute 3 - 5 wait:k:b 9``: device a, then times and kinds in turn.

    Between 3 and 5, no span is recorded. Then the device waits for the tensor with key k from device b.
    """
    spans: list[Span] = []
    for where, begin, *rest in map(str.split, texts):
        for kind, end in zip(rest[::2], rest[1::2], strict=True):
            if kind != "-":
                name, key, peer, *_ = f"{kind}::".split(":")
                spans.append(span(where, name, int(begin), int(end), key, peer=peer, client=client))
            begin = end
    return spans


ALONE = tracks("a 2 input 3 compute 7 - 9 compute 10")
B_WAITS_FOR_A = tracks("a 0 compute 10 send:k:b 12 compute 13", "b 0 compute 3 wait:k:a 14 receive:k:a 15 compute 20")
READ = tracks("b 2 compute 3 send:w:a 4", "a 6 wait:w:b 6 receive:w:b 7 compute 8", client="read")
SHARE = tracks("a 11 input 12 compute 20 send:g:b 21", "b 24 wait:g:a 24 receive:g:a 25 compute 26", client="share")
LAUNCHED = TimelineIndex(
    Timeline((*READ, *SHARE), (run(0, 9, client="read", launched=True), run(10, 28, client="share", launched=True)))
)
"""Device a reads from device b, computes and sends the result back, in two runs that the session launches."""
