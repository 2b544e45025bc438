"""Spans by hand: devices are called by a letter, times are whole numbers."""

from __future__ import annotations

from runner.engine.device import worker_device
from runner.engine.timeline import Span


def device(letter: str) -> str:
    """The device of worker 0 for "a", of worker 1 for "b"."""
    return worker_device("abcdefgh".index(letter))


def span(where: str, kind: str, begin: int, end: int, key: str = "", *, peer: str = "", step: int = 0) -> Span:
    """One span of a device. key: of a transfer; a computation is called by its times. peer: the other end's letter."""
    return Span(
        process=f"worker-{'abcdefgh'.index(where)}",
        device=device(where),
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
