"""The tables of benchmark results, read cell by cell."""

import argparse

import pytest

from benchmarks.cases import PRECISIONS
from benchmarks.cells import command_line, markdown
from benchmarks.gpu.networks import PRECISIONS as ON_GPUS
from benchmarks.report import Report
from benchmarks.results import TOLERANCES, SubjectResult
from benchmarks.scaling import ScalingResult, scaling_section
from benchmarks.strategies import StrategyTable, strategies_section
from benchmarks.table import case_section, overview
from tests.benchmarks.made import case, cells, subject


def test_a_table_has_a_separator_line_below_its_header() -> None:
    assert markdown(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_the_overview_compares_runner_with_best_peer_limit_and_leanest_peer() -> None:
    lean = subject("lean", [40], memory_mib=(10.0, 80.0))
    text = overview([case(subject("runner", [12]), subject("fast", [16]), lean)])
    assert cells(text, "net") == [
        *("net", "float32", "12", "fast", "16", "0.75", "10", "1.20"),
        *("100", "lean", "80", "-"),
    ]


def test_bfloat16_of_runner_is_compared_with_float32_of_runner() -> None:
    wide = case(subject("runner", [100]))
    narrow = case(subject("runner", [55]), precision="bfloat16", limit_s={"step": None})
    assert cells(overview([narrow, wide]).replace("| net | bfloat16", "| narrow | bfloat16"), "narrow")[-1] == "0.55"


def test_the_overview_of_a_failure_has_no_numbers() -> None:
    text = overview([case(subject("runner", failure="ended", losses=()), subject("peer", [9]))])
    assert cells(text, "net") == ["net", "float32", "-", "-", "-", "-", "10", "-", "-", "-", "-", "-"]


def test_a_section_has_medians_quartiles_ratios_and_memory() -> None:
    text = case_section(case(subject("runner", [10, 12, 14]), subject("peer", [24])))
    assert cells(text, "runner")[7:] == ["12 (11-13)", "0.50", "1.20", "100 (50)", "3.0000, 2.5000, 2.0000"]
    assert cells(text, "peer")[7:] == ["24 (24-24)", "1.00", "2.40", "100 (50)", "match"]
    assert cells(text, "runner")[1:4] == ["-", "-", "-"]
    assert cells(text, "physical")[7] == "10"
    assert "1,000 parameters; million multiply-adds: forward 3.0, gradients 9.0, step 10.0." in text


def test_a_peer_with_a_different_computation_is_labelled_and_has_no_ratios() -> None:
    text = case_section(case(subject("runner", [10]), subject("peer", [1], losses=(3.0, 3.0, 3.0))))
    row = cells(text, "peer")
    assert row[7:] == ["1 (1-1)", "-", "-", "100 (50)", "different computation: 3.0000, 3.0000, 3.0000"]
    assert cells(text, "runner")[8] == "-"


def test_a_missing_peer_is_reported_in_its_row() -> None:
    text = case_section(case(subject("runner", [10]), subject("peer", failure="not installed: a | b")))
    row = cells(text, "peer")
    assert row[1] == "not installed: a / b"
    assert len(row) == len(cells(text, "runner"))


@pytest.mark.parametrize(
    ("peer", "last"),
    [
        (None, ["-", "-"]),
        (subject("ddp", [800, 1000, 2000]), ["128.0", "0.50"]),
        (subject("ddp", failure="not installed"), ["not installed", "-"]),
    ],
)
def test_scaling_prints_its_rates_and_their_ratios(peer: SubjectResult | None, last: list[str]) -> None:
    unconnected = ((0.4,), (0.4,))
    result = ScalingResult("scaling/net", "net", 64, (0.5,), unconnected, alone=(0.2,), peer=peer)
    expected = ["scaling/net", "64", "256.0", "320.0", "0.80", "320.0", "0.80", "1.00"]
    assert cells(scaling_section([result]), "scaling/net") == expected + last


def test_strategies_print_examples_per_second_and_failures() -> None:
    table = StrategyTable("strategies/net", "net", 32, (subject("single", [16, 16]), subject("sync", failure="ended")))
    text = strategies_section([table])
    assert "| net | single | 16 | 16-16 | 2,000 |" in text
    assert "| net | sync | ended |  |  |" in text


def test_the_report_has_the_versions_of_strategies_and_of_their_peer() -> None:
    strategies = StrategyTable("strategies/net", "net", 32, (subject("single", [16], versions={"runner": "0.1"}),))
    peer = subject("ddp", [800], versions={"torch": "2.13"})
    scaling = ScalingResult("scaling/net", "net", 64, (0.5,), ((0.4,),), alone=(0.2,), peer=peer)
    text = Report({}, strategies=[strategies], scaling=[scaling]).markdown()
    assert "- versions: runner 0.1, torch 2.13" in text


def test_every_precision_has_a_tolerance() -> None:
    assert {*PRECISIONS, *ON_GPUS} == set(TOLERANCES)


def test_a_page_states_all_options_of_its_command_but_not_its_output() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks simulator")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--profile")
    parser.add_argument("--cases", nargs="+", default=["mlp"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output")
    for given, stated in (
        (["--output", "page.md"], "--cases mlp --rounds 5"),
        (["--profile", "my file", "--cases", "lenet", "smoke"], "--profile 'my file' --cases lenet smoke --rounds 5"),
    ):
        assert command_line(parser, parser.parse_args(given)) == f"`python -m benchmarks simulator {stated}`"
