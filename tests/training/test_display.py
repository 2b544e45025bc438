"""The display of a run, its results table, and Ctrl-C."""

import os
import signal
from dataclasses import replace

import pytest

from runner.commands.train import results_table
from runner.errors import Interrupted
from runner.records.summary import Summary
from runner.system.signals import StopRequest
from runner.training.display import PlainDisplay


def test_plain_lines_say_step_loss_rate_and_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(interval_s=0.0)
    display.start(10, 100)
    display.step(20, 0.51234, 1234.5)
    display.close()
    line = capsys.readouterr().err
    assert "step 20/100  loss 0.5123  1,234 examples/s  ETA " in line


def test_plain_lines_are_no_more_frequent_than_their_interval(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(interval_s=3600.0)
    display.start(0, 100)
    for done in range(1, 50):
        display.step(done, 1.0, 1.0)
    assert capsys.readouterr().err == ""


def test_the_first_signal_is_noted_and_the_second_one_stops_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert stop.signum is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signum == signal.SIGTERM
        with pytest.raises(Interrupted, match="second signal") as stopped:
            os.kill(os.getpid(), signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is before


def finished() -> Summary:
    """A summary in which everything is known."""
    return Summary(
        run_id="r",
        status="finished",
        config_hash="c",
        output_dir="/here",
        strategy="sync_data",
        workers=2,
        versions={},
        platform="",
        cpu_model="",
        kernels={"cpu": "numpy"},
        steps=5,
        examples=160,
        step_time_s={"median": 0.002, "p10": 0.001, "p90": 0.004},
        final={"test/accuracy": 0.97},
        best={"test/accuracy": 0.98},
        bytes_sent_per_worker=[2**20, 3 * 2**20],
        weights_sha256="abc",
    )


def facts(summary: Summary) -> dict[str, str]:
    """What the results table says, by the name of the line."""
    lines = dict(line.split("  ", 1) for line in results_table(summary).splitlines())
    return {name.strip(): value.strip() for name, value in lines.items()}


def test_the_results_table_shows_the_results() -> None:
    values = facts(finished())
    assert values["test/accuracy"] == "0.9700  (best 0.9800)"
    assert values["step time"] == "median 2.00 ms, p10 1.00 ms, p90 4.00 ms"
    assert values["MiB sent per worker"] == "1.0, 3.0"
    assert "MiB sent per server" not in values
    assert values["run directory"] == "/here"


def test_an_emulated_network_is_in_the_results_table() -> None:
    assert "network" not in facts(finished())
    assert facts(replace(finished(), emulated="100 Mbit/s, 1 ms"))["network"] == "emulated: 100 Mbit/s, 1 ms"


def test_bytes_of_parameter_servers_and_workers_are_separate() -> None:
    values = facts(replace(finished(), bytes_sent_per_worker=[2**20, 3 * 2**20, 5 * 2**20]))
    assert values["MiB sent per worker"] == "1.0, 3.0"
    assert values["MiB sent per server"] == "5.0"
