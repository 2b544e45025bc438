from __future__ import annotations

from dataclasses import replace

from runner.records.provenance import Provenance
from runner.records.record import summary_tags
from runner.records.summary import Summary

SUMMARY = Summary("0123", "failed", "", "/runs/1", "single", 1, {"python": "3.11.7", "numpy": "2.3.0"}, "Linux", "CPU")


def test_what_is_known_is_a_tag_and_nothing_else() -> None:
    known = {
        "runner.run_dir": "/runs/1",
        "runner.cpu_model": "CPU",
        "runner.system": "Linux",
        "runner.versions": "python 3.11.7, numpy 2.3.0",
    }
    assert summary_tags(SUMMARY) == known
    more = replace(
        SUMMARY, git_commit="c0ffee", emulated="slow", repeats="4567", provenance=Provenance("runner x", "/", 2, 8)
    )
    assert summary_tags(more) == known | {
        "mlflow.source.git.commit": "c0ffee",
        "runner.emulated": "slow",
        "runner.repeats": "4567",
        "runner.command_line": "runner x",
        "runner.working_directory": "/",
        "runner.cores": "2",
        "runner.memory_bytes": "8",
    }
