from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport.header import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_FRAMES,
    Envelope,
    check_frames,
    decode_header,
    encode_header,
)
from runner.engine.cluster.transport.messages import (
    KINDS,
    MAX_REFERENCES,
    Bye,
    Done,
    Failed,
    Heartbeat,
    Hello,
    Launch,
    Load,
    Loaded,
    Message,
    Run,
    Setup,
    Shutdown,
    StartTrace,
    StopTrace,
    TensorReady,
    Traced,
    Welcome,
)
from runner.engine.cluster.transport.references import ArenaTensor, InlineTensor
from runner.errors import SecurityError
from runner.system.schema import Violation

ENVELOPE = Envelope(run="run", epoch=3, src="worker-1", seq=7)
IN_ARENA = ArenaTensor("float64", (2, 0), "arena", 64, 0, 3)
EXAMPLES: tuple[Message, ...] = (
    Hello("worker", 1, 99, "t" * 64),
    Welcome(),
    Setup(),
    Load("plan"),
    Loaded("plan"),
    Run("plan", 5, {"lr": InlineTensor("float32", (), 0)}),
    Launch("plan", 5, 0.5),
    Done("plan", 5, {"loss": InlineTensor("float32", (), 0), "w": IN_ARENA}, {"step_s": 0.25, "bytes": 10}),
    StartTrace(),
    StopTrace(),
    Traced(),
    TensorReady("plan", 5, "dense/gradient:0", IN_ARENA, due=1234.5),
    Heartbeat("step", 5),
    Failed("NumericError", "loss is nan", "Traceback ...", "loss/xent"),
    Shutdown(),
    Bye(),
)


def plain_header(**changes: Any) -> dict[str, Any]:
    header = {
        "v": 1,
        "run": "r",
        "epoch": 0,
        "src": "worker-0",
        "seq": 0,
        "kind": "heartbeat",
        "section": "step",
    }
    return {**header, "step": 4, **changes}


def test_every_kind_has_an_example() -> None:
    assert [type(message) for message in EXAMPLES] == list(KINDS.values())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_message_round_trip(message: Message) -> None:
    assert decode_header(encode_header(ENVELOPE, message)) == (ENVELOPE, message)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"v": 2}, "protocol version 2, expected 1: use one runner version"),
        ({"v": True}, "protocol version True"),
        ({"kind": "exec"}, "kind 'exec', expected one of hello, welcome"),
        ({"kind": ["run"]}, "kind \\['run'\\]"),
        ({"epoch": -1}, "envelope.epoch: -1"),
        ({"seq": 1.0}, "envelope.seq: 1.0"),
        ({"src": "x" * 33}, "envelope.src"),
        ({"section": "sleep"}, "heartbeat.section: 'sleep', expected one of setup, load, step, save, idle"),
        ({"step": True}, "heartbeat.step: True, expected a whole number"),
        ({"step": 2**63}, "heartbeat.step"),
        ({"\x1b[2Jnew": 1}, r"unknown \['\\\\x1b\[2Jnew'\]"),
    ],
)
def test_schema_violation_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SecurityError, match=reason):
        decode_header(msgpack.packb(plain_header(**changes)))


@pytest.mark.parametrize("missing", ["v", "run", "epoch", "src", "seq", "kind", "section"])
def test_every_field_is_required(missing: str) -> None:
    header = plain_header()
    del header[missing]
    with pytest.raises(SecurityError, match="message header refused"):
        decode_header(msgpack.packb(header))


TENSOR, RUN = TensorReady("p", 5, "k", IN_ARENA), Run("p", 5, {})


@pytest.mark.parametrize(
    ("message", "changes", "reason"),
    [
        (TENSOR, {"due": -0.5}, "tensor.due: -0.5, expected a finite number from 0"),
        (TENSOR, {"due": math.inf}, "tensor.due: inf, expected a finite number"),
        (TENSOR, {"due": math.nan}, "tensor.due: nan, expected a finite number"),
        (TENSOR, {"due": True}, "tensor.due: True, expected a finite number"),
        (TENSOR, {"due": None}, "tensor.due: None, expected a finite number"),
        (RUN, {"delay_s": -1e-9}, "run.delay_s: -1e-09, expected a finite number from 0 up to 200"),
        (RUN, {"delay_s": 200.5}, "run.delay_s: 200.5, expected a finite number from 0 up to 200"),
        (Done("p", 5, {}, {}), {"stats": {"loss": math.nan}}, r"done.stats\[loss\]: nan, expected a finite number$"),
    ],
)
def test_numbers_out_of_bounds_are_refused(message: Message, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Violation, match=reason):
        encode_header(ENVELOPE, replace(message, **changes))
    header = msgpack.unpackb(encode_header(ENVELOPE, message)) | changes
    with pytest.raises(SecurityError, match=reason):
        decode_header(msgpack.packb(header))


