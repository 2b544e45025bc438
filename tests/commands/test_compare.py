"""The comparison of two runs lists different values by name and counts equal values."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli import main
from runner.commands.compare import differences
from runner.config.configuration import dump
from runner.records.provenance import CodeState, Provenance
from runner.records.run_directory import RunDirectory
from runner.records.stored_run import StoredRun, read_run
from runner.records.summary import Summary
from tests.refusal import Capture
from tests.small_runs import small_config

CODE = CodeState("/home/project", "a" * 40, "", 0, [])
SUMMARY = Summary(
    run_id="",
    status="finished",
    config_hash="",
    output_dir="",
    strategy="single",
    workers=1,
    versions={"numpy": "2.3.0", "python": "3.11.7"},
    platform="Linux",
    cpu_model="CPU",
    git_commit="a" * 40,
    provenance=Provenance("runner", "/home", 2, 8 << 30, [CODE]),
    final={"test/accuracy": 0.5, "perf/step_time_s": 1.0, "train/seconds": 1.0},
    weights_sha256="f" * 64,
)


def make_run(path: Path, summary: Summary | None, *overrides: str) -> StoredRun:
    """Create the directory of a run with this configuration and summary, and read the run from it."""
    with RunDirectory.open(path, resume=False) as directory:
        directory.config_yaml.write_text(dump(small_config(*overrides)))
        if summary is not None:
            replace(summary, run_id=directory.run_id).write(directory.summary_json)
    return read_run(path)


def rows(first: StoredRun, second: StoredRun) -> dict[str, tuple[str, str]]:
    """Return a dict that maps "topic: name" of each difference to its values in the two runs."""
    return {f"{each.topic}: {row[0]}": row[1:] for each in differences(first, second) for row in each.rows}


def test_equal_runs_have_no_differences(tmp_path: Path) -> None:
    found = differences(make_run(tmp_path / "a", SUMMARY), make_run(tmp_path / "b", SUMMARY))
    assert [each.topic for each in found] == ["configuration", "code", "versions and machine", "results"]
    assert all(not each.rows and each.equal > 2 for each in found)


def test_differences_are_listed_by_name(tmp_path: Path) -> None:
    changed = replace(CODE, diff_sha256="b" * 64, diff_bytes=1200, untracked=["new.py"])
    other = replace(
        SUMMARY,
        versions={"numpy": "2.4.0", "python": "3.11.7"},
        git_commit="a" * 40 + "-dirty",
        provenance=Provenance("runner", "/home", 4, 8 << 30, [changed]),
        final={"test/accuracy": 0.625, "perf/step_time_s": 2.0, "train/seconds": 2.0},
        weights_sha256=None,
        plugins={"own.py": "c" * 64},
    )
    first = make_run(tmp_path / "a", SUMMARY)
    second = make_run(tmp_path / "b", other, "optimizer.lr=0.5", "model.hidden=[7]", "schedule=step")
    found = rows(first, second)
    assert found["configuration: optimizer.lr"] == ("0.03", "0.5")
    assert found["configuration: model.hidden"] == ("[8]", "[7]")
    assert found["configuration: schedule.boundaries"][0] == "-"
    assert found["code: commit of runner"] == ("a" * 40, "a" * 40 + "-dirty")
    assert found["code: project changes"] == ("-", "1,200 bytes, bbbbbbbbbbbb")
    assert found["code: project untracked"] == ("-", "new.py")
    assert found["code: plugin own.py"] == ("-", "c" * 12)
    assert found["versions and machine: versions.numpy"] == ("2.3.0", "2.4.0")
    assert found["versions and machine: cores"] == ("2", "4")
    assert found["results: final.test/accuracy"] == ("0.5", "0.625")
    assert found["results: weights_sha256"] == ("f" * 64, "-")
    assert "results: final.perf/step_time_s" not in found
    assert "results: final.train/seconds" not in found
    assert "configuration: seed" not in found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((0.51234567, 0.6), ("0.5123", "0.6")),
        ((1.23456789e-9, 98765.4321), ("1.235e-09", "9.877e+04")),
        ((0.123456781, 0.123456789), ("0.12345678", "0.12345679")),
        ((0.1, math.nextafter(0.1, 1)), ("0.1", "0.10000000000000002")),
        ((0.25, None), ("0.25", "-")),
        ((float("nan"), 1.0), ("nan", "1")),
    ],
)
def test_rounded_results_differ(values: tuple[float, float | None], expected: tuple[str, str], tmp_path: Path) -> None:
    first, second = (
        make_run(tmp_path / name, replace(SUMMARY, final={} if value is None else {"test/loss": value}))
        for name, value in zip("ab", values, strict=True)
    )
    assert rows(first, second)["results: final.test/loss"] == expected
    assert "results: steps" not in rows(first, second)


def test_configured_numbers_are_compared_and_printed_with_all_digits(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / lr, SUMMARY, f"optimizer.lr={lr}") for lr in ("0.1234567", "0.1234568"))
    assert rows(first, second)["configuration: optimizer.lr"] == ("0.1234567", "0.1234568")


def test_a_killed_run_has_a_configuration_and_no_results(tmp_path: Path) -> None:
    found = rows(make_run(tmp_path / "a", SUMMARY), make_run(tmp_path / "b", None))
    assert found["results: status"] == ("finished", "active or killed")
    assert not [name for name in found if name.startswith("configuration")]


def test_the_command_prints_a_table_and_the_number_of_equal_values(folder: Path, capsys: Capture) -> None:
    first, second = make_run(folder / "outputs" / "a", SUMMARY), make_run(folder / "b", SUMMARY, "seed=7")
    assert main(["compare", first.run_id[:10], "b"]) == 0
    header, directories, seed, _, equal = capsys.readouterr().out.splitlines()
    assert header.split() == [first.run_id, second.run_id]
    assert directories.split() == ["directory", str(first.path), str(second.path)]
    assert seed.split() == ["configuration:", "seed", "0", "7"]
    assert equal.startswith("equal entries: ")
    assert " of versions and machine, " in equal


def test_values_that_look_secret_are_not_printed(folder: Path, capsys: Capture) -> None:
    for name, token in (("a", "first"), ("b", "second")):
        run = make_run(folder / name, SUMMARY)
        store = {"token": token, "uri": f"http://me:{token}@host"}
        run.config_yaml.write_text(json.dumps({"store": store, "n": [name]}))
    assert main(["compare", "a", "b"]) == 0
    output = capsys.readouterr().out
    assert "configuration: n" in output
    assert "first" not in output
    assert "token" not in output


def test_long_values_are_shortened_in_the_middle(folder: Path, capsys: Capture) -> None:
    for name in ("a", "b"):
        untracked = [f"{name}_file_{number}.py" for number in range(20)]
        code = replace(CODE, untracked=untracked)
        make_run(folder / name, replace(SUMMARY, provenance=Provenance("", "", 1, 1, [code])))
    assert main(["compare", "a", "b"]) == 0
    output = capsys.readouterr().out
    assert "code.diff" not in output, "untracked files are in no diff"
    assert "a_file_0.py, a_file_1.py, a_file_2.py," in output
    assert re.search(r"_18\.py, a_file_19\.py +b_file_0\.py", output)


def test_repositories_with_equal_names_are_distinguished(tmp_path: Path) -> None:
    def at(place: str, **commits: str) -> StoredRun:
        codes = [replace(CODE, folder=f"/home/{parent}/project", commit=c * 40) for parent, c in commits.items()]
        return make_run(tmp_path / place, replace(SUMMARY, provenance=Provenance("", "", 1, 1, codes)))

    both, other, alone = at("a", x="1", y="2"), at("b", x="1", y="3"), at("c", x="1")
    assert rows(both, other) == {"code: y/project commit": ("2" * 40, "3" * 40)}
    assert rows(both, alone)["code: y/project commit"] == ("2" * 40, "-")
    assert "code: x/project commit" not in rows(both, alone)


def test_diff_files_are_named_only_if_they_differ(folder: Path, capsys: Capture) -> None:
    changed = replace(CODE, diff_sha256="b" * 64, diff_bytes=9)
    for name, code in (("a", changed), ("b", replace(changed, commit="c" * 40)), ("c", CODE)):
        make_run(folder / name, replace(SUMMARY, provenance=Provenance("", "", 1, 1, [code])))
    (folder / "a" / "code.diff").write_text("changed")
    assert main(["compare", "a", "b"]) == 0
    output = capsys.readouterr().out
    assert "code: project commit" in output
    assert "code.diff" not in output
    assert main(["compare", "c", "a"]) == 0
    assert capsys.readouterr().out.endswith(f"Uncommitted changes are in: {folder / 'a' / 'code.diff'}\n")
