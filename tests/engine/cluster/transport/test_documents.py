import contextlib

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.transport import documents
from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.errors import SecurityError

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
def test_document_round_trip(document: object) -> None:
    assert decode_document(memoryview(encode_document(document))) == document


@given(st.binary(max_size=200))
def test_random_bytes_are_a_document_or_a_security_error(data: bytes) -> None:
    with contextlib.suppress(SecurityError):
        decode_document(memoryview(data))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x82\xa1a\x01\xa1a\x02", "a map has the same key twice"),
        (b"\x81\xa1a\x01\x01", "ExtraData"),
        (b"\xd4\x01\x01", "exceeds max_ext_len"),
        (b"\xc7\x00\x01", "extension type 1"),
        (b"\xc7\x00\xff", "not one msgpack value"),
        (b"\xd6\xff\x00\x00\x00\x00", "not one msgpack value"),
        (b"\x81\xc4\x01a\x01", "a key of a map is not text"),
        (b"\x91" * 5000 + b"\xc0", "StackError"),
        (b"", "not one msgpack value"),
    ],
)
def test_ambiguous_msgpack_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(SecurityError, match=reason):
        decode_document(memoryview(data))


def test_size_limit_holds_for_encoding_and_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_DOCUMENT_BYTES", 100)
    with pytest.raises(ValueError, match="document of 103 bytes, at most 100"):
        encode_document(b"x" * 101)
    with pytest.raises(SecurityError, match="103 bytes, at most 100 allowed"):
        decode_document(memoryview(msgpack.packb(b"x" * 101)))
