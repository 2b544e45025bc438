"""Message headers: round trips, refusals, and the frames that follow a header."""

import contextlib
import math
import re
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport import encoding, messages
from runner.engine.cluster.transport.encoding import decode_document, decode_header, encode_document, encode_header
from runner.errors import SecurityError
from runner.system.schema import Violation

ENVELOPE = encoding.Envelope(run="run", epoch=3, src="worker-1", seq=7)
TENSORS = messages.TensorsReady("plan", 5, ("dense:0", "dense:1"), due=1234.5)
RUN, HEARTBEAT = messages.Run("plan", 5), messages.Heartbeat("step", 5)
DONE = messages.Done("plan", 5, {"step_s": 0.25, "bytes": 10})
EXAMPLES: tuple[messages.Message, ...] = (
    messages.Hello("worker", 1, 99, "t" * 64, 2, "tcp://127.0.0.1:5", {"cpu": "x86_64"}),
    messages.Refused("too late"),
    messages.Welcome(),
    messages.Replace("/run/workers/worker-1.log"),
    messages.Setup(),
    messages.Load("plan"),
    messages.Loaded("plan"),
    messages.Abandon(4, ("worker-0", "ps-1")),
    messages.Abandoned(),
    messages.Moved({"worker-1": "tcp://127.0.0.1:6"}),
    RUN,
    messages.Launch("plan", 5, 0.5),
    DONE,
    messages.StartTrace(),
    messages.StopTrace(),
    messages.Traced(),
    messages.AskTime(10**12),
    messages.Time(10**12, 7),
    TENSORS,
    messages.TensorsPart("plan", 5, TENSORS.keys, 0, due=0.5),
    HEARTBEAT,
    messages.Log("a line"),
    messages.Failed("NumericError", "loss is nan"),
    messages.Shutdown(),
    messages.Bye(),
)


def plain_header(message: messages.Message, **changes: Any) -> dict[str, Any]:
    header: dict[str, Any] = msgpack.unpackb(encode_header(ENVELOPE, message))
    return header | changes


def test_every_kind_of_message_has_an_example() -> None:
    assert [type(message) for message in EXAMPLES] == list(messages.KINDS.values())


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: message.kind)
def test_message_round_trip(message: messages.Message) -> None:
    assert decode_header(encode_header(ENVELOPE, message)) == (ENVELOPE, message)


REFUSED: list[tuple[messages.Message, dict[str, Any], str]] = [
    (HEARTBEAT, {"v": 2}, "protocol version 2, expected 1: use the same version of runner"),
    (HEARTBEAT, {"v": True}, "protocol version True"),
    (HEARTBEAT, {"kind": "exec"}, "kind 'exec', expected one of hello, refused"),
    (HEARTBEAT, {"kind": ["run"]}, r"kind \['run'\]"),
    (HEARTBEAT, {"epoch": -1}, "envelope.epoch: -1"),
    (HEARTBEAT, {"seq": 1.0}, "envelope.seq: 1.0"),
    (HEARTBEAT, {"src": "x" * 33}, "envelope.src"),
    (HEARTBEAT, {"step": True}, "heartbeat.step: True, expected a whole number"),
    (HEARTBEAT, {"step": 2**63}, "heartbeat.step"),
    (HEARTBEAT, {"\x1b[2Jnew": 1}, r"unknown \['\\\\x1b\[2Jnew'\]"),
    (TENSORS, {"keys": [None]}, r"tensors.keys\[0\]: None, expected text"),
]
UNWRITABLE: list[tuple[messages.Message, dict[str, Any], str]] = [
    (HEARTBEAT, {"section": "sleep"}, "heartbeat.section: 'sleep', expected one of setup, load, step, idle"),
    *(
        (TENSORS, {"due": due}, f"tensors.due: {due}, expected a finite number from 0")
        for due in (-0.5, math.inf, math.nan, True, None)
    ),
    *(
        (RUN, {"delay_s": delay}, f"run.delay_s: {delay}, expected a finite number from 0 up to 200")
        for delay in (-1e-9, 200.5)
    ),
    (TENSORS, {"keys": ()}, "tensors.keys: .*a list of at least 1 and of at most 1024"),
    (TENSORS, {"keys": ("x",) * 1025}, "tensors.keys: .*a list of at least 1 and of at most 1024"),
    (DONE, {"stats": {"loss": math.nan}}, r"done.stats\[loss\]: nan, expected a finite number$"),
    (DONE, {"stats": {str(i): 0.0 for i in range(65)}}, "expected a map of at most 64 entries"),
]


@pytest.mark.parametrize(("message", "changes", "reason"), [*REFUSED, *UNWRITABLE])
def test_schema_violation_is_refused(message: messages.Message, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SecurityError, match=reason):
        decode_header(msgpack.packb(plain_header(message, **changes)))


@pytest.mark.parametrize(("message", "changes", "reason"), UNWRITABLE)
def test_schema_violation_is_not_sent(message: messages.Message, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Violation, match=reason):
        encode_header(ENVELOPE, replace(message, **changes))


@pytest.mark.parametrize("missing", plain_header(HEARTBEAT))
def test_every_field_is_required(missing: str) -> None:
    header = plain_header(HEARTBEAT)
    del header[missing]
    with pytest.raises(SecurityError, match="message header refused"):
        decode_header(msgpack.packb(header))


