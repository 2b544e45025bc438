"""Timelines of sessions in one process: every instruction once per step, in order, with correct fields."""

from collections import Counter
from itertools import count, pairwise
from typing import Any

import pytest

from runner.engine.cluster.transport.encoding import decode_document, encode_document
from runner.engine.graph import Graph
from runner.engine.run import recording
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import COMPUTE, DELAY, WAIT, PlanRun, RawSpan, Recorder, from_document, to_document
from runner.engine.run.timeline import RecordedPlan, Timeline, spans_of
from runner.errors import ResourceError, RunnerError, SecurityError
from runner.kernels.registry import Registry
from runner.optimizers import Momentum
from runner.strategies import SyncData
from tests.engine.run.launched_programs import expect_matching_transfers
from tests.engine.running import Bench
from tests.strategies.networks import NETWORKS, workload_of
from tests.strategies.training import Trainer, begun, opened

STEPS = [1, 2]
WORKLOAD = workload_of(NETWORKS["dense"], Momentum(), batch_size=5)


@pytest.fixture(scope="module")
def traced(registry: Registry) -> tuple[Trainer, Timeline]:
    """Return a trainer and a timeline of two of its four steps; an evaluation runs between the two steps."""
    with begun(SyncData(workers=2), WORKLOAD, registry=registry) as trainer:
        trainer.train([0])
        trainer.session.start_trace(["train"])
        trainer.train(STEPS[:1])
        trainer.evaluate()
        trainer.train(STEPS[1:])
        timeline = trainer.session.stop_trace()
        trainer.train([3])
        return trainer, timeline


def test_every_instruction_has_one_span_per_step(traced: tuple[Trainer, Timeline]) -> None:
    trainer, timeline = traced
    found = Counter((s.device, s.step, s.node, s.kind) for s in timeline.spans)
    kinds = {"send": ["send"], "recv": ["wait", "receive"]}
    expected = Counter(
        (device, step, instruction.node, kind)
        for device, plan in trainer.session.plans("train").items()
        for step in STEPS
        for instruction in plan.instructions
        for kind in kinds.get(instruction.op, ["compute"])
    )
    inputs = Counter((device, step, "input", "input") for device in trainer.session.plans("train") for step in STEPS)
    assert found == expected + inputs


def test_times_ascend_on_every_device_and_are_within_the_runs(traced: tuple[Trainer, Timeline]) -> None:
    _, timeline = traced
    for device in {span.device for span in timeline.spans}:
        times = [time for s in timeline.spans if s.device == device for time in (s.begin_ns, s.end_ns)]
        assert all(before <= after for before, after in pairwise(times))
    runs = {(each.client, each.number): each for each in timeline.runs}
    # Only ``train`` is traced, so the timeline does not contain the run of ``eval`` between the two steps.
    found = [(each.client, each.number, each.step, each.launched) for each in timeline.runs]
    assert found == [("train", 1, 1, False), ("train", 2, 2, False)]
    for span in timeline.spans:
        run = runs[span.client, span.number]
        assert run.step == span.step
        assert run.begin_ns <= span.begin_ns <= span.end_ns <= run.end_ns


def test_transfers_match_and_spans_name_their_layers(traced: tuple[Trainer, Timeline]) -> None:
    _, timeline = traced
    expect_matching_transfers(timeline.spans)
    assert {"fc1", "fc2", "fc3"} <= {span.layer for span in timeline.spans}


