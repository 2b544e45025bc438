"""Timelines of sessions in one process: every instruction once per step, in order, with the right fields."""

from collections import Counter
from itertools import pairwise

import pytest

from runner.engine.graph.graph import Graph
from runner.engine.run.executor import DeviceExecutor
from runner.engine.run.recording import RawSpan
from runner.engine.run.timeline import RecordedPlan, Timeline, spans_of
from runner.errors import RunnerError, SecurityError
from runner.kernels.registry import Registry
from runner.optimizers.sgd import Momentum
from runner.strategies.sync_data import SyncData
from tests.engine.run.matching_spans import expect_matching_transfers
from tests.engine.running import Bench
from tests.strategies.networks import NETWORKS, task_of
from tests.strategies.training import Trainer, opened

STEPS = [1, 2]
TASK = task_of(NETWORKS["dense"], Momentum(), batch_size=5)


@pytest.fixture(scope="module")
def traced(registry: Registry) -> tuple[Trainer, Timeline]:
    """A trainer and the timeline of two of its four steps, with an evaluation between them."""
    with opened(SyncData(workers=2), TASK, registry) as trainer:
        trainer.session.run("init")
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


def test_times_ascend_on_every_device_and_lie_within_the_runs(traced: tuple[Trainer, Timeline]) -> None:
    _, timeline = traced
    for device in {span.device for span in timeline.spans}:
        times = [time for s in timeline.spans if s.device == device for time in (s.begin_ns, s.end_ns)]
        assert all(before <= after for before, after in pairwise(times))
    runs = {(each.client, each.number): each for each in timeline.runs}
    # An evaluation is a run of another client and does not count here.
    assert [(each.client, each.number, each.step, each.launched) for each in timeline.runs] == [
        ("train", 1, 1, False),
        ("train", 2, 2, False),
    ]
    for span in timeline.spans:
        run = runs[span.client, span.number]
        assert run.step == span.step
        assert run.begin_ns <= span.begin_ns <= span.end_ns <= run.end_ns


def test_receive_ends_after_its_send_began_and_fields_match(traced: tuple[Trainer, Timeline]) -> None:
    _, timeline = traced
    expect_matching_transfers(timeline.spans)


def test_spans_name_their_layers(traced: tuple[Trainer, Timeline]) -> None:
    _, timeline = traced
    assert {"fc1", "fc2", "fc3"} <= {span.layer for span in timeline.spans}


def test_recording_ends_with_the_trace(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[bool] = []

    def record(executor: DeviceExecutor, recorder: object, plan: int = 0) -> None:
        chosen.append(recorder is not None)

    monkeypatch.setattr(DeviceExecutor, "record", record)
    with opened(SyncData(workers=2), TASK, registry) as trainer:
        trainer.session.start_trace(["train"])
        trainer.session.stop_trace()
    assert chosen == [True, True, False, False]


def test_second_trace_is_refused(registry: Registry) -> None:
    with opened(SyncData(workers=2), TASK, registry) as trainer:
        with pytest.raises(RunnerError, match="no trace is being recorded"):
            trainer.session.stop_trace()
        trainer.session.start_trace(["train"])
        with pytest.raises(RunnerError, match="a trace of eval was requested while another one is being recorded"):
            trainer.session.start_trace(["eval"])
        assert trainer.session.stop_trace() == Timeline((), ())


@pytest.mark.parametrize(
    ("spans", "complaint"),
    [
        ([RawSpan(1, 0, 0, 0, "compute", 0, 1)], "plan 1, expected one of 1"),
        ([RawSpan(0, 0, 0, 1, "compute", 0, 1)], "instruction 1, expected one of 1"),
        ([RawSpan(0, 0, 0, 0, "send", 0, 1)], "send of 'c', expected compute"),
        ([RawSpan(0, 0, 0, 0, "compute", 2, 1)], "1 ns follows 2 ns"),
        ([RawSpan(0, 0, 0, 0, "compute", 2, 4), RawSpan(0, 1, 1, 0, "compute", 3, 5)], "3 ns follows 4 ns"),
    ],
)
def test_spans_that_the_plan_cannot_produce_are_refused(
    registry: Registry, spans: list[RawSpan], complaint: str
) -> None:
    graph = Graph()
    graph.add("fill", [], {"value": 1.0, "shape": (2,), "dtype": "float64"}, name="c")
    plan = Bench(graph, registry).plan
    assert len(plan.instructions) == 1
    with pytest.raises(SecurityError, match=f"^spans of worker-1 refused: {complaint}"):
        spans_of("worker-1", [RecordedPlan("train", plan, graph)], spans)