def test_header_is_exactly_one_map_of_limited_size() -> None:
    for header, reason in (
        (msgpack.packb([plain_header(HEARTBEAT)]), "list at the top, expected a map"),
        (msgpack.packb(plain_header(HEARTBEAT)) + b"\x00", "ExtraData"),
        (bytes(encoding.MAX_HEADER_BYTES + 1), "65537 bytes, expected at most 65536"),
    ):
        with pytest.raises(SecurityError, match=reason):
            decode_header(header)
    with pytest.raises(ValueError, match="header of 'done' takes"):
        encode_header(ENVELOPE, messages.Done("plan", 0, {f"{chr(0x4E00 + i) * 512}": 1.0 for i in range(64)}))


@given(st.binary(max_size=300))
def test_random_bytes_raise_no_other_error(data: bytes) -> None:
    with pytest.raises(SecurityError):
        decode_header(data)
    with contextlib.suppress(SecurityError):
        decode_document(memoryview(data))


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = sorted(
    {"v", "kind", "run", "epoch", "src", "seq", "section"}.union(
        *(message_type.__dataclass_fields__ for message_type in messages.KINDS.values())
    )
)


@given(
    st.sampled_from(EXAMPLES),
    st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), VALUES, max_size=3),
    st.sets(st.sampled_from(FIELDS), max_size=2),
)
def test_changed_header_is_decoded_or_raises_a_security_error(
    message: messages.Message, changes: dict[str, object], removed: set[str]
) -> None:
    plain = msgpack.unpackb(encode_header(ENVELOPE, message))
    plain = {name: value for name, value in (plain | changes).items() if name not in removed}
    with contextlib.suppress(SecurityError):
        _, decoded = decode_header(msgpack.packb(plain))
        assert type(decoded) in messages.KINDS.values()


@given(st.sampled_from(EXAMPLES), st.integers(0, 10_000), st.integers(0, 255))
def test_changed_byte_is_decoded_or_raises_a_security_error(message: messages.Message, at: int, value: int) -> None:
    header = bytearray(encode_header(ENVELOPE, message))
    header[at % len(header)] = value
    with contextlib.suppress(SecurityError):
        decode_header(bytes(header))


def test_failure_message_always_fits_a_header() -> None:
    try:
        raise ValueError("\U0001f4a5" * 100_000)
    except ValueError as error:
        failed = messages.Failed.of(error)
    _, decoded = decode_header(encode_header(ENVELOPE, failed))
    assert decoded == failed
    assert failed.error == "ValueError"
    assert failed.text.startswith("\\U0001f4a5")


DOCUMENT = memoryview(b"x")


@pytest.mark.parametrize(
    ("message", "frames", "reason"),
    [
        (messages.Load("p"), [DOCUMENT], ""),
        (TENSORS, [], ""),
        (messages.Load("p"), [], "load: 0 frames of .* expected a document of at most"),
        (messages.Load("p"), [memoryview(bytes(64 * 2**20 + 1))], "expected a document of at most 67108864"),
        (TENSORS, [DOCUMENT], "tensors: 1 frames, expected none"),
    ],
)
def test_frames_are_one_document_or_none(message: messages.Message, frames: list[memoryview], reason: str) -> None:
    with pytest.raises(Violation, match=reason) if reason else contextlib.nullcontext():
        encoding.check_frames(message, frames)


@given(VALUES)
def test_document_round_trip(document: object) -> None:
    assert decode_document(memoryview(encode_document(document))) == document


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "a map has the same key twice"),
        (b"\x81\xa1a\x01\x01", "ExtraData"),
        (b"\xd4\x01\x01", "exceeds max_ext_len"),
        (b"\xc7\x00\x01", "extension type 1"),
        (b"\xc7\x00\xff", "expected one msgpack value"),
        (b"\xd6\xff\x00\x00\x00\x00", "expected one msgpack value"),
        (b"\x81\xc4\x01a\x01", "a key of a map is not text"),
        (b"\x91" * 5000 + b"\xc0", "StackError"),
        (b"", "expected one msgpack value"),
    ],
)
def test_ambiguous_msgpack_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SecurityError, match=reason):
        decode_document(memoryview(data))


def test_size_limit_holds_for_encoding_and_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(ValueError, match="document of 103 bytes: expected at most 100"):
        encode_document(b"x" * 101)
    with pytest.raises(SecurityError, match="103 bytes, expected at most 100"):
        decode_document(memoryview(msgpack.packb(b"x" * 101)))


def test_peer_name_round_trip() -> None:
    assert messages.peer_name("worker", 12) == "worker-12"
    assert messages.split_name("ps-0") == ("ps", 0)
    assert messages.split_name("worker_heartbeat-0") == ("worker_heartbeat", 0)
    assert messages.process_names(2) == ["worker-0", "worker-1"]
    assert messages.process_names(1, 2) == ["worker-0", "ps-0", "ps-1"]
    with pytest.raises(ValueError, match="peer name 'worker--1'"):
        messages.peer_name("worker", -1)


@pytest.mark.parametrize(
    "name", ["worker", "worker-", "worker-01", "worker--1", "slave-0", "heartbeat-0", "ps", "ps-01", "worker-1\n", ""]
)
def test_malformed_name_is_refused(name: str) -> None:
    expected = f"expected <role>-<index> with a role of {', '.join(messages.ROLES)}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        messages.split_name(name)
