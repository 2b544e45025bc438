"""The setup document: round trips, and refusals of every malformed field."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.engine.cluster.communicator_setup import CommunicatorSetup
from runner.engine.cluster.emulation import Link
from runner.engine.cluster.transport.documents import decode_document, encode_document
from runner.engine.cluster.worker_setup import WorkerSetup
from runner.engine.graph.device import GpuOptions
from runner.errors import SecurityError
from tests.engine.compile.plain_data import mutated, put

MEMBERS = ("worker-0", "worker-1")
COMMUNICATOR = CommunicatorSetup("nccl", bytes(range(128)), MEMBERS)
OPTIONS = GpuOptions(tf32=True, compare_plans=True, code_folder="/kept")
SETUP = WorkerSetup({"a": [1]}, True, Link(1, 3), {"worker-0": 2, "worker-1": 0}, OPTIONS, COMMUNICATOR)
DOCUMENT: Any = decode_document(memoryview(encode_document(SETUP.to_document())))
COMMUNICATOR_ID = "setup.communicator.unique_id: .*, expected 128 bytes"
OF_GPUS = ("setup.gpus", "a whole number from 0 to 2147483647")


@pytest.mark.parametrize("setup", [SETUP, WorkerSetup(None, False, None), WorkerSetup({}, False, Link(0.5, None))])
def test_setup_survives_its_document(setup: WorkerSetup) -> None:
    assert WorkerSetup.from_document(decode_document(memoryview(encode_document(setup.to_document())))) == setup


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ((), None, "setup: None, expected a map"),
        ((), {"source": {}}, r"setup: missing \['check_finite', 'link', .*, expected the fields source, check_finite"),
        (("more",), 1, r"unknown \['more'\]"),
        (("check_finite",), 1, "setup.check_finite: 1, expected true or false"),
        (("source",), "digits", "setup.source: 'digits', expected a map with text keys"),
        (("source",), {1: 2}, "setup.source: .* expected a map with text keys"),
        (("gpus",), [0], r"setup.gpus: \[0\], expected a map"),
        *((("gpus", "worker-0"), gpu, r"setup.gpus\[worker-0\]: .* 0 to 2147483647") for gpu in (-1, True, 2**62)),
        (("use", "tf32"), None, "setup.use.tf32: None, expected true or false"),
        (("use", "compare_plans"), 1, "setup.use.compare_plans: 1, expected true or false"),
        (("use", "code_folder"), b"/kept", "setup.use.code_folder: .*, expected text"),
        (("use", "more"), 1, r"setup.use: unknown \['more'\]"),
        (("link",), {"latency_s": 1.0}, r"setup.link: missing \['bytes_per_s'\]"),
        (("link", "latency_s"), -1.0, "latency_s -1.0: expected 0 to 200"),
        (("link", "latency_s"), True, "setup.link.latency_s: True, expected a finite number"),
        (("link", "bytes_per_s"), 0, "bytes_per_s 0: expected a finite number above 0, or None"),
        (("link", "bytes_per_s"), [1], r"setup.link.bytes_per_s: \[1\], expected a finite number"),
        (("communicator", "library"), "none", "setup.communicator.library: 'none', expected one of nccl"),
        (("communicator", "library"), ["nccl"], "expected one of nccl"),
        (("communicator", "unique_id"), "00" * 128, COMMUNICATOR_ID),
        (("communicator", "unique_id"), bytes(127), COMMUNICATOR_ID),
        (("communicator", "members"), "worker-0", "setup.communicator.members: 'worker-0', expected a list"),
        (("communicator", "members"), [0, 1], r"setup.communicator.members\[0\]: 0, expected text"),
        (("communicator", "members"), ["worker-0"], "communicator of .*: expected two or more different members"),
        (("communicator", "members"), ["worker-0"] * 2, "communicator of .*: expected two or more different members"),
    ],
)
def test_malformed_setup_is_refused(path: tuple[Any, ...], value: object, text: str) -> None:
    with pytest.raises(SecurityError, match=f"^setup refused: .*{text}"):
        WorkerSetup.from_document(put(DOCUMENT, path, value) if path else value)


@given(data=st.data())
def test_mutated_setup_is_refused_or_round_trips(data: st.DataObject) -> None:
    document = data.draw(mutated(DOCUMENT))
    try:
        setup = WorkerSetup.from_document(document)
    except SecurityError:
        return
    assert setup.to_document() == document
