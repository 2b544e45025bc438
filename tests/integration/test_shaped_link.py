"""The rows of the page about a link of limited bandwidth."""

from types import SimpleNamespace
from typing import cast

from runner.records.summary import Summary
from tests.integration.shaped_link import BLOCKING, FREE, row


def simulation_of(median_s: float, sent: float, received: float) -> Summary:
    links = {"host0 -> host1": SimpleNamespace(bytes=sent), "host1 -> host0": SimpleNamespace(bytes=received)}
    return cast(Summary, SimpleNamespace(step_time_s={"median": median_s}, simulation=SimpleNamespace(links=links)))


def test_rows_state_the_bound_the_hidden_part_and_the_error_of_the_simulation() -> None:
    seconds = {
        ("flat", FREE): [0.19, 0.20, 0.26],
        ("flat", 100): [0.31, 0.30, 0.33],
        (BLOCKING, FREE): [0.20],
        (BLOCKING, 100): [0.45],
    }
    found = row("flat", 100, seconds, simulation_of(0.279, 3e6, 2e6))
    assert found == ["100", "flat", "310", "300 to 330", "240", "1.29", "0.56", "279", "-10 %"]
    assert row("flat", 100, seconds, simulation_of(0.31, 1e6, 2e6))[4:6] == ["200", "1.55"], "computation is longer"
    assert row("flat", FREE, seconds, simulation_of(0.2, 3e6, 2e6))[4:7] == ["200", "1.00", "-"]
    assert row(BLOCKING, 100, seconds, simulation_of(0.45, 3e6, 2e6))[6:] == ["-", "450", "+0 %"]