def test_recording_ends_when_the_trace_stops(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[bool] = []

    def record(executor: DeviceExecutor, recorder: object, plan: int = 0) -> None:
        chosen.append(recorder is not None)

    monkeypatch.setattr(DeviceExecutor, "record", record)
    with opened(SyncData(workers=2), WORKLOAD, registry) as trainer:
        with pytest.raises(RunnerError, match="no trace is being recorded"):
            trainer.session.stop_trace()
        trainer.session.start_trace(["train"])
        with pytest.raises(
            RunnerError, match="a trace of eval was requested during another trace: stop the first trace"
        ):
            trainer.session.start_trace(["eval"])
        assert trainer.session.stop_trace() == Timeline((), ())
    assert chosen == [True, True, False, False]


@pytest.mark.parametrize(
    ("spans", "complaint"),
    [
        ([RawSpan(1, 0, 0, 0, "compute", 0, 1)], "plan 1, expected less than 1"),
        ([RawSpan(0, 0, 0, 1, "compute", 0, 1)], "instruction 1, expected less than 1"),
        ([RawSpan(0, 0, 0, 0, "send", 0, 1)], "send of 'c', expected compute"),
        ([RawSpan(0, 0, 0, 0, "compute", 2, 1)], "1 ns follows 2 ns"),
        ([RawSpan(0, 0, 0, 0, "compute", 2, 4), RawSpan(0, 1, 1, 0, "compute", 3, 5)], "3 ns follows 4 ns"),
    ],
)
def test_spans_that_a_plan_cannot_produce_are_refused(registry: Registry, spans: list[RawSpan], complaint: str) -> None:
    graph = Graph()
    graph.add("fill", [], {"value": 1.0, "shape": (2,), "dtype": "float64"}, name="c")
    plan = Bench(graph, registry).plan
    assert len(plan.instructions) == 1
    with pytest.raises(SecurityError, match=f"^spans of worker-1 refused: {complaint}"):
        spans_of("worker-1", [RecordedPlan("train", plan, graph)], spans)


SPANS = [
    RawSpan(0, 8, 3, 0, "input", 5, 6),
    RawSpan(0, 8, 3, 7, COMPUTE, 6, 10),
    RawSpan(1, 9, 4, 2, WAIT, 2**40, 2**41),
    RawSpan(2, 0, 4, 0, DELAY, 2**41, 2**42),
]


def test_timed_call_is_recorded_with_begin_and_end_and_returns_its_value() -> None:
    recorder = Recorder(clock=count(100).__next__)
    assert recorder.timed(PlanRun(2, 9, 3), 7, COMPUTE, lambda: "value") == "value"
    assert recorder.spans == [RawSpan(plan=2, number=9, step=3, position=7, kind=COMPUTE, begin_ns=100, end_ns=101)]


def test_too_many_spans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_SPANS", 2)
    recorder = Recorder()
    for _ in range(2):
        recorder.timed(PlanRun(0, 0, 0), 0, COMPUTE, lambda: None)
    with pytest.raises(ResourceError, match="at most 2 spans per device: record fewer steps"):
        recorder.timed(PlanRun(0, 0, 0), 0, COMPUTE, lambda: None)


@pytest.mark.parametrize("spans", [SPANS, []])
def test_document_round_trip(spans: list[RawSpan]) -> None:
    frame = encode_document(to_document(spans))
    assert from_document(decode_document(memoryview(frame)), "worker-0") == spans


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": [0, 6, 1, 2]}, r"spans of worker-0\.kind\[1\]: 6, expected a whole number from 0 to 5"),
        ({"plan": [0, 1, 2, 65536]}, r"spans of worker-0\.plan\[3\]: 65536, expected a whole number from 0 to 65535"),
        ({"position": [0, -1, 1, 2]}, r"spans of worker-0\.position\[1\]: -1, expected a whole number"),
        ({"step": [1, 2]}, "expected columns of equal length"),
        ({"more": []}, r"unknown \['more'\]"),
        ({"end_ns": 3}, r"spans of worker-0\.end_ns: 3, expected a list"),
    ],
)
def test_malformed_document_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SecurityError, match=f"^spans of worker-0 refused: .*{complaint}"):
        from_document({**to_document(SPANS), **change}, "worker-0")


def test_longest_document_fits_a_frame() -> None:
    longest = [2**63 - 1] * recording.MAX_SPANS
    columns = dict.fromkeys(("number", "step", "position", "begin_ns", "end_ns"), longest)
    largest_plan = [recording.MAX_PLANS - 1] * recording.MAX_SPANS
    encode_document({**columns, "kind": [5] * recording.MAX_SPANS, "plan": largest_plan})


def test_plan_names_are_read_in_order() -> None:
    assert recording.read_plans(decode_document(memoryview(encode_document(["b", "a"])))) == ("b", "a")
    with pytest.raises(SecurityError, match=r"^plans of a trace refused: .*\[1\]: 3, expected text of at most 64"):
        recording.read_plans(["a", 3])
