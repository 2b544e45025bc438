import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest

from runner.tracking.metrics_log import MetricsLog, read_metrics
from runner.tracking.records import Metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def _steps(path: Path) -> list[int]:
    return [record.step for record in read_metrics(path)]


def _write(path: Path, steps: range, first_step: int = 0) -> None:
    with MetricsLog(path, first_step) as log:
        for step in steps:
            log.append(step, {"train/loss": 1.0 / (step + 1)}, time_s=100.0 + step)


def test_appended_values_are_read_back(path: Path) -> None:
    with MetricsLog(path) as log:
        log.append(3, {"train/loss": np.float32(0.5), "perf/step_time_s": 0.25}, time_s=1.5)
    assert list(read_metrics(path)) == [Metrics(3, 1500, {"train/loss": 0.5, "perf/step_time_s": 0.25})]


def test_a_line_is_in_the_file_before_append_returns(path: Path) -> None:
    log = MetricsLog(path)
    log.append(1, {"train/loss": 0.5})
    assert _steps(path) == [1]
    log.sync()
    log.close()


def test_resuming_drops_lines_beyond_the_checkpoint(path: Path) -> None:
    _write(path, range(8))
    _write(path, range(5, 10), first_step=5)
    assert _steps(path) == list(range(10))


def test_a_fresh_run_starts_with_an_empty_file(path: Path) -> None:
    _write(path, range(3))
    _write(path, range(2))
    assert _steps(path) == [0, 1]


def test_a_line_a_kill_cut_short_is_dropped(path: Path) -> None:
    _write(path, range(3))
    with path.open("a") as file:
        file.write('{"step": 3, "ti')
    assert _steps(path) == [0, 1, 2]
    _write(path, range(3, 5), first_step=3)
    assert _steps(path) == [0, 1, 2, 3, 4]


def test_damage_behind_the_checkpoint_does_not_stop_a_resume(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _write(path, range(3))
    with path.open("ab") as file:
        file.write(b"\0" * 20 + b"\n")
    with caplog.at_level(logging.WARNING):
        _write(path, range(3, 4), first_step=3)
    assert _steps(path) == [0, 1, 2, 3]
    assert f"{path}:4" in caplog.text


def test_values_that_are_not_finite_survive_in_strict_json(path: Path) -> None:
    with MetricsLog(path) as log:
        log.append(0, {"train/loss": math.nan, "train/gradient_norm": math.inf})
    values = next(iter(read_metrics(path))).values
    assert math.isnan(values["train/loss"])
    assert values["train/gradient_norm"] == math.inf
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_a_file_of_something_else_is_named_with_its_line(path: Path) -> None:
    path.write_text('{"step": 1, "time": 1.0, "values": {}}\n{"epoch": 3}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: .*is not a metrics record"):
        list(read_metrics(path))


@pytest.mark.parametrize("name", ["loss", "training/loss", "train/", "train/loss@1", "train//loss"])
def test_a_name_without_a_known_section_is_refused(name: str, path: Path) -> None:
    with (
        MetricsLog(path) as log,
        pytest.raises(ValueError, match="one of train, val, test, perf, comm, system"),
    ):
        log.append(0, {name: 1.0})