def test_header_is_exactly_one_map() -> None:
    with pytest.raises(SecurityError, match="list at the top, expected a map"):
        decode_header(msgpack.packb([plain_header()]))
    with pytest.raises(SecurityError, match="ExtraData"):
        decode_header(msgpack.packb(plain_header()) + b"\x00")


def test_size_limit_holds_for_encoding_and_decoding() -> None:
    with pytest.raises(SecurityError, match="65537 bytes, at most 65536 allowed"):
        decode_header(bytes(MAX_HEADER_BYTES + 1))
    feeds = {f"{i:0500}": InlineTensor("float32", (), i) for i in range(MAX_PAYLOAD_FRAMES)}
    with pytest.raises(ValueError, match="header of 'run' takes"):
        encode_header(ENVELOPE, Run("plan", 0, feeds))


def test_encoding_checks_the_schema() -> None:
    with pytest.raises(Violation, match=r"heartbeat\.section: 'sleep'"):
        encode_header(ENVELOPE, Heartbeat("sleep", 0))
    with pytest.raises(Violation, match=f"a map of at most {MAX_REFERENCES} entries"):
        encode_header(ENVELOPE, Run("p", 0, {str(i): IN_ARENA for i in range(MAX_REFERENCES + 1)}))
    with pytest.raises(Violation, match="a finite number"):
        encode_header(ENVELOPE, Done("p", 0, {}, {"rate": float("inf")}))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SecurityError):
        decode_header(data)


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(
    {"v", "kind", "run", "epoch", "src", "seq", "reference", "feeds", "section"}.union(
        *(message_type.__dataclass_fields__ for message_type in KINDS.values())
    )
)


@given(
    st.sampled_from(EXAMPLES),
    st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), VALUES, max_size=3),
    st.sets(st.sampled_from(FIELDS), max_size=2),
)
def test_changed_header_is_decoded_or_a_security_error(
    message: Message, changes: dict[str, object], removed: set[str]
) -> None:
    plain = msgpack.unpackb(encode_header(ENVELOPE, message))
    plain = {name: value for name, value in (plain | changes).items() if name not in removed}
    with contextlib.suppress(SecurityError):
        _, decoded = decode_header(msgpack.packb(plain))
        assert type(decoded) in KINDS.values()


@given(st.sampled_from(EXAMPLES), st.integers(0, 10_000), st.integers(0, 255))
def test_changed_byte_is_decoded_or_a_security_error(message: Message, at: int, value: int) -> None:
    header = bytearray(encode_header(ENVELOPE, message))
    header[at % len(header)] = value
    with contextlib.suppress(SecurityError):
        decode_header(bytes(header))


def test_failure_always_fits_a_header() -> None:
    try:
        raise ValueError("\U0001f4a5" * 100_000)
    except ValueError as error:
        failed = Failed.of(error, node="é" * 1000)
    _, decoded = decode_header(encode_header(ENVELOPE, failed))
    assert decoded == failed
    assert failed.error == "ValueError"
    assert failed.text.startswith("\\U0001f4a5")


def test_frames_must_match_the_header() -> None:
    two = Run("p", 0, {"a": InlineTensor("float32", (2,), 0), "b": InlineTensor("uint8", (), 1)})
    eight, one = memoryview(bytes(8)), memoryview(bytes(1))
    check_frames(two, [eight, one])
    for frames, reason in [
        ([eight], "run: 1 frames, expected 2"),
        ([eight, one, one], "run: 3 frames, expected 2"),
        ([one, eight], r"frame 0 has 1 bytes, but float32\[2\] takes 8"),
    ]:
        with pytest.raises(Violation, match=reason):
            check_frames(two, frames)


def test_frame_belongs_to_one_tensor() -> None:
    shared = Run("p", 0, {"a": InlineTensor("uint8", (), 0), "b": InlineTensor("uint8", (), 0)})
    with pytest.raises(Violation, match="tensor 1 names frame 0, expected 1"):
        check_frames(shared, [memoryview(bytes(1))] * 2)


def test_number_of_frames_is_limited() -> None:
    count = MAX_PAYLOAD_FRAMES + 1
    many = Run("p", 0, {str(i): InlineTensor("uint8", (), i) for i in range(count)})
    with pytest.raises(Violation, match="never more than 256"):
        check_frames(many, [memoryview(bytes(1))] * count)


def test_document_is_exactly_one_frame() -> None:
    check_frames(Load("p"), [memoryview(b"x")])
    for frames in ([], [memoryview(b"x")] * 2):
        with pytest.raises(Violation, match="expected one document of at most"):
            check_frames(Load("p"), frames)


def test_arena_tensor_has_no_frame() -> None:
    check_frames(TensorReady("p", 0, "k", IN_ARENA), [])
