"""The document about backup workers: every subject's steps, and where the shares of every worker went."""

from contextlib import ExitStack

import pytest

from benchmarks.__main__ import main
from benchmarks.backup import SUBJECTS, Subject, document
from benchmarks.experiments import configuration

RECORD = (
    {"step": 0, "contributors": [0, 1, 2, 3], "dropped": [{"worker": 4, "examples": 8}]},
    {"step": 1, "contributors": [0, 1, 2, 4], "dropped": [{"worker": 3, "examples": 8}]},
    {"step": 2, "contributors": [0, 1, 2, 4], "dropped": []},
)


def test_steps_and_shares_are_counted_by_subject_and_worker() -> None:
    times = ([0.1, 0.1, 0.4], [1.0, 1.0, 2.5], [0.5, 0.5, 0.5])
    records = ((), (), RECORD)
    subjects = [Subject(*each) for each in zip(SUBJECTS, times, records, ["slow"] * 3, strict=True)]
    text = document(subjects, "x y")
    assert "- emulated: slow\n- command: `x y`\n" in text
    assert "| 4 workers | 3 | 1000 | 1000-2200 | 1500 | 21 | 1.00 |" in text
    assert "| 4 workers and 1 backup worker | 3 | 500 | 500-500 | 500 | 64 | 0.50 |" in text
    assert "## Shares of 3 steps" in text
    assert "| 0 | 3 | 0 | 0 | 0 |" in text
    assert "| 3 | 1 | 1 | 8 | 1 |" in text
    assert "| 4 | 2 | 1 | 8 | 0 |" in text


def test_a_turn_is_timed_but_for_its_first_steps_and_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """On real processes, three of them workers."""
    strategy = ["parallelism=sync_data", "parallelism.combine=parameter_server", "parallelism.backup_workers=1"]
    monkeypatch.setattr("benchmarks.backup.SETTLING", 2)
    with ExitStack() as stack:
        subject = Subject("backup")
        subject.start(["model=mlp", "data=digits", "tracking=none", "cluster.threads_per_worker=1", *strategy], stack)
        subject.take_turn(3)
        subject.take_turn(3)
    assert len(subject.seconds) == 6
    assert [line["step"] for line in subject.record] == list(range(10))
    assert all(len(line["contributors"]) == 2 for line in subject.record)


@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_compared_cases_can_be_configured(name: str) -> None:
    assert configuration(["model=resnet_cifar", "data=synthetic", *SUBJECTS[name]]).parallelism.workers == 4


def test_the_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["backup", "--help"])
    assert "python -m benchmarks backup" in capsys.readouterr().out
