"""Model parallelism on worker processes: it equals ``single``, and its placement is stored and resumed."""

import json
from pathlib import Path

import pytest

from tests.integration.command import succeed, summary_of
from tests.small_runs import typed

PARTS = 2
COMMON = typed(
    "model=lenet train.batch_size=8 train.eval_batch_size=64 cluster.threads_per_worker=1 tracking.pictures=false"
)
SPLIT = "parallelism.constraints={conv*: 0, fc*: 1}"


def train(folder: Path, run: str, *overrides: str, steps: int = 6, tracking: str = "none") -> Path:
    arguments = (f"hydra.run.dir={run}", f"train.steps={steps}", f"tracking={tracking}", *COMMON)
    succeed(folder, *arguments, *overrides)
    return folder / run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a traced run of two workers. The run compared its step time with other strategies."""
    folder = tmp_path_factory.mktemp("model")
    more = ("trace=true", "trace_skip=1", "trace_steps=3", "parallelism.compare_steps=2")
    train(folder, "run", "parallelism=model", f"parallelism.concurrent_steps={PARTS}", SPLIT, *more, tracking="mlflow")
    return folder


def test_the_weights_equal_those_of_single_with_as_many_microbatches(folder: Path) -> None:
    single = train(folder, "single", "parallelism=single", f"train.microbatches={PARTS}")
    assert summary_of(folder / "run").weights_sha256 == summary_of(single).weights_sha256
    assert min(summary_of(folder / "run").bytes_sent_per_worker) > 0


def test_the_placement_is_stored_as_an_artifact(folder: Path) -> None:
    own = (folder / "run" / "placement.json").read_bytes()
    layers = json.loads(own)["layers"]
    assert layers["conv1"] == layers["conv2"] != layers["fc1"] == layers["fc2"]
    assert [path.read_bytes() for path in folder.rglob("placement.json") if path.parent.name == "artifacts"] == [own]


def test_log_and_summary_report_the_comparison(folder: Path) -> None:
    measured = summary_of(folder / "run").compared_step_s
    assert list(measured) == ["model", "single", "sync_data"]
    assert all(seconds > 0 for seconds in measured.values())
    text = (folder / "run" / "run.log").read_text()
    assert "times as long as single, as predicted by the cost model (model " in text
    assert "as measured over 2 steps each" in text


def test_recorded_costs_can_replace_estimates(folder: Path) -> None:
    model = ("parallelism=model", f"parallelism.concurrent_steps={PARTS}")
    assert "fc2" in succeed(folder, "explain", *COMMON, *model, "parallelism.costs=run/trace_summary.json").output


@pytest.mark.slow
def test_a_stale_pipeline_continues_after_a_resume(folder: Path) -> None:
    stale = ("parallelism=model", f"parallelism.concurrent_steps={PARTS}", "parallelism.pipeline=stale", SPLIT)
    whole = train(folder, "whole", *stale, "schedule=constant", steps=4)
    half = train(folder, "half", *stale, "schedule=constant", steps=2)
    kept = (half / "placement.json").read_bytes()
    succeed(folder, "resume=half", "train.steps=4")
    assert summary_of(half).weights_sha256 == summary_of(whole).weights_sha256
    assert (half / "placement.json").read_bytes() == kept
