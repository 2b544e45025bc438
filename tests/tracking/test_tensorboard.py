"""TensorBoard event files: scalars with step and time, hyper-parameters and texts."""

import importlib.util
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.config.check import check
from runner.errors import ConfigError
from runner.tracking.records import Artifact, Metrics
from runner.tracking.tensorboard import FOLDER, TensorboardStore, TensorboardTracking
from runner.tracking.writer import StoreUnavailableError
from runner.training.run import run
from tests.small_runs import small_config
from tests.tracking.recorded import a_run, recording

pytest.importorskip("tensorboardX", reason="tensorboardX is not installed: it comes with the development dependencies")


def events(run_dir: Path) -> Iterator[Any]:
    """Yield the events of all event files of a run, in the order of the files."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted((run_dir / FOLDER).iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])  # followed by its checksum, the event, and the event's checksum
            yield Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def values(run_dir: Path) -> list[tuple[int, float, Any]]:
    """Return step, time in seconds, and value of every summary."""
    return [(event.step, event.wall_time, value) for event in events(run_dir) for value in event.summary.value]


def test_a_run_is_written_as_scalars_hyper_parameters_and_texts(tmp_path: Path) -> None:
    given = ["tracking=tensorboard", "train.log_every=1", "optimizer.lr=0.3"]
    run(small_config(*given), tmp_path, overrides=given)
    found = values(tmp_path)
    losses = [(step, value.simple_value) for step, _, value in found if value.tag == "train/loss"]
    assert [step for step, _ in losses] == [1, 2, 3]
    texts = {value.tag: value.tensor.string_val[0].decode() for _, _, value in found if value.tensor.string_val}
    assert "name: mlp" in texts["configuration/text_summary"]
    assert "`optimizer.lr=0.3`" in texts["description/text_summary"]
    assert any(value.metadata.plugin_data.plugin_name == "hparams" for _, _, value in found)


def test_a_resumed_run_replaces_the_later_points_of_its_earlier_start(tmp_path: Path) -> None:
    with recording(TensorboardTracking(), a_run(tmp_path)) as tracker:
        for step in (1, 2, 3):
            tracker.log_metrics(step, {"train/loss": 1.0})
    with recording(TensorboardTracking(), a_run(tmp_path, first_step=3)) as tracker:
        tracker.log_metrics(3, {"train/loss": 2.0})
    from tensorboardX.proto.event_pb2 import SessionLog

    starts = [event.step for event in events(tmp_path) if event.session_log.status == SessionLog.START]
    assert starts == [0, 3]


def test_a_failed_write_repeats_no_point_and_a_missing_artifact_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    store = TensorboardStore(a_run(tmp_path))
    store.open()
    records = [Artifact(str(tmp_path / "absent.yaml"), ""), *(Metrics(n, n, {"train/loss": 1.0}) for n in (1, 2))]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreUnavailableError, match=f"event file {tmp_path}.*No space left on device"):
            store.write(records)
    store.write(records)
    assert [step for step, _, _ in values(tmp_path)] == [1, 2]
    assert "absent.yaml cannot be read and is missing from the tracking record" in caplog.text


def test_a_missing_library_is_refused_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("tracking=tensorboard")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = r"tensorboardX is not installed; .*pip install 'runner-dataflow\[tensorboard\]'"
    with pytest.raises(ConfigError, match=message):
        check(config)
